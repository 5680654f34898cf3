"""Dropless experts are what one process computes that takes token after token, and that token's k
experts directly: outputs and every gradient, at ep 1, 2 and 4, with experts that get nobody and one
that gets all; and what they send is the pairs whose expert is elsewhere, byte by byte."""

import sys

import pytest
import torch
import torch.distributed as dist
from moe_cases import GROUPS, D, differences, draw, my_groups
from torch.nn import functional as F

from lib import launch, ledger
from lib.moe import (
    Choice,
    GroupedExperts,
    assign_slots,
    capacity,
    dropless,
    grouped_mm,
    load,
    padded_to_capacity,
)
from lib.moe.dropless import is_one_kernel

EACH, WIDTH, SETS = 2, 5, (7, 0, 12, 9)  # experts a rank; tokens of rank 0, 1, 2, 3 of the group
CHOICES = ("any two", "some idle", "one gets all", "some ask for nobody")
WAYS = ("forward", "backward")


def whole_experts(E):
    experts = GroupedExperts(E, D, WIDTH).double()
    with torch.no_grad():
        experts.w_in.copy_(draw(1, E, D, WIDTH))
        experts.w_out.copy_(draw(2, E, WIDTH, D))
    return experts


def choice_of(name, rank, E):
    """(n, k) experts and weights with a gradient."""
    n = SETS[rank]
    scores = draw(30 + rank, n, E)
    chosen = scores.argsort(1, descending=True)[:, : min(2, E)]
    if name == "some idle":
        chosen = chosen // 2 * 2 if E == 2 else (chosen // 2)[:, :1] * 2
    if name == "one gets all":
        chosen = torch.full((n, 1), E - 1)
    if name == "some ask for nobody":
        chosen[1::2, 1:] = -1
        chosen[:1] = -1
    weights = (draw(40 + rank, *chosen.shape).sigmoid() * (chosen >= 0)).requires_grad_()
    return Choice(chosen, weights, torch.full((n, E), 1 / E, dtype=torch.float64))


def token_by_token(x, choice, experts):
    """y_t = sum over the experts e of token t: w_te * expert_e(x_t), one after the other."""
    ys = []
    for t, of_token in enumerate(choice.experts.tolist()):
        y = 0 * x[t]
        for j, e in enumerate(of_token):
            if e >= 0:
                y = y + choice.weights[t, j] * (F.gelu(x[t] @ experts.w_in[e]) @ experts.w_out[e])
        ys.append(y)
    return torch.stack(ys) if ys else 0 * x


def one_process(name, members):
    """[of each rank: output, and gradients of its tokens and weights], and those of all experts."""
    E = EACH * len(members)
    experts, found = whole_experts(E), []
    for rank in range(len(members)):
        x, choice, dy = (
            draw(10 + rank, SETS[rank], D).requires_grad_(),
            choice_of(name, rank, E),
            draw(20 + rank, SETS[rank], D),
        )
        y = token_by_token(x, choice, experts)
        (y * dy).sum().backward()
        nothing = torch.zeros_like(choice.weights)
        found.append(
            {
                "y": y.detach(),
                "dx": x.grad,
                "dw": nothing if choice.weights.grad is None else choice.weights.grad,
            }
        )
    return found, {"w_in": experts.w_in.grad, "w_out": experts.w_out.grad}


def on_ranks(name, members, group):
    rank, ep = dist.get_rank(group), len(members)
    E, mine = EACH * ep, GroupedExperts(EACH, D, WIDTH).double()
    whole = whole_experts(E)
    with torch.no_grad():
        mine.w_in.copy_(whole.w_in[rank * EACH : (rank + 1) * EACH])
        mine.w_out.copy_(whole.w_out[rank * EACH : (rank + 1) * EACH])
    x, choice, dy = (
        draw(10 + rank, SETS[rank], D).requires_grad_(),
        choice_of(name, rank, E),
        draw(20 + rank, SETS[rank], D),
    )
    ledger.mark(f"{name} {members} forward")
    y = dropless(x, choice, E, mine, group)
    ledger.mark(f"{name} {members} backward")
    (y * dy).sum().backward()
    ledger.mark("")
    return {"y": y.detach(), "dx": x.grad, "dw": choice.weights.grad}, {
        "w_in": mine.w_in.grad,
        "w_out": mine.w_out.grad,
    }


def everything():
    found = {
        (name, members): on_ranks(name, members, group)
        for members, group in my_groups().items()
        for name in CHOICES
    }
    try:
        dropless(torch.zeros(3, D), choice_of("any two", 0, 6), 6, None)
    except ValueError as error:
        found["refused"] = str(error)
    return found


