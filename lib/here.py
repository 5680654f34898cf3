"""Checks whether this machine is ready for a lab. It prints nothing if all is well, and otherwise
one line for each thing that a student should know. The columns of the table are the situation, what
`ready` looks for in it, and what it then does.

    laptop, cluster     packages missing, or not in pyproject.toml's    an error that says to run
                        range                                           `make setup`
    Colab, Kaggle       the same                                        they are installed, all
                                                                        others stay as they are
    not Linux           the system does not offer what lib/linux.py     a line
                        reads
    GPUs                which of them work                              up to three lines, such as
                                                                        "2 x Tesla T4: NCCL on 1 to
                                                                        2 ranks"
    another clone       notebook and lib belong to different clones     a line
    labs/ and its copy  the notebook is the one in labs/, or a copy of  a line
                        another edition

The first cell of every lab calls `ready`. If lib cannot be found and the course has an address,
that cell fetches the repository first. It is not an error if lib belongs to another clone, because
the lab may well work with it. The line tells the student which lib is in use, in case something
fails later.
"""

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from lib import linux

COURSE = Path(__file__).parents[1]
PROJECT = COURSE / "pyproject.toml"
# {a variable that a hosted notebook service sets in the environment: the service}
RENTED = {"COLAB_RELEASE_TAG": "Colab", "KAGGLE_KERNEL_RUN_TYPE": "Kaggle"}
# not checked, because no lab imports them, and a notebook may also run in another server or editor
SERVERS = ("jupyterlab", "nbval")


def ready() -> None:
    """Install missing packages on Colab and Kaggle, print what a student should know, and start a
    background process that imports what ranks need, so that they start quickly.

    Raises RuntimeError, which says what to do, in three cases: a package is missing or too old on
    any other machine, the installation fails, or this kernel has already imported a package that
    was replaced.
    """
    place = next((name for variable, name in RENTED.items() if variable in os.environ), None)
    if wrong := missing():
        if not place:
            raise RuntimeError(
                f"the labs need {_listed(wrong)}. Run `make setup`, then restart the kernel."
            )
        _install(place, wrong)
    _show_ranks_the_way()
    from lib.backend import gpus  # imported here, because both of these need torch
    from lib.launch import warm

    found = gpus.working()
    for line in [*about_files(opened()), *said(found), *filter(None, [linux.missing()])]:
        print(line)
    warm.prepare(bool(found.names))


def missing() -> dict[str, str]:
    """{requirement of pyproject.toml that is not met: the installed version, or "nothing"}; {} if
    all are met, or if there is no such file. The packages in SERVERS are not checked."""
    from packaging.requirements import Requirement

    project = (
        tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"] if PROJECT.exists() else {}
    )
    wanted = map(Requirement, project.get("dependencies", []))
    here = {one: _version(one.name) for one in wanted if one.name not in SERVERS}
    return {
        str(one): v or "nothing"
        for one, v in here.items()
        if not (v and one.specifier.contains(v, True))
    }


def said(found) -> list[str]:
    """Lines that say what `found`, a lib.backend.gpus.Gpus, means for a lab; [] for a machine
    without GPUs."""
    lines, n = [], len(found.names)
    if n:
        lines.append(
            f"{found}: NCCL on {'1 rank' if n == 1 else f'1 to {n} ranks'}, gloo on the CPU for "
            f"more."
        )
    if n and not found.bfloat16:
        lines.append(
            "These GPUs have no bfloat16 units, so computations in bfloat16 are emulated and slow."
        )
    return [*lines, *([f"Not used: {found.why}"] if found.why else [])]


def opened() -> Path | None:
    """The path of this kernel's notebook, or None if the editor does not provide it. VS Code sets a
    variable in the notebook, and Jupyter an environment variable."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    name = getattr(shell, "user_ns", {}).get("__vsc_ipynb_file__") or os.environ.get(
        "JPY_SESSION_NAME", ""
    )
    return Path(name).resolve() if str(name).endswith(".ipynb") else None


def about_files(notebook: Path | None) -> list[str]:
    """What a student should know about the files in use, one sentence for each problem: lib belongs
    to a different clone from the notebook, or this is not the right copy of the lab.

    notebook: what `opened` returns. If it is None, we assume that the notebook is in the working
    directory, and only check the clone.
    """
    folder = notebook.parent if notebook else Path.cwd()
    is_clone = lambda up: (up / "lib/here.py").is_file() and (up / "labs").is_dir()
    clone = next(filter(is_clone, (folder, *folder.parents)), None)
    if clone is None:
        return []
    lines = []
    if not clone.samefile(COURSE):
        text = f"This notebook is in {clone}, but lib comes from {COURSE}"
        lines.append(
            f"{text}: quit JupyterLab and run `make lab` in {clone}, which uses the lib there."
        )
    if notebook is None:
        return lines
    number = re.match(r"lab(\d+)_|", notebook.name)[1] or "0"
    if folder == clone / "labs":
        text = (
            f"labs/{notebook.name} is the course's own file, "
            f"and answers in it would conflict with updates"
        )
        lines.append(
            f"{text}: save it and run `make lab LAB={number}`, which opens your own copy, with "
            f"these answers."
        )
    elif folder == clone / "labs" / "mine":
        newest = _edition(clone / "labs" / notebook.name)
        if newest and newest != _edition(notebook):
            text = f"labs/{notebook.name} is a different edition of this lab"
            lines.append(
                f"{text}: save this notebook, and `make merge LAB={number}` puts your answers into "
                f"it."
            )
    return lines


def _edition(notebook):
    """The edition in a notebook's metadata (lib/course/edition.py); None if it has none, or if
    there is no such notebook."""
    try:
        return json.loads(notebook.read_text(encoding="utf-8"))["metadata"]["course"]["edition"]
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _show_ranks_the_way():
    """Add the course to PYTHONPATH if it is on sys.path, where the first cell adds it after it has
    fetched the repository. Processes that this kernel starts need lib, too, but they inherit
    PYTHONPATH and not sys.path."""
    path = os.environ.get("PYTHONPATH", "")
    if str(COURSE) in sys.path and str(COURSE) not in path.split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(COURSE), path]))


def _version(name):
    try:
        return importlib.metadata.version(name).split("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return None


def _install(place, wrong):
    print(f"{place}: installing {_listed(wrong)}; about a minute")
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        *wrong,
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    importlib.invalidate_caches()
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        switch = (
            " On Kaggle, switch Internet on in the notebook's settings."
            if place == "Kaggle"
            else ""
        )
        raise RuntimeError(f"pip could not install {_listed(wrong)}: {last}.{switch}")
    if loaded := [name for name in map(_name, wrong) if name in sys.modules]:
        replaced = f"this kernel has loaded an older version of {' and '.join(loaded)}"
        raise RuntimeError(f"{replaced}: restart the kernel, and run this cell again")


def _name(requirement):
    return re.match(r"[\w-]+", requirement).group()


def _listed(wrong):
    return ", ".join(f"{one} (here: {version})" for one, version in wrong.items())
