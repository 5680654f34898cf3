"""Lab 6's job on many nodes: a rank is killed or a node is lost, all ranks start again, and the
last loss is the same.

The script is made from the cells of solutions/lab6_hybrid_3d.ipynb. It runs on two emulated nodes,
where these can be made, and there also as a job of a real Slurm, where Slurm is installed.
"""

import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import threading
import time

import psutil
import pytest

from lib import launch
from tests import slurm, two_nodes

ROOT = pathlib.Path(__file__).parent.parent

REASON = two_nodes.available()
NOTEBOOK = ROOT / "solutions" / "lab6_hybrid_3d.ipynb"
CELLS = ["setup", "setup-model", "job-train"]
STEPS = 30
# of the last loss on half the ranks: a sum in another order rounds otherwise, and AdamW carries it
# on
TOLERANCE = 1e-5


def made_of_the_cells(folder, ranks):
    """(the script, which saves to ./job; the last loss of a run on so many ranks that
    nothing disturbs)"""
    folder.mkdir()
    source = {
        cell["id"]: "".join(cell["source"]) for cell in json.loads(NOTEBOOK.read_text())["cells"]
    }
    write = f"launch.as_script(train_on_mesh, 'train.py', 'job', {STEPS})"
    whole = f"print('whole:', *launch.capture(train_on_mesh, 'whole', {STEPS}, nproc={ranks}))"
    lines = [
        "import sys",
        "from IPython.core.interactiveshell import InteractiveShell",
        "shell = InteractiveShell.instance()",
        "sys.modules['__main__'] = shell.user_module",
        *(
            f"shell.run_cell({c!r}, store_history=True).raise_error()"
            for c in [*map(source.get, CELLS), write, whole]
        ),
    ]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, cwd=folder
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (losses,) = (line.split() for line in re.findall(r"whole: (.*)", done.stdout))
    assert len(losses) == ranks and len(set(losses)) == 1, "the batch's, on every rank"
    return folder / "train.py", float(losses[0])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """(the script, its last loss) on four ranks."""
    return made_of_the_cells(tmp_path_factory.mktemp("whole") / "whole", 4)


def copy_of(script, folder):
    """The script in `folder`, saving there: a path of its own, by which its processes are known."""
    text = script.read_text().replace("'job'", repr(str(folder / "job")))
    (folder / "train.py").write_text(text)
    return folder / "train.py"


def last_losses(output):
    """{rank: its last loss}, as printed, to the last digit."""
    return {int(rank): float(loss) for rank, loss in re.findall(r"\[rank (\d)\] ([\d.]+)", output)}


def resumed_at(output):
    """The steps at which progress bars began. Only rank 0 has one, and a new one
    after each restart."""
    return [int(step) for step in re.findall(rf"\| (\d+)/{STEPS} \[00:00<\?", output)]


