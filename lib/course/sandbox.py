"""Isolates the code of a notebook while it is graded, so that it cannot read the solutions or harm
the machine. This file finds out which sandbox works here, and builds the command that supervisor.py
runs in it.

There are three kinds. We take "bubblewrap" if `bwrap` works here, else "sealed" if Linux namespaces
can be made without it, else "open". The table says what a notebook's code finds in each.

    what                    bubblewrap, sealed (Linux, namespaces)   open (elsewhere;
                                                                     most containers)
    network                 loopback only                            not prevented
    files                   read-only, work bounded; there are only  an ordinary user's:
                            - bubblewrap: Python, lib, /usr, and     not prevented;
                              parts of /etc and /sys (see SYSTEM)    root's: code runs
                            - sealed: these, and all of SHOWN        as a user of its own
    other processes         not seen                                 root's: cannot be touched;
                                                                     else not prevented
    left running            ended by the kernel                      ended by the supervisor
                                                                     (Linux), or by name
    environment             of ours, only the names in ALLOWED       the same
    CPU, memory, file size  per process, and memory of all           per process, of all (macOS:
                                                                     CPU, file size only)

No sandbox prevents what code does inside its own kernel, because the checks run there, too. It can
read lib (whose functions solve the exercises), see a hidden test while that runs, and forge a
report. tamper.py looks for signs of some of this.
"""

import functools
import glob
import importlib.util
import json
import os
import shutil
import site
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from lib import linux

from . import temporary
from .notebook import ROOT, CourseError
from .supervisor import FIRST_USER

