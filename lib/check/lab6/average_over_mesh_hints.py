"""The mistakes that are made in average_over_mesh, told by what came of them, and the hint for each."""

from lib.check.framework import Hint
from lib.check.lab0.mistakes import hung
from lib.check.lab3.wired import CALLS_LIB, OTHERWISE
from lib.check.lab5.here import is_kind
from lib.check.lab6.over_cases import REAL


def _along(axis):
    """Did a call hang whose ranks lie along this axis, and no others?"""

    def fits(p):
        stuck = p.facts.get("stuck")
        return p.kind == "unlike" and stuck and f"({axis})" in p.facts["case"].told(stuck[0])

    return fits


def _real(p):
    """Was it a real step, where more cannot be read from a wrong sum?"""
    return p.facts["case"].what == REAL


HINTS = (
    CALLS_LIB,
    Hint(
        "the parameter, not its gradient",
        lambda p: "parameter" in (p.facts.get("touched"), p.facts.get("what")),
        "a parameter itself has changed. Gradients are summed, p.grad; it is the optimizer that changes p.",
    ),
    Hint(
        "a list was changed",
        lambda p: "list" in (p.facts.get("touched"), p.facts.get("what")),
        "a += b makes the list a longer, and it is the caller's. A new list of all: [*sets.cut, *sets.whole, "
        "*sets.tied].",
    ),
    Hint(
        "no group",
        lambda p: p.kind == "group" and p.facts["all"],
        'without a group all_reduce takes every rank there is. Hand one on with every call: mesh.group("dp"), '
        'mesh.group("tp"), or ends.',
    ),
    Hint(
        "an empty list",
        lambda p: p.kind == "raised" and ("IndexError" in p.text or "non-empty" in p.text),
        "a list may be empty: stages between the first and the last have no tied ones, and without a pipeline no rank "
        "has.",
    ),
    Hint(
        "over pp",
        lambda p: p.kind == "group" or _along("pp")(p),
        "the stages of a pipeline have different parameters, and nothing is to be summed along pp. Only the first and "
        "the last stage have one in common, the tied one: `ends` is their group.",
    ),
    Hint(
        "stages sum different things",
        _along("pp, the ends"),
        "`ends` are the first and the last stage of a pipeline, and they have different parameters but for the tied "
        "ones. Whatever else is summed is summed over ranks of one stage: along dp or tp.",
    ),
    Hint(
        "cut summed over tp",
        is_kind("value", "summed over tp too", what="cut"),
        "a tp rank has another part of the weight, so its gradient is of other numbers. Cut ones are summed over dp "
        "alone.",
    ),
    Hint(
        "tied summed over tp",
        is_kind("value", "summed over tp too", what="tied"),
        "the tied matrix is cut over tp as well: a tp rank has other rows of it. Its two uses are on the first and the "
        "last stage, of the same tp rank: ends.",
    ),
    Hint(
        "whole not summed over tp",
        is_kind("value", "not summed over tp", what="whole"),
        "with sequence parallelism each tp rank has seen other tokens of its rows: the gradient of what is whole is a "
        "sum over tp, and after that a mean over dp.",
    ),
    Hint(
        "tied not summed",
        is_kind("value", "not summed over the ends", what="tied"),
        "the first stage has the gradient of the embedding, the last one that of the head. One process has their sum: "
        "all_reduce(p.grad, ends).",
    ),
    Hint(
        "not summed over dp",
        is_kind("value", "not summed over dp"),
        'data ranks had other rows, and each has the gradient of its own: sum all sets over mesh.group("dp").',
    ),
    Hint(
        "some left out",
        is_kind("value", "while others have been summed"),
        "there are three lists, of none, one or several parameters; over dp go all parameters of all three.",
    ),
    Hint(
        "nothing written back",
        is_kind("value", "as it was"),
        "the gradient has nothing of the other ranks in it. all_reduce sums in the tensor that it is given: give it "
        "p.grad itself, no copy of it, and put a quotient back into p.grad.",
    ),
    Hint(
        "not divided",
        is_kind("value", "not divided by dp"),
        "each data rank's loss is the mean over its own rows, and that of the whole batch is the mean of theirs: "
        'divide by mesh.size("dp").',
    ),
    Hint(
        "right for dp=2 only",
        is_kind("value", "divided by 2, and not by dp"),
        'mesh.size("dp") says how many data ranks there are: 1, 2, 4 ...',
    ),
    Hint(
        "divided by tp too",
        is_kind("value", "divided by tp too"),
        "tp ranks share the rows: the loss is one loss, a mean over all of its tokens already. What its tokens give is "
        "a sum. Only over dp there are several losses.",
    ),
    Hint(
        "tied averaged over the ends",
        is_kind("value", "divided by 2 ends too"),
        "autograd adds the gradients of both uses of a matrix. The two ends have one each: their sum, not their mean.",
    ),
    Hint(
        "divided by all ranks",
        is_kind("value", "divided by all 8 ranks"),
        'only the data ranks have losses of their own: the mean is over mesh.size("dp") of them, not over the world.',
    ),
    Hint(
        "divided twice",
        is_kind("value", "divided by dp twice"),
        'one division, by mesh.size("dp"), whatever the set. Is a parameter in two loops that divide?',
    ),
    Hint(
        "not on every rank",
        lambda p: hung(p) or p.kind in ("unlike", "mismatch", "died"),
        "all ranks of a group must call it equally often, in one order, with equal sizes. Stages differ in their "
        "parameters: no group but ends may have ranks of two stages, and whether to call must not depend on the rank.",
    ),
    Hint(
        "summed twice",
        lambda p: p.kind == "value" and (p.facts["is"] in ("", "no sum") or "times" in p.facts["is"]) and not _real(p),
        "a gradient is once in each sum. What has been summed over a group is alike on all of its ranks: to sum it "
        "there again counts it once for each rank.",
    ),
    OTHERWISE,
    Hint(
        "other elements",
        lambda p: p.kind == "calls",
        "tied ones over ends, whole ones over tp, and every gradient once over dp. Nothing else travels.",
    ),
)
