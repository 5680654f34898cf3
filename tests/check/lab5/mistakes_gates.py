"""Known mistakes of the three gates, edits of lib's code."""

from mistakes import Mistake, edit

SOFTMAX, PARTS = "logits.softmax(-1)", "g / g.sum(-1, keepdim=True)"
# the right numbers, another gradient
DETACHED = f"{SOFTMAX}.detach() * (logits - logits.detach()).exp()"


def of_probabilities(end, k):
    """What every gate's `probabilities` may be instead. end: the reference's text before them."""
    be = lambda p: edit(f"{end}, p)", f"{end}, {p})")
    g = f"p.gather(1, top_k_indices(logits, {k}))"
    only = lambda g: be(f"torch.zeros_like(p).scatter(1, top_k_indices(logits, {k}), {g})")
    share = f"{g} / {g}.sum(-1, keepdim=True)"
    chosen = [g, share] + ([f"{g} * taken", f"{share} * taken"] if "taken" in end else [])
    return [
        *(Mistake("not all experts' probabilities", only(one)) for one in chosen),
        Mistake("a sigmoid", be("logits.sigmoid()")),
        Mistake("over the tokens", be("logits.softmax(0)")),
    ]


TAKES, WEIGHT = "top_k_indices(logits, 1)", "p.gather(1, experts), p)"
SWITCH = (
    Mistake("renormalised", edit(WEIGHT, f"p.gather(1, experts) / {WEIGHT}")),
    Mistake("no probability", edit(WEIGHT, "logits.gather(1, experts), p)")),
    Mistake("no probability", edit(SOFTMAX, "logits.log_softmax(-1)")),
    Mistake("a sigmoid", edit(SOFTMAX, "logits.sigmoid()")),
    Mistake("a sigmoid", edit(WEIGHT, "logits.sigmoid().gather(1, experts), p)")),
    Mistake("over the tokens", edit(SOFTMAX, "logits.softmax(0)")),
    Mistake("over the tokens",
            edit(SOFTMAX, "logits.softmax(0)").then(TAKES, "top_k_indices(p, 1)")),
    Mistake("the worst", edit(TAKES, "logits.argmin(-1, keepdim=True)")),
    Mistake("the second best",
            edit(TAKES, "top_k_indices(logits, min(2, logits.shape[1]))[:, -1:]")),
    Mistake("a sum that is detached", edit(SOFTMAX, DETACHED)),
    *of_probabilities("p.gather(1, experts)", "1"),
)  # fmt: skip

TAKES, LOGITS = (
    "top_k_indices(logits, k)",
    edit("p.gather(1, experts)", "logits.gather(1, experts)"),
)
TOP_K = (
    Mistake("not renormalised", edit(PARTS, "g")),
    Mistake("equal parts", edit(PARTS, "torch.full_like(g, 1 / k)")),
    Mistake("two softmaxes", edit(PARTS, "g.softmax(-1)")),
    Mistake("over all tokens", edit(PARTS, "g / g.sum()")),
    Mistake("over all tokens", edit(PARTS, "g / g.sum(0)")),
    Mistake("logits divided", LOGITS),
    Mistake("a sigmoid", edit(SOFTMAX, "logits.sigmoid()")),
    Mistake("over the tokens", edit(SOFTMAX, "logits.softmax(0)")),
    Mistake("over the tokens",
            edit(SOFTMAX, "logits.softmax(0)").then(TAKES, "top_k_indices(p, k)")),
    Mistake("not the best first", edit(TAKES, f"{TAKES}.flip(1)")),
    Mistake("not the best first", edit(TAKES, f"{TAKES}.sort(-1).values")),
    Mistake("weights of other experts", edit(PARTS, f"({PARTS}).flip(1)")),
    Mistake("weights of other experts", edit(PARTS, f"({PARTS}).sort(-1).values")),
    Mistake("the worst", edit(TAKES, "top_k_indices(-logits, k)")),
    Mistake("the probabilities ranked", edit(TAKES, "top_k_indices(p, k)")),
    Mistake("a sum that is detached", edit(PARTS, f"{PARTS}.detach()")),
    *of_probabilities(PARTS, "k"),
)  # fmt: skip


def two(p=SOFTMAX, weights=PARTS):
    """The best two by hand, not by top_k_gate."""
    by_hand = (
        f"experts, p = top_k_indices(logits, 2), {p}; g = p.gather(1, experts); weights = {weights}"
    )
    return edit("experts, weights, p = top_k_gate(logits, 2)", by_hand)


WEIGHTS, TAKEN = "weights.where(taken, 0.0)", "uniform < 2 * weights.detach()[:, 1]"
CHANCE = "(2 * weights).clamp(max=1)"  # how probable it is that each of the two is taken: (n, 2)
AS_IT_SHOULD = f"uniform < 2 * ({PARTS})[:, 1]"
GSHARD = (
    Mistake("the other way round", edit(TAKEN, TAKEN.replace("<", ">="))),
    Mistake("the other way round", edit(TAKEN, TAKEN.replace("<", ">"))),
    Mistake("not twice", edit(TAKEN, TAKEN.replace("2 * ", ""))),
    Mistake("before renormalising", edit(TAKEN, "uniform < 2 * p.gather(1, experts)[:, 1]")),
    Mistake("kept without a draw", edit(TAKEN, "uniform < 2")),
    Mistake("kept without a draw", edit(TAKEN, "uniform > 2")),
    Mistake("taken at the bound", edit(TAKEN, TAKEN.replace("<", "<="))),
    Mistake("the expert left", edit("experts.where(taken, -1)", "experts")),
    Mistake("the expert left", edit("experts.where(taken, -1)", "experts * taken")),
    Mistake("the weight left", edit(WEIGHTS, "weights")),
    Mistake("the first renormalised again",
            edit(WEIGHTS, f"(w := {WEIGHTS}) / w.sum(-1, keepdim=True)")),
    Mistake("not renormalised", two(weights="g").then(TAKEN, AS_IT_SHOULD)),
    Mistake("not renormalised", two(weights="g").then(TAKEN, AS_IT_SHOULD).then(WEIGHTS,
        "weights")),
    Mistake("weighted by its chance", edit(WEIGHTS, f"weights * {CHANCE}")),
    Mistake("weighted by its chance", edit(WEIGHTS, f"{WEIGHTS} * {CHANCE}")),
    Mistake("weighted by its chance", edit(WEIGHTS, f"{WEIGHTS} / {CHANCE}")),
    Mistake("a sum that is detached", two(weights=f"{PARTS}.detach()")),
    Mistake("over the tokens", two(p="logits.softmax(0)")),
    Mistake("a sigmoid", two(p="logits.sigmoid()")),
    *of_probabilities(WEIGHTS, "2"),
)  # fmt: skip
MISTAKES = {"switch_gate": SWITCH, "top_k_gate": TOP_K, "gshard_gate": GSHARD}
