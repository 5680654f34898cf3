"""The expert-parallel layer is the layer in one process that takes the ranks' sets one by one:
outputs, losses, drops, every gradient, in every case; and what it sends is what the formula says,
byte by byte."""

import copy
import functools

import pytest
import torch
import torch.distributed as dist
from moe_cases import (
    CASES,
    GROUPS,
    D,
    differences,
    gave,
    gradients,
    layer,
    loss_of,
    my_groups,
    one_process,
    tokens_of,
)
from torch import nn

from lib import launch, ledger
from lib.moe import ExpertParallelMoE, MoE, switch_gate, top_k_gate
from lib.moe.expert_parallel import own_experts, transpose_blocks

EACH = (1, 2, 4)  # experts per rank


def runs_of(members):
    """(case, experts per rank) for a group: two choices need two experts."""
    return [
        (n, each)
        for n, c in CASES.items()
        for each in EACH
        if c.gate is switch_gate or each * len(members) > 1
    ]


def train(name, each, members, group):
    """A rank's forward and backward: what its set gave, and its gradients."""
    case = CASES[name]
    moe = ExpertParallelMoE(layer(case, each * len(members)), group)
    x, dy, uniform = tokens_of(case, members)[dist.get_rank(group)]
    ledger.mark(f"{name} {each} {members} forward")
    y, loss = loss_of(moe, x, dy, uniform)
    ledger.mark(f"{name} {each} {members} backward")
    loss.backward()
    ledger.mark("")
    return gave(moe, x, y, loss), gradients(moe)


def identity(group):
    """Experts that do nothing, renormalised weights, slots for all: does the input come back?"""
    gate = functools.partial(top_k_gate, k=2)
    moe = ExpertParallelMoE(
        MoE(D, [nn.Identity() for _ in range(8)], gate, factor=4.0).double(), group
    )
    x = torch.randn(3, 5, D, dtype=torch.float64)
    return (moe(x) - x).abs().max().item(), moe.last.dropped.item()


def parts():
    """Names, values and independence of a rank's part."""
    whole = layer(CASES["switch"], 8)
    before = {name: p.clone() for name, p in whole.named_parameters()}
    part = ExpertParallelMoE(whole)
    state = {name: p.clone() for name, p in part.state_dict().items()}
    with torch.no_grad():
        for p in part.parameters():
            p.zero_()
    untouched = all(torch.equal(p, before[name]) for name, p in whole.named_parameters())
    part(torch.ones(2, D, dtype=torch.float64))
    return state, before, untouched, copy.deepcopy(part).last is None


def refused():
    with pytest.raises(ValueError) as error:
        ExpertParallelMoE(layer(CASES["switch"], 6))
    return str(error.value)


def everything():
    results = {}
    for members, group in my_groups().items():
        for name, each in runs_of(members):
            results[name, each, members] = train(name, each, members, group)
        results["own", members] = own_experts(4 * len(members), group)
    results["identity"], results["parts"], results["refused"] = identity(None), parts(), refused()
    return results


@pytest.fixture(scope="module")
def results():
    return launch.capture(everything, backend="gloo", nproc=4, timeout=240)


def compare(run, on_ranks, of_sets, right):
    """on_ranks: each rank's (what its set gave, gradients); of_sets, right: the
    same of one process."""
    wrong = []
    for rank, ((found, _), want) in enumerate(zip(on_ranks, of_sets, strict=True)):
        wrong += [f"rank {rank}, {w}" for w in differences(found, want)]
    experts = [name for name in right if name.startswith("experts")]
    joined = {name: g for _, grads in on_ranks for name, g in grads.items() if name in experts}
    # each rank's own tokens
    joined["router.weight"] = sum(grads["router.weight"] for _, grads in on_ranks)
    assert sum(len(grads) - 1 for _, grads in on_ranks) == len(experts), (
        "every expert is on one rank"
    )
    wrong += [f"gradient of {w}" for w in differences(joined, right)]
    assert not wrong, f"{run}: " + "; ".join(wrong[:4])


@pytest.mark.parametrize("name", CASES)
def test_outputs_losses_drops_and_every_gradient_are_those_of_one_process(results, name):
    for members in GROUPS:
        for run in runs_of(members):
            if run[0] == name:
                on_ranks = [results[member][*run, members] for member in members]
                of_sets, right, _ = one_process(CASES[name], run[1] * len(members), members)
                compare((*run, members), on_ranks, of_sets, right)


