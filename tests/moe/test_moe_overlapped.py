"""A layer whose exchanges are in the background is the plain layer: outputs, drops, every gradient,
at ep 1, 2 and 4 and in a subgroup; it sends the same rows, and the counts of both halves; two
layers and calls do not mix."""

import pytest
import torch
import torch.distributed as dist
from moe_cases import (
    CASES,
    GROUPS,
    D,
    differences,
    draw,
    expert,
    fill,
    gradients,
    layer,
    my_groups,
    tokens_of,
)

from lib import launch, ledger
from lib.moe import OverlappedMoE, SharedMoE, start_exchange

EACH = 2
KINDS = {"plain": SharedMoE, "in halves": OverlappedMoE}
WAYS = ("forward", "backward")


def train(kind, name, members, group):
    """{what: tensor} of a rank's forward and backward; the last call is of the same layer,
    with other tokens."""
    case = CASES[name]
    moe = KINDS[kind](layer(case, EACH * len(members)), fill(expert(), 5).double(), group)
    x, dy, uniform = tokens_of(case, members)[dist.get_rank(group)]
    ledger.mark(f"{kind} {name} {members} forward")
    y = moe(x, uniform)
    ledger.mark(f"{kind} {name} {members} backward")
    (y * dy).sum().backward()
    ledger.mark("")
    return {
        "y": y.detach(),
        "dx": x.grad,
        "load": moe.last.load,
        "dropped": moe.last.dropped,
    } | gradients(moe)


def two_calls(kind, group=None):
    """Two calls of one layer, and of a layer upon it, all under way before any goes backward."""
    case = CASES["top 2"]
    one, two = (KINDS[kind](layer(case, 8), fill(expert(), 5).double(), group) for _ in range(2))
    xs = [draw(60 + 10 * i + dist.get_rank(), 4 + 3 * i, D).requires_grad_() for i in range(2)]
    ys = [two(one(x)) for x in xs]
    sum((y * draw(90 + i, *y.shape)).sum() for i, y in enumerate(ys)).backward()
    found = {f"dx {i}": x.grad for i, x in enumerate(xs)}
    return found | {
        f"layer {i}, {name}": g
        for i, one in enumerate((one, two))
        for name, g in gradients(one).items()
    }


def late(group=None):
    """What arrives when it is waited for after other work, and its gradient; an
    exchange of no rows, too."""
    rank, N = dist.get_rank(group), dist.get_world_size(group)
    rows = draw(rank, N, D).requires_grad_()
    wait = start_exchange(rows, [1] * N, [1] * N, group)
    nothing = start_exchange(rows[:0], [0] * N, [0] * N, group)
    beside = torch.ones(3).sum()
    y, none = wait(), nothing()
    (y * draw(50 + rank, N, D)).sum().backward()
    return y.detach(), rows.grad, none.shape, beside


def everything():
    found = {}
    for members, group in my_groups().items():
        for name in CASES:
            # whose choice depends on all of the set's tokens, as everywhere
            if name != "experts choose":
                found |= {
                    (kind, name, members): train(kind, name, members, group) for kind in KINDS
                }
    found["two calls"] = {kind: two_calls(kind) for kind in KINDS}
    found["late"] = late()
    return found


@pytest.fixture(scope="module")
def results():
    return launch.capture(everything, backend="gloo", nproc=4, timeout=400)


NAMES = [name for name in CASES if name != "experts choose"]


@pytest.mark.parametrize("name", NAMES)
def test_outputs_drops_and_every_gradient_are_those_of_the_plain_layer(results, name):
    for members in GROUPS:
        for member in members:
            plain, halves = (results[member][kind, name, members] for kind in KINDS)
            assert not differences(halves, plain), (members, member)


@pytest.mark.parametrize("name", NAMES)
def test_it_sends_the_same_rows_and_the_counts_of_both_halves(results, name):
    for members in GROUPS:
        for way in WAYS:
            plain, halves = (
                results.ledger.section(f"{kind} {name} {members} {way}").matrix("bytes")
                for kind in KINDS
            )
            for i in range(4):
                for j in range(4):
                    counts = EACH * 8 if i != j and {i, j} <= {*members} and way == "forward" else 0
                    assert halves[i, j] - plain[i, j] == counts, (members, way, i, j)


def test_two_layers_and_two_calls_are_under_way_at_once(results):
    for seen in results:
        plain, halves = seen["two calls"].values()
        assert not differences(halves, plain)


def test_what_is_waited_for_late_is_what_was_sent_and_its_gradients_come_home(results):
    for rank, seen in enumerate(results):
        y, gradient, none, beside = seen["late"]
        assert torch.equal(y, torch.stack([draw(sender, 4, D)[rank] for sender in range(4)]))
        assert torch.equal(
            gradient, torch.stack([draw(50 + receiver, 4, D)[rank] for receiver in range(4)])
        )
        assert none == (0, D) and beside == 3
