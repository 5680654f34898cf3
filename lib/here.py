"""Is this machine ready for a lab? Silent where all is there, and a line for what a student should know.

    laptop, cluster     something is missing, or not in the range of pyproject.toml    error: `make setup`
    Colab, Kaggle       the same                                                       installed; what is in range stays
    not Linux           what it does not tell (lib/linux.py)                           said
    GPUs                "2 x Tesla T4: NCCL on 1 to 2 ranks, gloo on the CPU beyond."

The first cell of every lab calls `ready`; where lib is not there at all, it fetches the repository first.
"""

import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from lib import linux

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
RENTED = {"COLAB_RELEASE_TAG": "Colab", "KAGGLE_KERNEL_RUN_TYPE": "Kaggle"}  # what each sets in the environment
SERVERS = ("jupyterlab", "nbval")  # no lab imports them: a notebook may have another server, or run in an editor


def ready() -> None:
    """Install what is missing on Colab and Kaggle, say which GPUs there are and what they run, and prepare to launch.

    Raises RuntimeError, with what is missing and the next move, where nothing may be installed or it failed.
    """
    place = next((name for variable, name in RENTED.items() if variable in os.environ), None)
    if wrong := missing():
        if not place:
            raise RuntimeError(f"the labs need {_listed(wrong)}. Run `make setup`, then restart the kernel.")
        _install(place, wrong)
    from lib import gpus  # needs torch, and so does what launches
    from lib.launch import warm

    found = gpus.working()
    for line in [*said(found), *filter(None, [linux.missing()])]:
        print(line)
    warm.prepare(bool(found.names))


def missing() -> dict[str, str]:
    """{requirement of pyproject.toml that a lab needs: the version here, or "nothing"}; {} where that file is not."""
    from packaging.requirements import Requirement

    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"] if PROJECT.exists() else {}
    wanted = map(Requirement, project.get("dependencies", []))
    here = {one: _version(one.name) for one in wanted if one.name not in SERVERS}
    return {str(one): v or "nothing" for one, v in here.items() if not (v and one.specifier.contains(v, True))}


def said(found) -> list[str]:
    """What `found`, a lib.gpus.Gpus, means for a lab; nothing for a machine without GPUs."""
    lines, n = [], len(found.names)
    if n:
        lines.append(f"{found}: NCCL on {'1 rank' if n == 1 else f'1 to {n} ranks'}, gloo on the CPU beyond.")
    if n and not found.bfloat16:
        lines.append("No bfloat16 units on these GPUs: what computes in bfloat16 is emulated there, and slow.")
    return [*lines, *([f"Not used: {found.why}"] if found.why else [])]


def _version(name):
    try:
        return importlib.metadata.version(name).split("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return None


def _install(place, wrong):
    print(f"{place}: installing {_listed(wrong)}; about a minute")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wrong]
    done = subprocess.run(command, capture_output=True, text=True)
    importlib.invalidate_caches()
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        switch = " On Kaggle, switch Internet on in the notebook's settings." if place == "Kaggle" else ""
        raise RuntimeError(f"pip could not install {_listed(wrong)}: {last}.{switch}")
    if loaded := [name for name in map(_name, wrong) if name in sys.modules]:
        replaced = f"another {' and '.join(loaded)} was installed than this kernel has loaded"
        raise RuntimeError(f"{replaced}: restart the kernel, run this again")


def _name(requirement):
    return re.match(r"[\w-]+", requirement).group()


def _listed(wrong):
    return ", ".join(f"{one} (here: {version})" for one, version in wrong.items())
