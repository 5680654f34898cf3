"""The layer is the sum over its experts, token by token: output, every gradient, drops,
statistics, sets apart."""

import copy
import functools
import math
import pickle

import pytest
import torch
from torch import nn

from lib.moe import (
    CorrelatedGate,
    ExpertBiasGate,
    MoE,
    assign_by_expert_choice,
    assign_slots,
    auxiliary_loss,
    capacity,
    dispatch,
    gshard_gate,
    load,
    reroute,
    switch_gate,
    top_k_gate,
    uniform_per_token,
    z_loss,
)

D, E = 6, 4
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-12}
top_2 = functools.partial(top_k_gate, k=2)
GATES = {
    "switch": (switch_gate, assign_slots),
    "switch, rerouted": (switch_gate, reroute),
    "top 2": (top_2, assign_slots),
    "top 3": (functools.partial(top_k_gate, k=3), assign_slots),
    "gshard": (gshard_gate, assign_slots),
    "experts choose": (switch_gate, assign_by_expert_choice),
    "bias": (ExpertBiasGate(E, 2), assign_slots),
    "correlated": (CorrelatedGate(E), assign_slots),
}


def draw(seed, *shape, dtype=torch.float64):
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(*shape, generator=generator, device="cpu", dtype=dtype)


def build(
    gate=switch_gate, place=assign_slots, factor=1.0, n_experts=E, dtype=torch.float64, seed=0
):
    """A layer whose experts are MLPs, all different; weights from the seed."""
    experts = [nn.Sequential(nn.Linear(D, 7), nn.GELU(), nn.Linear(7, D)) for _ in range(n_experts)]
    moe = MoE(D, experts, gate, factor, place).to("cpu", dtype)
    with torch.no_grad():
        for i, p in enumerate(moe.parameters()):
            p.copy_(draw(100 * seed + i, *p.shape, dtype=dtype) / math.sqrt(p.shape[-1]))
    return moe


def drawn(gate, n):
    return (
        (uniform_per_token(torch.arange(n, device="cpu"), seed=0),) if gate is gshard_gate else ()
    )


def by_tokens(moe, x, uniform=()):
    """y_t = sum over t's experts e of w_te expert_e(x_t), token by token; the two losses."""
    logits = x @ moe.router.weight.t()
    choice = moe.gate(logits, *uniform)
    C = capacity(len(x), len(moe.experts), choice.experts.shape[1], moe.factor)
    routing = moe.assign_slots(choice, len(moe.experts), C)
    y = [torch.zeros_like(row) for row in x]
    for t, e, w in zip(
        routing.token.tolist(), routing.expert.tolist(), routing.weight, strict=True
    ):
        y[t] = y[t] + w * moe.experts[e](x[t])
    return (
        torch.stack(y),
        auxiliary_loss(choice.probabilities, choice.experts[:, 0]),
        z_loss(logits),
    )


def gradients(moe, loss, x):
    """{name: gradient}, x's too; zeros where there is none."""
    names, leaves = zip(*moe.named_parameters(), strict=True)
    found = torch.autograd.grad(loss, [*leaves, x], allow_unused=True)
    return {
        name: torch.zeros_like(leaf) if g is None else g
        for name, leaf, g in zip([*names, "x"], [*leaves, x], found, strict=True)
    }


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", GATES)
def test_the_layer_is_the_sum_over_experts(name, dtype):
    (gate, place), n, some_dropped = GATES[name], 14, 0
    for factor in (0.5, 1.0, 4.0):
        moe = build(gate, place, factor, dtype=dtype)
        x, dy = draw(1, n, D, dtype=dtype).requires_grad_(), draw(2, n, D, dtype=dtype)
        want, auxiliary, z = by_tokens(moe, x, drawn(gate, n))
        expected = gradients(moe, (want * dy).sum() + 3 * auxiliary + 0.1 * z, x)
        got = moe(x.view(2, 7, D), *drawn(gate, n)).view(n, D)
        found = gradients(moe, (got * dy).sum() + 3 * moe.last.auxiliary + 0.1 * moe.last.z, x)
        some_dropped += int(moe.last.dropped) > 0
        for key, a, b in [("y", got, want), *((k, found[k], expected[k]) for k in expected)]:
            assert (a - b).abs().max() <= TOLERANCE[dtype] * max(1.0, b.abs().max().item()), (
                key,
                factor,
            )
        assert found["router.weight"].abs().max() > 0
    assert some_dropped


