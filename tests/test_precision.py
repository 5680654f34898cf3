"""Mixed precision: an overflow skips the step on every rank, and powers of two round nothing."""

import copy

import pytest
import torch
import torch.distributed as dist
from precisions import ALONE, SHAPE, adam, alike, bits, loss_of, sgd
from torch import nn

from lib import collectives, launch, ledger
from lib.data_parallel.replicate import average_gradients
from lib.training.model import GPT
from lib.training.precision import LossScaler, MasterWeights


def one_overflow(bad, all_reduce, members):
    """A good step, one where the group's rank 1 has `bad` somewhere in its gradient, a good one;
    what happened."""
    group = dist.new_group(members)
    if dist.get_rank() not in members:
        return None
    rank = dist.get_rank(group)
    parameters = [nn.Parameter(torch.arange(4.0) + k) for k in range(2)]
    optimizer = torch.optim.Adam(parameters, lr=0.1)
    scaler = LossScaler(scale=8.0)
    seen = []
    for number in range(3):
        for p in parameters:
            p.grad = torch.full((4,), 8.0 * (rank + 1))  # ranks differ, as shards do
        if number == 1 and rank == 1:
            parameters[1].grad[2] = bad
        before = bits(parameters), copy.deepcopy(optimizer.state_dict()["state"])
        ledger.mark(f"{bad} {members} {number}")
        stepped = scaler.step(optimizer, group, all_reduce)
        ledger.mark("")
        state = optimizer.state_dict()["state"]
        untouched = alike(before[0], parameters) and all(
            alike(list(before[1][k].values()), list(state[k].values())) for k in before[1]
        )
        seen.append((stepped, untouched, scaler.scale, scaler.good_steps))
    return seen


def overflows():
    torchs = lambda tensor, group: dist.all_reduce(tensor, group=group)
    inf, nan, world = float("inf"), float("nan"), [0, 1, 2]
    cases = [
        (inf, collectives.all_reduce, world),
        (-inf, collectives.ring_all_reduce, world),
        (nan, torchs, world),
    ]
    return [one_overflow(*case) for case in [*cases, (inf, collectives.all_reduce, [1, 2])]]


@pytest.fixture(scope="module")
def overflowed():
    return launch.capture(overflows, nproc=3)


def test_an_overflow_on_rank_1_alone_skips_the_step_on_all_three(overflowed):
    for of_rank in overflowed:
        for seen in of_rank[:3]:
            good, skipped, after = seen
            assert good == (True, False, 8.0, 1)
            # parameters and Adam's state as they were; the scale backs off
            assert skipped == (False, True, 4.0, 0)
            assert after == (True, False, 4.0, 1)


def test_only_the_group_decides(overflowed):
    assert overflowed[0][3] is None
    assert [[stepped for stepped, *_ in overflowed[rank][3]] for rank in (1, 2)] == [
        [True, False, True]
    ] * 2


def test_a_step_sends_one_all_reduce_of_one_element(overflowed):
    for number in range(3):
        (one, two, three) = overflowed.ledger.section(f"nan [0, 1, 2] {number}").entries
        assert [(e.op, e.numel) for e in (one, two, three)] == [("all_reduce", 1)] * 3
        lib = overflowed.ledger.section(f"inf [0, 1, 2] {number}").entries
        assert {e.numel for e in lib} == {1}


def holds_nothing_on_rank_0():
    """Sharded: rank 0 holds no parameter that got a gradient; rank 1's overflows."""
    p = nn.Parameter(torch.ones(2))
    p.grad = None if dist.get_rank() == 0 else torch.tensor([1.0, float("inf")])
    return LossScaler().step(torch.optim.SGD([p], lr=1.0)), p.tolist()


def fp16_gpt():
    """A GPT in fp16, from a scale that is far too large; (stepped?, scale) per step,
    parameters, masters."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model = GPT(SHAPE).half()
    optimizer, scaler = (
        MasterWeights(model.parameters(), adam(1e-3)),
        LossScaler(scale=2.0**24, growth_interval=4),
    )
    seen = []
    for step in range(14):
        scaler.scale_loss(loss_of(model, step, rank, world_size)).backward()
        average_gradients(list(model.parameters()))
        optimizer.grads_to_master()
        seen.append((scaler.step(optimizer), scaler.scale))
        optimizer.zero_grad()
    return seen, bits(model.parameters()), bits(optimizer.masters)


def averaged_in_fp32():
    """fp16's neighbours are 2 apart at 2048: the mean of 2048, 2050, 2050 is not one of them."""
    p = nn.Parameter(torch.zeros(1, dtype=torch.float16))
    optimizer = MasterWeights([p], sgd(1.0))
    p.grad = torch.full((1,), 2048.0 if dist.get_rank() == 0 else 2050.0, dtype=torch.float16)
    optimizer.grads_to_master()
    average_gradients(optimizer.masters)
    return optimizer.masters[0].grad.item()


