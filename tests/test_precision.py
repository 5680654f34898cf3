"""Mixed precision: an overflow skips the step on every rank, powers of two round nothing, masters lose no update."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn

from lib import collectives, launch, ledger, text
from lib.data_parallel.replicate import average_gradients
from lib.model import GPT, Shape, cross_entropy
from lib.precision import LossScaler, MasterWeights
from lib.precision.master_weights import grads_to_master, make_masters, master_to_params

TEXT = text.load()
SHAPE = Shape(vocab_size=len(TEXT.vocabulary), seq_len=8, n_layers=1, hidden=16, n_heads=2)
ALONE = {"all_reduce": lambda tensor, group: tensor}  # one process: it agrees with itself
sgd = lambda lr: lambda masters: torch.optim.SGD(masters, lr=lr)
adam = lambda lr: lambda masters: torch.optim.Adam(masters, lr=lr, eps=1e-3)


def bits(tensors):
    return [t.detach().clone() for t in tensors]


def alike(some, others):
    """Same dtypes, same bits."""
    return len(some) == len(others) and all(
        a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(some, others, strict=True)
    )


def loss_of(model, step, rank=0, world_size=1):
    """fp32 loss of this rank's share of a batch of 6 sequences."""
    tokens, targets = text.batch(TEXT.train, step, rank, world_size, batch_size=6, seq_len=8)  # (b, 8)
    return cross_entropy(model(tokens).float(), targets)


# --- one decision for all ranks -------------------------------------------------------------------------------------


def one_overflow(bad, all_reduce, members):
    """A good step, one where the group's rank 1 has `bad` somewhere in its gradient, a good one; what happened."""
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
    cases = [(inf, collectives.all_reduce, world), (-inf, collectives.ring_all_reduce, world), (nan, torchs, world)]
    return [one_overflow(*case) for case in [*cases, (inf, collectives.all_reduce, [1, 2])]]


@pytest.fixture(scope="module")
def overflowed():
    return launch.capture(overflows, nproc=3)


def test_an_overflow_on_rank_1_alone_skips_the_step_on_all_three(overflowed):
    for of_rank in overflowed:
        for seen in of_rank[:3]:
            good, skipped, after = seen
            assert good == (True, False, 8.0, 1)
            assert skipped == (False, True, 4.0, 0)  # parameters and Adam's state as they were; the scale backs off
            assert after == (True, False, 4.0, 1)


