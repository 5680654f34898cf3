"""Known mistakes of the three gates, edits of lib's code."""

from mistakes import Mistake, edit

SOFTMAX, PARTS = "logits.softmax(-1)", "g / g.sum(-1, keepdim=True)"
# the right numbers, another gradient
DETACHED = f"{SOFTMAX}.detach() * (logits - logits.detach()).exp()"
A_SIGMOID = (
    "a sigmoid looks at one logit alone. In the softmax the experts compete: p adds up to 1 over "
    "them."
)
OVER_TOKENS = "the softmax is over the experts, dim -1 of (n, E)."
WORST = "the highest logit is the best expert; top_k_indices(logits, k) finds it."
SUM = "by what you divide depends on the logits as well: no detach there."


def of_probabilities(end, k):
    """What every gate's `probabilities` may be instead. end: the reference's text before them."""
    text = (
        "probabilities are those of all E experts, chosen or not: the loss that balances them "
        "needs them so."
    )
    be = lambda p: edit(f"{end}, p)", f"{end}, {p})")
    g = f"p.gather(1, top_k_indices(logits, {k}))"
    only = lambda g: be(f"torch.zeros_like(p).scatter(1, top_k_indices(logits, {k}), {g})")
    share = f"{g} / {g}.sum(-1, keepdim=True)"
    chosen = [g, share] + ([f"{g} * taken", f"{share} * taken"] if "taken" in end else [])
    return [
        *(Mistake("not all experts' probabilities", only(one), text) for one in chosen),
        Mistake("a sigmoid", be("logits.sigmoid()")),
        Mistake("over the tokens", be("logits.softmax(0)")),
    ]


TAKES, WEIGHT = "top_k_indices(logits, 1)", "p.gather(1, experts), p)"
SWITCH = (
    Mistake("renormalised", edit(WEIGHT, f"p.gather(1, experts) / {WEIGHT}"),
            "p / p is 1, whatever p is: then the router gets no gradient. Switch takes the "
            "probability itself."),
    Mistake("no probability", edit(WEIGHT, "logits.gather(1, experts), p)"),
            "the weight is the expert's probability: softmax first, then gather."),
    Mistake("no probability", edit(SOFTMAX, "logits.log_softmax(-1)")),
    Mistake("a sigmoid", edit(SOFTMAX, "logits.sigmoid()"), A_SIGMOID),
    Mistake("a sigmoid", edit(WEIGHT, "logits.sigmoid().gather(1, experts), p)"), A_SIGMOID),
    Mistake("over the tokens", edit(SOFTMAX, "logits.softmax(0)"), OVER_TOKENS),
    Mistake("over the tokens",
            edit(SOFTMAX, "logits.softmax(0)").then(TAKES, "top_k_indices(p, 1)")),
    Mistake("the worst", edit(TAKES, "logits.argmin(-1, keepdim=True)"), WORST),
    Mistake("the second best",
            edit(TAKES, "top_k_indices(logits, min(2, logits.shape[1]))[:, -1:]"),
            "Switch takes one expert, the best: column 0."),
    Mistake("a sum that is detached", edit(SOFTMAX, DETACHED), SUM),
    *of_probabilities("p.gather(1, experts)", "1"),
)  # fmt: skip

