"""Gates pick the experts that a reader would pick by hand, and their weights teach the router."""

import pytest
import torch

from lib.moe import (
    CorrelatedGate,
    assign_by_expert_choice,
    co_activation_counts,
    expert_choice,
    gshard_gate,
    load,
    placed,
    placement,
    switch_gate,
    top_k_gate,
    top_k_indices,
    uniform_per_token,
)

P = torch.tensor(
    [[0.5, 0.3, 0.15, 0.05], [0.1, 0.2, 0.3, 0.4], [0.25, 0.25, 0.25, 0.25]], dtype=torch.float64
)
# a shift of all logits of a token changes nothing
LOGITS = P.log() + torch.tensor([[0.0], [5.0], [-7.0]])
DTYPES = {torch.float32: 1e-6, torch.float64: 1e-14}


def draw(seed, n, n_experts, dtype=torch.float64):
    generator = torch.Generator("cpu").manual_seed(seed)
    return 2 * torch.randn(n, n_experts, generator=generator, device="cpu", dtype=dtype)


def near(got, want, tolerance):
    assert torch.allclose(got, torch.as_tensor(want, dtype=got.dtype), rtol=0, atol=tolerance), (
        got,
        want,
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_by_hand(dtype):
    logits, tolerance = LOGITS.to(dtype), DTYPES[dtype]

    switch = switch_gate(logits)
    # the third token likes all alike: the smallest number
    assert switch.experts.tolist() == [[0], [3], [0]]
    near(switch.weights, [[0.5], [0.4], [0.25]], tolerance)

    top = top_k_gate(logits, 3)
    assert top.experts.tolist() == [[0, 1, 2], [3, 2, 1], [0, 1, 2]]
    near(
        top.weights,
        [[50 / 95, 30 / 95, 15 / 95], [4 / 9, 3 / 9, 2 / 9], [1 / 3, 1 / 3, 1 / 3]],
        tolerance,
    )

    # 2 w_2 is .75, 6/7 = .857, 1: the second token just misses
    sampled = gshard_gate(logits, torch.tensor([0.74, 0.858, 0.999], dtype=torch.float64))
    assert sampled.experts.tolist() == [[0, 1], [3, -1], [0, 1]]
    near(sampled.weights, [[0.625, 0.375], [4 / 7, 0.0], [0.5, 0.5]], tolerance)

    for choice in (switch, top, sampled):
        assert choice.experts.dtype == torch.int64 and choice.weights.dtype == dtype
        near(choice.probabilities, P.to(dtype), tolerance)


def test_the_second_expert_is_taken_as_often_as_its_weight_says():
    n = 20_000
    taken = (
        gshard_gate(LOGITS[:1].expand(n, -1), uniform_per_token(torch.arange(n), seed=3)).experts[
            :, 1
        ]
        == 1
    )
    assert abs(taken.double().mean() - 0.75) < 0.01  # the standard deviation is 0.003


def test_gradients_go_back_through_the_weights():
    logits = draw(1, 6, 5).requires_grad_()
    drawn = uniform_per_token(torch.arange(6), seed=0)
    gates = {
        "switch": switch_gate,
        "top 3": lambda z: top_k_gate(z, 3),
        "gshard": lambda z: gshard_gate(z, drawn),
        "correlated": CorrelatedGate(5),
    }
    assert -1 in gates["gshard"](logits).experts
    for gate in gates.values():
        assert torch.autograd.gradcheck(lambda z, gate=gate: gate(z).weights, logits)
        assert torch.autograd.gradcheck(lambda z, gate=gate: gate(z).probabilities, logits)

    # Switch's weight is p itself: dp_e/dz_j = p_e (1[e = j] - p_j)
    (first,) = torch.autograd.grad(switch_gate(logits).weights[0, 0], logits)
    p, e = logits[0].softmax(0).detach(), int(logits[0].argmax())
    near(first[0], p[e] * (torch.eye(5)[e] - p), 1e-15)
    # renormalised, one weight is 1 whatever the logits: the router would learn nothing
    (nothing,) = torch.autograd.grad(top_k_gate(logits, 1).weights.sum(), logits)
    assert nothing.abs().max() < 1e-15


def test_ties_go_to_the_smaller_number():
    scores = torch.tensor([[1.0, 3.0, 3.0, 2.0, 3.0], [0.0, 0.0, 0.0, 0.0, 0.0]])
    assert top_k_indices(scores, 4).tolist() == [[1, 2, 4, 3], [0, 1, 2, 3]]


def test_load_counts_who_is_asked():
    assert load(torch.tensor([[2, 0], [2, -1], [1, 2]]), 4).tolist() == [1, 1, 3, 0]  # -1 is nobody
    assert load(torch.empty(0, 2, dtype=torch.int64), 3).tolist() == [0, 0, 0]


def test_errors_name_the_numbers():
    with pytest.raises(ValueError, match=r"k=5 experts a token, of 4: use k from 1 to 4"):
        top_k_gate(LOGITS, 5)
    with pytest.raises(ValueError, match=r"k=0 experts"):
        top_k_gate(LOGITS, 0)
    with pytest.raises(ValueError, match=r"uniform \(2,\), logits \(3, 4\)"):
        gshard_gate(LOGITS, torch.zeros(2))


# ---- numbers keyed by the token's index


def one_uniform(index, seed):
    """`uniform_per_token` for one token, in Python's own integers."""
    bits = 0
    for word in (seed & 0xFFFFFFFF, index >> 32, index & 0xFFFFFFFF):
        x = ((bits ^ word) + 0x9E3779B9) % 2**32
        x = (x ^ (x >> 16)) * 0x21F0AAAD % 2**32
        x = (x ^ (x >> 15)) * 0x735A2D97 % 2**32
        bits = x ^ (x >> 15)
    return bits / 2**32


def test_uniforms_depend_on_the_index_and_the_seed_alone():
    index = torch.tensor([0, 1, 2, 999, 2**32 - 1, 2**32, 2**45 + 7])
    for seed in (0, 1, 2**31, -1):
        assert uniform_per_token(index, seed).tolist() == [
            one_uniform(i, seed) for i in index.tolist()
        ]
    everyone, order = (
        uniform_per_token(torch.arange(100), 5),
        torch.randperm(100, generator=torch.Generator().manual_seed(0)),
    )
    # whoever holds a token, it draws the same
    assert torch.equal(uniform_per_token(order, 5), everyone[order])
    assert len(set(torch.cat([uniform_per_token(index, seed) for seed in range(4)]).tolist())) == 28


def test_uniforms_look_random():
    n = 40_000
    u, other = uniform_per_token(torch.arange(n), 0), uniform_per_token(torch.arange(n), 1)
    assert u.dtype == torch.float64 and u.min() >= 0 and u.max() < 1
    counts = torch.histc(u, 20, 0, 1)
    assert (
        (counts - n / 20).square() / (n / 20)
    ).sum() < 45  # chi squared, 19 degrees of freedom: 45 is one in 1000
    for a, b in ((u[1:], u[:-1]), (u, other)):  # neither neighbours nor layers go together
        assert abs(torch.corrcoef(torch.stack([a, b]))[0, 1]) < 0.02


# ---- experts choose


@pytest.mark.parametrize("dtype", DTYPES)
def test_expert_choice_by_hand(dtype):
    p = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.3, 0.7]], dtype=dtype)
    routing = expert_choice(p.log(), 2)
    assert routing.token.tolist() == [0, 1, 3, 2]
    assert routing.expert.tolist() == [0, 0, 1, 1] and routing.slot.tolist() == [0, 1, 0, 1]
    near(routing.weight, [0.9, 0.8, 0.7, 0.4], DTYPES[dtype])