@pytest.fixture(scope="module")
def results():
    return launch.capture(everything, backend="gloo", nproc=4, timeout=240)


@pytest.mark.parametrize("name", CHOICES)
def test_outputs_and_every_gradient_are_those_of_one_process_that_takes_token_after_token(
    results, name
):
    for members in GROUPS:
        of_sets, of_experts = one_process(name, members)
        wrong = []
        for rank, (member, want) in enumerate(zip(members, of_sets, strict=True)):
            mine, experts = results[member][name, members]
            wrong += differences(mine, want)
            here = slice(rank * EACH, (rank + 1) * EACH)
            wrong += differences(experts, {n: g[here] for n, g in of_experts.items()})
        assert not wrong, (members, wrong[:4])


def test_the_cases_hold_what_they_are_named_after():
    asked = {name: load(choice_of(name, 2, 8).experts, 8) for name in CHOICES}
    assert asked["one gets all"].tolist() == [0] * 7 + [SETS[2]]
    assert not asked["some idle"][1::2].any() and asked["some idle"].sum() == SETS[2]
    assert (
        asked["any two"].sum() == 2 * SETS[2] and asked["some ask for nobody"].sum() < 2 * SETS[2]
    )
    _, gradients = one_process("one gets all", (0, 1))
    assert not gradients["w_in"][:3].any() and gradients["w_in"][3].any(), (
        "idle experts have a gradient, of zeros"
    )


@pytest.mark.parametrize("name", CHOICES)
def test_the_rows_sent_are_the_pairs_whose_expert_is_elsewhere_and_none_is_padded(results, name):
    for members in GROUPS:
        ep = len(members)
        pairs = [
            load(choice_of(name, r, EACH * ep).experts // EACH, ep).tolist() for r in range(ep)
        ]
        for way in WAYS:
            matrix = results.ledger.section(f"{name} {members} {way}").matrix("bytes")
            for i, sender in enumerate(members):
                for j, receiver in enumerate(members):
                    rows = 0 if i == j else pairs[i][j] + pairs[j][i]
                    counts = EACH * 8 if i != j and way == "forward" else 0
                    assert matrix[sender, receiver] == rows * D * 8 + counts, (members, way, i, j)


def test_experts_that_the_ranks_cannot_share_are_refused(results):
    assert all(
        seen["refused"] == "6 experts over ep=4 ranks is not whole: use 4 or 8 experts"
        for seen in results
    )


def test_slots_for_all_are_dropless_and_fewer_drop():
    E, n, experts = 4, 12, whole_experts(4)
    x, choice = draw(10, n, D), choice_of("any two", 2, E)
    assert choice.experts.shape == (n, 2)
    wide = padded_to_capacity(x, choice, experts, E / 2)
    assert (wide - token_by_token(x, choice, experts)).abs().max() < 1e-12
    routing = assign_slots(choice, E, capacity(n, E, 2, 0.5))
    kept = torch.zeros(n, 2, dtype=torch.bool)
    for t, e in zip(routing.token.tolist(), routing.expert.tolist(), strict=True):
        kept[t] |= choice.experts[t] == e
    fewer = choice._replace(experts=choice.experts.where(kept, -1))
    assert (
        padded_to_capacity(x, choice, experts, 0.5) - token_by_token(x, fewer, experts)
    ).abs().max() < 1e-12
    assert not kept.all()


def test_torch_s_grouped_product_is_the_loop_where_there_is_one(monkeypatch):
    """On a CPU it takes float32, too: the path that is taken on GPUs, without one."""
    if not hasattr(F, "grouped_mm"):
        pytest.skip("this torch has no grouped_mm")
    rows, weights, counts = (
        draw(1, 9, 8).float(),
        draw(2, 4, 8, 16).float(),
        torch.tensor([4, 0, 2, 3]),
    )
    dy, found = draw(3, 9, 16).float(), []
    assert not is_one_kernel(rows, weights)
    for kernel in (False, True):
        monkeypatch.setattr(
            sys.modules["lib.moe.dropless"], "is_one_kernel", lambda *_, kernel=kernel: kernel
        )
        leaves = rows.clone().requires_grad_(), weights.clone().requires_grad_()
        y = grouped_mm(*leaves, counts)
        y.backward(dy)
        found.append({"y": y.detach(), "d rows": leaves[0].grad, "d weights": leaves[1].grad})
    assert not differences(*found, tolerance=1e-6)
