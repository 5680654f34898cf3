"""Slots: who gets one, in which order, and who does not. Every case against a loop over
tokens, some by hand."""

import pytest
import torch

from lib.moe import (
    Choice,
    assign_slots,
    capacity,
    dropped,
    gshard_gate,
    load,
    reroute,
    switch_gate,
    top_k_gate,
    uniform_per_token,
)


def draw(seed, n, n_experts, dtype=torch.float64):
    generator = torch.Generator("cpu").manual_seed(seed)
    return 2 * torch.randn(n, n_experts, generator=generator, device="cpu", dtype=dtype)


def wish(experts, n_experts):
    """A Choice of these experts; the weights .0, .1, ... number the pairs (t, j), row by row."""
    experts = torch.tensor(experts)
    weights = torch.arange(experts.numel(), dtype=torch.float64).view_as(experts) / 10
    return Choice(
        experts, weights, torch.full((len(experts), n_experts), 1 / n_experts, dtype=torch.float64)
    )


def pairs(routing):
    """[(token, expert, slot), ...]"""
    return list(zip(*(part.tolist() for part in routing[:3]), strict=True))


def test_capacity_by_hand():
    assert capacity(8, 4, 1, 1.0) == 2  # exactly everyone
    assert capacity(8, 4, 1, 1.25) == 3  # 2.5, and half a slot is none
    assert capacity(8, 4, 2, 1.0) == 4
    assert capacity(7, 3, 2, 1) == 5  # 4.67
    # as written: the binary 1.1 is a little more, and would make it 111
    assert capacity(100, 1, 1, 1.1) == 110
    assert capacity(100, 10, 1, 0.7) == 7
    assert capacity(4096, 16, 2, 1.25) == 640
    assert capacity(1, 64, 1, 1.0) == 1  # a lone token finds a slot wherever it asks
    assert capacity(0, 4, 2, 1.25) == 0
    for n, n_experts, k in ((5, 3, 2), (7, 7, 1), (9, 4, 3)):
        assert capacity(n, n_experts, k, n_experts / k) >= n  # nothing can be dropped
    with pytest.raises(ValueError, match="capacity factor 0"):
        capacity(8, 4, 1, 0)


def test_keep_by_hand():
    choice = wish([[0, 1], [0, 2], [0, 1], [1, 2], [2, 0]], 3)
    routing = assign_slots(choice, 3, 2)
    assert pairs(routing) == [(0, 0, 0), (1, 0, 1), (3, 1, 0), (0, 1, 1), (4, 2, 0), (1, 2, 1)]
    # the weights of the pairs (0, 0) (1, 0) (3, 0) (0, 1) (4, 0) (1, 1) of the wish
    assert routing.weight.tolist() == [0.0, 0.2, 0.6, 0.1, 0.8, 0.3]
    assert dropped(choice, routing) == 4


def test_a_first_choice_goes_before_every_second_one():
    # token 2's only wish is expert 1, which tokens 0 and 1 have as their second
    routing = assign_slots(wish([[0, 1], [0, 1], [1, 0]], 2), 2, 1)
    assert pairs(routing) == [(0, 0, 0), (2, 1, 0)]


def test_a_second_choice_that_was_not_taken_fills_no_slot():
    choice = wish([[0, -1], [1, -1], [1, 0]], 2)
    routing = assign_slots(choice, 2, 2)
    assert pairs(routing) == [(0, 0, 0), (2, 0, 1), (1, 1, 0), (2, 1, 1)]
    assert dropped(choice, routing) == 0


def assign_by_loop(choice, n_experts, C):
    """GShard's Algorithm 1, one token after the other: {(token, expert, slot): weight}."""
    filled, kept = [0] * n_experts, {}
    experts, weights = choice.experts.tolist(), choice.weights.tolist()
    for j in range(choice.experts.shape[1]):
        for t in range(len(experts)):
            e = experts[t][j]
            if e >= 0 and filled[e] < C:
                kept[t, e, filled[e]] = weights[t][j]
                filled[e] += 1
    return kept


def reroute_by_loop(choice, n_experts, C):
    """Round after round: who has no slot asks for the next best expert."""
    p, filled, kept = choice.probabilities.tolist(), [0] * n_experts, {}
    likes = []
    for (first,), row in zip(choice.experts.tolist(), p, strict=True):
        likes.append(
            [
                first,
                *sorted(
                    (e for e in range(n_experts) if e != first), key=lambda e, row=row: -row[e]
                ),
            ]
        )
    waiting = list(range(len(p)))
    for turn in range(n_experts):
        still = []
        for t in waiting:
            e = likes[t][turn]
            if filled[e] < C:
                kept[t, e, filled[e]] = p[t][e]
                filled[e] += 1
            else:
                still.append(t)
        waiting = still
    return kept


