"""Executes a solution notebook and stores its outputs, so that the same sources give the same
bytes.

We do not store what would differ from run to run: the times of cells (except their sum, rounded:
see hours.py) and the state of widgets. The parts in which a stream arrived are joined.
Execution counts are 1, 2, 3, ... The kernel uses the interpreter that runs this program, even if
another one is registered as "python3" on the machine. Its working directory is the notebook's
folder. LAB_STATIC=1 asks for static figures, and LAB_CLAIMS=hold requires that each measurement
shows what its sentence says.
"""

import os
import subprocess
import time
from pathlib import Path

from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from nbval.kernel import CURRENT_ENV_KERNEL_NAME, NbvalKernelspecManager

from . import hours, notebook
from .notebook import CourseError


class ThisPython(AsyncKernelManager):
    """Starts kernels with the interpreter that runs this program."""

    def _kernel_spec_manager_default(self) -> NbvalKernelspecManager:
        return NbvalKernelspecManager()


def execute(root: Path, lab: str, cell_timeout: int = 600) -> bool:
    """Execute solutions/`lab`.ipynb in place. Returns True if the file has changed.

    cell_timeout: seconds. Raises CourseError if a cell raises, hangs or kills the kernel; the file
    then stays as it was.
    """
    path = notebook.solution_path(root, lab)
    nb = notebook.read(path)
    try:
        seconds = run(nb, path.parent, cell_timeout)
    except CourseError as error:
        raise CourseError(f"{path.name}, {error}") from None
    notebook.normalise(nb)
    hours.store(nb, seconds)
    return notebook.write(nb, path)


def run(
    nb: NotebookNode, folder: Path, cell_timeout: int, claims: str = "hold"
) -> dict[str, float]:
    """Execute all cells of `nb` in place, in a fresh kernel that works in `folder`.

    claims: LAB_CLAIMS, see lib/measuring/rounds.py.

    Returns {cell id: seconds}. Raises CourseError, which names the cell, if one raises, hangs or
    kills the kernel.
    """
    started = []  # cells, in order; the last is the one that failed
    times = {}  # {cell id: when it began, or how long it took if it has ended}

    def begin(cell, cell_index):
        started.append(cell)
        times[cell.id] = time.monotonic()

    def end(cell, cell_index, execute_reply):
        times[cell.id] = time.monotonic() - times[cell.id]

    client = NotebookClient(
        nb,
        timeout=cell_timeout,
        kernel_name=CURRENT_ENV_KERNEL_NAME,
        kernel_manager_class=ThisPython,
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(folder)}},
        on_cell_start=begin,
        on_cell_executed=end,
    )
    for cell in nb.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    try:
        env = {**os.environ, "LAB_STATIC": "1", "LAB_CLAIMS": claims}
        client.execute(env=env, stderr=subprocess.DEVNULL)  # drops the kernel's own log
    except (CellExecutionError, CellTimeoutError) as error:
        raise CourseError(f"cell {started[-1].id!r}: {error}") from None
    except DeadKernelError:
        raise CourseError(
            f"cell {started[-1].id!r}: the kernel died (a crash, os._exit, or out of memory)"
        ) from None
    return {cell.id: times.get(cell.id, 0.0) for cell in nb.cells if cell.cell_type == "code"}
