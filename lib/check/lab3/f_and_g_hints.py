"""The mistakes that are made in f and g, told by what came of them, and the hint for each."""

from lib.check.framework import Hint
from lib.check.lab3.compare import it_is
from lib.check.lab3.given import ANOTHER_WAY, NOT_ALL_RANKS, RETURNED_NOTHING, WRONG_GROUP


def _y(p):
    """Is it about what the function returned?"""
    return p.kind in ("value", "form") and ": y" in p.text.splitlines()[0]


def _dx(p):
    return p.kind in ("value", "form") and ": x.grad" in p.text.splitlines()[0]


def _more_than_two(p):
    """In a group of three or four: that of two comes first, so there it was right."""
    return p.kind == "value" and "group (0, 1):" not in p.text


CALLS_LIB = Hint(
    "called lib's",
    lambda p: p.kind == "built-in",
    "write it yourself: a torch.autograd.Function with a forward and a backward of your own.",
)
NO_GRAPH = Hint(
    "no gradient",
    lambda p: p.kind == "no graph" or (_dx(p) and "got None" in p.text),
    "what all_reduce does is unknown to autograd, and detach() cuts the graph. A torch.autograd.Function says what "
    "backward is: return MyFunction.apply(x).",
)
ONLY_TWO = Hint(
    "right on 2 ranks only",
    lambda p: _more_than_two(p) and not p.facts["is"],
    "on 2 ranks it was right. Every rank's part belongs into the sum, and each once: that is all_reduce.",
)
FLAT_COPY = Hint(
    "a copy of what is not contiguous",
    lambda p: (p.kind == "value" and "transposed" in p.text) or (p.kind == "raised" and "view size" in p.text),
    "a transposed tensor has no flat view: .view fails, and .reshape(-1) is a copy, whose sum is lost. all_reduce "
    "takes any shape: give it x.clone().",
)
SOMETHING_ELSE = Hint(
    "another result",
    lambda p: p.kind in ("value", "form"),
    "f: y = x, and dx is the sum of the ranks' dy. g: y is the sum of the ranks' x, and dx = dy.",
)
TOUCHED = Hint(
    "x overwritten",
    lambda p: p.kind == "touched",
    "all_reduce works in place. The caller's x is not yours to change: clone it first.",
)
SENT_TWICE = Hint("sent more than once", lambda p: p.kind == "calls", "one all_reduce of the whole tensor is enough.")

COPY_HINTS = (
    CALLS_LIB, WRONG_GROUP, NOT_ALL_RANKS, RETURNED_NOTHING, NO_GRAPH, FLAT_COPY,
    Hint(
        "summed forward",
        lambda p: _y(p) and it_is("x expected")(p),
        "every rank has x already: forward sends nothing. It is the gradient that is summed.",
    ),
    Hint(
        "not summed backward",
        lambda p: _dx(p) and it_is("this rank's own part")(p),
        "each rank knows only what its own branch adds to dx. The whole of it is the sum over the ranks: all_reduce in "
        "backward.",
    ),
    Hint(
        "summed twice",
        lambda p: _dx(p) and it_is("x expected")(p),
        "the sum is there after the first all_reduce; a second one multiplies it by the number of ranks.",
    ),
    Hint(
        "averaged",
        lambda p: _dx(p) and it_is("expected / ")(p),
        "the ranks have terms of one sum, not shards of a batch: no division.",
    ),
    Hint(
        "the gradient overwritten",
        lambda p: _dx(p) and it_is("the sum, twice")(p),
        "the gradient that backward is given is somebody else's too: x + f(x) hands the same tensor to both. Clone it "
        "before you sum into it.",
    ),
    ONLY_TWO, SOMETHING_ELSE, ANOTHER_WAY, SENT_TWICE, TOUCHED,
)  # fmt: skip
REDUCE_HINTS = (
    CALLS_LIB, WRONG_GROUP, NOT_ALL_RANKS, RETURNED_NOTHING, NO_GRAPH, FLAT_COPY,
    Hint(
        "gathered",
        lambda p: _y(p) and it_is("side by side", "stacked")(p),
        "the ranks' tensors are terms of one sum, each as large as the result. They are added, not joined.",
    ),
    Hint(
        "nothing summed",
        lambda p: _y(p) and it_is("this rank's own part")(p),
        "y is still this rank's part: the sum went to a copy, or there was none. Return the tensor that all_reduce "
        "summed into.",
    ),
    Hint(
        "averaged",
        lambda p: _y(p) and it_is("expected / ")(p),
        "the ranks have terms of one sum, not shards of a batch: no division.",
    ),
    Hint(
        "all-reduced backward too",
        lambda p: (_dx(p) and it_is("x expected")(p)),
        "dy is the same on every rank already. y = x_0 + x_1 + ..., so dx_r = dy: backward sends nothing.",
    ),
    Hint(
        "divided backward",
        lambda p: _dx(p) and it_is("expected / ")(p),
        "the sum grows as much as any one of its terms: dx_r = dy, whole, not a share of it.",
    ),
    ONLY_TWO, SOMETHING_ELSE, ANOTHER_WAY, SENT_TWICE, TOUCHED,
)  # fmt: skip