def test_statistics_by_hand():
    moe = build(factor=1.0, n_experts=2)
    with torch.no_grad():
        moe.router.weight.zero_()
        moe.router.weight[0, 0], moe.router.weight[1, 1] = 1.0, 1.0
    x = torch.zeros(6, D, dtype=torch.float64)
    x[:5, 0], x[5, 1] = 1.0, 1.0  # five ask for expert 0, one for expert 1; C = 3
    moe(x)
    seen = moe.last
    assert seen.experts.tolist() == [[0]] * 5 + [[1]]
    assert seen.requested.tolist() == [5, 1] and seen.load.tolist() == [3, 1]
    assert seen.dropped.item() == 2 and seen.left_out.item() == 2
    high = 1 / (1 + math.exp(-1))
    P = (5 * high + 1 - high) / 6
    assert abs(seen.auxiliary.item() - 2 * (5 / 6 * P + 1 / 6 * (1 - P))) < 1e-14
    assert abs(seen.z.item() - math.log(1 + math.e) ** 2) < 1e-14
    moe.assign_slots = reroute
    moe(x)
    assert moe.last.load.tolist() == [3, 3] and moe.last.dropped.item() == 0


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_identity_experts_give_the_input_back(dtype):
    x = draw(3, 3, 5, D, dtype=dtype)
    for k in (1, 2, 3, E):
        moe = MoE(
            D, [nn.Identity() for _ in range(E)], functools.partial(top_k_gate, k=k), E / k
        ).to("cpu", dtype)
        assert torch.allclose(moe(x), x, rtol=0, atol=TOLERANCE[dtype])
        assert moe.last.dropped == 0 and moe.last.left_out == 0


def test_a_token_without_a_slot_gets_zeros():
    moe = build(factor=0.25)
    y = moe(draw(4, 16, D))
    assert moe.last.left_out > 0
    assert (y.abs().sum(1) == 0).sum() == moe.last.left_out
    assert moe.last.load.max() <= 1


def test_an_expert_without_tokens_has_a_gradient_of_zeros():
    moe = build(factor=E)
    with torch.no_grad():
        moe.router.weight.zero_()  # all alike: expert 0 is everybody's
    moe(draw(5, 9, D)).sum().backward()
    assert moe.last.load.tolist() == [9, 0, 0, 0]
    for e, expert in enumerate(moe.experts):
        for p in expert.parameters():
            assert (p.grad.abs().max() > 0) == (e == 0)


def test_sets_do_not_share_slots():
    """Two sets routed apart are not one: each has its own C, and a crowd in one drops
    nobody in the other."""
    moe, x = build(factor=1.0), draw(6, 20, D)
    apart, drops = [], []
    for part in x.split([5, 15]):
        apart.append(moe(part))
        drops.append(moe.last.dropped.item())
        assert moe.last.load.max() <= capacity(len(part), E, 1, 1.0)
    together = moe(x)
    assert not torch.allclose(torch.cat(apart), together)
    swapped = [moe(part) for part in reversed(x.split([5, 15]))]
    assert torch.equal(swapped[1], apart[0]) and torch.equal(swapped[0], apart[1])


def test_a_sampled_token_does_not_notice_its_set():
    """With room for all, the numbers keyed by the index make any split into sets the same layer."""
    moe, x, index = (
        build(gshard_gate, factor=E),
        draw(7, 20, D),
        torch.arange(20, device="cpu") + 1000,
    )
    whole = moe(x, uniform_per_token(index, seed=1))
    assert (moe.last.experts == -1).any()
    parts = [
        moe(a, uniform_per_token(i, seed=1))
        for a, i in zip(x.split([3, 8, 9]), index.split([3, 8, 9]), strict=True)
    ]
    assert torch.allclose(torch.cat(parts), whole, rtol=0, atol=1e-14)
    assert not torch.allclose(moe(x, uniform_per_token(index, seed=2)), whole)


def test_no_tokens():
    for name, (gate, place) in GATES.items():
        moe = build(gate, place)
        x = torch.zeros(0, D, dtype=torch.float64, requires_grad=True)
        y = moe(x, *drawn(gate, 0))
        (y.sum() + moe.last.auxiliary + moe.last.z).backward()
        assert y.shape == (0, D) and moe.last.load.tolist() == [0] * E, name
        assert all(p.grad is not None and p.grad.abs().max() == 0 for p in moe.parameters()), name


def test_a_copy_starts_without_statistics():
    moe, x = build(), draw(8, 6, D).requires_grad_()
    y = moe(x)
    for twin in (copy.deepcopy(moe), pickle.loads(pickle.dumps(moe))):
        assert twin.last is None and moe.last is not None
        assert torch.equal(twin(x), y)


def test_a_students_functions_drive_it():
    called = []

    def mine(x, routing):
        called.append(len(routing.token))
        return dispatch(x, routing)

    moe = MoE(D, [nn.Identity()] * 2, switch_gate, 2, dispatch=mine)
    moe(torch.ones(4, D))
    assert called == [4]


def test_a_bias_balances_while_the_layer_trains():
    moe, x = build(ExpertBiasGate(E, 1, update_rate=0.02), factor=E), draw(9, 200, D)
    with torch.no_grad():
        moe.router.weight[1] += 0.5 * x.mean(0) / x.mean(0).norm() + 0.2
    shares = []
    for _ in range(80):
        gradients = torch.autograd.grad((moe(x) - x).square().mean(), list(moe.parameters()))
        with torch.no_grad():
            for p, g in zip(moe.parameters(), gradients, strict=True):
                p -= 0.01 * g
        moe.gate.update(moe.last.requested)
        shares.append((load(moe.last.experts, E).max() / 50).item())
    assert shares[-1] < 1.3 and shares[-1] < shares[0]
