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


def _all(hint, *changes):
    """change(f, P, n, E) in place of E * sum_e f_e P_e; one mistake for each."""
    return [
        Mistake(hint, lambda p, first, change=change: change(*_parts(p, first), *p.shape))
        for change in changes
    ]


MISTAKES = (
    *_all("E forgotten", lambda f, P, n, E: (f * P).sum()),
    Mistake("E of the chosen alone",
            lambda p, first: len(first.unique()) * torch.stack(_parts(p, first)).prod(0).sum()),
    *_all("divided by E",
          lambda f, P, n, E: (f * P).sum() / E, lambda f, P, n, E: E * E * (f * P).sum()),
    *_all("not parts of the tokens",
          lambda f, P, n, E: n * (f * P).sum(), lambda f, P, n, E: E * (n * f * P).sum(),
          lambda f, P, n, E: E * (n * f * n * P).sum()),
    *_all("counts for both", lambda f, P, n, E: E * (f * f).sum()),
    *_all("probabilities for both", lambda f, P, n, E: E * (P * P).sum()),
    Mistake("probabilities for both", _counted_softly),
    *_all("after capacity",
          lambda f, P, n, E: E * (f.clamp(max=ceil(n / E) / max(n, 1)) * P).sum(),
          lambda f, P, n, E: E * (f.clamp(max=(n // E) / max(n, 1)) * P).sum()),
    *_all("another sign",
          lambda f, P, n, E: -E * (f * P).sum(), lambda f, P, n, E: E * (f * P).sum() - 1),
    Mistake("the best instead of the chosen",
            lambda p, first: p.shape[1] * (_parts(p, p.argmax(-1))[0] * p.sum(0) / max(len(p),
                1)).sum()),
    Mistake("the chosen ones' probability alone", _of_the_chosen),
    Mistake("the chosen ones' probability alone",
            lambda p, first: p.shape[1] * p.gather(1, first[:, None]).sum() / max(len(p), 1)),
    Mistake("the chosen ones' probability alone", _over_the_chosen),
)  # fmt: skip