def test_only_the_group_decides(overflowed):
    assert overflowed[0][3] is None
    assert [[stepped for stepped, *_ in overflowed[rank][3]] for rank in (1, 2)] == [[True, False, True]] * 2


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
    """A GPT in fp16, from a scale that is far too large; (stepped?, scale) per step, parameters, masters."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model = GPT(SHAPE).half()
    optimizer, scaler = MasterWeights(model.parameters(), adam(1e-3)), LossScaler(scale=2.0**24, growth_interval=4)
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


# --- the scale ------------------------------------------------------------------------------------------------------


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
        loss = (p * 1e-4).float().sum() * 1e-4  # g = 1e-8, below half of fp16's smallest, 2^-24 = 6e-8
        (scaler.scale_loss(loss) if scaler else loss).backward()
        masters.grads_to_master()
        (scaler.step(masters, **ALONE) if scaler else masters.step())
        return masters.masters[0].grad[0].item()

    assert moved_by(None) == 0.0
    assert moved_by(LossScaler()) == pytest.approx(1e-8, rel=2**-10)  # two roundings to 11 bits


def test_a_scale_that_can_help_no_more_says_where_to_look():
    scaler = LossScaler(scale=2.0**-23)
    assert step_with(scaler, float("nan")) == (False, 0.0)
    with pytest.raises(FloatingPointError, match=r"fallen to 2.98023e-08.*Look for the first inf or nan"):
        step_with(scaler, float("nan"))


@pytest.mark.parametrize("wrong", [{"scale": 0.0}, {"growth": 1.0}, {"backoff": 1.0}, {"growth_interval": 0}])
def test_a_scale_that_could_not_move_is_refused(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} {next(iter(wrong.values()))}.*use scale above 0"):
        LossScaler(**wrong)


# --- masters --------------------------------------------------------------------------------------------------------


def repeat(dtype, masters, update, steps):
    """1 + update + update + ... in `dtype`, with or without a master."""
    p = nn.Parameter(torch.ones(1, dtype=dtype))
    optimizer = MasterWeights([p], sgd(1.0)) if masters else torch.optim.SGD([p], lr=1.0)
    for _ in range(steps):
        p.grad = torch.full((1,), -update, dtype=dtype)
        if masters:
            optimizer.grads_to_master()
        optimizer.step()
        optimizer.zero_grad()
    return p.item()


def test_an_update_of_one_ten_thousandth_vanishes_in_16_bits_and_not_with_a_master():
    assert torch.finfo(torch.float16).eps == 2**-10 and torch.finfo(torch.bfloat16).eps == 2**-7
    for dtype in (torch.float16, torch.bfloat16):
        assert repeat(dtype, masters=False, update=1e-4, steps=1000) == 1.0
        assert repeat(dtype, masters=True, update=1e-4, steps=1) == 1.0
        assert repeat(dtype, masters=True, update=1e-4, steps=1000) == pytest.approx(1.1, abs=2**-8)
    # the table of the module's docstring
    assert f"{repeat(torch.float16, masters=True, update=1e-4, steps=10):.5f}" == "1.00098"
    assert f"{repeat(torch.float16, masters=True, update=1e-4, steps=1000):.5f}" == "1.09961"


def test_bf16_with_masters_follows_fp32_to_a_twentieth_of_the_way_and_without_does_not():
    """Gradients carry bf16's 8 bits, an error of 2^-9 each way; the update, relative to itself, stays within 5 %."""

    def way_of(dtype, masters):
        """What 12 steps changed, in the optimizer's own numbers; (n,) float64."""
        model = GPT(SHAPE).to(dtype)
        make = adam(1e-4)
        optimizer = MasterWeights(model.parameters(), make) if masters else make(list(model.parameters()))
        numbers = optimizer.masters if masters else list(model.parameters())
        flat = lambda: torch.cat([p.detach().double().flatten() for p in numbers])
        start = flat()
        for step in range(12):
            loss_of(model, step).backward()
            if masters:
                optimizer.grads_to_master()
                assert alike(list(model.parameters()), [m.to(dtype) for m in numbers])
            optimizer.step()
            optimizer.zero_grad()
        return flat() - start

    exact = way_of(torch.float32, masters=False)
    off = lambda way: ((way - exact).norm() / exact.norm()).item()
    assert off(way_of(torch.float32, masters=True)) == 0
    assert off(way_of(torch.bfloat16, masters=True)) < 0.05
    assert off(way_of(torch.bfloat16, masters=False)) > 0.25


def test_tied_frozen_and_wide_parameters():
    tied = nn.Parameter(torch.ones(2, dtype=torch.float16))
    frozen = nn.Parameter(torch.ones(2, dtype=torch.float16), requires_grad=False)
    wide, double = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2, dtype=torch.float64))
    optimizer = MasterWeights([tied, wide, frozen, double, tied], sgd(1.0))
    master = optimizer.masters[0]
    assert len(optimizer.masters) == 3 and optimizer.masters[1] is wide and optimizer.masters[2] is double
    assert master.dtype == torch.float32 and master is not tied

    ((tied.sum() + (3 * tied).sum()).double() + wide.sum() + 2 * double.sum()).backward()
    optimizer.grads_to_master()
    optimizer.grads_to_master()  # the gradient has moved: nothing is added twice
    assert master.grad.tolist() == [4.0, 4.0] and tied.grad is None
    optimizer.step()
    assert [p.tolist() for p in (tied, wide, double, frozen)] == [[-3.0] * 2, [0.0] * 2, [-1.0] * 2, [1.0] * 2]
    assert {p.dtype for p in (tied, frozen)} == {torch.float16}
    optimizer.zero_grad()
    assert [t.grad for t in (tied, wide, double, master)] == [None] * 4


