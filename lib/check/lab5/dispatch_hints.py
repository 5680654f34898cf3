"""The mistakes that are made in dispatch and combine, told by what came of them, and the hint for each."""

from lib.check.framework import Hint
from lib.check.lab5.here import in_place, is_kind


def _wrong(*words, what=""):
    return lambda p: any(is_kind(kind, *words, what=what)(p) for kind in ("value", "form"))


CALLS_LIB = Hint("called lib's", is_kind("built-in"), "indexing and index_add are enough.")
RETURNED_NOTHING = Hint(
    "nothing returned",
    lambda p: p.kind == "form" and p.facts["got"] is None,
    "the function must end with `return ...`.",
)
EMPTY = Hint(
    "nobody",
    lambda p: "no pairs" in p.text and p.kind in ("value", "form", "raised"),
    "a set may have no pairs, or no tokens. Work on whole tensors: none of a list cannot be stacked, nor has it a "
    "largest number.",
)
NO_GRADIENT = Hint(
    "no gradient",
    is_kind("no graph"),
    "the tokens, the rows and the weights all learn through this: no detach, no item, no torch.no_grad, no new tensor "
    "made of numbers.",
)
DISPATCH_HINTS = (
    CALLS_LIB, RETURNED_NOTHING, EMPTY, NO_GRADIENT,
    Hint(
        "weighted already",
        _wrong("weighted"),
        "combine weights what comes back. The experts get the tokens as they are.",
    ),
    Hint(
        "the wrong index",
        _wrong("the token's number"),
        "routing.token says whose row it is; expert and slot say where it goes.",
    ),
    Hint(
        "each token once",
        _wrong("each token once", "x itself"),
        "a token with two experts is there twice, and one that was dropped is not there: a row for each pair.",
    ),
    Hint(
        "another order",
        _wrong("in token order", "the first tokens"),
        "row i is the token of pair i: x[routing.token], sorted by expert as the routing is.",
    ),
    Hint(
        "another gradient",
        is_kind("value", what="gradient"),
        "a token's copies all count: the gradient of x adds them up, as indexing does by itself.",
    ),
    Hint("other rows", _wrong(what="the rows"), "rows[i] = x[routing.token[i]], (m, D)."),
    Hint("changed in place", in_place, "x and the routing are the caller's. Make new tensors."),
)  # fmt: skip
COMBINE_HINTS = (
    CALLS_LIB, RETURNED_NOTHING,
    Hint(
        "another dtype",
        lambda p: (p.kind == "raised" and ("dtype" in p.text or "scalar type" in p.text))
        or (p.kind == "form" and p.facts["got"].shape == p.facts["want"].shape),
        "torch.zeros makes float32. Take dtype and device from the rows: rows.new_zeros(n, rows.shape[1]).",
    ),
    EMPTY, NO_GRADIENT,
    Hint(
        "the last wins",
        _wrong("pair alone"),
        "where an index comes twice, y[index] = ... and y[index] += ... keep one of the rows. index_add adds both.",
    ),
    Hint(
        "not weighted",
        _wrong("not weighted", what="y"),
        "each row counts by its weight: routing.weight.unsqueeze(1) * rows.",
    ),
    Hint("weighted twice", _wrong("weighted twice"), "the weight counts once."),
    Hint(
        "divided",
        _wrong("the mean", "divided"),
        "the sum is the result: the weights say already how much each expert counts.",
    ),
    Hint(
        "weights renormalised",
        _wrong("renormalised"),
        "the weights as they are: if one of a token's pairs was dropped, the other does not grow.",
    ),
    Hint(
        "rows of other tokens",
        _wrong("rows of other tokens"),
        "row i belongs to token routing.token[i]: rows are sorted by expert, not by token.",
    ),
    Hint(
        "tokens left out",
        _wrong("without the tokens", "not added up"),
        "the result is (n, D), a row for every token: its pairs added up, zeros for those without a pair.",
    ),
    Hint(
        "another gradient",
        is_kind("value", what="gradient"),
        "the numbers were right. A row's gradient is its weight times its token's; a weight's is the product of its "
        "row and its token's.",
    ),
    Hint("another sum", _wrong(what="y"), "y[t]: the sum over the pairs i of token t of routing.weight[i] * rows[i]."),
    Hint("changed in place", in_place, "rows *= ... changes the caller's rows. Make a new tensor."),
)  # fmt: skip
