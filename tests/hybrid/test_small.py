"""A plan's small version does in one step what a single process does."""

import math

import pytest
import torch

from lib import launch
from lib.cost.plan import Plan
from lib.hybrid.small import single_process, small_sizes, small_step
from lib.training.model import Shape

SHAPE = Shape(vocab_size=32, seq_len=8, n_layers=4, hidden=16, n_heads=4)
PLAN = Plan(512, 2, tp=8, pp=4, dp=1, v=12, zero=1, sequence_parallel=True)


def test_no_axis_of_the_small_version_is_longer_than_two():
    assert small_sizes(PLAN) == {"pp": 2, "dp": 1, "tp": 2}
    assert small_sizes(Plan(512, 2, dp=256, zero=3)) == {"pp": 1, "dp": 2, "tp": 1}


@pytest.mark.slow
@pytest.mark.parametrize("plan", [PLAN, Plan(512, 2, pp=4, dp=64, ep=16, zero=1)], ids=str)
def test_loss_and_norm_are_those_of_a_single_process(plan):
    torch.manual_seed(0)
    batch = torch.randint(SHAPE.vocab_size, (2, 16, SHAPE.seq_len))
    n = math.prod(small_sizes(plan).values())
    found = launch.run(small_step, plan, SHAPE, tuple(batch), nproc=n, ledger=False)[0]
    assert found == pytest.approx(single_process(SHAPE, batch), abs=1e-9)