def test_micro_batches_are_summed_in_fp32():
    p = nn.Parameter(torch.zeros(1, dtype=torch.float16))
    optimizer = MasterWeights([p], sgd(1.0))
    for gradient in (2048.0, 1.0, 1.0):  # in fp16, 2048 + 1 = 2048
        p.grad = torch.full((1,), gradient, dtype=torch.float16)
        optimizer.grads_to_master()
    assert optimizer.masters[0].grad.item() == 2050.0


def test_copy_up_and_down_serve_shards():
    """A shard of a flat bf16 parameter and its master shard: what ZeRO keeps."""
    flat = torch.arange(8, dtype=torch.bfloat16)
    shard = flat[4:]  # a view
    (master,) = make_masters([shard])
    shard.grad = torch.ones(4, dtype=torch.bfloat16)
    grads_to_master([shard], [master])
    with torch.no_grad():
        master -= 0.5 * master.grad
    master_to_params([master], [shard])
    assert flat.tolist() == [0.0, 1.0, 2.0, 3.0, 3.5, 4.5, 5.5, 6.5]


def test_a_parameter_without_gradient_stays():
    used, unused = (nn.Parameter(torch.full((1,), 0.1, dtype=torch.bfloat16)) for _ in range(2))
    optimizer = MasterWeights([used, unused], sgd(1.0))
    used.sum().backward()
    optimizer.grads_to_master()
    optimizer.step()
    assert optimizer.masters[1].grad is None and unused.item() == torch.tensor(0.1, dtype=torch.bfloat16).item()


def test_a_forgotten_copy_up_is_named_through_the_scaler_too():
    p = nn.Parameter(torch.ones(2, 3, dtype=torch.float16))
    optimizer = MasterWeights([p], sgd(1.0))
    p.sum().backward()
    for step in (optimizer.step, lambda: LossScaler().step(optimizer, **ALONE)):
        with pytest.raises(RuntimeError, match=r"parameter 0, \(2, 3\), still has its torch.float16 gradient: call"):
            step()
    assert p.tolist() == [[1.0] * 3] * 2


# --- resuming -------------------------------------------------------------------------------------------------------


def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(tmp_path):
    def fresh():
        model = GPT(SHAPE).half()
        return model, MasterWeights(model.parameters(), adam(1e-3)), LossScaler(scale=4.0, growth_interval=2)

    def go(model, optimizer, scaler, steps):
        for step in steps:
            scaler.scale_loss(loss_of(model, step)).backward()
            optimizer.grads_to_master()
            scaler.step(optimizer, **ALONE)
            optimizer.zero_grad()

    whole, resumed = fresh(), fresh()
    go(*whole, range(3))
    torch.save([part.state_dict() for part in whole[1:]], tmp_path / "state")
    states = torch.load(tmp_path / "state", weights_only=True)
    for part, state in zip(resumed[1:], states, strict=True):
        part.load_state_dict(state)
    assert alike(list(resumed[0].parameters()), list(whole[0].parameters()))  # rounded from the masters
    assert resumed[2].state_dict() == {"scale": 8.0, "good_steps": 1}
    go(*whole, range(3, 6))
    go(*resumed, range(3, 6))
    assert alike(resumed[1].masters, whole[1].masters)
    assert alike(list(resumed[0].parameters()), list(whole[0].parameters()))
    assert resumed[2].state_dict() == whole[2].state_dict() == {"scale": 32.0, "good_steps": 0}


def test_the_state_of_another_model_is_refused():
    ours, other = (MasterWeights([nn.Parameter(torch.ones(n).half())], sgd(1.0)) for n in (2, 3))
    with pytest.raises(ValueError, match=r"masters of shapes \[\(3,\)\] do not fit \[\(2,\)\]"):
        ours.load_state_dict(other.state_dict())