# -S: the supervisor needs no installed packages, and starts faster without looking for them
START = [sys.executable, "-S", "-m", "lib.course.supervisor"]
ALLOWED = {
    *("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX"),
    *("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "MKL_NUM_THREADS"),
}
LIBRARIES = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix", "/gnu")
SYSTEM = [
    f"/etc/{name}" for name in ("alternatives", "fonts", "hosts", "ld.so.cache", "ld.so.conf")
]
SYSTEM += [f"/etc/{name}" for name in ("ld.so.conf.d", "localtime", "nsswitch.conf")]
SYSTEM += ["/sys/devices/system"]  # the number of processors
SHOWN = (*LIBRARIES, "/etc", "/sys", "/dev", "/proc")  # in "sealed", all others in / are hidden


@dataclass(frozen=True)
class Limits:
    """What a graded notebook may use. seconds: the CPU time of each process. memory: the bytes of
    memory of each process. processes: how many processes and threads there may be. files: the bytes
    in one file and, unless the sandbox is "open", in all files of a folder that it can write to.
    total: the bytes of memory of all processes together."""

    seconds: int = 1800
    memory: int = 4 * 2**30
    processes: int = 1000
    files: int = 2**30
    total: int = 8 * 2**30


@dataclass(frozen=True)
class Held:
    """A sandbox. how: "bubblewrap", "sealed" or "open". drop: True if root runs notebooks as a user
    of their own. says: a sentence for the person who grades."""

    how: str
    drop: bool
    says: str


def wrap(
    command: list[str],
    env: dict,
    folder: Path,
    notebook: Path,
    limits: Limits,
    hidden: Sequence[Path],
    held: Held,
) -> tuple[list[str], bytes]:
    """Return (a command, its standard input) that runs `command` in the sandbox `held`.

    `command` works in `folder`/work, where it finds a copy of `notebook`. It can also write to
    report.jsonl and cells.jsonl in `folder`. env: variables that it gets besides those in ALLOWED.
    hidden: folders that are empty or absent in the sandbox, as is everything that `command` does
    not need. In "open", nothing is hidden.
    """
    work, books = folder / "work", [folder / "report.jsonl", folder / "cells.jsonl"]
    work.mkdir()
    for book in books:
        book.touch()
    own = [work, *books]
    own += [Path("/dev/shm")] if held.how != "open" and os.path.isdir("/dev/shm") else []
    if held.drop:
        folder.chmod(0o755)
    kept = {key: value for key, value in os.environ.items() if key in ALLOWED}
    home = {"HOME": str(work), "TMPDIR": str(work), "USER": "student", "LOGNAME": "student"}
    task = {
        "command": command,
        "env": {**kept, **home, **env},
        "work": str(work),
        "name": notebook.name,
        "text": notebook.read_text(encoding="utf-8"),
        "writable": [str(book) for book in books],
        "needed": sorted(_needed()),
        "hidden": sorted(_resolved([*hidden, ROOT, Path.home(), *_at_the_top()]) - {"/"}),
        "limits": asdict(limits),
        "sealed": held.how == "sealed",
        "user": FIRST_USER + os.getpid() if held.drop else None,
        "own": [*map(str, own)],
        "parent": None if held.how == "bubblewrap" else os.getpid(),
    }
    start = [*_bubble(task), *START] if held.how == "bubblewrap" else START
    return start, json.dumps(task).encode()


def _needed() -> set[str]:
    """The paths of Python, its packages and lib, all of which a notebook must find even if they are
    in a hidden folder.

    Of the repository, only lib and pyproject.toml are needed. Next to them are the solutions, the
    tests with their answers, and .git with both. A path that is reached through a link, as an
    environment may be, is needed under both of its names.
    """
    paths = os.pathsep.join(os.environ.get(name, "") for name in ("PYTHONPATH", "LD_LIBRARY_PATH"))
    places = [
        sys.prefix,
        sys.base_prefix,
        site.getusersitepackages(),
        *filter(None, paths.split(os.pathsep)),
    ]
    places = {place for place in places if Path(place).resolve() not in (Path("/"), ROOT.resolve())}
    return (
        _resolved(places)
        | {os.path.abspath(p) for p in places}
        | {str(ROOT / "lib"), str(ROOT / "pyproject.toml")}
    )


def _at_the_top() -> list[str]:
    """Folders like /tmp, /var, /mnt, in which nothing is needed except what `_needed` names."""
    return [path for path in glob.glob("/*") if path not in SHOWN and not os.path.islink(path)]


def _resolved(places) -> set[str]:
    return {str(Path(place).resolve()) for place in places}


def _bubble(task: dict) -> list[str]:
    """bwrap's command line, up to the command. The root folder is empty except for what is needed,
    which is read-only."""
    gpus = glob.glob("/dev/nvidia*")
    read = [*LIBRARIES, *SYSTEM, *task["needed"], *(["/sys"] if gpus else [])]
    read = [path for path in read if os.path.exists(path)]
    placed = {path: ["--ro-bind", path, path] for path in read}
    placed |= {
        path: ["--symlink", os.readlink(path), path] for path in LIBRARIES if os.path.islink(path)
    }
    within = [
        path
        for path in task["hidden"]
        if os.path.isdir(path) and any(path.startswith(f"{p}/") for p in read)
    ]
    placed = {path: ["--tmpfs", path] for path in within} | placed
    above = [str(folder) for path in [*placed, task["work"]] for folder in Path(path).parents]
    placed = {path: ["--dir", path] for path in above} | placed
    words = ["bwrap", "--die-with-parent", "--as-pid-1", "--unshare-cgroup-try"]
    words += [f"--unshare-{what}" for what in ("ipc", "net", "pid", "uts")]
    for path in sorted(placed, key=lambda path: path.count("/")):  # outer ones first
        words += placed[path]
    words += ["--proc", "/proc", "--dev", "/dev"]
    for path in gpus:
        words += ["--dev-bind", path, path]
    for path in (task["work"], "/dev/shm"):
        words += ["--size", str(task["limits"]["files"]), "--tmpfs", path]
    for path in task["writable"]:
        words += ["--bind", path, path]
    for path in [*within, "/dev", "/"]:
        words += ["--remount-ro", path]
    return [*words, "--chdir", task["work"], "--"]


@functools.cache
def held(how: str | None = None) -> Held:
    """The strongest sandbox that works on this machine, or `how`. Each is tried by running a
    process in it, except "open" without a user of its own, which always works.

    Raises CourseError if `how` does not work, or if a notebook would run as root, because it could
    then end every process and read every file. Only how="open" allows that.
    """
    root = os.name == "posix" and os.geteuid() == 0
    modes = [
        Held(
            "bubblewrap",
            root,
            "shut in by bubblewrap: no network; of files only Python and lib, to read",
        ),
        Held("sealed", root, "sealed: no network, read-only files, own processes only"),
        *(
            [
                Held(
                    "open",
                    True,
                    "open: limits, and a user of its own; network and files not shut off",
                )
            ]
            if root
            else []
        ),
    ]
    for mode in modes:
        if how in (None, mode.how) and _works(mode):
            return mode
    if how == "open" or (how is None and not root):
        return Held(
            "open",
            False,
            f"open{', as root' if root else ''}: limits; network and files not shut off",
        )
    if how is None:
        raise CourseError(
            "a notebook would run as root here, and could end every process and read every file: "
            f"neither bubblewrap nor namespaces work, and no other user can read {sys.executable}, "
            f"its packages or {ROOT}. Install bubblewrap, put these where all can read them, or "
            "grade as an ordinary user; --sandbox open runs it so"
        )
    raise CourseError(
        f"--sandbox {how} does not work here: without it, the strongest that does is taken"
    )


def _works(mode: Held) -> bool:
    """True if a process can be started in this sandbox here, and can still read Python, nbval and
    lib."""
    if mode.how == "bubblewrap" and not (linux.IS_HERE and shutil.which("bwrap")):
        return False
    look = "import os, sys; sys.exit(not all(os.access(path, os.R_OK) for path in sys.argv[1:]))"
    with temporary.folder("lab-try-") as folder:
        needed = [importlib.util.find_spec("nbval").origin, str(ROOT / "lib" / "course")]
        command = [sys.executable, "-I", "-S", "-c", look, *needed]
        start, task = wrap(command, {}, folder, Path(__file__), Limits(), [], mode)
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        return (
            subprocess.run(
                start, env=env, input=task, capture_output=True, timeout=60, check=False
            ).returncode
            == 0
        )
