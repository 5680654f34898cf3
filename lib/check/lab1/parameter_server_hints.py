"""The mistakes that are made in parameter_server_step, told by what came of them, and the hint for each."""

from lib.check.framework import Hint
from lib.check.lab0 import mistakes
from lib.check.lab1.cases import WORLD


def _value(fits):
    return lambda p: p.kind == "value" and bool(fits(p.facts))


def _beyond_the_group(p):
    """Did a rank in a smaller group name one that is not in it?"""
    run = mistakes.failed(p)
    if run is None or len(run.members) == WORLD:
        return False
    strangers = run.book is not None and any(e.peer not in (-1, *run.members) for e in run.book.entries)
    return strangers or "the group has" in p.text


HINTS = (
    mistakes.BUILT_IN,
    Hint(
        "only rank 0 updates",
        lambda p: p.kind == "raised" and "'step'" in p.text,
        "the optimizer is rank 0's, and None elsewhere. The others get the new parameters in the next pull.",
    ),
    Hint(
        "a parameter without gradient",
        lambda p: p.kind == "raised" and "None" in p.text,
        "p.grad is None where this rank did not use p. It sends zeros in its place.",
    ),
    Hint("ranks of the world, not of the group", _beyond_the_group, mistakes.WHOSE_RANKS.text),
    Hint(
        "a receive without its send",
        lambda p: mistakes.hung(p) or p.kind in ("mismatch", "died"),
        "rank 0 and each other rank must agree on every message: as many, in the same order, also for parameters "
        "that one of them did not use.",
    ),
    Hint(
        "backward, once",
        lambda p: p.kind == "backward",
        "every rank calls backward() once, rank 0 too: it trains as the others do.",
    ),
    Hint(
        "one update behind",
        lambda p: p.kind == "pulled" and not p.facts["own"],
        "this rank computes with the parameters of an earlier step. It pulls rank 0's at the beginning of each.",
    ),
    Hint(
        "not pulled",
        lambda p: p.kind == "pulled",
        "before backward every rank gets rank 0's parameters, in place: p.data, or under torch.no_grad().",
    ),
    Hint(
        "gradients of the step before",
        _value(lambda f: f["case"].what == "step 2"),
        "right in step 1. backward adds to .grad: set it to None first.",
    ),
    Hint(
        "not divided",
        _value(lambda f: f["factor"] and abs(f["factor"] - f["world_size"]) < 1e-9),
        "rank 0 has the sum over ranks. Divide by dist.get_world_size(group).",
    ),
    Hint(
        "another divisor",
        _value(lambda f: f["factor"]),
        "the sum is right, but it is divided by another number than N, the group's number of ranks.",
    ),
    Hint(
        "a gradient is missing",
        _value(lambda f: True),
        "rank 0's .grad must be the sum of all ranks' gradients, its own too, divided by N: add what you receive, "
        "into a buffer of its own.",
    ),
    Hint(
        "no update",
        lambda p: p.kind == "updated" and p.facts["unchanged"],
        "rank 0 calls optimizer.step() when it has the mean gradient.",
    ),
    Hint(
        "another update",
        lambda p: p.kind == "updated",
        "the gradient was right. Leave the update to optimizer.step(), once: the optimizer may have momentum.",
    ),
    Hint(
        "sent back as well",
        lambda p: p.kind == "elements" and p.facts["got"][0] > sum(p.facts["got"][1:]),
        "rank 0 sends its parameters once in a step. The pull of the next step brings the update.",
    ),
    Hint(
        "not a star",
        lambda p: p.kind == "elements",
        "a parameter server is a star: rank 0 sends every parameter to every other rank, and receives every "
        "gradient from each.",
    ),
    Hint(
        "the others talk",
        lambda p: p.kind == "talk",
        "the others know only rank 0. (A tree or a ring would spare it. That is what comes next.)",
    ),
)