@pytest.mark.parametrize(
    ("n", "n_experts", "C"), [(9, 4, 3), (9, 4, 9), (5, 1, 2), (3, 6, 0), (0, 3, 0)]
)
def test_expert_choice_takes_each_experts_best(n, n_experts, C):
    logits = draw(2, n, n_experts).requires_grad_()
    routing, p = expert_choice(logits, C), logits.softmax(-1)
    rows = p.tolist()
    want = [
        (t, e)
        for e in range(n_experts)
        for t in sorted(range(n), key=lambda t, e=e: -rows[t][e])[:C]
    ]
    assert list(zip(routing.token.tolist(), routing.expert.tolist(), strict=True)) == want
    assert routing.slot.tolist() == list(range(C)) * n_experts
    assert torch.equal(routing.weight, p[routing.token, routing.expert])
    assert torch.autograd.gradcheck(lambda z: expert_choice(z, C).weight, logits)
    for got, same in zip(
        assign_by_expert_choice(switch_gate(logits), n_experts, C), routing, strict=True
    ):
        assert torch.equal(got, same)


def test_an_expert_takes_a_token_once():
    with pytest.raises(ValueError, match=r"C=4 slots, n=3 tokens: .* factor up to E=4"):
        expert_choice(LOGITS, 4)


# ---- experts that are chosen together


