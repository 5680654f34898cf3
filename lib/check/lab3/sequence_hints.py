"""The mistakes that gather_sequence and scatter_sequence know: each is a mistake in joining or in summing tokens."""

from lib.check.framework import Hint
from lib.check.lab3.compare import it_is
from lib.check.lab3.wired import CALLS_LIB, OTHERWISE, TWO_ONLY, WHOSE_RANKS, WRONG_GROUP

VIEWED = "what comes if the dims are renamed by view or reshape instead of exchanged"
WHOLE = "cut or joined on dim 0, the sequences, not on dim 1, the tokens"
ONLY_OWN = "this rank's tokens, and zeros for all others"
NOT_SUMMED = "this rank's own, without the other ranks' part of the sum"
ORDER = "the right tokens in another order"


def _value(*words):
    return lambda p: p.kind in ("value", "form") and it_is(*words)(p)


def _gradient(*words):
    return lambda p: p.kind == "gradient" and it_is(*words)(p)


def _either(*words):
    return lambda p: p.kind in ("value", "form", "gradient") and it_is(*words)(p)


def _shape(p):
    return p.kind == "form" or (p.kind == "raised" and "shape" in p.text)


_COMMON = (
    CALLS_LIB,
    WRONG_GROUP,
    WHOSE_RANKS,
    TWO_ONLY,
    Hint(
        "sequences for tokens",
        _either(WHOLE),
        "the collectives cut and join dim 0, and the tokens are dim 1: x.transpose(0, 1).contiguous() before, and "
        "back after.",
    ),
    Hint(
        "a view for a transpose",
        _either(VIEWED),
        "view and reshape keep the numbers in memory in their order and rename the dims: tokens of one sequence end up "
        "in another. transpose(0, 1) exchanges dims.",
    ),
    Hint(
        "the order of the tokens",
        _either(ORDER),
        "rank r has the tokens r T/N to (r+1) T/N - 1, one after the other, in rank order.",
    ),
    Hint(
        "a mean or a multiple",
        _either("x expected", "expected /"),
        "the numbers are N times too large or too small. A reduce-scatter sums once; nothing is divided, and what is "
        "the same everywhere is not summed again.",
    ),
)
_LAST = (
    Hint(
        "no gradient",
        lambda p: p.kind == "gradient" and "got None" in p.text,
        "x.grad is None: autograd does not see through a message. Write an autograd.Function, and return what its "
        ".apply(x) returns.",
    ),
    OTHERWISE,
    Hint(
        "more than is needed",
        lambda p: p.kind == "calls",
        "one collective forward, and one backward. Each of G and S is the other's mirror image.",
    ),
    Hint("another shape", _shape, "G: (B, T/N, D) -> (B, T, D). S: the other way round. Backward: the opposite."),
    Hint(
        "changed what it was given",
        lambda p: p.kind == "touched",
        "x is the caller's: work on x.transpose(0, 1).contiguous(), which is a copy.",
    ),
)
GATHER_HINTS = (
    *_COMMON,
    Hint(
        "not gathered",
        _value(ONLY_OWN),
        "the other ranks' tokens are missing: all_gather returns the whole, it does not write into x.",
    ),
    Hint(
        "backward without the sum",
        _gradient(NOT_SUMMED),
        "behind G each rank has its own part of the layer, and so its own part of every token's gradient: your tokens' "
        "parts are on all ranks. Backward sums them: a reduce-scatter.",
    ),
    *_LAST,
)
SCATTER_HINTS = (
    *_COMMON,
    Hint(
        "not summed",
        _value(NOT_SUMMED),
        "x is a partial result: each rank has a part of the sum of every token. reduce_scatter adds them up, and keeps "
        "this rank's tokens.",
    ),
    Hint(
        "backward without the gather",
        _gradient(ONLY_OWN),
        "this rank's x went into every rank's tokens, so it needs the gradient of all tokens: an all-gather.",
    ),
    *_LAST,
)