def in_one_launch():
    return holds_nothing_on_rank_0(), fp16_gpt(), averaged_in_fp32()


@pytest.fixture(scope="module")
def trained():
    return launch.capture(in_one_launch, nproc=3)


def test_a_rank_without_gradients_takes_part(trained):
    assert [of_rank[0] for of_rank in trained] == [(False, [1.0, 1.0])] * 3


def test_ranks_in_fp16_find_the_scale_together_and_stay_bit_identical(trained):
    (first, parameters, masters), *others = (of_rank[1] for of_rank in trained)
    stepped = [s for s, _ in first]
    assert not stepped[0] and any(stepped)
    assert first[0][1] == 2.0**23
    start = bits(GPT(SHAPE).half().parameters())
    assert all(p.isfinite().all() for p in parameters) and not alike(parameters, start)
    for seen, *tensors in others:
        assert seen == first
        assert alike(tensors[0], parameters) and alike(tensors[1], masters)


def test_gradients_can_be_averaged_in_fp32(trained):
    assert [of_rank[2] for of_rank in trained] == [pytest.approx(6148 / 3, rel=2**-23)] * 3


# --- the scale ------------------------------------------------------------------------------------


def step_with(scaler, gradient):
    p = nn.Parameter(torch.zeros(1))
    p.grad = torch.tensor([gradient])
    return scaler.step(torch.optim.SGD([p], lr=1.0), **ALONE), p.item()


def test_the_scale_grows_after_good_steps_in_a_row_and_backs_off_at_once():
    scaler = LossScaler(scale=16.0, growth=4.0, backoff=0.25, growth_interval=3)
    inf, scales = float("inf"), []
    for gradient in [1.0, 1.0, 1.0, 1.0, 1.0, inf, 1.0, 1.0, inf, inf, 1.0, 1.0, 1.0]:
        stepped, _ = step_with(scaler, gradient)
        assert stepped is (gradient != inf)
        scales.append(scaler.scale)
    assert scales == [16, 16, 64, 64, 64, 16, 16, 16, 4, 1, 1, 1, 4]


def test_the_default_scale_doubles_after_2000_good_steps():
    scaler = LossScaler()
    p = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([p], lr=1.0)
    for _ in range(1999):
        scaler.step(optimizer, **ALONE)
    assert scaler.scale == 65536
    scaler.step(optimizer, **ALONE)
    assert scaler.scale == 131072


def test_the_step_uses_the_unscaled_gradient():
    scaler = LossScaler(scale=1024.0)
    assert step_with(scaler, 512.0) == (True, -0.5)


def test_in_fp32_a_scaled_run_equals_the_unscaled_one_bit_for_bit():
    def run(scaler):
        model = GPT(SHAPE)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        for step in range(3):
            optimizer.zero_grad()
            if scaler is None:
                loss_of(model, step).backward()
                optimizer.step()
            else:
                scaler.scale_loss(loss_of(model, step)).backward()
                assert scaler.step(optimizer, **ALONE)
        return bits(model.parameters()), [p.grad for p in model.parameters()]

    plain, scaled = run(None), run(LossScaler())
    assert alike(plain[0], scaled[0]) and alike(plain[1], scaled[1])


def test_a_gradient_below_fp16_arrives_with_scaling_and_vanishes_without():
    def moved_by(scaler):
        p = nn.Parameter(torch.ones(3, dtype=torch.float16))
        masters = MasterWeights([p], sgd(1.0))
        loss = (
            p * 1e-4
        ).float().sum() * 1e-4  # g = 1e-8, below half of fp16's smallest, 2^-24 = 6e-8
        (scaler.scale_loss(loss) if scaler else loss).backward()
        masters.grads_to_master()
        (scaler.step(masters, **ALONE) if scaler else masters.step())
        return masters.masters[0].grad[0].item()

    assert moved_by(None) == 0.0
    assert moved_by(LossScaler()) == pytest.approx(1e-8, rel=2**-10)  # two roundings to 11 bits


def test_a_scale_that_can_help_no_more_says_where_to_look():
    scaler = LossScaler(scale=2.0**-23)
    assert step_with(scaler, float("nan")) == (False, 0.0)
    with pytest.raises(
        FloatingPointError, match=r"fallen to 2.98023e-08.*Look for the first inf or nan"
    ):
        step_with(scaler, float("nan"))


@pytest.mark.parametrize(
    "wrong", [{"scale": 0.0}, {"growth": 1.0}, {"backoff": 1.0}, {"growth_interval": 0}]
)
def test_a_scale_that_could_not_move_is_refused(wrong):
    with pytest.raises(
        ValueError, match=f"{next(iter(wrong))} {next(iter(wrong.values()))}.*use scale above 0"
    ):
        LossScaler(**wrong)
