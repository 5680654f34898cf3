"""Known mistakes of auxiliary_loss, each named after its cause."""

from math import ceil

import torch
from mistakes import Mistake


def _parts(p, first):
    n, E = p.shape
    f = torch.stack([(first == e).sum() for e in range(E)]).to(p) / max(n, 1)  # (E,)
    return f, p.sum(0) / max(n, 1)


def _of_the_chosen(p, first):
    """P_e over the tokens that chose e, which are fewer."""
    f, P = _parts(p * torch.nn.functional.one_hot(first, p.shape[1]), first)
    return len(P) * (f * P).sum()


def _over_the_chosen(p, first):
    """P_e as the mean over the tokens that chose e."""
    f, _ = _parts(p, first)
    chosen = torch.nn.functional.one_hot(first, p.shape[1])
    P = (p * chosen).sum(0) / chosen.sum(0).clamp(min=1)
    return len(P) * (f * P).sum()


def _counted_softly(p, first):
    """f_e as the mean of p_e where e is chosen, and of 0 elsewhere."""
    _, f = _parts(p * torch.nn.functional.one_hot(first, p.shape[1]), first)
    return len(f) * (f * p.sum(0) / max(len(p), 1)).sum()


def _all(hint, text, *changes):
    """change(f, P, n, E) in place of E * sum_e f_e P_e; one mistake for each."""
    return [
        Mistake(hint, lambda p, first, change=change: change(*_parts(p, first), *p.shape), text)
        for change in changes
    ]


MISTAKES = (
    *_all("E forgotten",
          "multiply by E: where all experts are asked equally often, E * E * (1/E * 1/E) = 1, "
          "however many there are.",
          lambda f, P, n, E: (f * P).sum()),
    Mistake("E of the chosen alone",
            lambda p, first: len(first.unique()) * torch.stack(_parts(p, first)).prod(0).sum()),
    *_all("divided by E", "E times the sum over the experts: neither its mean, nor E squared.",
          lambda f, P, n, E: (f * P).sum() / E, lambda f, P, n, E: E * E * (f * P).sum()),
    *_all("not parts of the tokens",
          "f_e is a part of the tokens, P_e a mean over them: both are divided by n, and each adds "
          "up to 1.",
          lambda f, P, n, E: n * (f * P).sum(), lambda f, P, n, E: E * (n * f * P).sum(),
          lambda f, P, n, E: E * (n * f * n * P).sum()),
    *_all("counts for both",
          "counts have no gradient. One factor counts, f; the other is the mean probability, P.",
          lambda f, P, n, E: E * (f * f).sum()),
    *_all("probabilities for both",
          "f counts first choices, in whole tokens: bincount. P is what the router can change.",
          lambda f, P, n, E: E * (P * P).sum()),
    Mistake("probabilities for both", _counted_softly),
    *_all("after capacity",
          "f counts all who ask, before capacity: a token that is dropped still says where the "
          "crowd is.",
          lambda f, P, n, E: E * (f.clamp(max=ceil(n / E) / max(n, 1)) * P).sum(),
          lambda f, P, n, E: E * (f.clamp(max=(n // E) / max(n, 1)) * P).sum()),
    *_all("another sign",
          "it is E * sum of f P as it is: 1 where all is even, up to E where all tokens go to one "
          "expert.",
          lambda f, P, n, E: -E * (f * P).sum(), lambda f, P, n, E: E * (f * P).sum() - 1),
    Mistake("the best instead of the chosen",
            lambda p, first: p.shape[1] * (_parts(p, p.argmax(-1))[0] * p.sum(0) / max(len(p),
                1)).sum(),
            "count first_choices, as they are given: a bias or another gate may choose otherwise "
            "than the argmax."),
    Mistake("the chosen ones' probability alone", _of_the_chosen),
    Mistake("the chosen ones' probability alone",
            lambda p, first: p.shape[1] * p.gather(1, first[:, None]).sum() / max(len(p), 1)),
    Mistake("the chosen ones' probability alone", _over_the_chosen),
)  # fmt: skip
