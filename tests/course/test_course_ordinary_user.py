"""Shutting in as an ordinary user: the tests that root runs, once more without root's rights.

Python, its packages and the repository may lie where only root can look. In a mount namespace of
its own each folder that is closed to others is replaced by an empty one, through which what is
needed can be seen:

    /root (closed)    ->    /root (open, empty)
      .pyenv                  .pyenv, bound
      secrets
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from lib.course.notebook import ROOT

pytestmark = pytest.mark.slow
NOBODY = 65534


def closed(path):
    """The outermost folder above `path` that others may not pass through, or None."""
    for folder in [*reversed(path.parents), path]:
        if not folder.stat().st_mode & 0o001:
            return folder
    return None


def script(needed, kept):
    """Shell commands that let everyone reach the paths `needed`. kept: an open folder, to
    bind them to meanwhile."""
    ways = {path: folder for path in needed if (folder := closed(path)) is not None}
    lines = ["set -e"]
    for number, path in enumerate(ways):
        lines += [f"mkdir {kept}/{number}", f"mount --bind '{path}' {kept}/{number}"]
    for folder in dict.fromkeys(ways.values()):
        lines += [f"mount -t tmpfs tmpfs '{folder}'", f"chmod 755 '{folder}'"]
    for number, path in enumerate(ways):
        lines += [f"mkdir -p '{path}'", f"mount --bind {kept}/{number} '{path}'"]
    return "\n".join([*lines, 'exec "$@"'])


@pytest.mark.skipif(
    sys.platform != "linux"
    or os.geteuid() != 0
    or not all(map(shutil.which, ("unshare", "setpriv"))),
    reason="not run: only root on Linux, with util-linux, can become another user here",
)
def test_what_holds_for_root_holds_for_an_ordinary_user():
    with tempfile.TemporaryDirectory(prefix="lab-test-") as at:
        os.chmod(at, 0o755)
        kept, theirs = Path(at, "kept"), Path(at, "theirs")
        for folder in (kept, theirs, theirs / "home", theirs / "tmp"):
            folder.mkdir()
            folder.chmod(0o777)
        done = as_nobody(kept, theirs, "tests/course/test_course_sandbox.py")
    assert done.returncode == 0, done.stdout + done.stderr
    skipped = [
        line
        for line in done.stdout.splitlines()
        if line.startswith("SKIPPED") and "only root" not in line
    ]
    assert " passed" in done.stdout and all(
        "not run: --sandbox bubblewrap" in line for line in skipped
    ), done.stdout
    assert not (skipped and shutil.which("bwrap")), done.stdout


def as_nobody(kept, theirs, *tests):
    """pytest on `tests`, by a user who owns only what is in `theirs`."""
    needed = dict.fromkeys(Path(path).resolve() for path in (sys.base_prefix, sys.prefix, ROOT))
    become = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    pytest_ = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-rs",
        "-p",
        "no:cacheprovider",
        f"--basetemp={theirs}/pytest",
    ]
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    env |= {"HOME": f"{theirs}/home", "TMPDIR": f"{theirs}/tmp", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [
        "unshare",
        "--mount",
        "sh",
        "-c",
        script(needed, kept),
        "sh",
        *become,
        *pytest_,
        *tests,
    ]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
