"""A pytest plugin that does what nbval itself does not: it notices a dead kernel, stops after a
cell that hangs, and writes down what each cell did.

pytest loads it (`-p lib.course.nbval_plugin`) in the process that `nbval_run.py` starts. After each
code cell, the plugin appends one JSON line to the file named by LAB_CELLS:

    {"cell": id, "outcome": "passed" | "failed" | "skipped" | "timeout" | "kernel died",
     "message": one line, "report": what the cell's check appended to LAB_REPORT meanwhile,
     "compared": true if nbval passed the outputs, and would have noticed
                 a wrong line that was planted in the stored ones}

Without it, nbval waits for a dead kernel until the cell's timeout has passed, and after a timeout
it continues without reporting failures. With the plugin, a dead kernel and a timeout both end the
session, and nbval_run's caller decides what to run again.
"""

import contextlib
import copy
import functools
import json
import os
import queue
import re
import subprocess
import time
from pathlib import Path

import nbformat
import nbval.kernel
import psutil
import pytest
from nbval.kernel import RunningKernel
from nbval.plugin import IPyNbCell, coalesce_streams

from . import nbval_run, notebook

PLANTED = "planted: nbval must notice this line\n"
POLL = 0.5  # seconds between two checks whether a silent kernel is alive
REPORT_BYTES = 1_000_000
FILE = re.compile(r" \(\w+\.py, line \d+\)$")  # IPython's name of a cell, in a SyntaxError
COLOURS = re.compile(r"\x1b\[[\d;]*m")
# Python's own processes that a kernel needs to start ranks
HELPERS = "multiprocessing.resource_tracker", "multiprocessing.forkserver"
# Run in the kernel, because a child that has ended counts as a process until its parent reaps it.
REAP = """
def _reap(os=__import__("os")):
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
_reap()
del _reap
"""


class KernelDied(Exception):
    """The kernel's process has ended while a cell ran."""


def await_reply(kernel: RunningKernel, msg_id: str, timeout: float | None = None) -> None:
    """Replaces nbval's method. It raises queue.Empty after `timeout` seconds, as nbval's does, and
    KernelDied as soon as the kernel has died."""
    deadline = time.monotonic() + (timeout or float("inf"))
    while True:
        try:
            message = kernel.get_message(stream="shell", timeout=POLL)
        except queue.Empty:
            if not kernel.is_alive():
                raise KernelDied from None
            if time.monotonic() > deadline:
                raise
            continue
        if message["parent_header"].get("msg_id") == msg_id:
            return


def compare_twice(
    item: IPyNbCell, outputs: list, stored: list, compare=IPyNbCell.compare_outputs
) -> bool:
    """Replaces nbval's method and returns the same. It also sets item.compared, which says whether
    nbval would have noticed a line planted in the stored outputs."""
    if not compare(item, outputs, stored):
        return False
    planted = nbformat.v4.new_output("stream", name="stdout", text=PLANTED)
    item.compared = not compare(item, outputs, coalesce_streams([*copy.deepcopy(stored), planted]))
    return True