TAKES, LOGITS = (
    "top_k_indices(logits, k)",
    edit("p.gather(1, experts)", "logits.gather(1, experts)"),
)
TOP_K = (
    Mistake("not renormalised", edit(PARTS, "g"),
            "the k probabilities add up to less than 1: divide each by their sum."),
    Mistake("equal parts", edit(PARTS, "torch.full_like(g, 1 / k)"),
            "the better expert counts more: g / g.sum(-1, keepdim=True)."),
    Mistake("two softmaxes", edit(PARTS, "g.softmax(-1)"),
            "a softmax of probabilities is nearly flat. Divide by their sum; or take the softmax "
            "of the k logits."),
    Mistake("over all tokens", edit(PARTS, "g / g.sum()"),
            "each token's weights add up to 1: sum over its k, dim -1, with keepdim=True."),
    Mistake("over all tokens", edit(PARTS, "g / g.sum(0)")),
    Mistake("logits divided", LOGITS,
            "a logit may be negative, and is no part of anything: softmax first."),
    Mistake("a sigmoid", edit(SOFTMAX, "logits.sigmoid()"), A_SIGMOID),
    Mistake("over the tokens", edit(SOFTMAX, "logits.softmax(0)"), OVER_TOKENS),
    Mistake("over the tokens",
            edit(SOFTMAX, "logits.softmax(0)").then(TAKES, "top_k_indices(p, k)")),
    Mistake("not the best first", edit(TAKES, f"{TAKES}.flip(1)"),
            "column 0 is each token's first choice: top_k_indices(logits, k) gives them in that "
            "order."),
    Mistake("not the best first", edit(TAKES, f"{TAKES}.sort(-1).values")),
    Mistake("weights of other experts", edit(PARTS, f"({PARTS}).flip(1)"),
            "weight i belongs to expert i of the same token: p.gather(1, experts) keeps them in "
            "step."),
    Mistake("weights of other experts", edit(PARTS, f"({PARTS}).sort(-1).values")),
    Mistake("the worst", edit(TAKES, "top_k_indices(-logits, k)"), WORST),
    Mistake("the probabilities ranked", edit(TAKES, "top_k_indices(p, k)")),
    Mistake("a sum that is detached", edit(PARTS, f"{PARTS}.detach()"), SUM),
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
    Mistake("the other way round", edit(TAKEN, TAKEN.replace("<", ">=")),
            "a number in [0, 1) is below q with probability q: taken where uniform < 2 * w_2."),
    Mistake("the other way round", edit(TAKEN, TAKEN.replace("<", ">"))),
    Mistake("not twice", edit(TAKEN, TAKEN.replace("2 * ", "")),
            "the second's weight is 1/2 at most. It is taken with probability 2 * w_2: always, if "
            "both are equally good."),
    Mistake("before renormalising", edit(TAKEN, "uniform < 2 * p.gather(1, experts)[:, 1]"),
            "w_2 = g_2 / (g_1 + g_2), and not g_2, decides how often."),
    Mistake("kept without a draw", edit(TAKEN, "uniform < 2"),
            "it depends on each token, and on its second weight: uniform < 2 * w_2, a mask of "
            "(n,)."),
    Mistake("kept without a draw", edit(TAKEN, "uniform > 2")),
    Mistake("taken at the bound", edit(TAKEN, TAKEN.replace("<", "<=")),
            "taken where uniform < 2 * w_2; where they are equal it is not, so that a second of "
            "weight 0 never is."),
    Mistake("the expert left", edit("experts.where(taken, -1)", "experts"),
            "an expert that is not taken must not get the token: its number becomes -1, "
            "experts.where(mask, -1)."),
    Mistake("the expert left", edit("experts.where(taken, -1)", "experts * taken")),
    Mistake("the weight left", edit(WEIGHTS, "weights"),
            "beside an expert -1 the weight is 0: weights.where(mask, 0.0)."),
    Mistake("the first renormalised again", edit(WEIGHTS,
        f"(w := {WEIGHTS}) / w.sum(-1, keepdim=True)"),
            "the first keeps w_1 = g_1 / (g_1 + g_2), whether the second is taken or not. At 1 the "
            "router would learn nothing from it."),
    Mistake("not renormalised", two(weights="g").then(TAKEN, AS_IT_SHOULD),
            "the weights are top_k_gate's: w_i = g_i / (g_1 + g_2)."),
    Mistake("not renormalised", two(weights="g").then(TAKEN, AS_IT_SHOULD).then(WEIGHTS,
        "weights")),
    Mistake("weighted by its chance", edit(WEIGHTS, f"weights * {CHANCE}"),
            "the chance decides whether it is taken. A second that is taken has its whole weight "
            "w_2."),
    Mistake("weighted by its chance", edit(WEIGHTS, f"{WEIGHTS} * {CHANCE}")),
    Mistake("weighted by its chance", edit(WEIGHTS, f"{WEIGHTS} / {CHANCE}")),
    Mistake("a sum that is detached", two(weights=f"{PARTS}.detach()"), SUM),
    Mistake("over the tokens", two(p="logits.softmax(0)"), OVER_TOKENS),
    Mistake("a sigmoid", two(p="logits.sigmoid()"), A_SIGMOID),
    *of_probabilities(WEIGHTS, "2"),
)  # fmt: skip
MISTAKES = {"switch_gate": SWITCH, "top_k_gate": TOP_K, "gshard_gate": GSHARD}
