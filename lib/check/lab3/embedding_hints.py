"""The mistakes that vocab_parallel_embedding knows."""

from lib.check.framework import Hint
from lib.check.lab3.compare import it_is
from lib.check.lab3.wired import CALLS_LIB, OTHERWISE, TWO_ONLY, WHOSE_RANKS, WRONG_GROUP

NOT_SUMMED = "this rank's part, not summed over the ranks"
MIXED = "a sum with vectors from ranks that do not have the token"
OTHER_ROWS = "the vector of another token,"
LEAK = "expected plus, in row 0, the gradients of tokens that other ranks have"


def _value(fits):
    return lambda p: p.kind in ("value", "form") and fits(p)


def _no_such_row(p):
    return p.kind == "raised" and ("out of range" in p.text or "out of bounds" in p.text)


HINTS = (
    CALLS_LIB,
    WRONG_GROUP,
    WHOSE_RANKS,
    TWO_ONLY,
    Hint(
        "a row that this rank does not have",
        _no_such_row,
        "rank r's row of token t is t - r * rows, with rows = weight.shape[0]. Below 0 and from `rows` on it is "
        "another rank's: look up row 0 for those, and cover what comes with zeros.",
    ),
    Hint(
        "not summed",
        _value(it_is(NOT_SUMMED)),
        "every rank has the vectors of its own tokens now, and zeros for the others. `leave(partial, group)` adds up: "
        "return what it returns.",
    ),
    Hint(
        "no zeros for other ranks' tokens",
        _value(it_is(MIXED)),
        "a rank that does not have the token must add zeros. Looking up row 0 (or any other row) there is fine, if the "
        "vector that comes is covered: vectors.masked_fill(elsewhere.unsqueeze(-1), 0.0).",
    ),
    Hint(
        "another token's row",
        _value(it_is(OTHER_ROWS)),
        "rank r has the rows r * rows to (r+1) * rows - 1, one after the other: row t - r * rows is token t's.",
    ),
    Hint(
        "a mean or a multiple",
        _value(it_is("x expected", "expected /")),
        "one rank has the vector, the others add zeros: the sum is the vector already. Sum once, divide by nothing.",
    ),
    Hint(
        "off by one",
        _value(lambda p: p.facts.get("edge")),
        "only a rank's first row or only its last row is wrong. Row 0 is the rank's own, row `rows` is not: elsewhere "
        "is (row < 0) | (row >= rows).",
    ),
    Hint(
        "another shape or dtype",
        lambda p: p.kind == "form",
        "one vector per token, (B, T, D), in the dtype of weight. torch.zeros(...) is float32: use masked_fill, or "
        "torch.zeros_like.",
    ),
    Hint(
        "zeros that autograd does not see",
        lambda p: p.kind == "gradient" and it_is(LEAK)(p),
        "forward is right, but row 0's gradient has other ranks' tokens in it. Zeros written past autograd (.data, "
        "no_grad) cover nothing in backward: use masked_fill, torch.where or a product.",
    ),
    Hint(
        "no gradient",
        lambda p: p.kind == "gradient" and "got None" in p.text,
        "weight.grad is None: the way from weight to the result is cut somewhere. .data, .detach() and no_grad cut it, "
        "and so does an all-reduce that is not g: `leave` is one that autograd knows.",
    ),
    Hint(
        "a wrong gradient",
        lambda p: p.kind == "gradient",
        "backward needs nothing from you: the gradient of a sum is that of each term, and what is covered with zeros "
        "has none. Leave it to autograd, and to `leave`.",
    ),
    OTHERWISE,
    Hint(
        "more than one g",
        lambda p: p.kind == "calls",
        "one call of leave, with the (B, T, D) partial vectors: the other ranks have everything else already.",
    ),
    Hint(
        "changed what it was given",
        lambda p: p.kind == "touched",
        "`tokens -= ...` and tensor[mask] = ... write into the caller's tensor, which the loss still needs. "
        "`row = tokens - ...` makes a new one.",
    ),
)
