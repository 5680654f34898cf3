"""What the three gates give, and what the mistakes that are made in them give: functions of the gate's arguments.

Each is [(the mistake in words, the gate with that mistake), ...]; the right gate is not lib's, but its formula again.
"""

import torch

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
    return [
        ("0 for the experts that were not chosen", only_chosen(gate)),
        ("0 for the experts that were not chosen", only_chosen(gate, lambda g, taken: parts(g))),
        ("0 for the experts that were not chosen", only_chosen(gate, lambda g, taken: g * taken)),
        ("0 for the experts that were not chosen", only_chosen(gate, lambda g, taken: parts(g) * taken)),
        ("the logits", probabilities_are(gate, lambda z: z)),
        ("the softmax over the tokens", probabilities_are(gate, lambda z: z.softmax(0))),
        ("the log of the softmax", probabilities_are(gate, lambda z: z.log_softmax(-1))),
        ("a sigmoid of each logit", probabilities_are(gate, torch.sigmoid)),
    ]


SWITCH = [
    ("the probability divided by itself", lambda z: one_of(z, weight=lambda g, z: g / g)),
    ("the logit", lambda z: one_of(z, weight=lambda g, z: z)),
    ("the log of the softmax", lambda z: one_of(z, lambda z: z.log_softmax(-1))),
    ("a sigmoid of each logit", lambda z: one_of(z, torch.sigmoid)),
    ("the softmax over the tokens", lambda z: one_of(z, lambda z: z.softmax(0))),
    ("the softmax over the tokens", lambda z: one_of(z.softmax(0), lambda p: p)),
    ("the worst expert", lambda z: one_of(z, place=-1)),
    ("the second best expert", lambda z: one_of(z, place=1)),
    ("that of a softmax whose sum is detached", lambda z: one_of(z, sum_detached)),
    *of_probabilities(one_of),
]
TOP_K = [
    ("the probability, not renormalised", lambda z, k: several(z, k, weight=lambda g, z: g)),
    ("1 / k", lambda z, k: several(z, k, weight=lambda g, z: torch.full_like(g, 1 / k))),
    ("the softmax of the probabilities", lambda z, k: several(z, k, weight=lambda g, z: g.softmax(-1))),
    ("divided by the sum over the tokens", lambda z, k: several(z, k, weight=lambda g, z: g / g.sum())),
    ("divided by the sum over the tokens", lambda z, k: several(z, k, weight=lambda g, z: g / g.sum(0))),
    ("of logits, not of probabilities", lambda z, k: several(z, k, weight=lambda g, z: parts(z))),
    ("a sigmoid of each logit", lambda z, k: several(z, k, torch.sigmoid)),
    ("the softmax over the tokens", lambda z, k: several(z, k, lambda z: z.softmax(0))),
    ("the softmax over the tokens", lambda z, k: several(z.softmax(0), k, lambda p: p)),
    ("the best last", lambda z, k: several(z, k, experts=ranked(z, 0, k).flip(1))),
    ("in the order of their numbers", lambda z, k: several(z, k, experts=ranked(z, 0, k).sort(-1).values)),
    ("in another order than the experts", lambda z, k: several(z, k, weight=lambda g, z: parts(g).flip(1))),
    ("in another order than the experts", lambda z, k: several(z, k, weight=lambda g, z: parts(g).sort(-1).values)),
    ("the worst experts", lambda z, k: several(z, k, experts=ranked(-z, 0, k))),
    ("that of a sum that is detached", lambda z, k: several(z, k, weight=lambda g, z: g / g.sum(-1, True).detach())),
    *of_probabilities(several),
]
GSHARD = [
    ("taken where it should not be, and the other way round", lambda z, u: two(z, u, lambda u, w, g: u >= 2 * w[:, 1])),
    ("taken where uniform < its weight, not twice its weight", lambda z, u: two(z, u, lambda u, w, g: u < w[:, 1])),
    ("taken by its probability, before renormalising", lambda z, u: two(z, u, lambda u, w, g: u < 2 * g[:, 1])),
    ("always taken", lambda z, u: two(z, u, lambda u, w, g: u < 2)),
    ("never taken", lambda z, u: two(z, u, lambda u, w, g: u > 2)),
    ("there, though it is not taken", lambda z, u: two(z, u, keep_expert=True)),
    ("left, though its expert is -1", lambda z, u: two(z, u, keep_weight=True)),
    ("renormalised again", lambda z, u: two(z, u, after=lambda w, mask: parts(w * mask))),
    ("the probability, not renormalised", lambda z, u: two(z, u, weight=lambda g: g)),
    ("the probability, not renormalised", lambda z, u: two(z, u, weight=lambda g: g, keep_weight=True)),
    ("the weight times the chance to be taken", lambda z, u: two(z, u, after=lambda w, mask: expected(w))),
    ("the weight times the chance to be taken", lambda z, u: two(z, u, after=lambda w, mask: expected(w) * mask)),
    ("divided by the chance to be taken", lambda z, u: two(z, u, after=lambda w, mask: w * mask / chance(w))),
    ("that of a sum that is detached", lambda z, u: two(z, u, weight=lambda g: g / g.sum(-1, True).detach())),
    ("the softmax over the tokens", lambda z, u: two(z, u, p=lambda z: z.softmax(0))),
    ("a sigmoid of each logit", lambda z, u: two(z, u, p=torch.sigmoid)),
    *of_probabilities(two),
]  # fmt: skip


def chance(w):
    """How probable it is that each of the two is taken: (n, 2)."""
    return torch.stack([torch.ones_like(w[:, 1]), (2 * w[:, 1]).clamp(max=1)], 1)


def expected(w):
    """The weights that the two have on the average."""
    return w * chance(w)
