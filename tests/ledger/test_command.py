"""`python -m lib.ledger` after a job that died: who was killed, the line that raised, each
rank's last line."""

import os
import subprocess
import sys
import textwrap

import pytest

JOB = """
import datetime, os
import torch, torch.distributed as dist
from lib import ledger
rank = int(os.environ["RANK"])
soon = datetime.timedelta(seconds=30)  # a mismatch on gloo may end, or wait
dist.init_process_group("gloo", "file://" + os.environ["STORE"], soon, rank=rank, world_size=3)
def step(x):
    dist.all_reduce(x)
def job(x):
    {body}
with ledger.record_to_dir():
    job(torch.ones(4))
"""
BODIES = {
    "killed": """
    step(x)
    if rank == 1:
        os.kill(os.getpid(), 9)
    step(x)""",
    "raises": """
    step(x)
    if rank == 2:
        raise ValueError("bad record 17")
    step(x)""",
    "raises inside": """
    step(x)
    if rank == 1:
        torch.ones(2) @ torch.ones(3)
    dist.barrier()""",
    "exits": """
    if rank == 0:
        os._exit(3)
    step(x)""",
    "killed before it called anything": """
    if rank == 2:
        os.kill(os.getpid(), 9)
    step(x)""",
    "killed before it sent": """
    if rank == 1:
        os.kill(os.getpid(), 9)
    dist.recv(x, 1) if rank == 2 else dist.recv(x, 2)""",
    "raises with its work under way": """
    step(x)
    work = dist.all_reduce(x, async_op=True) if rank == 0 else None
    if rank == 0:
        {}["loss"]
    step(x)""",
    "raises a class of its own": """
    class Corrupt(Exception): pass
    step(x)
    if rank == 1:
        raise Corrupt("shard 7 of 8")
    dist.barrier()""",
    "mismatched": """
    dist.broadcast(x, 0) if rank == 0 else step(x)
    dist.barrier()
    if rank == 0:
        raise ValueError("unlucky")""",
}
SAYS = {
    "killed": ["   1  killed", "rank 1 was killed: its process is gone",
               "its last op: all_reduce #0", "job.py:9:"],
    "raises": ["   2  raised",
               "rank 2 raised ValueError: bad record 17, job.py:13: raise ValueError"],
    "raises inside": ["rank 1 raised RuntimeError: ", "job.py:13: torch.ones(2) @ torch.ones(3)"],
    "exits": ["   0  killed", "rank 0 was killed: its process is gone", "without any op"],
    "killed before it called anything": ["rank 2 was killed", "without any op"],
    "killed before it sent": ["   1  killed", "rank 1 was killed", "without any op"],
    "raises with its work under way": ["rank 0 raised KeyError: 'loss'", "job.py:14: {}["],
    "raises a class of its own": ["rank 1 raised Corrupt: shard 7 of 8, job.py:14: raise Corrupt"],
    "mismatched": ["differ in the op", "rank 0: broadcast #0", "job.py:11"],
}  # fmt: skip
FIRST = {  # the rank that has to end before the others are told to, where it is not rank 2
    "killed": 1, "raises inside": 1, "exits": 0, "killed before it sent": 1,
    "raises with its work under way": 0,
    "raises a class of its own": 1, "mismatched": 0,
}  # fmt: skip


def judged(folder):
    return subprocess.run(
        [sys.executable, "-m", "lib.ledger", folder], capture_output=True, text=True
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", BODIES)
def test_the_command_says_how_each_rank_has_left(name, tmp_path):
    (tmp_path / "job.py").write_text(
        JOB.format(body=textwrap.dedent(BODIES[name]).strip().replace("\n", "\n    "))
    )
    env = {
        **os.environ,
        "LEDGER_DIR": f"{tmp_path}/logs",
        "STORE": f"{tmp_path}/store",
        "OMP_NUM_THREADS": "1",
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, "job.py"],
            cwd=tmp_path,
            env={**env, "RANK": str(r)},
            stderr=subprocess.PIPE,
        )
        for r in range(3)
    ]
    try:
        ranks[FIRST.get(name, 2)].communicate(timeout=120)
        # the others wait; a launcher such as torchrun ends them
        if name not in ("raises inside", "exits", "killed before it called anything", "mismatched"):
            for rank in ranks:
                rank.terminate()
        for rank in ranks:
            rank.communicate(timeout=120)
    finally:
        for rank in ranks:
            rank.kill()
    ran = judged(tmp_path / "logs")
    print(ran.stdout)
    assert ran.returncode == 1 and ran.stderr == ""
    assert [text for text in SAYS[name] if text not in ran.stdout] == [], ran.stdout
    told = ran.stdout.splitlines()[4:]
    assert len(told) == len(set(told)), ran.stdout  # nothing twice
    if name != "mismatched":
        assert [r for r in range(3) if not any(f"rank {r} " in line for line in told)] == [], (
            ran.stdout
        )
