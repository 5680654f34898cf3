"""The mistakes that are made in reduce_gradients, told by what came of them, and the hint for each."""

from lib.check.framework import Hint
from lib.check.lab0.mistakes import hung
from lib.check.lab3.wired import CALLS_LIB, OTHERWISE
from lib.check.lab5.here import is_kind


def _of_expert(*words):
    return lambda p: is_kind("value", *words)(p) and "experts" in p.facts["what"]


def _dense(*words):
    return lambda p: is_kind("value", *words)(p) and "experts" not in p.facts["what"]


def _summed(p):
    return sum(n for _, n in p.facts["got"])


def _expected(p):
    return sum(n for _, n in p.facts["want"])


HINTS = (
    CALLS_LIB,
    Hint(
        "the group is not passed on",
        lambda p: p.kind == "group",
        "without a group all_reduce takes every rank there is. Hand on `world` with what is no expert's, and "
        "expert_dp_group with the experts'.",
    ),
    Hint(
        "the parameter, not its gradient",
        lambda p: p.kind == "touched" or p.facts.get("touched", False),
        "a parameter itself has changed. Gradients are reduced, p.grad; it is the optimizer that changes p.",
    ),
    Hint(
        "no experts here",
        lambda p: p.kind == "raised" and "no experts" in p.text.splitlines()[0],
        "a model without experts has no second line, and torch.cat takes no empty list: go on where there is nothing "
        "to reduce.",
    ),
    Hint(
        "a parameter without gradient",
        lambda p: (p.kind == "form" and p.facts["got"] is None) or (p.kind == "raised" and "NoneType" in p.text),
        "where this rank did not use a parameter, p.grad is None. It counts as zeros, and must hold the mean "
        "afterwards: p.grad = torch.zeros_like(p).",
    ),
    Hint(
        "frozen ones too",
        lambda p: p.kind == "frozen",
        "a parameter with requires_grad False has no gradient: leave it alone, and do not send it.",
    ),
    Hint(
        "experts mixed",
        is_kind("value", "mixed with other experts'"),
        "other ranks of the expert-parallel group hold other experts. An expert's gradient is summed over "
        "expert_dp_group, the ranks that have the same one.",
    ),
    Hint(
        "experts divided by dp",
        _of_expert("divided by dp", "divided by ep"),
        "right where ep is 1. An expert's gradient has come from the tokens of all ranks of its ep group already: "
        "summed over dp ranks, it is the sum over all W = dp ep of them. Divide it by W.",
    ),
    Hint(
        "the rest over the experts' group",
        _dense("the sum of the ranks with the same experts"),
        "what is no expert's is whole on every rank, and each has the gradient of its own tokens alone: sum over all "
        "ranks, `world`.",
    ),
    Hint(
        "another group's size",
        lambda p: is_kind("value", "of the launch", "divided by dp", "divided by ep")(p),
        "W is the number of ranks of `world`: dist.get_world_size(world).",
    ),
    Hint(
        "not divided",
        is_kind("value", "not divided"),
        "all_reduce sums. The loss is the mean of the ranks' losses: divide by W, whichever the kind.",
    ),
    Hint("divided twice", is_kind("value", "divided twice"), "divide before the all-reduce or after it, not both."),
    Hint(
        "nothing written back",
        is_kind("value", "this rank's own"),
        "the gradient has nothing of the other ranks in it. The line that was reduced is a copy: its pieces must go "
        "back, p.grad.copy_(piece.view_as(p)).",
    ),
    Hint(
        "sizes that differ between ranks",
        lambda p: hung(p) or p.kind in ("unlike", "mismatch", "died"),
        "the ranks of one sum must call it equally often, with lines of one size: a parameter that this rank did not "
        "use keeps its place, with zeros, and different experts are not in one sum.",
    ),
    Hint(
        "pieces in the wrong places",
        lambda p: p.kind in ("value", "form", "raised"),
        "write back in the order in which you put end to end: each piece begins where the one before it ends, and has "
        "p.numel() elements.",
    ),
    OTHERWISE,
    Hint(
        "one message per parameter",
        lambda p: p.kind == "calls" and _summed(p) == _expected(p),
        "every message costs its latency: put all gradients of a kind end to end, and all-reduce that once.",
    ),
    Hint(
        "other elements",
        lambda p: p.kind == "calls",
        "two lines: the experts' trained gradients, over expert_dp_group, and all others, over `world`. Nothing else "
        "travels, and nothing twice.",
    ),
)
