"""Mixed precision: masters lose no update, and a resumed run is the uninterrupted one."""

import pytest
import torch
from precisions import ALONE, SHAPE, adam, alike, loss_of, sgd
from torch import nn

from lib.training.model import GPT
from lib.training.precision import LossScaler, MasterWeights
from lib.training.precision.master_weights import grads_to_master, make_masters, master_to_params


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
    """Gradients carry bf16's 8 bits, an error of 2^-9 each way; the update, relative to itself,
    stays within 5 %."""

    def way_of(dtype, masters):
        """What 12 steps changed, in the optimizer's own numbers; (n,) float64."""
        model = GPT(SHAPE).to(dtype)
        make = adam(1e-4)
        optimizer = (
            MasterWeights(model.parameters(), make) if masters else make(list(model.parameters()))
        )
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
    assert (
        len(optimizer.masters) == 3
        and optimizer.masters[1] is wide
        and optimizer.masters[2] is double
    )
    assert master.dtype == torch.float32 and master is not tied

    ((tied.sum() + (3 * tied).sum()).double() + wide.sum() + 2 * double.sum()).backward()
    optimizer.grads_to_master()
    optimizer.grads_to_master()  # the gradient has moved: nothing is added twice
    assert master.grad.tolist() == [4.0, 4.0] and tied.grad is None
    optimizer.step()
    assert [p.tolist() for p in (tied, wide, double, frozen)] == [
        [-3.0] * 2,
        [0.0] * 2,
        [-1.0] * 2,
        [1.0] * 2,
    ]
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
    assert (
        optimizer.masters[1].grad is None
        and unused.item() == torch.tensor(0.1, dtype=torch.bfloat16).item()
    )


def test_a_forgotten_copy_up_is_named_through_the_scaler_too():
    p = nn.Parameter(torch.ones(2, 3, dtype=torch.float16))
    optimizer = MasterWeights([p], sgd(1.0))
    p.sum().backward()
    for step in (optimizer.step, lambda: LossScaler().step(optimizer, **ALONE)):
        with pytest.raises(
            RuntimeError, match=r"parameter 0, \(2, 3\), still has its torch.float16 gradient: call"
        ):
            step()
    assert p.tolist() == [[1.0] * 3] * 2


# --- resuming -------------------------------------------------------------------------------------


def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(tmp_path):
    def fresh():
        model = GPT(SHAPE).half()
        return (
            model,
            MasterWeights(model.parameters(), adam(1e-3)),
            LossScaler(scale=4.0, growth_interval=2),
        )

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
    # rounded from the masters
    assert alike(list(resumed[0].parameters()), list(whole[0].parameters()))
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