def ranks_of(script):
    """{rank: its process} of living processes that run the script; torchrun's own
    are not among them."""
    found = {}
    for process in psutil.process_iter(["cmdline"]):
        if (process.info["cmdline"] or [])[1:] == ["-u", str(script)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                found[int(process.environ()["RANK"])] = process
    return found


class Killer(threading.Thread):
    """SIGKILL for one rank once the checkpoint is there; then waits for new ranks in the
    place of all of them."""

    def __init__(self, script, rank, ranks):
        super().__init__(daemon=True)
        self.script, self.rank, self.ranks, self.before, self.after = script, rank, ranks, {}, {}

    def run(self):
        until = time.monotonic() + 500
        checkpoint = self.script.parent / "job" / "step_00000010"
        while not checkpoint.exists() and time.monotonic() < until:
            time.sleep(0.01)
        self.before = {rank: process.pid for rank, process in ranks_of(self.script).items()}
        psutil.Process(self.before[self.rank]).kill()
        shutil.copytree(checkpoint, self.script.parent / "copy" / "job" / checkpoint.name)
        while len(self.after) < self.ranks and time.monotonic() < until:
            self.after |= {
                r: p.pid
                for r, p in ranks_of(self.script).items()
                if p.pid not in self.before.values()
            }
            time.sleep(0.05)


@contextlib.contextmanager
def a_rank_killed(script, rank, ranks):
    """In the block the script runs on so many ranks. One is killed in mid-step; then all of them
    are new processes."""
    killer = Killer(script, rank, ranks)
    killer.start()
    yield
    killer.join(60)
    assert killer.before.keys() == killer.after.keys() == set(range(ranks))


def restarted(output, ranks, loss):
    """The output is that of a run that went on from a checkpoint once, and ends with this
    loss, to the last bit."""
    assert last_losses(output) == dict.fromkeys(range(ranks), loss), output
    began = resumed_at(output)
    assert began[0] == 0 and began[-1] in (10, 20) and len(began) == 2, output


@pytest.mark.slow
@pytest.mark.netns
@pytest.mark.skipif(REASON is not None, reason=f"not run: {REASON}")
def test_on_two_nodes_a_killed_rank_is_restarted_and_half_the_ranks_go_on_from_the_same_checkpoint(
    whole, tmp_path
):
    script, loss = copy_of(whole[0], tmp_path), whole[1]
    with two_nodes.two_nodes(rate="1gbit") as nodes:
        with a_rank_killed(script, rank=3, ranks=4):
            ended = nodes.run(
                "--max-restarts=1", script, nproc_per_node=2, meeting=two_nodes.c10d, timeout=300
            )
        assert [node.code for node in ended] == [0, 0], ended
        restarted(ended[0].output + ended[1].output, 4, loss)

        # where the killer put the checkpoint that was there
        half = copy_of(whole[0], tmp_path / "copy")
        ended = nodes.run(half, nproc_per_node=1, meeting=two_nodes.c10d, timeout=300)
        assert [node.code for node in ended] == [0, 0], ended
        output = ended[0].output + ended[1].output
        assert resumed_at(output) == [10], "from that checkpoint"
        assert last_losses(output) == dict.fromkeys(range(2), pytest.approx(loss, rel=TOLERANCE))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with slurm.two_nodes(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@contextlib.contextmanager
def submitted(cluster, script, max_restarts=0):
    """The script as a job on 2 nodes of 2 ranks, with a ledger: (its number, the
    file it writes to)."""
    batch, folder = script.with_suffix(".sbatch"), script.parent
    said = launch.as_slurm(
        script, batch, 2, 2, max_restarts=max_restarts, ledger_dir=folder / "logs"
    )
    assert said == f"sbatch {batch}"
    job = cluster.submit(f"--chdir={folder}", batch)
    try:
        yield job, folder / f"train-{job}.out"
    finally:
        # or after a failure the next one would wait for its nodes
        cluster.call("scancel", job, check=False)


def logs_agree(folder):
    judged = subprocess.run(
        [sys.executable, "-m", "lib.ledger", folder], capture_output=True, text=True, cwd=ROOT
    )
    assert sorted(path.name for path in folder.glob("log*")) == [f"log{rank}" for rank in range(4)]
    assert judged.returncode == 0 and "the logs agree" in judged.stdout, (
        judged.stdout + judged.stderr
    )


@slurm.needed
def test_on_slurm_a_killed_rank_is_restarted_by_torchrun(cluster, whole, tmp_path):
    script, loss = copy_of(whole[0], tmp_path), whole[1]
    job = submitted(cluster, script, max_restarts=1)
    with a_rank_killed(script, rank=3, ranks=4), job as (job, output):
        assert cluster.wait(job) == "COMPLETED", output.read_text()
    restarted(output.read_text(), 4, loss)
    assert cluster.facts(job)["Restarts"] == "0", "Slurm's part was only to wait"
    logs_agree(tmp_path / "logs" / job)


@slurm.needed
def test_on_slurm_a_lost_node_puts_the_job_back_into_the_queue(cluster, whole, tmp_path):
    script, loss = copy_of(whole[0], tmp_path), whole[1]
    until = time.monotonic() + 500
    with submitted(cluster, script) as (job, output):
        while not (tmp_path / "job" / "step_00000010").exists() and time.monotonic() < until:
            time.sleep(0.01)
        before = ranks_of(script)
        assert before.keys() == set(range(4)), output.read_text()
        before[
            3
        ].suspend()  # so that the others wait, and the job does not end before Slurm has heard
        cluster.call("scontrol", "update", "nodename=n1", "state=down", "reason=test")
        before[3].resume()
        while all(process in before.values() for process in ranks_of(script).values()):
            assert time.monotonic() < until, output.read_text()
            time.sleep(0.05)
        living = [process for process in before.values() if process.is_running()]
        assert all(process.status() == psutil.STATUS_ZOMBIE for process in living), (
            "two jobs would save the same"
        )
        assert cluster.wait(job) == "COMPLETED", output.read_text()
    assert "DUE TO NODE FAILURE" in output.read_text() and cluster.facts(job)["Restarts"] == "1"
    restarted(output.read_text(), 4, loss)
    logs_agree(tmp_path / "logs" / job)


@slurm.needed
@pytest.mark.parametrize(
    ("known", "wrongly", "why"),
    [("wire0", "another", "[^.]* name [^.]*"), ("10.77.0.1", "10.77.0.9", "No route to host")],
)
def test_on_slurm_a_node_that_another_cannot_reach_ends_the_job_with_a_line(
    known, wrongly, why, cluster, tmp_path
):
    (tmp_path / "train.py").write_text("raise SystemExit('this must not run')")
    hosts = cluster.hosts[1].read_text()
    cluster.hosts[1].write_text(hosts.replace(known, wrongly))
    try:
        with submitted(cluster, tmp_path / "train.py") as (job, output):
            assert cluster.wait(job) == "FAILED"
    finally:
        cluster.hosts[1].write_text(hosts)
    said = [line for line in output.read_text().splitlines() if not line.startswith("srun: ")]
    assert len(said) == 1, said
    assert re.match(
        rf"n1 cannot reach n0 at its NodeAddr wire0, port \d+: {why}\. n1 has to resolve that name",
        said[0],
    )


SRUN = """\
#!/bin/bash
# The tasks of both nodes, on this machine, one after the other.
while [[ $1 == --* ]]; do shift; done
SLURM_NODEID=0 SLURMD_NODENAME=n0 "$@" && SLURM_NODEID=1 SLURMD_NODENAME=$NAME1 "$@"
"""
SCONTROL = """\
#!/bin/bash
case "$*" in
    "show hostnames n[0-1]") echo n0; echo $NAME1 ;;
    "show node n0") echo "NodeName=n0 Arch=x86_64"; \
echo "   NodeAddr=127.0.0.1 NodeHostName=n0 Version=22.05.8" ;;
    "show node n1") echo "   NodeAddr=$ADDRESS1 NodeHostName=n1" ;;
esac
"""
TORCHRUN = """\
#!/bin/bash
echo "$@"
"""


@pytest.mark.skipif(
    shutil.which("timeout") is None,
    reason="not run: the job's script needs `timeout`, as Linux has it",
)
@pytest.mark.parametrize(
    ("name", "address", "meets_as", "says"),
    [
        ("n1", "127.0.0.2", "127.0.0.2", ""),
        ("localhost", "", "localhost", ""),  # Slurm does not say
        (
            "n1",
            "no..name",
            None,
            r"n0 cannot reach n1 at its NodeAddr no\.\.name, port 20005: \w.*\. n0 has to resolve",
        ),
    ],
)
def test_the_nodes_meet_at_slurms_address_of_the_first_or_a_line_says_why_not(
    name, address, meets_as, says, tmp_path
):
    """Without Slurm: what the script makes of its answers."""
    for tool, text in {"srun": SRUN, "scontrol": SCONTROL, "torchrun": TORCHRUN}.items():
        (tmp_path / tool).write_text(text)
        (tmp_path / tool).chmod(0o755)
    (tmp_path / "train.py").touch()
    launch.as_slurm(tmp_path / "train.py", tmp_path / "x", 2, 2)
    facts = {
        "SLURM_JOB_ID": "10005",
        "SLURM_NNODES": "2",
        "SLURM_JOB_NODELIST": "n[0-1]",
        "NAME1": name,
        "ADDRESS1": address,
    }
    env = {**os.environ, **facts, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    ran = subprocess.run(
        ["bash", tmp_path / "x"], env=env, capture_output=True, text=True, timeout=60
    )
    assert re.match(says, ran.stderr) and ran.stderr.count("\n") == (1 if says else 0), ran
    assert ran.returncode == (1 if says else 0), ran
    where = [
        re.findall(r"--(?:rdzv-endpoint|rdzv-conf|local-addr) (\S+)", line)
        for line in ran.stdout.splitlines()
    ]
    meeting = "127.0.0.1:20005"
    assert (
        where == []
        if says
        else [[meeting, "is_host=1", "127.0.0.1"], [meeting, "is_host=0", meets_as]]
    ), ran


def test_the_slurm_script_asks_for_what_was_said(tmp_path):
    (tmp_path / "it's mine.py").touch()
    launch.as_slurm(
        tmp_path / "it's mine.py",
        tmp_path / "x",
        3,
        8,
        gpus_per_node=8,
        max_restarts=5,
        time="2-00:00:00",
    )
    lines = (tmp_path / "x").read_text().splitlines()
    options = {line.removeprefix("#SBATCH --") for line in lines if line.startswith("#SBATCH")}
    assert {
        "nodes=3",
        "ntasks-per-node=1",
        "cpus-per-task=8",
        "gpus-per-node=8",
        "time=2-00:00:00",
    } < options
    assert "--nproc-per-node 8 --max-restarts 5" in "\n".join(
        lines
    ) and "LEDGER_DIR" not in "\n".join(lines)
    seen = subprocess.run(["bash", "-n", tmp_path / "x"], capture_output=True, text=True)
    assert (seen.returncode, seen.stderr) == (0, "")
    named = [line for line in lines if line.startswith("export SCRIPT=")]
    seen = subprocess.run(
        ["bash", "-c", f'{named[0]}; echo "$SCRIPT"'], capture_output=True, text=True
    )
    assert seen.stdout == f"{tmp_path}/it's mine.py\n"


def test_what_is_wrong_with_the_call_is_said(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"train\.py is not there: write it first, launch\.as_script"
    ):
        launch.as_slurm(tmp_path / "train.py", tmp_path / "x", 2, 8)
    (tmp_path / "train.py").touch()
    with pytest.raises(ValueError, match="0 nodes of 8 ranks: a job needs at least 1 of each"):
        launch.as_slurm(tmp_path / "train.py", tmp_path / "x", 0, 8)
