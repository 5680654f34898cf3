"""Known mistakes of the three gates; like every *_wrong.py, no release has this file."""

import torch

from lib.check.mistakes import Mistake
from lib.moe import Choice


def softmax(logits):
    """Over the experts, as it should be."""
    return logits.softmax(-1)


def sum_detached(logits):
    """A softmax whose backward knows nothing of the sum: the right numbers, another gradient."""
    return softmax(logits).detach() * (logits - logits.detach()).exp()


def ranked(scores, first, last):
    """The experts from the first-th best to the last-th, of equal ones the smaller number first."""
    return scores.sort(dim=-1, descending=True, stable=True).indices[:, first:last]


def one_of(logits, p=softmax, weight=None, place=0):
    """The expert in that place, weighted by its p or by weight(g, z): g its p, z its logit."""
    p = p(logits)
    experts = ranked(logits, place, place + 1) if place >= 0 else logits.argmin(-1, keepdim=True)
    g, z = p.gather(1, experts), logits.gather(1, experts)
    return Choice(experts, weight(g, z) if weight else g, p)


def parts(g, z=None):
    """w_i = g_i / (g_1 + ... + g_k)"""
    return g / g.sum(-1, keepdim=True)


def several(logits, k, p=softmax, weight=parts, experts=None):
    """The k best, weighted by weight(g, z): g their p, z their logits."""
    p, experts = p(logits), ranked(logits, 0, k) if experts is None else experts
    return Choice(experts, weight(p.gather(1, experts), logits.gather(1, experts)), p)


def two(logits, uniform, taken=None, keep_weight=False, keep_expert=False, after=None, weight=parts, p=softmax):
    """The best, and the second where taken(uniform, w, g); after(w, mask): the weights."""
    p = p(logits)
    experts = ranked(logits, 0, 2)
    g = p.gather(1, experts)
    w = weight(g)
    second = uniform < 2 * parts(g)[:, 1] if taken is None else taken(uniform, parts(g), g)
    mask = torch.stack([torch.ones_like(second), second], 1)
    weights = w if keep_weight else w * mask
    return Choice(experts if keep_expert else experts.where(mask, -1), after(w, mask) if after else weights, p)


def only_chosen(gate, g_of=lambda g, taken: g):
    """The same choice, but probabilities that are 0 for all other experts."""

    def changed(logits, *args):
        choice = gate(logits, *args)
        experts = ranked(logits, 0, choice.experts.shape[1])
        g = g_of(choice.probabilities.gather(1, experts), choice.experts >= 0)
        return choice._replace(probabilities=torch.zeros_like(logits).scatter(1, experts, g))

    return changed


def probabilities_are(gate, of):
    """The same choice, but of(logits) for its probabilities."""
    return lambda logits, *args: gate(logits, *args)._replace(probabilities=of(logits))


def of_probabilities(gate):
    """What every gate's `probabilities` may be instead."""
    text = "probabilities are those of all E experts, chosen or not: the loss that balances them needs them so."
    changes = (lambda g, taken: g, lambda g, taken: parts(g), lambda g, taken: g * taken)
    changes += (lambda g, taken: parts(g) * taken,)
    return [
        *(Mistake("not all experts' probabilities", only_chosen(gate, change), text) for change in changes),
        Mistake("a sigmoid", probabilities_are(gate, torch.sigmoid)),
        Mistake("over the tokens", probabilities_are(gate, lambda z: z.softmax(0))),
    ]