def pytest_configure(config: pytest.Config) -> None:
    RunningKernel.await_reply = await_reply
    IPyNbCell.compare_outputs, IPyNbCell.compared = compare_twice, False
    # What a process of the notebook writes directly to file descriptor 1 belongs to no cell, and
    # without a bound it could fill the disk.
    quiet = functools.partial(nbval.kernel.start_new_kernel, stdout=subprocess.DEVNULL)
    nbval.kernel.start_new_kernel = quiet


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Make a cell that raises fail. The tag on a student's checks lets Run All continue, but would
    also make nbval accept the exception."""
    for item in items:
        if isinstance(item, IPyNbCell):
            item.options["check_exception"] = False


def pytest_collection_finish(session: pytest.Session) -> None:
    """Delete the graded notebook, because all its cells have been read. Otherwise the student's
    code, which runs in its folder, could read the checks and hidden tests in it."""
    if "LAB_WORK" in os.environ:
        for path in {item.path for item in session.items}:
            path.unlink()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    report = yield
    failed_to_start = call.when == "setup" and call.excinfo is not None
    if isinstance(item, IPyNbCell) and (call.when == "call" or failed_to_start):
        outcome, message = _outcome(item, call)
        line = {
            "cell": item.cell.get("id"),
            "outcome": outcome,
            "message": message[:2000],
            "report": _new_report_lines(item),
            "compared": item.compared,
        }
        with open(os.environ["LAB_CELLS"], "a", encoding="utf-8") as book:
            book.write(json.dumps(line) + "\n")
        if outcome in ("timeout", "kernel died"):
            item.session.shouldstop = outcome
        elif "LAB_WORK" in os.environ and notebook.role(item.cell) == "check":
            _end_what_is_left(item.parent.kernel)
    return report


def _end_what_is_left(kernel: RunningKernel) -> None:
    """End the processes that an answer has left running, because they would use memory and CPU time
    that the next exercise needs."""
    pid = kernel.km.provisioner.pid
    spared = {os.getpid(), *(process.pid for process in psutil.Process().parents()), pid}
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(pid).children():
            with contextlib.suppress(psutil.Error):
                if any(name in word for word in child.cmdline() for name in HELPERS):
                    spared.add(child.pid)
    if nbval_run.end_all(os.environ[nbval_run.NAME], spared=spared):
        with contextlib.suppress(queue.Empty, KernelDied):
            kernel.await_reply(kernel.execute_cell_input(REAP, allow_stdin=False), timeout=10)


def _outcome(item: IPyNbCell, call: pytest.CallInfo) -> tuple[str, str]:
    error = call.excinfo.value if call.excinfo else None
    limit = item.config.option.nbval_cell_timeout
    if (
        isinstance(error, KernelDied)
        or "waiting for output" in str(error)
        or "Kernel dead" in str(error)
    ):
        return (
            "kernel died",
            "the kernel died while this cell ran (os._exit, exit(), a crash, or out of memory)",
        )
    # even if the cell caught the interrupt and seems to have passed
    if item.parent.timed_out:
        return "timeout", f"ran longer than {limit:g} s and was stopped"
    if error is None:
        return "passed", ""
    if isinstance(error, pytest.skip.Exception):
        return "skipped", "skipped by a tag or a comment"
    raised = [output for output in item.test_outputs or [] if output.output_type == "error"]
    return "failed", _told(raised[-1]) if raised else str(error)


def _told(raised: nbformat.NotebookNode) -> str:
    """What was raised, with the last line of its traceback that is in a notebook cell: "NameError:
    ..., line 3: return y"."""
    said, text = (
        f"{raised.ename}: {FILE.sub('', raised.evalue)}",
        COLOURS.sub("", "\n".join(raised.traceback)),
    )
    places = [*re.finditer(r"^ *Cell In ?\[\d+\], line (\d+)", text, re.MULTILINE)]
    # a CheckFailed has only the check's own line in its traceback, and its message says where
    if not places or raised.ename == "CheckFailed":
        return said
    number, below = places[-1][1], text[places[-1].end() :]
    source = re.search(rf"^-*> ?{number} (.+)$", below, re.MULTILINE) or re.match(
        r"\n    (\S.*)", below
    )
    return f"{said}, line {number}" + (f": {source[1].strip()}" if source else "")


def _new_report_lines(item: IPyNbCell) -> list[dict]:
    """What was appended to LAB_REPORT since the last cell, without lines that are not JSON
    objects."""
    path = Path(os.environ["LAB_REPORT"])
    if not path.exists():
        return []
    read_to = item.config.stash.get(READ_TO, 0)
    with path.open("rb") as book:
        book.seek(read_to)
        new = book.read(REPORT_BYTES)
        item.config.stash[READ_TO] = book.seek(0, os.SEEK_END)
    lines = []
    for text in new.decode("utf-8", "replace").splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict):
            lines.append(line)
    return lines


READ_TO = pytest.StashKey[int]()
