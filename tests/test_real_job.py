"""Lab 1's real job, as the notebook writes it: on two nodes, killed there and resumed, it ends as
on one machine.

The script is made from the cells of solutions/lab1_data_parallel.ipynb, with the answer of its own
exercise in it.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import threading
import time

import psutil
import pytest

from tests import two_nodes

ROOT = pathlib.Path(__file__).parent.parent

REASON = two_nodes.available()
NOTEBOOK = ROOT / "solutions" / "lab1_data_parallel.ipynb"
CELLS = [
    "setup",
    "setup-model",
    "overlapped-data-parallel-answer",
    "overlapped-data-parallel-check",
    "job-train",
]
STEPS = 30


def make_script(folder):
    """Run the cells as a kernel does, and have `train` written to folder/train.py."""
    source = {
        cell["id"]: "".join(cell["source"]) for cell in json.loads(NOTEBOOK.read_text())["cells"]
    }
    write = f"launch.as_script(train, 'train.py', 'job', {STEPS}, nproc=2)"
    lines = [
        "import sys",
        "from IPython.core.interactiveshell import InteractiveShell",
        "shell = InteractiveShell.instance()",
        "sys.modules['__main__'] = shell.user_module",
        *(
            f"shell.run_cell({cell!r}, store_history=True).raise_error()"
            for cell in [*map(source.get, CELLS), write]
        ),
    ]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, cwd=folder
    )
    assert done.returncode == 0, done.stdout + done.stderr
    text = (folder / "train.py").read_text()
    assert "class OverlappedDataParallel" in text, "the notebook's own class, not lib's"
    return folder / "train.py"


def last_losses(output):
    """{rank: loss} as printed, to the last digit."""
    return dict(re.findall(rf"\[rank (\d)\] step {STEPS - 1}: loss (\S+)", output))


def kill_a_rank(script, checkpoint):
    """Once the checkpoint is there, SIGKILL for one process that runs the script: a
    rank, not torchrun."""
    until = time.monotonic() + 240
    while not checkpoint.exists() and time.monotonic() < until:
        time.sleep(0.01)
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if str(script) in command and "torch.distributed.run" not in command:
            process.kill()
            return


@pytest.mark.netns
@pytest.mark.skipif(REASON is not None, reason=f"not run: {REASON}")
@pytest.mark.slow
def test_the_job_on_two_nodes_killed_and_resumed_ends_as_on_one_machine(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir(), two.mkdir()
    script = make_script(one)
    alone = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
         script],
        capture_output=True, text=True, cwd=one, timeout=400,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    expected = last_losses(alone.stdout)
    assert expected.keys() == {"0", "1"}, alone.stdout + alone.stderr

    # The same file; its relative folder "job" becomes one that both nodes see.
    script = two / "train.py"
    script.write_text((one / "train.py").read_text().replace("'job'", repr(str(two / "job"))))
    with two_nodes.two_nodes(rate="1gbit") as nodes:
        killer = threading.Thread(target=kill_a_rank, args=(script, two / "job" / "step_00000010"))
        killer.start()
        killed = nodes.run(script, timeout=300)
        killer.join()
        assert all(node.code != 0 for node in killed), (
            "a rank was killed, so the job is over on both nodes"
        )
        steps = sorted(
            int(path.name.removeprefix("step_")) for path in (two / "job").glob("step_*")
        )
        assert steps and max(steps) < STEPS, steps
        resumed = nodes.run(script, timeout=300)
    assert [node.code for node in resumed] == [0, 0], resumed
    assert last_losses(resumed[0].output + resumed[1].output) == expected
    assert f"{max(steps)}/{STEPS}" in resumed[0].output, (
        "the progress bar goes on where the checkpoint was"
    )
