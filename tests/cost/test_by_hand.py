"""The costs by hand: small cases worked out, and beside the clock, the volumes and the memory of
the whole model."""

import itertools
from dataclasses import replace

import pytest

from lib.cost.by_hand import (
    COSTS,
    _parts,
    estimate,
    main_costs,
    plan_bubble,
    plan_memory,
    plan_messages,
)
from lib.cost.hardware import gpu
from lib.cost.memory import memory, peak_bytes, stage_memory
from lib.cost.plan import Plan
from lib.cost.search import DEFAULT_STACK
from lib.cost.shapes import known, load, shape
from lib.cost.stacks import Stack, stacks
from lib.cost.volume import step_volume, whole_parameters
from lib.pipeline import gpipe, interleaved, one_f_one_b, simulate
from lib.training.model import Shape

TINY = shape("tiny", layers=4, hidden=2, heads=2, vocab=10, seq=3)
GPT3 = load("gpt-3-175b")
# kernels that keep the scores, recomputed
AS_HERE = Stack("by hand", flash=0, state=(2, 2, 12), logit_bytes=0)


# --- worked by hand


def test_memory_of_a_tiny_plan():
    """P = (12 x 2^2 x 4/2 + 10 x 2) / 2 = 58. Two layers keep 34 x 3 x 1 x 2 / 2 = 102 of each of 2
    micro-batches."""
    plan = Plan(32, 1, tp=2, pp=2, dp=4)
    assert plan_memory(TINY, plan) == 58 * 16 + 102 * 2 * 2
    assert plan_memory(TINY, replace(plan, zero=1)) == 58 * (2 + 2 + 3) + 102 * 2 * 2


def test_fewer_micro_batches_than_stages():
    """Four stages of a layer each: 1, 2, 3, 4, 4 micro-batches in flight if a
    pipeline runs 1 to 5."""
    kept = [plan_memory(TINY, Plan(m, pp=4)) - 16 * (12 * 4 + 20) for m in range(1, 6)]
    assert kept == [34 * 3 * 2 * flying for flying in (1, 2, 3, 4, 4)]


def test_bubble_of_small_plans():
    assert plan_bubble(Plan(8, pp=4)) == 3 / 11
    assert plan_bubble(Plan(8, pp=4, v=2)) == 3 / 19
    assert plan_bubble(Plan(64, 2, pp=4, dp=4)) == 3 / 11  # m = 64 / (4 x 2) = 8
    assert plan_bubble(Plan(8)) == 0


def test_messages_of_a_tiny_plan():
    """A micro-batch's activations are 2 x 3 x 1 x 2 = 12 bytes; 8 of them."""
    plan = Plan(32, 1, tp=2, pp=2, dp=4)
    assert plan_messages(TINY, plan) == {
        "tp": 8 * 2 * 4 * 12,  # 2 (t-1)/t = 1
        "pp": 8 * 2 * 6,
        "dp": 1.5 * 2 * 58,  # 2 (d-1)/d = 3/2
    }
    assert plan_messages(TINY, replace(plan, v=2))["pp"] == 2 * 8 * 2 * 6
    assert plan_messages(TINY, Plan(8)) == {"tp": 0, "pp": 0, "dp": 0}


# --- what must hold of any plan


def test_zero_1_on_many_ranks_leaves_4_of_16_bytes():
    short = replace(GPT3, seq=0)  # no tokens, no activations
    whole = plan_memory(short, Plan(1))
    shares = [plan_memory(short, Plan(d, dp=d, zero=1)) / whole for d in (1, 2, 4, 64, 10**9)]
    assert shares[:4] == pytest.approx([1, 10 / 16, 7 / 16, (4 + 12 / 64) / 16])
    assert shares[4] == pytest.approx(4 / 16, rel=1e-8)
    assert plan_memory(short, Plan(64, dp=64)) == whole  # without ZeRO data ranks divide nothing


@pytest.mark.parametrize("times", [{"F": 1, "B": 1}, {"F": 2, "B": 2}, {"F": 1, "B": 2}])
def test_the_bubble_is_the_clock_s(times):
    """No message times. Whatever B takes beside F: a rank waits p - 1 times F + B, and
    works m times."""
    for p, m in itertools.product((1, 2, 3, 4, 8), (1, 2, 4, 6, 8, 16)):
        for schedule in (one_f_one_b(p, m), gpipe(p, m)):
            assert simulate(schedule, times).bubble == pytest.approx(plan_bubble(Plan(m, pp=p))), (
                p,
                m,
            )
    for p, rounds, v in itertools.product((2, 3, 4), (1, 2, 4), (2, 3, 4)):
        clock = simulate(interleaved(p, rounds * p, v), times).bubble
        assert clock == pytest.approx(plan_bubble(Plan(rounds * p, pp=p, v=v))), (p, rounds, v)


# --- beside lib.cost.volume, which counts numbers, all ranks together

GPT = Shape(vocab_size=320, seq_len=64, n_layers=8, hidden=32, n_heads=4)
AS_MODEL = shape("as GPT", layers=8, hidden=32, heads=4, vocab=320, seq=64)
PLANS = [
    Plan(16, 2, tp=t, pp=p, dp=d) for t, p, d in itertools.product((1, 2, 4), (1, 2, 4), (1, 2, 4))
]


def everyones(plan, axis):
    """Numbers of 16 bits that all GPUs together send along an axis, if each were the one
    that is counted."""
    return plan_messages(AS_MODEL, plan)[axis] / 2 * plan.gpus


