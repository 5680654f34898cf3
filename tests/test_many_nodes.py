"""Lab 6's job on many nodes: a rank is killed, torchrun restarts all of them, and the last loss is the same.

The script is made from the cells of solutions/lab6_hybrid_3d.ipynb. It runs on two emulated nodes, where these can be
made, and as a Slurm job whose `srun` starts the tasks of both nodes on this machine.
"""

import contextlib
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import threading
import time

import psutil
import pytest

ROOT = pathlib.Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # `tests` is no package that is installed: pytest alone would not find it

from lib import launch  # noqa: E402
from tests import two_nodes  # noqa: E402

REASON = two_nodes.available()
NOTEBOOK = ROOT / "solutions" / "lab6_hybrid_3d.ipynb"
CELLS = ["setup", "setup-model", "job-train"]
STEPS = 30
TOLERANCE = 1e-5  # of the last loss on half the ranks: a sum in another order rounds otherwise, and AdamW carries it on


def made_of_the_cells(folder, ranks):
    """(the script, which saves to ./job; the last loss of a run on so many ranks that nothing disturbs)"""
    folder.mkdir()
    source = {cell["id"]: "".join(cell["source"]) for cell in json.loads(NOTEBOOK.read_text())["cells"]}
    write = f"launch.as_script(train_on_mesh, 'train.py', 'job', {STEPS})"
    whole = f"print('whole:', *launch.capture(train_on_mesh, 'whole', {STEPS}, nproc={ranks}))"
    lines = [
        "import sys",
        "from IPython.core.interactiveshell import InteractiveShell",
        "shell = InteractiveShell.instance()",
        "sys.modules['__main__'] = shell.user_module",
        *(f"shell.run_cell({c!r}, store_history=True).raise_error()" for c in [*map(source.get, CELLS), write, whole]),
    ]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    (losses,) = (line.split() for line in re.findall(r"whole: (.*)", done.stdout))
    assert len(losses) == ranks and len(set(losses)) == 1, "the batch's, on every rank"
    return folder / "train.py", float(losses[0])


def copy_of(script, folder):
    """The script in `folder`, saving there: a path of its own, by which its processes are known."""
    text = script.read_text().replace("'job'", repr(str(folder / "job")))
    (folder / "train.py").write_text(text)
    return folder / "train.py"


def last_losses(output):
    """{rank: its last loss}, as printed, to the last digit."""
    return {int(rank): float(loss) for rank, loss in re.findall(r"\[rank (\d)\] ([\d.]+)", output)}


def resumed_at(output):
    """The steps at which progress bars began. Only rank 0 has one, and a new one after each restart."""
    return [int(step) for step in re.findall(rf"\| (\d+)/{STEPS} \[00:00<\?", output)]