SWITCH = (
    Mistake(
        "renormalised",
        lambda z: one_of(z, weight=lambda g, z: g / g),
        "p / p is 1, whatever p is: then the router gets no gradient. Switch takes the probability itself.",
    ),
    Mistake(
        "no probability",
        lambda z: one_of(z, weight=lambda g, z: z),
        "the weight is the expert's probability: softmax first, then gather.",
    ),
    Mistake("no probability", lambda z: one_of(z, lambda z: z.log_softmax(-1))),
    Mistake(
        "a sigmoid",
        lambda z: one_of(z, torch.sigmoid),
        "a sigmoid looks at one logit alone. In the softmax the experts compete: p adds up to 1 over them.",
    ),
    Mistake("a sigmoid", lambda z: one_of(z, weight=lambda g, z: z.sigmoid())),
    Mistake(
        "over the tokens",
        lambda z: one_of(z, lambda z: z.softmax(0)),
        "the softmax is over the experts, dim -1 of (n, E).",
    ),
    Mistake("over the tokens", lambda z: one_of(z.softmax(0), lambda p: p)),
    Mistake(
        "the worst", lambda z: one_of(z, place=-1), "the highest logit is the best expert; best(logits, k) finds it."
    ),
    Mistake("the second best", lambda z: one_of(z, place=1), "Switch takes one expert, the best: place 0."),
    Mistake(
        "a sum that is detached",
        lambda z: one_of(z, sum_detached),
        "by what you divide depends on the logits as well: no detach there.",
    ),
    *of_probabilities(one_of),
)
TOP_K = (
    Mistake(
        "not renormalised",
        lambda z, k: several(z, k, weight=lambda g, z: g),
        "the k probabilities add up to less than 1: divide each by their sum.",
    ),
    Mistake(
        "equal parts",
        lambda z, k: several(z, k, weight=lambda g, z: torch.full_like(g, 1 / k)),
        "the better expert counts more: g / g.sum(-1, keepdim=True).",
    ),
    Mistake(
        "two softmaxes",
        lambda z, k: several(z, k, weight=lambda g, z: g.softmax(-1)),
        "a softmax of probabilities is nearly flat. Divide by their sum; or take the softmax of the k logits.",
    ),
    Mistake(
        "over all tokens",
        lambda z, k: several(z, k, weight=lambda g, z: g / g.sum()),
        "each token's weights add up to 1: sum over its k, dim -1, with keepdim=True.",
    ),
    Mistake("over all tokens", lambda z, k: several(z, k, weight=lambda g, z: g / g.sum(0))),
    Mistake(
        "logits divided",
        lambda z, k: several(z, k, weight=lambda g, z: parts(z)),
        "a logit may be negative, and is no part of anything: softmax first.",
    ),
    Mistake(
        "a sigmoid",
        lambda z, k: several(z, k, torch.sigmoid),
        "a sigmoid looks at one logit alone. In the softmax the experts compete: p adds up to 1 over them.",
    ),
    Mistake(
        "over the tokens",
        lambda z, k: several(z, k, lambda z: z.softmax(0)),
        "the softmax is over the experts, dim -1 of (n, E).",
    ),
    Mistake("over the tokens", lambda z, k: several(z.softmax(0), k, lambda p: p)),
    Mistake(
        "not the best first",
        lambda z, k: several(z, k, experts=ranked(z, 0, k).flip(1)),
        "column 0 is each token's first choice: best(logits, k) gives them in that order.",
    ),
    Mistake("not the best first", lambda z, k: several(z, k, experts=ranked(z, 0, k).sort(-1).values)),
    Mistake(
        "weights of other experts",
        lambda z, k: several(z, k, weight=lambda g, z: parts(g).flip(1)),
        "weight i belongs to expert i of the same token: p.gather(1, experts) keeps them in step.",
    ),
    Mistake("weights of other experts", lambda z, k: several(z, k, weight=lambda g, z: parts(g).sort(-1).values)),
    Mistake(
        "the worst",
        lambda z, k: several(z, k, experts=ranked(-z, 0, k)),
        "the highest logit is the best expert; best(logits, k) finds it.",
    ),
    Mistake(
        "a sum that is detached",
        lambda z, k: several(z, k, weight=lambda g, z: g / g.sum(-1, True).detach()),
        "by what you divide depends on the logits as well: no detach there.",
    ),
    *of_probabilities(several),
)
GSHARD = (
    Mistake(
        "the other way round",
        lambda z, u: two(z, u, lambda u, w, g: u >= 2 * w[:, 1]),
        "a number in [0, 1) is below q with probability q: taken where uniform < 2 * w_2.",
    ),
    Mistake(
        "not twice",
        lambda z, u: two(z, u, lambda u, w, g: u < w[:, 1]),
        "the second's weight is 1/2 at most. It is taken with probability 2 * w_2: always, if both are equally good.",
    ),
    Mistake(
        "before renormalising",
        lambda z, u: two(z, u, lambda u, w, g: u < 2 * g[:, 1]),
        "w_2 = g_2 / (g_1 + g_2), and not g_2, decides how often.",
    ),
    Mistake(
        "always or never",
        lambda z, u: two(z, u, lambda u, w, g: u < 2),
        "it depends on each token, and on its second weight: uniform < 2 * w_2, a mask of (n,).",
    ),
    Mistake("always or never", lambda z, u: two(z, u, lambda u, w, g: u > 2)),
    Mistake(
        "the expert left",
        lambda z, u: two(z, u, keep_expert=True),
        "an expert that is not taken must not get the token: its number becomes -1, experts.where(mask, -1).",
    ),
    Mistake(
        "the weight left",
        lambda z, u: two(z, u, keep_weight=True),
        "beside an expert -1 the weight is 0: weights.where(mask, 0.0).",
    ),
    Mistake(
        "the first renormalised again",
        lambda z, u: two(z, u, after=lambda w, mask: parts(w * mask)),
        "the first keeps w_1 = g_1 / (g_1 + g_2), whether the second is taken or not. At 1 the router would"
        " learn nothing from it.",
    ),
    Mistake(
        "not renormalised",
        lambda z, u: two(z, u, weight=lambda g: g),
        "the weights are top_k_gate's: w_i = g_i / (g_1 + g_2).",
    ),
    Mistake("not renormalised", lambda z, u: two(z, u, weight=lambda g: g, keep_weight=True)),
    Mistake(
        "weighted by its chance",
        lambda z, u: two(z, u, after=lambda w, mask: expected(w)),
        "the chance decides whether it is taken. A second that is taken has its whole weight w_2.",
    ),
    Mistake("weighted by its chance", lambda z, u: two(z, u, after=lambda w, mask: expected(w) * mask)),
    Mistake("weighted by its chance", lambda z, u: two(z, u, after=lambda w, mask: w * mask / chance(w))),
    Mistake(
        "a sum that is detached",
        lambda z, u: two(z, u, weight=lambda g: g / g.sum(-1, True).detach()),
        "by what you divide depends on the logits as well: no detach there.",
    ),
    Mistake(
        "over the tokens",
        lambda z, u: two(z, u, p=lambda z: z.softmax(0)),
        "the softmax is over the experts, dim -1 of (n, E).",
    ),
    Mistake(
        "a sigmoid",
        lambda z, u: two(z, u, p=torch.sigmoid),
        "a sigmoid looks at one logit alone. In the softmax the experts compete: p adds up to 1 over them.",
    ),
    *of_probabilities(two),
)


def chance(w):
    """How probable it is that each of the two is taken: (n, 2)."""
    return torch.stack([torch.ones_like(w[:, 1]), (2 * w[:, 1]).clamp(max=1)], 1)


def expected(w):
    """The weights that the two have on the average."""
    return w * chance(w)


MISTAKES = {"switch_gate": SWITCH, "top_k_gate": TOP_K, "gshard_gate": GSHARD}
