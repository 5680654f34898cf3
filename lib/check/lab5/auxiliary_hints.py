"""The mistakes that are made in the auxiliary loss, told by what came of them, and the hint for each."""

from lib.check.framework import Hint
from lib.check.lab5.here import in_place, is_kind


def _loss(*words):
    """Is the loss another number, or several?"""
    return lambda p: any(is_kind(kind, *words, what="the loss")(p) for kind in ("value", "form"))


def _gradient(*words):
    return is_kind("value", *words, what="gradient")


def _no_tokens(p):
    return "no tokens" in p.text and p.kind in ("value", "form", "raised")


def _too_short(p):
    """f has no places for the last experts: shapes do not fit, or f of one expert is spread over all."""
    unfit = p.kind == "raised" and any(word in p.text for word in ("size", "shape", "index", "stack"))
    return unfit or (p.kind == "value" and "all choose 0" in p.facts["where"])


HINTS = (
    Hint("called lib's", is_kind("built-in"), "E * (f * P).sum(): count the first choices, and average p."),
    Hint(
        "no tokens",
        _no_tokens,
        "a rank may have no tokens, and the mean of nothing is nan: divide sums by max(n, 1), and the loss is 0.",
    ),
    Hint(
        "no place for the unchosen",
        _too_short,
        "bincount ends with the last expert that somebody chose. bincount(first_choices, minlength=E) counts all E.",
    ),
    Hint(
        "not one number",
        lambda p: p.kind == "form" and getattr(p.facts["got"], "shape", None) != (),
        "the loss is one number, as a tensor that knows its graph: the sum over the experts, without .item().",
    ),
    Hint(
        "E forgotten",
        _loss("without E"),
        "multiply by E: where all experts are asked equally often, E * E * (1/E * 1/E) = 1, however many there are.",
    ),
    Hint(
        "divided by E",
        _loss("divided by E", "E times E"),
        "E times the sum over the experts: neither its mean, nor E squared.",
    ),
    Hint(
        "not parts of the tokens",
        _loss("counts", "sums, not means", "neither", "n times"),
        "f_e is a part of the tokens, P_e a mean over them: both are divided by n, and each adds up to 1.",
    ),
    Hint(
        "counts for both",
        _loss("f for both"),
        "counts have no gradient. One factor counts, f; the other is the mean probability, P.",
    ),
    Hint(
        "probabilities for both",
        _loss("P for both"),
        "f counts first choices, in whole tokens: bincount. P is what the router can change.",
    ),
    Hint(
        "the best instead of the chosen",
        _loss("by argmax"),
        "count first_choices, as they are given: a bias or another gate may choose otherwise than the argmax.",
    ),
    Hint(
        "after capacity",
        _loss("cut off"),
        "f counts all who ask, before capacity: a token that is dropped still says where the crowd is.",
    ),
    Hint(
        "the chosen ones' probability alone",
        _loss("chosen one alone"),
        "P_e is the mean over all tokens, also over those that chose another expert.",
    ),
    Hint(
        "another sign",
        _loss("the other sign", "1 less"),
        "it is E * sum of f P as it is: 1 where all is even, up to E where all tokens go to one expert.",
    ),
    Hint(
        "another loss",
        _loss(),
        "f_e: the part of the tokens whose first choice is e. P_e: the mean of p_e over all tokens. E * sum of f_e "
        "P_e.",
    ),
    Hint(
        "no gradient",
        is_kind("no graph"),
        "the router learns through P: no detach, no item, no torch.no_grad around it.",
    ),
    Hint(
        "another gradient",
        _gradient(),
        "f is a count, without gradient; P = probabilities.mean(0), with all of it.",
    ),
    Hint("changed in place", in_place, "in-place operations change the caller's tensors. Make new ones."),
)  # fmt: skip
