"""The mistakes that are made in exchange_rows, told by what came of them, and the hint for each."""

from lib.check.framework import Hint
from lib.check.lab0.mistakes import hung
from lib.check.lab3.wired import CALLS_LIB, OTHERWISE, WHOSE_RANKS, WRONG_GROUP
from lib.check.lab5.here import is_kind

COUNTS_DO_NOT_FIT = ("sum to", "do not divide", "pass both")


def in_way(p, way):
    return p.facts.get("way") == way


def does_not_fit(p):
    """Do an answer's counts not fit its rows, or the other ranks' counts?"""
    return p.kind == "unlike" or (p.kind == "raised" and any(words in p.text for words in COUNTS_DO_NOT_FIT))


def left_out(p):
    """Did some ranks call all_to_all, and others not?"""
    return p.kind == "unlike" and "did not call" in p.text


def _gradient(p):
    return p.kind in ("value", "form") and "gradient" in p.facts.get("what", "")


def _second(p):
    """In the case with two exchanges under way, where one alone was right?"""
    return "a second exchange" in p.text.splitlines()[0]


HINTS = (
    CALLS_LIB,
    WRONG_GROUP,
    WHOSE_RANKS,
    Hint(
        "not every rank calls",
        lambda p: left_out(p) or hung(p) or p.kind in ("mismatch", "died"),
        "all ranks of the group call all_to_all, also those that have nothing to send or get nothing, in backward too.",
    ),
    Hint(
        "nothing returned",
        lambda p: p.kind == "form" and p.facts.get("got") is None and not _gradient(p),
        "the function must end with a `return` of the rows that arrived.",
    ),
    Hint(
        "no gradient",
        lambda p: p.kind == "no graph" or (_gradient(p) and p.facts.get("got") is None),
        "what all_to_all returns is unknown to autograd. Write a torch.autograd.Function: forward is the exchange, and "
        "so is backward. Return MyFunction.apply(rows).",
    ),
    Hint(
        "counts of another exchange",
        lambda p: in_way(p, "backward") and _second(p),
        "one exchange was right, of two the backward takes the other's counts. Each call keeps its own lists: in ctx, "
        "or in a Function that is defined inside your function.",
    ),
    Hint(
        "backward without the swap",
        lambda p: in_way(p, "backward") and does_not_fit(p),
        "in backward dy has a row for each that was received, and goes back to whom it came from: the two lists change "
        "places, all_to_all(dy, group, receive_counts, send_counts).",
    ),
    Hint(
        "backward sends nothing",
        lambda p: in_way(p, "backward") and p.facts.get("calls") == 0,
        "the gradients of this rank's rows are on the ranks to which they went: backward has to fetch them, by an "
        "all_to_all.",
    ),
    Hint(
        "gradient scaled",
        is_kind("value", "by the number of ranks"),
        "a row is on one rank at a time. Its gradient comes back as it is, nothing is summed and nothing averaged.",
    ),
    Hint("another gradient", _gradient, "the gradient of row i of `rows` is dy of that same row, where it went."),
    Hint(
        "nobody",
        lambda p: p.kind == "raised" and not in_way(p, "backward") and not does_not_fit(p) and _nobody(p),
        "a rank may have no rows to send, or get none: (0, D) is a tensor like any other.",
    ),
    Hint(
        "the counts are missing",
        lambda p: p.kind == "raised" and any(words in p.text for words in COUNTS_DO_NOT_FIT[1:]),
        "without counts all_to_all sends every rank equally many rows. Hand on both lists.",
    ),
    Hint(
        "the lists the wrong way round",
        does_not_fit,
        "all_to_all(tensor, group, send_counts, receive_counts): first what leaves, then what comes.",
    ),
    OTHERWISE,
    Hint(
        "rows in another order",
        is_kind("value"),
        "those from rank 0 come first, then those from rank 1: the order in which all_to_all returns them.",
    ),
    Hint(
        "more than the rows",
        lambda p: p.kind == "elements",
        "each row that is for another rank travels once in each direction, unpadded, and none twice.",
    ),
    Hint("changed in place", lambda p: p.kind == "touched", "leave `rows` and the lists as they are; return new rows."),
    Hint(
        "shapes do not fit",
        lambda p: p.kind == "form" or (p.kind == "raised" and any(word in p.text for word in ("shape", "size", "dim"))),
        "(sum(send_counts), D) goes in, and (sum(receive_counts), D) comes out; in backward it is the other way round.",
    ),
)


def _nobody(p):
    """Where a rank sends nothing, or nobody does? With two ranks both have rows."""
    return "group (0, 1):" not in p.text