def ranks_of(script):
    """{rank: its process} of living processes that run the script; torchrun's own are not among them."""
    found = {}
    for process in psutil.process_iter(["cmdline"]):
        if (process.info["cmdline"] or [])[1:] == ["-u", str(script)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                found[int(process.environ()["RANK"])] = process
    return found


class Killer(threading.Thread):
    """SIGKILL for one rank once the checkpoint is there; then waits for new ranks in the place of all of them."""

    def __init__(self, script, rank, ranks):
        super().__init__(daemon=True)
        self.script, self.rank, self.ranks, self.before, self.after = script, rank, ranks, {}, {}

    def run(self):
        until = time.monotonic() + 240
        checkpoint = self.script.parent / "job" / "step_00000010"
        while not checkpoint.exists() and time.monotonic() < until:
            time.sleep(0.01)
        self.before = {rank: process.pid for rank, process in ranks_of(self.script).items()}
        psutil.Process(self.before[self.rank]).kill()
        shutil.copytree(checkpoint, self.script.parent / "copy" / "job" / checkpoint.name)
        while len(self.after) < self.ranks and time.monotonic() < until:
            self.after |= {r: p.pid for r, p in ranks_of(self.script).items() if p.pid not in self.before.values()}
            time.sleep(0.05)


@contextlib.contextmanager
def a_rank_killed(script, rank, ranks):
    """In the block the script runs on so many ranks. One is killed in mid-step; then all of them are new processes."""
    killer = Killer(script, rank, ranks)
    killer.start()
    yield
    killer.join(60)
    assert killer.before.keys() == killer.after.keys() == set(range(ranks))


def restarted(output, ranks, loss):
    """The output is that of a run that went on from a checkpoint once, and ends with this loss, to the last bit."""
    assert last_losses(output) == dict.fromkeys(range(ranks), loss), output
    began = resumed_at(output)
    assert began[0] == 0 and began[-1] in (10, 20) and len(began) == 2, output


@pytest.mark.slow
@pytest.mark.netns
@pytest.mark.skipif(REASON is not None, reason=f"not run: {REASON}")
def test_on_two_nodes_a_killed_rank_is_restarted_and_half_the_ranks_go_on_from_the_same_checkpoint(tmp_path):
    whole, loss = made_of_the_cells(tmp_path / "whole", 4)
    script = copy_of(whole, tmp_path)
    with two_nodes.two_nodes(rate="1gbit") as nodes:
        with a_rank_killed(script, rank=3, ranks=4):
            ended = nodes.run("--max-restarts=1", script, nproc_per_node=2, meeting=two_nodes.c10d, timeout=300)
        assert [node.code for node in ended] == [0, 0], ended
        restarted(ended[0].output + ended[1].output, 4, loss)

        half = copy_of(whole, tmp_path / "copy")  # where the killer put the checkpoint that was there
        ended = nodes.run(half, nproc_per_node=1, meeting=two_nodes.c10d, timeout=300)
        assert [node.code for node in ended] == [0, 0], ended
        output = ended[0].output + ended[1].output
        assert resumed_at(output) == [10], "from that checkpoint"
        assert last_losses(output) == dict.fromkeys(range(2), pytest.approx(loss, rel=TOLERANCE))


SRUN = """\
#!/bin/bash
# The tasks of all nodes, on this machine. Node i has the address 127.0.0.(i+1).
while [[ $1 == --* ]]; do shift; done
for ((i = 0; i < SLURM_NNODES; i++)); do
    SLURM_NODEID=$i SLURMD_NODENAME=127.0.0.$((i + 1)) "$@" &
done
for ((i = 0; i < SLURM_NNODES; i++)); do
    wait -n || { code=$?; kill $(jobs -p); exit $code; }
done
"""
SCONTROL = """\
#!/bin/bash
[[ "$*" == "show hostnames 127.0.0.[1-2]" ]] && printf '127.0.0.1\\n127.0.0.2\\n'
"""


def slurm(folder, nodes):
    """The environment that sbatch and this machine's own `srun` and `scontrol` would make."""
    for name, text in {"srun": SRUN, "scontrol": SCONTROL}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    for number in range(10_000):  # the job's number gives the port
        with socket.socket() as door, contextlib.suppress(OSError):
            door.bind(("127.0.0.1", 20_000 + number))
            break
    path = os.pathsep.join([str(folder), os.path.dirname(sys.executable), os.environ["PATH"]])
    quiet = {"GLOO_SOCKET_IFNAME": "lo", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    facts = {"SLURM_JOB_ID": str(number), "SLURM_NNODES": str(nodes), "SLURM_JOB_NODELIST": "127.0.0.[1-2]"}
    return {**os.environ, **quiet, **facts, "PATH": path}


def end_all_of(folder):
    """End every process with a path of this folder in its command line: they are ours, the folder is new."""
    for _ in range(500):
        found = [p for p in psutil.process_iter(["cmdline"]) if str(folder) in " ".join(p.info["cmdline"] or [])]
        if not found:
            return
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(0.01)
    raise RuntimeError(f"processes {found} do not end")


@pytest.mark.slow
def test_the_slurm_script_runs_on_both_nodes_and_restarts_them_when_a_rank_is_killed(tmp_path):
    whole, loss = made_of_the_cells(tmp_path / "whole", 2)
    script = copy_of(whole, tmp_path)
    batch = tmp_path / "train.sbatch"
    said = launch.as_slurm(script, batch, nodes=2, nproc_per_node=1, max_restarts=1, ledger_dir=tmp_path / "books")
    assert said == f"sbatch {batch}"
    env = slurm(tmp_path, nodes=2)
    with two_nodes.terminated_as_an_error(), open(tmp_path / "output", "w+") as output:
        try:
            with a_rank_killed(script, rank=0, ranks=2):
                ran = subprocess.run(["bash", batch], env=env, stdout=output, stderr=output, cwd=tmp_path, timeout=300)
        finally:
            end_all_of(tmp_path)
    text = (tmp_path / "output").read_text()
    assert ran.returncode == 0, text
    restarted(text, 2, loss)
    books = (tmp_path / "books" / env["SLURM_JOB_ID"]).glob("book*")
    assert sorted(book.name for book in books) == ["book0", "book1"]


def test_the_slurm_script_asks_for_what_was_said(tmp_path):
    (tmp_path / "it's mine.py").touch()
    launch.as_slurm(tmp_path / "it's mine.py", tmp_path / "x", 3, 8, gpus_per_node=8, max_restarts=5, time="2-00:00:00")
    lines = (tmp_path / "x").read_text().splitlines()
    options = {line.removeprefix("#SBATCH --") for line in lines if line.startswith("#SBATCH")}
    assert {"nodes=3", "ntasks-per-node=1", "cpus-per-task=8", "gpus-per-node=8", "time=2-00:00:00"} < options
    assert "--nproc-per-node 8 --max-restarts 5" in "\n".join(lines) and "LEDGER_DIR" not in "\n".join(lines)
    seen = subprocess.run(["bash", "-n", tmp_path / "x"], capture_output=True, text=True)
    assert (seen.returncode, seen.stderr) == (0, "")
    named = [line for line in lines if line.startswith("export SCRIPT=")]
    seen = subprocess.run(["bash", "-c", f'{named[0]}; echo "$SCRIPT"'], capture_output=True, text=True)
    assert seen.stdout == f"{tmp_path}/it's mine.py\n"


def test_what_is_wrong_with_the_call_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"train\.py is not there: write it first, launch\.as_script"):
        launch.as_slurm(tmp_path / "train.py", tmp_path / "x", 2, 8)
    (tmp_path / "train.py").touch()
    with pytest.raises(ValueError, match="0 nodes of 8 ranks: a job needs at least 1 of each"):
        launch.as_slurm(tmp_path / "train.py", tmp_path / "x", 0, 8)
