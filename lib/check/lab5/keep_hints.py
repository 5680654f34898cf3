"""The mistakes that are made in keep, told by what came of them, and the hint for each."""

from lib.check.framework import Hint
from lib.check.lab5.here import in_place, is_kind


def _pairs(*words):
    return is_kind("pairs", *words)


def _order(*words):
    return lambda p: p.kind == "value" and "pairs" in p.facts["what"] and is_kind("value", *words)(p)


def _slot(*words):
    return is_kind("value", *words, what="slot")


def _weight(*words):
    return is_kind("value", *words, what="weight")


HINTS = (
    Hint("called lib's", is_kind("built-in"), "two loops are enough: over the k places, and in each over the tokens."),
    Hint(
        "no Routing",
        is_kind("no routing"),
        "the function must end with return Routing(token, expert, slot, weight).",
    ),
    Hint(
        "nobody to keep",
        lambda p: p.kind in ("raised", "form") and ("no tokens" in p.text or "all choices -1" in p.text),
        "m may be 0. torch.tensor([]) is float32 (0,): say dtype=torch.int64, and .view(-1, 4) for rows of 4.",
    ),
    Hint(
        "another form",
        is_kind("form"),
        "token, expert and slot are int64 (m,); weight is (m,) like choice.weights: choice.weights[token, place].",
    ),
    Hint(
        "token by token",
        _pairs("token by token"),
        "no second choice is looked at before all first choices have their slots: the loop over the places is the "
        "outer one.",
    ),
    Hint(
        "another priority",
        _pairs("the heaviest first", "the last first"),
        "who comes first is kept: in token order, whatever the weights are.",
    ),
    Hint(
        "counted anew for each place",
        _pairs("for each place"),
        "an expert has C slots in all: second choices get what first choices have left.",
    ),
    Hint(
        "one too many, or too few",
        _pairs("C + 1", "C - 1"),
        "slots 0 to C - 1: a pair fits while the expert has taken fewer than C.",
    ),
    Hint("all experts together", _pairs("all experts together"), "C slots for each expert: count them one by one."),
    Hint("nobody dropped", _pairs("nobody dropped"), "a pair that finds its expert full, C slots taken, is dropped."),
    Hint("first choices alone", _pairs("the first choices alone"), "the other k - 1 places come next, one by one."),
    Hint(
        "one choice hangs on another",
        _pairs("a dropped one"),
        "each pair is by itself: whether a token's first choice was dropped makes no difference to its second.",
    ),
    Hint(
        "-1 is an expert",
        _pairs("-1 "),
        "-1 is nobody: it takes no slot. As an index, -1 is the last expert, and clamp makes it expert 0.",
    ),
    Hint(
        "token and expert swapped",
        _pairs("swapped"),
        "Routing(token, expert, slot, weight), in this order.",
    ),
    Hint(
        "other pairs",
        is_kind("pairs"),
        "for each place, for each token: if the expert is not -1 and has taken fewer than C, the pair gets the next "
        "slot.",
    ),
    Hint(
        "slots anew for each place",
        _slot("anew"),
        "a second choice gets the slot behind the first choices': no two pairs share one.",
    ),
    Hint("slots from 1", _slot("from 1"), "slots are 0 to C - 1: the first gets 0."),
    Hint(
        "slots in token order",
        _slot("token order"),
        "slots go by priority: a second choice has a higher slot than all first choices of that expert.",
    ),
    Hint("slots over all experts", _slot("over all experts"), "each expert's slots begin at 0."),
    Hint(
        "other slots",
        is_kind("value", what="slot"),
        "a pair's slot is how many the expert had taken before it.",
    ),
    Hint(
        "not sorted",
        _order("as they come", "in token order"),
        "sort by expert, so that each expert's rows lie together: sorted((expert, slot, token, place), ...).",
    ),
    Hint(
        "sorted by something else",
        is_kind("value", what="pairs"),
        "sort by expert, and within an expert by slot; nothing else.",
    ),
    Hint(
        "weights detached",
        is_kind("no graph"),
        "the router learns through these weights. A number from .item() or .tolist() has no gradient: index "
        "choice.weights with tensors.",
    ),
    Hint(
        "weights of other pairs",
        _weight("in the order", "those of the first", "the first choice's"),
        "a weight goes with its pair through the sort: choice.weights[token, place], the place remembered.",
    ),
    Hint(
        "not the choice's weights",
        is_kind("value", what="weight"),
        "choice.weights[token, place], as they are: dropping changes none of the others.",
    ),
    Hint(
        "the choice changed",
        in_place,
        "the choice is the caller's, who counts with it what was dropped. Write into tensors of your own.",
    ),
)