def volume(plan, **more):
    return step_volume(
        GPT, plan.global_batch, AS_MODEL.seq, pp=plan.pp, dp=plan.dp, tp=plan.tp, v=plan.v, **more
    )


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_along_tp_the_layers_are_the_volume_s(plan):
    """Left out by hand: two all-reduces at the vocabulary's ends, 6 numbers of a token's loss, the
    gradients' norm."""
    tokens, t = plan.global_batch * AS_MODEL.seq, plan.tp
    left_out = (t - 1) * tokens * (4 * GPT.hidden + 6) + 2 * (t - 1) * plan.pp * plan.dp
    assert everyones(plan, "tp") + left_out == pytest.approx(volume(plan).tp, rel=1e-12)


@pytest.mark.parametrize(
    "plan", [*PLANS, Plan(16, 1, pp=4, dp=2, v=2), Plan(16, 2, tp=2, pp=2, v=4)], ids=str
)
def test_along_pp_only_the_ends_send_less(plan):
    """By hand every stage sends on and back; the first stage has nothing to send back, the last
    none to send on. Left out: the tied embedding between the ends, the loss, the norm."""
    p = plan.pp
    ends = 2 * plan.global_batch * AS_MODEL.seq * GPT.hidden if p > 1 else 0
    left_out = 2 * (p - 1) * 4 * plan.dp * plan.tp + (
        2 * GPT.vocab_size * GPT.hidden * plan.dp if p > 1 else 0
    )
    assert everyones(plan, "pp") - ends + left_out == pytest.approx(
        volume(plan, sequence_parallel=True).pp, rel=1e-12
    )


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_along_dp_the_matrices_are_the_volume_s(plan):
    """By hand every stage is a first one, with an embedding: so p of them are counted, where the
    ends have one each. Left out: biases, norms and positions."""
    p, d, D, L = plan.pp, plan.dp, GPT.hidden, GPT.n_layers
    embeddings = (p - min(p, 2)) * GPT.vocab_size * D
    small = 7 * D * L + plan.tp * whole_parameters(GPT)
    norm = 2 * (d - 1) * p * plan.tp
    expected = everyones(plan, "dp") + 2 * (d - 1) * (small - embeddings) + norm
    assert expected == pytest.approx(volume(plan).data, rel=1e-12)


# --- beside lib.cost.memory


def test_megatron_core_s_gradients_are_fp32():
    """The default stack on the plan of a capstone: 2 bytes per parameter more; the rest, fused
    kernels and what comes and goes within a layer, is below 5 %."""
    plan = Plan(512, 2, tp=8, pp=4, dp=8, zero=1, sequence_parallel=True)
    P = plan_memory(replace(GPT3, seq=0), replace(plan, zero=0)) / 16
    assert plan_memory(GPT3, plan) + 2 * P == pytest.approx(
        peak_bytes(GPT3, plan, stacks()[DEFAULT_STACK]), rel=0.05
    )


@pytest.mark.parametrize("zero", [0, 1])
@pytest.mark.parametrize(
    ("tp", "pp", "dp", "b"), [(8, 16, 8, 1), (8, 8, 4, 2), (4, 32, 2, 1), (8, 96, 1, 1)]
)
def test_gpt_3_on_the_first_stage(zero, tp, pp, dp, b):
    """Kernels, precisions and recomputation as by hand: activations alike, the state but
    for norms, below 0.1 %."""
    plan = Plan(
        1536, b, tp=tp, pp=pp, dp=dp, zero=zero, recompute="selective", sequence_parallel=True
    )
    parts = stage_memory(GPT3, plan, AS_HERE, 0)
    state = plan_memory(replace(GPT3, seq=0), plan)
    assert plan_memory(GPT3, plan) - state == pytest.approx(parts["activations"], rel=1e-9)
    assert state == pytest.approx(
        parts["weights"] + parts["gradients"] + parts["optimizer"], rel=1e-3
    )
    assert plan_memory(GPT3, plan) == pytest.approx(
        sum(memory(GPT3, plan, AS_HERE).values()), rel=1e-3
    )


# --- the capstone's estimate


@pytest.mark.parametrize(
    ("model", "plan", "largest"),
    [
        (GPT3, Plan(512, 8, tp=8, pp=16, dp=2, zero=1), {"computing", "pipeline bubble"}),
        (GPT3, Plan(512, 2, tp=8, pp=4, dp=8, v=12, zero=1), {"computing", "tensor messages"}),
        (
            known()["qwen3-235b-a22b"],
            Plan(512, 8, tp=4, dp=64, ep=64, zero=1),
            {"computing", "expert messages"},
        ),
    ],
)
def test_the_costs_of_a_step_add_up_to_it(model, plan, largest):
    parts, job = _parts(model, plan, gpu("H100-80GB"), 0.5), (model, plan, gpu("H100-80GB"), 0.5)
    assert sum(parts.values()) == pytest.approx(estimate(*job)[1])
    assert parts["pipeline bubble"] / sum(parts.values()) == pytest.approx(plan_bubble(plan))
    assert set(main_costs(*job)) == largest and set(parts) == {*COSTS} - {"data messages"}
    assert (parts["expert messages"] == 0) == (plan.ep == 1) and (
        parts["pipeline bubble"] == 0
    ) == (plan.pp == 1)
