"""A step from measured times: the parts agree with the formulas that the labs use for each
of them alone."""

import pytest

from lib.cost.data_parallel import bucketed_step, ring_time
from lib.cost.measured import Compute, measured_step
from lib.cost.plan import Plan
from lib.cost.shapes import shape

LINK = (1e-4, 1e-9)
GPT = shape("small", layers=8, hidden=256, heads=4, vocab=100, seq=64)
COMPUTE = Compute(forward=2e-3, backward=4e-3, last=1e-3, update=5e-3)


def test_data_parallelism_is_lab_1_s_formula():
    parts = measured_step(GPT, Plan(8, 2, dp=4), COMPUTE._replace(update=0.0, last=0.0), LINK)
    n_bytes = 4 * (
        8 * (GPT.attention_parameters + GPT.expert_parameters) + GPT.embedding_parameters
    )
    rows = (8 * 2e-3 / 2, 8 * 4e-3 / 2)  # seconds per row of two
    assert sum(parts.values()) == pytest.approx(bucketed_step(2, 4, n_bytes, rows, LINK, 1).seconds)


def test_a_pipeline_without_messages_is_the_textbook_s():
    parts = measured_step(GPT, Plan(8, 1, pp=4), COMPUTE._replace(last=0.0, update=0.0), (0.0, 0.0))
    assert parts["pipeline"] == pytest.approx((8 + 3) * 2 * 6e-3)  # (m + p - 1) stages' F + B
    assert parts["tensor"] == parts["gradients"] == 0


def test_tensor_parallelism_adds_four_all_reduces_a_layer():
    parts = measured_step(GPT, Plan(3, 1, tp=2), COMPUTE, LINK)
    once = ring_time(4 * 64 * 256, 2, LINK)
    assert parts["tensor"] == pytest.approx(3 * 8 * 4 * once)
    assert parts["pipeline"] == pytest.approx(3 * (8 * 6e-3 + 3e-3)) and parts["update"] == 5e-3


def test_slower_links_take_longer_and_interleaving_helps():
    slow = lambda plan, link: sum(measured_step(GPT, plan, COMPUTE, link).values())
    for plan in (Plan(8, 1, pp=2, dp=2), Plan(8, 1, tp=2, pp=2, dp=2), Plan(8, 1, pp=4, v=2)):
        assert slow(plan, (1e-3, 1e-8)) > slow(plan, LINK)
    assert slow(Plan(8, 1, pp=4, v=2), (0.0, 0.0)) < slow(Plan(8, 1, pp=4), (0.0, 0.0))
