"""The mistakes that are made in switch_gate and top_k_gate, told by what came of them, and the hint for each."""

from lib.check.framework import Hint
from lib.check.lab5.here import in_place, is_kind

WEIGHTS, PROBABILITIES, EXPERTS = "weights", "probabilities", "experts"


def wrong(*words, what=""):
    """For hints: about a tensor that holds other numbers, or has another form; words: the mistakes."""
    return lambda p: any(is_kind(kind, *words, what=what)(p) for kind in ("value", "form"))


def _form(p, what):
    return is_kind("form", what=what)(p)


def _nan(p):
    return p.kind == "value" and p.facts["nan"]


def _in(*cases):
    """Is the first that is wrong one of these cases?"""
    return lambda p: any(case in p.facts.get("where", "") for case in cases)


def _flat(p):
    """(n,) instead of (n, 1)"""
    return p.kind == "form" and getattr(p.facts["got"], "shape", None) == p.facts["want"].shape[:1]


CALLS_LIB = Hint("called lib's", is_kind("built-in"), "write it with softmax, best and gather.")
NO_CHOICE = Hint("no Choice", is_kind("no choice"), "the function must end with return Choice(experts, weights, p).")
NUMBERS = Hint(
    "experts are no numbers",
    lambda p: _form(p, EXPERTS) and getattr(p.facts["got"], "is_floating_point", bool)(),
    "experts are their numbers, int64; weights are what they count: Choice(experts, weights, probabilities).",
)
OVERFLOW = Hint(
    "exp of large logits",
    _nan,
    "exp(750) is infinite, and infinite / infinite is nan. softmax takes the largest logit away first: "
    "logits.softmax(-1).",
)
TOKENS = Hint("over the tokens", wrong("softmax over the tokens"), "the softmax is over the experts, dim -1 of (n, E).")
SIGMOID = Hint(
    "a sigmoid",
    wrong("sigmoid"),
    "a sigmoid looks at one logit alone. In the softmax the experts compete: p adds up to 1 over them.",
)
ALL_EXPERTS = Hint(
    "not all experts' probabilities",
    wrong("0 for the experts", what=PROBABILITIES),
    "probabilities are those of all E experts, chosen or not: the loss that balances them needs them so.",
)
OTHER_PROBABILITIES = Hint(
    "other probabilities",
    wrong(what=PROBABILITIES),
    "probabilities are logits.softmax(-1), (n, E), as they are.",
)
NO_GRADIENT = Hint(
    "no gradient",
    is_kind("no graph"),
    "the router learns through weights and probabilities alone: no detach, no item, no torch.no_grad, no new tensor "
    "made of their numbers.",
)
DETACHED_SUM = Hint(
    "a sum that is detached",
    is_kind("value", "detached"),
    "by what you divide depends on the logits as well: no detach there.",
)
OTHER_GRADIENT = Hint(
    "another gradient",
    is_kind("value", what="gradient"),
    "the numbers were right and what they teach is not. Is something detached, or added only to be taken away?",
)
EQUAL = Hint(
    "equal logits",
    _in("equal logits", "logits 0 1 1"),
    "topk and an unstable sort promise no order among equals. best(logits, k) takes the smaller number first.",
)
NO_TOKENS = Hint(
    "a set of no tokens",
    lambda p: _in("no tokens", "0 tokens")(p) or (p.kind == "raised" and "no tokens" in p.text),
    "a rank may have no tokens. Work on whole tensors: a list of none cannot be stacked, and has no largest number.",
)
TOUCHED = Hint(
    "in place",
    in_place,
    "in-place operations (-=, x[...] = ...) change a tensor that the caller, or backward, still needs as it was. Make "
    "new ones: where, masked_fill.",
)
WORST = Hint("the worst", wrong("the worst"), "the highest logit is the best expert; best(logits, k) finds it.")
COMMON = (
    CALLS_LIB, NO_CHOICE, NUMBERS, OVERFLOW, NO_TOKENS, EQUAL, TOKENS, SIGMOID, NO_GRADIENT, DETACHED_SUM,
    OTHER_GRADIENT, ALL_EXPERTS, OTHER_PROBABILITIES, TOUCHED,
)  # fmt: skip

SWITCH_HINTS = (
    Hint("no dimension of choices", _flat, "one choice a token is (n, 1): best(logits, 1), or argmax with keepdim."),
    *COMMON, WORST,
    Hint("the second best", wrong("second best"), "Switch takes one expert, the best: place 0."),
    Hint(
        "renormalised",
        wrong("divided by itself"),
        "p / p is 1, whatever p is: then the router gets no gradient. Switch takes the probability itself.",
    ),
    Hint(
        "no probability",
        wrong("the logit", "the log", what=WEIGHTS),
        "the weight is the expert's probability: softmax first, then gather.",
    ),
    Hint(
        "another choice",
        wrong(what=""),
        "p = logits.softmax(-1); the expert is the best, the weight is its p: p.gather(1, experts).",
    ),
)  # fmt: skip
TOP_K_HINTS = (
    *COMMON, WORST,
    Hint(
        "not k of them",
        lambda p: p.kind == "form" and p.facts["what"] == EXPERTS,
        "experts and weights are (n, k), for any k: best(logits, k).",
    ),
    Hint(
        "not the best first",
        wrong("the best last", "order of their numbers"),
        "column 0 is each token's first choice: best(logits, k) gives them in that order.",
    ),
    Hint(
        "weights of other experts",
        wrong("another order", what=WEIGHTS),
        "weight i belongs to expert i of the same token: p.gather(1, experts) keeps them in step.",
    ),
    Hint(
        "not renormalised",
        wrong("not renormalised"),
        "the k probabilities add up to less than 1: divide each by their sum.",
    ),
    Hint("equal parts", wrong("1 / k"), "the better expert counts more: g / g.sum(-1, keepdim=True)."),
    Hint(
        "two softmaxes",
        wrong("softmax of the probabilities"),
        "a softmax of probabilities is nearly flat. Divide by their sum; or take the softmax of the k logits.",
    ),
    Hint(
        "over all tokens",
        wrong("sum over the tokens"),
        "each token's weights add up to 1: sum over its k, dim -1, with keepdim=True.",
    ),
    Hint(
        "logits divided",
        wrong("of logits"),
        "a logit may be negative, and is no part of anything: softmax first.",
    ),
    Hint(
        "another choice",
        wrong(what=""),
        "p = logits.softmax(-1); the k best; w_i = g_i / (g_1 + ... + g_k), g their p.",
    ),
)  # fmt: skip