def test_the_cases_hold_what_they_are_named_after():
    four = (0, 1, 2, 3)
    statistics = {name: one_process(case, 8, four)[0] for name, case in CASES.items()}
    drops = {name: [s["dropped"].item() for s in sets] for name, sets in statistics.items()}
    assert all(drops["switch, few slots"]) and any(drops["top 2"]) and not any(drops["all to one"])
    assert any(drops["GShard"]) and all(drops["all to one, most dropped"])
    assert drops["rerouted"] == [n - min(n, 8 * -(-7 * n // 80)) for n in CASES["rerouted"].sets]
    for n, s in zip(CASES["all to one"].sets, statistics["all to one"], strict=True):
        assert s["load"].tolist() == [n] + [0] * 7
    right = one_process(CASES["all to one"], 8, four)[1]
    assert not right["experts.5.0.weight"].any(), "an expert without rows has a gradient, of zeros"
    assert right["router.weight"].any()


def test_the_comparison_would_see_a_gradient_that_is_missing_or_slightly_off(results):
    run = ("switch", 2, (0, 1, 2, 3))
    of_sets, right, _ = one_process(CASES["switch"], 8, run[2])
    on_ranks = [results[member][run] for member in run[2]]
    for factor in (0.0, 1 + 1e-11):
        off = [(found, {n: g * factor for n, g in grads.items()}) for found, grads in on_ranks]
        with pytest.raises(AssertionError, match="gradient of experts"):
            compare(run, off, of_sets, right)
    swapped = [on_ranks[1], on_ranks[0], *on_ranks[2:]]
    with pytest.raises(AssertionError, match="rank 0, y"):
        compare(run, swapped, of_sets, right)


@pytest.mark.parametrize("name", CASES)
def test_dispatch_combine_and_their_backwards_send_the_pairs_whose_expert_is_elsewhere(
    results, name
):
    for members in GROUPS:
        ep = len(members)
        for _, each in (run for run in runs_of(members) if run[0] == name):
            routings = one_process(CASES[name], each * ep, members)[2]
            pairs = [[(r.expert // each == j).sum().item() for j in range(ep)] for r in routings]
            for way, counts in (("forward", each * 8), ("backward", 0)):
                matrix = results.ledger.section(f"{name} {each} {members} {way}").matrix("bytes")
                for i, sender in enumerate(members):
                    for j, receiver in enumerate(members):
                        # i's rows go to j, and come back from j to i; in backward the other way
                        # round: the same
                        rows = 0 if i == j else pairs[i][j] + pairs[j][i]
                        want = rows * D * 8 + (counts if i != j else 0)
                        assert matrix[sender, receiver] == want, (each, members, way, i, j)


def test_identity_experts_give_the_input_back(results):
    for off, dropped in (seen["identity"] for seen in results):
        assert off < 1e-15 * 8 and dropped == 0


def test_all_ranks_state_dicts_together_are_the_whole_layer_s_which_stays_as_it_is(results):
    whole = results[0]["parts"][1]
    joined = {name: p for seen in results for name, p in seen["parts"][0].items()}
    assert joined.keys() == whole.keys() and all(
        torch.equal(joined[name], whole[name]) for name in whole
    )
    assert [len(seen["parts"][0]) for seen in results] == [1 + 2 * 4] * 4
    assert all(untouched and fresh for *_, untouched, fresh in (seen["parts"] for seen in results))
    assert [list(seen["own", (1, 3)]) for seen in (results[1], results[3])] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
    ]


def test_experts_that_the_ranks_cannot_share_are_refused(results):
    for seen in results:
        assert seen["refused"] == "6 experts over ep=4 ranks is not whole: use 4 or 8 experts"


def test_transposing_blocks_twice_with_the_counts_transposed_is_nothing():
    counts = torch.tensor([[2, 0, 1], [1, 3, 0]])
    # 10 sender + expert + which/10
    rows = torch.tensor([0.0, 0.1, 2.0, 10.0, 11.0, 11.1, 11.2]).unsqueeze(1)
    by_expert = transpose_blocks(rows, counts)
    want = torch.tensor([0.0, 0.1, 10.0, 11.0, 11.1, 11.2, 2.0]).unsqueeze(1)
    assert torch.equal(by_expert, want)
    assert torch.equal(transpose_blocks(by_expert, counts.t()), rows)