def choices(dtype):
    """Usual ones, skewed ones, all to one expert, experts that get none, more experts than
    tokens, no tokens."""
    for n, n_experts in ((13, 4), (40, 8), (3, 7), (6, 1), (0, 3)):
        for skew in (0.0, 3.0, 50.0):
            logits = draw(n, n, n_experts, dtype) + skew * (
                torch.arange(n_experts, device="cpu") == n_experts // 2
            )
            yield n_experts, switch_gate(logits)
            for k in (2, 3):
                if k <= n_experts:
                    yield n_experts, top_k_gate(logits, k)
            if n_experts > 1:
                yield n_experts, gshard_gate(logits, uniform_per_token(torch.arange(n), seed=1))


def in_order(routing, n_experts):
    """Sorted by expert, then slot; slots 0, 1, 2, ... without a gap; the fields' types."""
    of_each = load(routing.expert, n_experts).tolist()
    assert routing.expert.tolist() == [e for e, count in enumerate(of_each) for _ in range(count)]
    assert routing.slot.tolist() == [s for count in of_each for s in range(count)]
    assert all(part.dtype == torch.int64 for part in routing[:3])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_keep_is_the_loop(dtype):
    some_dropped = 0
    for n_experts, choice in choices(dtype):
        n, k = choice.experts.shape
        for C in {0, 1, 3, capacity(n, n_experts, k, 1.25), n}:
            routing, want = assign_slots(choice, n_experts, C), assign_by_loop(choice, n_experts, C)
            assert dict(zip(pairs(routing), routing.weight.tolist(), strict=True)) == want
            in_order(routing, n_experts)
            assert dropped(choice, routing) == (choice.experts >= 0).sum() - len(want)
            some_dropped += int(dropped(choice, routing)) > 0
            assert n > C or dropped(choice, routing) == 0
    assert some_dropped > 20


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_send_on_is_the_loop(dtype):
    for n_experts, choice in choices(dtype):
        n, k = choice.experts.shape
        if k == 1:
            for C in {0, 1, 3, capacity(n, n_experts, k, 1.0), n}:
                routing, want = reroute(choice, n_experts, C), reroute_by_loop(choice, n_experts, C)
                assert dict(zip(pairs(routing), routing.weight.tolist(), strict=True)) == want
                in_order(routing, n_experts)
                # nobody is left behind while a slot is free
                assert len(want) == min(n, n_experts * C)


def test_send_on_by_hand():
    p = torch.tensor(
        [[0.6, 0.3, 0.1], [0.5, 0.2, 0.3], [0.7, 0.2, 0.1], [0.2, 0.7, 0.1]], dtype=torch.float64
    )
    routing = reroute(switch_gate(p.log()), 3, 1)
    # Round 0: token 0 gets e0, 3 gets e1. Round 1: token 1 asks e2 and gets it, 2 asks e1: full.
    # Round 2: e2: full.
    assert pairs(routing) == [(0, 0, 0), (3, 1, 0), (1, 2, 0)]
    assert torch.allclose(routing.weight, torch.tensor([0.6, 0.7, 0.3], dtype=torch.float64))
    # Token 3's first choice is safe from token 2, which comes before it but only in round 1.


def test_send_on_starts_with_the_choice_whatever_its_probability():
    choice = Choice(
        torch.tensor([[1], [1]]), torch.tensor([[0.2], [0.2]]), torch.tensor([[0.7, 0.2, 0.1]] * 2)
    )
    assert pairs(reroute(choice, 3, 1)) == [(1, 0, 0), (0, 1, 0)]


def test_send_on_wants_one_choice():
    with pytest.raises(ValueError, match=r"2 choices a token.*switch_gate"):
        reroute(wish([[0, 1]], 2), 2, 1)


def test_the_gradient_reaches_the_kept_pairs_alone():
    logits = draw(7, 12, 4).requires_grad_()
    for place, gate in (
        (assign_slots, switch_gate),
        (assign_slots, lambda z: top_k_gate(z, 2)),
        (reroute, switch_gate),
    ):
        assert torch.autograd.gradcheck(
            lambda z, place=place, gate=gate: place(gate(z), 4, 2).weight, logits
        )
    choice = switch_gate(logits)
    routing = assign_slots(choice, 4, 2)
    (grad,) = torch.autograd.grad(routing.weight.sum(), logits)
    without = sorted(set(range(12)) - set(routing.token.tolist()))
    assert len(without) >= 4 and grad[without].abs().max() == 0
    assert (grad[routing.token].abs().amax(1) > 0).all()
