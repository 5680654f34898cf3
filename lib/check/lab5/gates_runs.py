"""A gate's answer beside the right one: experts, weights, probabilities, and what the router learns from them."""

from functools import partial

import torch

from lib.check.framework import Problem
from lib.check.lab0.cases import form_of
from lib.check.lab5.here import Told, alike, answered, attempted, changed, draw, first_wrong, slope

FIELDS = ("experts", "weights", "probabilities")
P = torch.tensor([[0.5, 0.3, 0.15, 0.05], [0.1, 0.2, 0.3, 0.4], [0.25, 0.05, 0.6, 0.1]], dtype=torch.float64)
BY_HAND = "softmax .5 .3 .15 .05 | .1 .2 .3 .4 | .25 .05 .6 .1"
LOGITS = P.log() + torch.tensor([[0.0], [5.0], [-7.0]])  # a shift of all logits of a token changes nothing
MANY = "24 tokens, 5 experts"
LARGE = "logits of 700 to 800"
EQUAL = {
    "8 equal logits": torch.zeros(3, 8, dtype=torch.float64),
    "logits 0 1 1 1 0 1 and 2 2 2 2 2 0": torch.tensor([[0.0, 1, 1, 1, 0, 1], [2, 2, 2, 2, 2, 0]], dtype=torch.float64),
}


def logits_for(n, n_experts):
    """Logits of n tokens, drawn."""
    return 2 * draw(n, n, n_experts)


def measured(fn, builds, right, mistakes, cases):
    """{claim: its Problem or None}. cases: {"value", "equal" and "sets": {where: arguments}}."""
    seen = {"value": _choices(fn, builds, right, mistakes, cases["value"])}
    seen["gradient"] = seen["value"] or _gradients(fn, right, mistakes, MANY, cases["value"][MANY])
    seen["equal"] = seen["gradient"] or _choices(fn, builds, right, mistakes, cases["equal"])
    seen["sets"] = seen["equal"] or _choices(fn, builds, right, mistakes, cases["sets"]) or _touched(fn, cases["value"])
    return seen


def _choices(fn, builds, right, mistakes, cases):
    choices = {where: answered(builds, fn, where, *_copies(args)) for where, args in cases.items()}
    for where, choice in choices.items():
        if isinstance(choice, Problem):
            return choice
        if not all(hasattr(choice, field) for field in FIELDS):
            words = f"{len(choice)} values" if type(choice) in (tuple, list) else form_of(choice)
            return Problem("no choice", f"{where}: expected a Choice, got {words}", {"got": choice})
    found = (first_wrong(_tolds(field, choices, right, mistakes, cases)) for field in FIELDS)
    return next(filter(None, found), None)


def _tolds(field, choices, right, mistakes, cases):
    for where, choice in choices.items():
        known = partial(_known, field, choice, mistakes, cases[where])
        yield Told(where, field, getattr(choice, field), getattr(right(*cases[where]), field), known)


def _known(field, choice, mistakes, args):
    """What the mistakes give; those that give the whole choice as it is stand first."""
    known = [(words, mistake(*args)) for words, mistake in mistakes]
    known.sort(key=lambda item: not all(alike(getattr(choice, f), getattr(item[1], f)) for f in FIELDS))
    return [(words, getattr(mistaken, field)) for words, mistaken in known]


def _gradients(fn, right, mistakes, where, args):
    """Of (a * weights).sum() and (b * probabilities).sum(), a and b random, to the logits."""
    leaf = args[0].clone().requires_grad_()
    choice = attempted(where, fn, leaf.clone(), *_copies(args[1:]))
    if isinstance(choice, Problem):
        return choice
    for seed, field in enumerate(FIELDS[1:]):
        want = getattr(right(leaf, *args[1:]), field)
        factors = draw(seed, *want.shape)
        gradient = slope(where, field, getattr(choice, field), leaf, factors)
        if isinstance(gradient, Problem):
            return gradient
        what = f"the gradient of the {field} to the logits"
        known = partial(_known_gradients, field, mistakes, args, factors, want)
        wrong = first_wrong([Told(where, what, gradient, slope(where, field, want, leaf, factors), known)])
        if wrong:
            return wrong
    return None


def _known_gradients(field, mistakes, args, factors, want):
    """What the mistakes give that give the right values."""
    leaf, known = args[0].clone().requires_grad_(), []
    for words, mistake in mistakes:
        output = getattr(mistake(leaf, *args[1:]), field)
        if output.requires_grad and alike(output, want):
            known.append((words, torch.autograd.grad(output, leaf, factors)[0]))
    return known


def _touched(fn, cases):
    for where, args in cases.items():
        given = _copies(args)
        fn(*given)
        names = [name for name, arg in zip(("logits", "uniform"), given, strict=False) if torch.is_tensor(arg)]
        problem = changed(where, dict(zip(names, given, strict=False)), dict(zip(names, args, strict=False)))
        if problem:
            return problem
    return None


def draws_itself(fn, builds, where, args):
    """Does the answer depend on torch's random numbers? A Problem or None."""
    experts = []
    with torch.random.fork_rng(devices=[]):
        for seed in (0, 1):
            torch.manual_seed(seed)
            choice = answered(builds, fn, where, *_copies(args))
            experts.append(getattr(choice, "experts", None))
    if torch.is_tensor(experts[0]) and not alike(*experts):
        return Problem("random", f"{where}: called twice with the same numbers, it takes other experts each time")
    return None


def _copies(args):
    return [arg.clone() if torch.is_tensor(arg) else arg for arg in args]
