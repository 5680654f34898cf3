"""The ranks of a check agree over named pipes: every rank gets what every other gave, and the
ledger knows for whom a rank waits."""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from lib import launch
from lib.check.guard import noting_calls
from lib.check.wire import Wire

pytestmark = pytest.mark.usefixtures("on_gloo")
SIZES = (1, 4096, 300_000)  # bytes; a pipe holds 65,536


def exchanges():
    """Between all ranks, in turn between two of them, and between these on another wire."""
    rank, few = dist.get_rank(), [0, 2]
    wires = [Wire(range(3), "")]
    if rank in few:
        wires += [Wire(few, ""), Wire(few, "of another script")]
    return [wire.exchange(bytes([rank]) * n) for n in SIZES for wire in wires]


def test_every_rank_gets_what_every_other_gave():
    got = launch.run(exchanges, nproc=3)
    all_of = lambda ranks, n: [bytes([rank]) * n for rank in ranks]
    of_few = [all_of(ranks, n) for n in SIZES for ranks in ((0, 1, 2), (0, 2), (0, 2))]
    assert got == [of_few, of_few[::3], of_few]


def one_rank():
    return Wire([dist.get_rank()], "").exchange(b"x")


def test_one_rank_alone_gets_its_own():
    assert launch.run(one_rank, nproc=2) == [[b"x"], [b"x"]]


def waits_in_vain():
    wire = Wire(range(3), "")
    if dist.get_rank() == 1:
        dist.recv(torch.zeros(1), src=0)
    wire.exchange(b"x")


def test_a_rank_that_never_comes_is_named_at_once():
    """By the ledger's proof, and so long before the timeout."""
    with pytest.raises(launch.RankError, match="deadlock") as caught:
        launch.run(waits_in_vain, nproc=3, timeout=300)
    told = str(caught.value)
    assert "rank 1 waits in recv from rank 0" in told and "barrier" in told


# in a process of its own, because the servers of these tests have imported lib before ranks begin
TWO_CHECKS = """
import os

from as_an_answer import as_an_answer

from lib import launch
from lib.check.exercises import FUNCTIONS
from lib.check.framework import evaluate
from lib.launch import server
from lib.tensor_parallel import mappings

server.AT_ONCE = True  # or ranks would be replaced by those of the second server
evaluate(FUNCTIONS["copy_to_group"], as_an_answer(mappings.copy_to_group))  # imports what it needs
ranks = launch.capture(os.getpid, nproc=4)
outcome = evaluate(FUNCTIONS["copy_to_group"], as_an_answer(mappings.copy_to_group))
assert outcome.passed, outcome
assert launch.capture(os.getpid, nproc=4) == ranks, list(launch.warm.reasons)
"""


def test_ranks_are_used_again_after_a_check():
    """Otherwise a student would wait for new ranks at every check of a lab."""
    root = Path(__file__).parents[2]
    env = os.environ | {"PYTHONPATH": f"{root}:{root}/tests/check"}
    run = subprocess.run(
        [sys.executable, "-c", TWO_CHECKS], env=env, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr


def test_calls_are_noted_and_a_debugger_still_sees_its_own():
    seen = []

    def debugger(frame, event, arg):
        seen.append(frame.f_code.co_name)

    def theirs():
        return own()

    def own():
        return inspect.currentframe() is not None

    before = sys.gettrace()
    sys.settrace(debugger)
    try:
        with noting_calls(own) as calls:
            theirs()
        assert sys.gettrace() is debugger
    finally:
        sys.settrace(before)
    assert len(calls) == 1 and calls[0].endswith("own")
    assert {"theirs", "own"} <= {*seen}
