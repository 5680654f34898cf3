"""The mistakes that are made in norm_over_mesh, told by what came of them, and the hint for each."""

from lib.check.framework import Hint
from lib.check.lab0.mistakes import hung
from lib.check.lab3.wired import CALLS_LIB, OTHERWISE
from lib.check.lab5.here import is_kind


def _touched(p):
    return p.kind == "touched" or bool(p.facts.get("touched"))


HINTS = (
    CALLS_LIB,
    Hint(
        "what it was given has changed",
        _touched,
        "the norm only looks at gradients: p.grad.square(), not square_(), and a new list, [*sets.cut, *tied], not "
        "sets.cut += tied.",
    ),
    Hint(
        "another form",
        lambda p: p.kind == "form",
        "squares() gives (1,), for all_reduce wants a tensor. Its one number is total[0], (), and that has a .sqrt().",
    ),
    Hint(
        "over all ranks",
        lambda p: p.facts.get("all", False),
        "without a group all_reduce takes every rank there is, and adds what data ranks have alike. Hand on "
        'mesh.group("tp"), then mesh.group("pp").',
    ),
    Hint(
        "also summed over dp",
        is_kind("value", "summed over dp too", "divided by dp"),
        "after average_over_mesh data ranks have the same gradients: there is nothing to sum over dp.",
    ),
    Hint("no root", is_kind("value", "no root"), "|g| is the root of the sum of the squares: total[0].sqrt()."),
    Hint(
        "norms added",
        is_kind("value", "added"),
        "|(3, 4)| is 5, not 7. Add squares, over tp and over pp, and take one root at the very end.",
    ),
    Hint(
        "the largest number",
        is_kind("value", "the largest number"),
        "that is the max norm. |g| is the root of the sum of all squares.",
    ),
    Hint(
        "in float32",
        is_kind("value", "float32"),
        "squares() is float64, and so must be all that comes after: no .float(), no torch.zeros(1), which is float32.",
    ),
    Hint(
        "tied left out",
        is_kind("value", "no end counts"),
        "the tied matrix is a parameter of the model: it counts once, on one of its two ends.",
    ),
    Hint(
        "tied counted twice",
        is_kind("value", "both ends count"),
        'it is one parameter, and two stages have it. Count it where mesh.here["pp"] is 0, and nowhere else.',
    ),
    Hint(
        "whole counted tp times",
        is_kind("value", "each tp rank counts"),
        "all tp ranks have the same of what is whole. Add its squares after the sum over tp.",
    ),
    Hint(
        "not summed over tp",
        is_kind("value", "not summed over tp"),
        "a tp rank has a part of each weight that is cut: the squares of the other parts are on the other tp ranks.",
    ),
    Hint(
        "not summed over pp",
        is_kind("value", "not summed over pp"),
        'a rank has one stage. The other stages\' squares are along mesh.group("pp").',
    ),
    Hint(
        "its own alone",
        is_kind("value", "own alone"),
        "each rank has a norm of its own, and would clip by it: sum the squares over tp, and over pp.",
    ),
    Hint(
        "not on every rank",
        lambda p: hung(p) or p.kind in ("unlike", "mismatch", "died"),
        "all ranks of a group must call all_reduce, equally often and with equal sizes. A rank with nothing to count "
        "adds 0.",
    ),
    Hint(
        "once each",
        lambda p: p.kind == "value",
        "write down for 2 x 2 x 2 who has what: cut and tied ones are in tp parts, whole ones alike on tp ranks, every "
        "stage has its own, and the tied ones are on two. Each square counts once.",
    ),
    OTHERWISE,
    Hint(
        "gradients sent",
        lambda p: p.kind == "calls" and p.facts["many"],
        "to send all gradients takes as long as to average them. A rank squares and adds what it has, and sends the "
        "one number.",
    ),
    Hint(
        "a needless sum",
        lambda p: p.kind == "calls",
        "data ranks have the same gradients: what is summed over dp, and divided again, need not travel.",
    ),
    Hint(
        "another rounding",
        lambda p: p.kind == "bits",
        "ranks that clip by norms that differ in the last bit part slowly. All must do the same arithmetic on what "
        "all_reduce gave them.",
    ),
)