def test_co_activation_counts_count_pairs():
    experts = torch.tensor([[0, 1, 3], [1, 0, -1], [3, 1, -1], [2, -1, -1]])
    want = [[0, 2, 0, 1], [2, 0, 0, 2], [0, 0, 0, 0], [1, 2, 0, 0]]
    assert co_activation_counts(experts, 4).tolist() == want
    assert co_activation_counts(experts[:0], 4).tolist() == torch.zeros(4, 4).tolist()


def test_the_correlated_gate_follows_the_pairs():
    gate, logits = CorrelatedGate(3, k=2, strength=1.0, beta=0.75), torch.tensor([[1.0, 0.1, 0.3]])
    plain = top_k_gate(logits, 2)
    for got, same in zip(gate(logits), plain, strict=True):
        assert torch.equal(got, same)  # C starts at zero
    assert plain.experts.tolist() == [[0, 2]]

    gate.A[0, 1], gate.A[0, 2] = 0.8, 0.2
    choice, want = gate(logits), torch.tensor([[1.0, 0.9, 0.5]]).softmax(-1)
    assert choice.experts.tolist() == [[0, 1]]
    near(choice.probabilities, want, 1e-7)
    near(choice.weights, want[:, :2] / want[:, :2].sum(), 1e-7)
    gate.strength = -1.0
    assert gate(torch.tensor([[1.0, 0.5, 0.3]])).experts.tolist() == [[0, 2]]  # teams driven apart


def test_the_moving_average_by_hand():
    gate = CorrelatedGate(3, beta=0.75)
    gate.update(torch.tensor([[0, 3, 1], [3, 0, 0], [0, 0, 0]]))
    near(gate.A, [[0, 0.1875, 0.0625], [0.25, 0, 0], [0, 0, 0]], 1e-7)
    gate.update(torch.tensor([[0, 0, 2], [0, 0, 0], [2, 0, 0]]))
    # nobody chose e1: its row stays
    near(gate.A, [[0, 0.140625, 0.296875], [0.25, 0, 0], [0.25, 0, 0]], 1e-7)
    assert dict(gate.named_parameters()) == {} and list(gate.state_dict()) == ["A"]


def test_what_is_chosen_together_is_chosen_together_more():
    logits = draw(4, 200, 6)
    gate = CorrelatedGate(6, k=2, strength=8.0, beta=0.5)
    # of all pairs, counted both ways
    shares = lambda: co_activation_counts(gate(logits).experts, 6) / 400
    before = shares().square().sum()  # 1/30 = .033 if all pairs are equally frequent
    for _ in range(8):
        gate.update(co_activation_counts(gate(logits).experts, 6))
    assert shares().square().sum() > 1.2 * before


def test_partners_are_placed_on_one_rank_and_numbered_accordingly():
    A = torch.zeros(6, 6)
    A[0, 3] = A[4, 1] = 0.5
    A[2, 5] = 0.9
    order = placement(A, 3)
    assert [set(pair) for pair in order.view(3, 2).tolist()] == [{2, 5}, {0, 3}, {1, 4}]
    assert placement(A, 1).tolist() and placement(A, 6).sort().values.tolist() == list(range(6))
    logits = draw(5, 7, 6)
    plain, moved = top_k_gate(logits, 2), placed(lambda z: top_k_gate(z, 2), order)(logits)
    assert torch.equal(order[moved.experts], plain.experts)
    near(moved.probabilities[:, 0], plain.probabilities[:, order[0]].tolist(), 0)
    with pytest.raises(ValueError, match="ep=4"):
        placement(A, 4)
