"""Dispatch and combine by index are the einsums over masks: values, all gradients, and n *
E * C of memory less."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lib.moe import (
    Routing,
    assign_slots,
    capacity,
    combine,
    combine_einsum,
    dispatch,
    dispatch_einsum,
    expert_choice,
    gshard_gate,
    reroute,
    switch_gate,
    top_k_gate,
    uniform_per_token,
)

D = 5
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


def draw(seed, *shape, dtype=torch.float64):
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(*shape, generator=generator, device="cpu", dtype=dtype)


def routings(dtype):
    """{name: (n, E, C, routing)}: with drops and without, all to one expert, experts without
    tokens, no tokens."""
    cases = {}
    for n, n_experts in ((23, 4), (7, 16), (6, 1), (0, 3)):
        for skew in (0.0, 40.0):  # 40: one expert gets everybody
            favourite = torch.arange(n_experts, device="cpu") == n_experts - 1
            logits = draw(n, n, n_experts, dtype=dtype) + skew * favourite
            for factor in (0.5, n_experts):
                C = capacity(n, n_experts, 1, factor)
                add = lambda name, r, at=(n, n_experts, C, skew): cases.__setitem__(
                    (name, *at), (*at[:3], r)
                )
                add("switch", assign_slots(switch_gate(logits), n_experts, C))
                add("rerouted", reroute(switch_gate(logits), n_experts, C))
                add("experts", expert_choice(logits, min(C, n)))
                if n_experts > 1:
                    add("top 2", assign_slots(top_k_gate(logits, 2), n_experts, C))
                    add(
                        "gshard",
                        assign_slots(
                            gshard_gate(logits, uniform_per_token(torch.arange(n), 2)), n_experts, C
                        ),
                    )
    return cases


def scale_of(x):
    return max(1.0, x.abs().max().item()) if x.numel() else 1.0


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_by_index_is_the_einsum(dtype):
    for name, (n, n_experts, C, routing) in routings(dtype).items():
        m = len(routing.token)
        x, dy = draw(1, n, D, dtype=dtype), draw(2, n, D, dtype=dtype)
        # an expert each, so that a row at the wrong one shows
        matrices = draw(3, n_experts, D, D, dtype=dtype)

        def by_index(x, matrices, weight, routing=routing, n=n):
            rows = dispatch(x, routing).unsqueeze(1) @ matrices[routing.expert]  # (m, 1, D)
            return combine(rows.squeeze(1), routing._replace(weight=weight), n)

        def by_einsum(x, matrices, weight, routing=routing, n=n, n_experts=n_experts, C=C):
            slots = dispatch_einsum(x, routing, n_experts, C)
            return combine_einsum(slots @ matrices, routing._replace(weight=weight), n)

        found = []
        for layer in (by_index, by_einsum):
            leaves = [t.detach().clone().requires_grad_() for t in (x, matrices, routing.weight)]
            y = layer(*leaves)
            found.append((y, *torch.autograd.grad(y, leaves, dy)))
        for got, want in zip(*found, strict=True):
            assert got.shape == want.shape and got.dtype == dtype, name
            assert (got - want).abs().sum() <= TOLERANCE[dtype] * scale_of(want) * max(1, m), name


def test_rows_are_the_slots_without_the_empty_ones():
    for name, (n, n_experts, C, routing) in routings(torch.float64).items():
        x = draw(1, n, D)
        slots = dispatch_einsum(x, routing, n_experts, C)
        assert slots.shape == (n_experts, C, D), name
        assert torch.equal(dispatch(x, routing), slots[routing.expert, routing.slot]), name
        slots[routing.expert, routing.slot] = 0
        assert slots.abs().sum() == 0, name


def test_by_hand():
    x = torch.tensor([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]])
    # token, expert, slot: the picture in dispatch.py
    where = [[0, 2, 0, 1], [0, 0, 1, 2], [0, 1, 0, 0]]
    routing = Routing(*map(torch.tensor, where), torch.tensor([0.75, 1.0, 0.25, 0.5]))
    rows = dispatch(x, routing)
    assert rows.tolist() == [[1.0, 10.0], [3.0, 30.0], [1.0, 10.0], [2.0, 20.0]]
    outputs = rows * torch.tensor([[1.0], [1.0], [100.0], [1000.0]])  # experts: times 1, 100, 1000
    assert combine(outputs, routing, 3).tolist() == [[25.75, 257.5], [1000.0, 10000.0], [3.0, 30.0]]
    # nobody's tokens get zeros
    assert combine(outputs, routing, 5)[3:].tolist() == [[0.0, 0.0]] * 2


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_identity_experts_give_the_input_back(dtype):
    """Where weights add up to 1 and nothing is dropped; where something is, each token is
    its kept weights' sum."""
    x, logits = draw(1, 19, D, dtype=dtype), draw(2, 19, 6, dtype=dtype)
    for k in (1, 2, 3):
        choice = top_k_gate(logits, k)
        routing = assign_slots(choice, 6, 19)
        assert torch.allclose(
            combine(dispatch(x, routing), routing, 19), x, rtol=0, atol=TOLERANCE[dtype]
        )
        routing = assign_slots(choice, 6, 2)
        left = torch.zeros(19, dtype=dtype)
        for t, w in zip(routing.token.tolist(), routing.weight.tolist(), strict=True):
            left[t] += w
        got = combine(dispatch(x, routing), routing, 19)
        assert torch.allclose(got, left.unsqueeze(1) * x, rtol=0, atol=TOLERANCE[dtype])
        assert left.min() == 0 and got[left == 0].abs().sum() == 0


def test_gradients():
    logits, x = draw(3, 6, 4).requires_grad_(), draw(4, 6, 3).requires_grad_()

    def layer(x, logits):
        routing = assign_slots(top_k_gate(logits, 2), 4, 2)
        return combine(dispatch(x, routing).sin(), routing, 6)

    assert torch.autograd.gradcheck(layer, (x, logits))
    assert torch.autograd.gradgradcheck(layer, (x, logits))


class Largest(TorchDispatchMode):
    """The size of the largest tensor that any operation made."""

    numel = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for t in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(t, torch.Tensor):
                self.numel = max(self.numel, t.numel())
        return out


def test_by_index_nothing_grows_with_n_times_slots():
    n, n_experts, hidden = 64, 16, 8
    x, logits = draw(5, n, hidden).requires_grad_(), draw(6, n, n_experts).requires_grad_()
    C = capacity(n, n_experts, 1, 1.25)
    with Largest() as by_index:
        routing = assign_slots(switch_gate(logits), n_experts, C)
        combine(dispatch(x, routing), routing, n).sum().backward()
    with Largest() as by_einsum:
        routing = assign_slots(switch_gate(logits), n_experts, C)
        combine_einsum(dispatch_einsum(x, routing, n_experts, C), routing, n).sum().backward()
    assert by_index.numel == max(n * hidden, n * n_experts)
    assert by_einsum.numel == n * n_experts * C
