"""Answers to Lab 5's auxiliary_loss: wrong ones, each with the hint that it must
get, and right ones."""

import torch
import torch.nn.functional as F
from as_an_answer import as_an_answer

from lib import moe


def parts(probabilities, first_choices):
    n, E = probabilities.shape
    f = torch.bincount(first_choices, minlength=E) / max(n, 1)
    return f, probabilities.sum(0) / max(n, 1), n, E


# right


def as_in_the_notebook(probabilities, first_choices):
    n, E = probabilities.shape
    f = torch.bincount(first_choices, minlength=E) / max(n, 1)
    P = probabilities.sum(0) / max(n, 1)
    return E * (f * P).sum()


def by_one_hot(probabilities, first_choices):
    n, E = probabilities.shape
    if n == 0:
        return 0.0
    chosen = F.one_hot(first_choices, E).to(probabilities.dtype)
    return E * torch.dot(chosen.mean(0), probabilities.mean(0))


def by_a_loop(probabilities, first_choices):
    n, E = probabilities.shape
    loss = probabilities.sum() * 0
    for e in range(E):
        loss = loss + (first_choices == e).sum() * probabilities[:, e].sum()
    return loss * E / max(n, 1) ** 2


def by_a_matrix(probabilities, first_choices):
    """One loss for each pair of a token that chooses and a token that is priced, added up."""
    n, E = probabilities.shape
    if n == 0:
        return probabilities.new_zeros((), dtype=torch.float32)
    return probabilities[:, first_choices].sum() * (E / n**2)


# wrong


def squeezed(probabilities, first_choices):
    """One token, or one expert, is no dimension to take away."""
    n, E = probabilities.shape
    f = F.one_hot(first_choices, E).to(probabilities).sum(0).squeeze() / max(n, 1)
    return E * f @ (probabilities.sum(0).squeeze() / max(n, 1))


def in_float32(probabilities, first_choices):
    return as_in_the_notebook(probabilities.float(), first_choices).double()


def a_float32_loss(probabilities, first_choices):
    return as_in_the_notebook(probabilities.float(), first_choices)


COUNTED = {}


def counts_kept_by_shape(probabilities, first_choices):
    """f is counted once for each shape, and taken from there afterwards."""
    n, E = probabilities.shape
    f = COUNTED.setdefault((n, E), torch.bincount(first_choices, minlength=E) / max(n, 1))
    return E * (f * probabilities.sum(0) / max(n, 1)).sum()


def exits(probabilities, first_choices):
    raise SystemExit(1)


def without_minlength(probabilities, first_choices):
    n, E = probabilities.shape
    return E * (torch.bincount(first_choices) / max(n, 1) * probabilities.sum(0) / max(n, 1)).sum()


def only_the_chosen_counted(probabilities, first_choices):
    n, E = probabilities.shape
    _, counts = first_choices.unique(return_counts=True)
    return E * (counts / max(n, 1) * probabilities.sum(0) / max(n, 1)).sum()


def means_of_nothing(probabilities, first_choices):
    E = probabilities.shape[1]
    return E * (F.one_hot(first_choices, E).to(probabilities).mean(0) * probabilities.mean(0)).sum()


def divides_by_n(probabilities, first_choices):
    n, E = probabilities.shape
    return (
        E
        / n
        * (torch.bincount(first_choices, minlength=E) * probabilities.sum(0) / max(n, 1)).sum()
    )


def mean_over_the_experts(probabilities, first_choices):
    f, _, _, E = parts(probabilities, first_choices)
    return E * (f * probabilities.mean(1)).sum()


def not_summed(probabilities, first_choices):
    f, P, _, E = parts(probabilities, first_choices)
    return E * f * P


def a_python_number(probabilities, first_choices):
    return as_in_the_notebook(probabilities, first_choices).item()


def nothing(probabilities, first_choices):
    as_in_the_notebook(probabilities, first_choices)


def counts(probabilities, first_choices):
    _, P, _, E = parts(probabilities, first_choices)
    return E * (torch.bincount(first_choices, minlength=E) * P).sum()


def entropy(probabilities, first_choices):
    P = probabilities.sum(0) / max(len(probabilities), 1)
    return (P * P.clamp(min=1e-9).log()).sum()


def coefficient_of_variation(probabilities, first_choices):
    P = probabilities.sum(0) / max(len(probabilities), 1)
    return (P - P.mean()).square().sum() / max(len(P) - 1, 1) / P.mean() ** 2


def detached(probabilities, first_choices):
    return as_in_the_notebook(probabilities.detach(), first_choices)


def a_new_leaf(probabilities, first_choices):
    return as_in_the_notebook(probabilities.detach().requires_grad_(), first_choices)


def gradient_through_f(probabilities, first_choices):
    f, P, n, E = parts(probabilities, first_choices)
    soft = probabilities.sum(0) / max(n, 1)
    f = f + soft - soft.detach()
    return E * (f * P).sum()


def through_f_alone(probabilities, first_choices):
    f, P, _, E = parts(probabilities, first_choices)
    return E * ((f + P - P.detach()) * P.detach()).sum()


def normalised_in_place(probabilities, first_choices):
    probabilities.div_(max(len(probabilities), 1))
    E = probabilities.shape[1]
    f = torch.bincount(first_choices, minlength=E) / max(len(probabilities), 1)
    return E * (f * probabilities.sum(0)).sum()


def calls_libs(probabilities, first_choices):
    return moe.auxiliary_loss(probabilities, first_choices)


def not_yet(probabilities, first_choices):
    raise NotImplementedError


WRONG = {
    calls_libs: "called what it builds",
    means_of_nothing: "no tokens",
    squeezed: "an error in one case",
    in_float32: "rounded on the way",
    counts_kept_by_shape: "another loss",
    a_float32_loss: "another dtype",
    exits: "exits",
    without_minlength: "no place for the unchosen",
    not_summed: "not one number",
    mean_over_the_experts: "over the tokens",
    entropy: "another loss",
    detached: "no gradient",
    gradient_through_f: "another gradient",
    normalised_in_place: "arguments changed",
    only_the_chosen_counted: "no place for the unchosen",
    divides_by_n: "no tokens",
    a_python_number: "not one number",
    nothing: "not one number",
    coefficient_of_variation: "another loss",
    a_new_leaf: "no gradient",
    through_f_alone: "another gradient",
    not_yet: "not written",
}
RIGHT = [as_in_the_notebook, by_one_hot, by_a_loop, by_a_matrix, as_an_answer(moe.auxiliary_loss)]
