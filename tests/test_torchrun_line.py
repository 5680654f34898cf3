"""The line that starts a job on many nodes, taken from Lab 6 as it stands there and pasted into a
shell: it runs.

Two nodes are two shells on this machine, so node0 is localhost, and another port is taken: nothing
else is changed.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import own_processes

from lib.course import notebook

ROOT = Path(__file__).parents[1]
SCRIPT = """
import os, pathlib
pathlib.Path(f"rank{os.environ['RANK']}").write_text(os.environ["WORLD_SIZE"])
"""


def the_line():
    cells = notebook.read(notebook.solution_path(ROOT, "lab6_hybrid_3d")).cells
    text = next(cell.source for cell in cells if cell.id == "job-nodes")
    (line,) = re.findall(r"^```\n(torchrun .*?)^```$", text, re.MULTILINE | re.DOTALL)
    return line


def test_the_line_runs_on_two_nodes_and_numbers_all_ranks(tmp_path):
    line = the_line()
    nodes, each = (
        int(re.search(rf"--{option} (\d+)", line)[1]) for option in ("nnodes", "nproc-per-node")
    )
    assert "node0:29500" in line
    (tmp_path / "train.py").write_text(SCRIPT)
    env = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
    }
    paste = lambda: subprocess.Popen(["bash", "-e"], cwd=tmp_path, env=env, stdin=subprocess.PIPE,
    text=True,
                                     stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                     start_new_session=True)  # fmt: skip
    with own_processes.own_port() as port:
        shells = [paste() for _ in range(nodes)]
        for shell in shells:  # both before either is waited for: they meet
            shell.stdin.write(line.replace("node0:29500", f"localhost:{port}"))
            shell.stdin.close()
            shell.stdin = None
        try:
            said = [shell.communicate(timeout=90)[0] for shell in shells]
        finally:
            for shell in shells:  # and what it has started
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(shell.pid, signal.SIGKILL)
    assert [shell.returncode for shell in shells] == [0] * nodes, said
    ranks = sorted(int(path.name.removeprefix("rank")) for path in tmp_path.glob("rank*"))
    assert ranks == list(range(nodes * each)), said
    assert {path.read_text() for path in tmp_path.glob("rank*")} == {str(nodes * each)}


def test_the_script_for_slurm_and_the_line_have_the_same_options():
    cells = notebook.read(notebook.solution_path(ROOT, "lab6_hybrid_3d")).cells
    script = next(cell for cell in cells if cell.id == "job-slurm").outputs[0].text
    options = set(re.findall(r"--[a-z-]+", the_line()))
    assert options <= set(re.findall(r"--[a-z-]+", script))
