"""Execute a solution notebook and store its outputs, so that the same sources give the same bytes.

What would differ from run to run is not stored: no timing metadata, no widget state, streams as one
piece whatever the pieces they arrived in; execution counts are 1, 2, 3, ... The kernel is this
Python (not whatever is registered as "python3" on the machine), it works in the notebook's folder,
LAB_STATIC=1 asks figures to be static, and LAB_CLAIMS=hold that what is measured shows what its
sentence says.
"""

import os
import subprocess
from pathlib import Path

from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from nbval.kernel import CURRENT_ENV_KERNEL_NAME, NbvalKernelspecManager

from . import notebook
from .notebook import CourseError


class ThisPython(AsyncKernelManager):
    """Starts kernels with the interpreter that runs us."""

    def _kernel_spec_manager_default(self) -> NbvalKernelspecManager:
        return NbvalKernelspecManager()


def execute(root: Path, lab: str, cell_timeout: int = 600) -> bool:
    """Execute solutions/`lab`.ipynb in place; returns whether the file changed.

    cell_timeout: seconds. Raises CourseError, the file left as it was, if a cell raises, hangs or
    kills the kernel.
    """
    path = notebook.solution_path(root, lab)
    nb = notebook.read(path)
    try:
        run(nb, path.parent, cell_timeout)
    except CourseError as error:
        raise CourseError(f"{path.name}, {error}") from None
    notebook.normalise(nb)
    return notebook.write(nb, path)


def run(nb: NotebookNode, folder: Path, cell_timeout: int) -> None:
    """Execute all cells of `nb` in place, in a fresh kernel that works in `folder`."""
    started = []  # cells, in order; the last is the one that failed
    client = NotebookClient(
        nb,
        timeout=cell_timeout,
        kernel_name=CURRENT_ENV_KERNEL_NAME,
        kernel_manager_class=ThisPython,
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(folder)}},
        on_cell_start=lambda cell, cell_index: started.append(cell),
    )
    for cell in nb.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    try:
        env = {**os.environ, "LAB_STATIC": "1", "LAB_CLAIMS": "hold"}
        client.execute(env=env, stderr=subprocess.DEVNULL)  # the kernel's own log
    except (CellExecutionError, CellTimeoutError) as error:
        raise CourseError(f"cell {started[-1].id!r}: {error}") from None
    except DeadKernelError:
        raise CourseError(
            f"cell {started[-1].id!r}: the kernel died (a crash, os._exit, or out of memory)"
        ) from None
