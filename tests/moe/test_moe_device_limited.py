"""Device-limited routing: at most M ranks a token; a row travels once to each of them; the layer
stays the same."""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from moe_cases import (
    Case,
    D,
    differences,
    draw,
    gave,
    gradients,
    layer,
    loss_of,
    one_process,
    tokens_of,
)

from lib import launch, ledger
from lib.moe import ExpertParallelMoE, assign_slots, gshard_gate, top_k_gate
from lib.moe.device_limited import DeduplicatedMoE, device_limited_gate

RANKS, E, K, M = (0, 1, 2, 3), 16, 3, 2
SETS = (9, 0, 16, 5)
CASES = {
    "limited": Case(partial(device_limited_gate, k=K, ep=4, M=M), assign_slots, 8.0, SETS),
    "limited, drops": Case(partial(device_limited_gate, k=K, ep=4, M=M), assign_slots, 0.7, SETS),
    "top k": Case(partial(top_k_gate, k=K), assign_slots, 8.0, SETS),
    "GShard": Case(gshard_gate, assign_slots, 1.0, SETS),
    "all to one": Case(partial(top_k_gate, k=K), assign_slots, 8.0, SETS, router=0.0),
}


def everything():
    results = {}
    for name, case in CASES.items():
        for kind in (ExpertParallelMoE, DeduplicatedMoE):
            moe = kind(layer(case, E))
            x, dy, uniform = tokens_of(case, RANKS)[dist.get_rank()]
            ledger.mark(f"{name} {kind.__name__} forward")
            y, loss = loss_of(moe, x, dy, uniform)
            ledger.mark(f"{name} {kind.__name__} backward")
            loss.backward()
            ledger.mark("")
            results[name, kind.__name__] = gave(moe, x, y, loss), gradients(moe)
    return results


@pytest.fixture(scope="module")
def results():
    return launch.capture(everything, backend="gloo", nproc=4, timeout=120)


@pytest.mark.parametrize("name", CASES)
def test_a_row_sent_once_gives_the_outputs_losses_and_gradients_of_one_process(results, name):
    of_sets, right, _ = one_process(CASES[name], E, RANKS)
    joined = {"router.weight": 0}
    for rank, want in enumerate(of_sets):
        found, grads = results[rank][name, "DeduplicatedMoE"]
        assert not differences(found, want), rank
        joined["router.weight"] = joined["router.weight"] + grads.pop("router.weight")
        joined |= grads
    assert not differences(joined, right)


def volumes(name):
    """(pairs, rows): (token, expert) and (token, rank) with the expert elsewhere,
    over all ranks."""
    pairs = rows = 0
    for r, routing in enumerate(one_process(CASES[name], E, RANKS)[2]):
        there = routing.expert // (E // 4)
        away = there != r
        pairs += away.sum().item()
        rows += len(set(zip(routing.token[away].tolist(), there[away].tolist(), strict=True)))
    return pairs, rows


@pytest.mark.parametrize("name", CASES)
def test_what_is_sent_is_the_formula_s(results, name):
    pairs, rows = volumes(name)
    sent = lambda kind, way: results.ledger.section(f"{name} {kind} {way}").sent("bytes")
    assert sent("ExpertParallelMoE", "backward") == 2 * pairs * D * 8
    assert sent("DeduplicatedMoE", "forward") == 3 * (E + 4) * 8 + 2 * rows * D * 8 + 2 * pairs * 8
    assert sent("DeduplicatedMoE", "backward") == 2 * rows * D * 8 + pairs * 8


def test_limited_and_sent_once_fewer_rows_travel():
    rows = {name: volumes(name)[1] for name in ("limited", "top k")}
    pairs = volumes("top k")[0]
    assert rows["limited"] < rows["top k"] < pairs
    assert rows["limited"] <= M * sum(SETS)
    # three experts, all on rank 0: one row a token
    assert volumes("all to one")[1] == sum(SETS) - SETS[0]


def test_the_gate_by_hand():
    p = torch.tensor([[0.30, 0.14, 0.20, 0.01, 0.05, 0.12, 0.17, 0.01]], dtype=torch.float64)
    choice = device_limited_gate(p.log(), 3, 4, 2)
    assert choice.experts.tolist() == [[0, 2, 1]]
    assert torch.allclose(
        choice.weights, torch.tensor([[0.30, 0.20, 0.14]], dtype=torch.float64) / 0.64, rtol=1e-12
    )
    assert torch.allclose(choice.probabilities, p, rtol=1e-12)
    assert device_limited_gate(p.log(), 3, 4, 3).experts.tolist() == [[0, 2, 6]]


def test_a_token_s_experts_lie_on_at_most_m_ranks_and_without_a_limit_it_is_top_k():
    logits = draw(0, 50, E)
    for most in (1, 2, 3, 4):
        experts = device_limited_gate(logits, K, 4, most).experts
        used = [len(set(row)) for row in (experts // 4).tolist()]
        assert max(used) <= most and all(len(set(row)) == K for row in experts.tolist())
        best_rank = logits.argmax(1) // 4
        assert torch.equal(experts[:, 0] // 4, best_rank)
    for ours, right in zip(
        device_limited_gate(logits, K, 4, 4), top_k_gate(logits, K), strict=True
    ):
        assert torch.equal(ours, right)


@pytest.mark.parametrize(("k", "ep", "most"), [(3, 5, 2), (5, 4, 1), (2, 4, 5), (2, 4, 0)])
def test_a_limit_that_cannot_be_kept_is_refused(k, ep, most):
    with pytest.raises(
        ValueError, match=f"k={k} of 16 experts, on at most M={most} of ep={ep} ranks"
    ):
        device_limited_gate(draw(0, 3, 16), k, ep, most)
