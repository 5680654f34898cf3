"""Lab 4, section 8: recompute(f, x), of which only x is kept until backward. It needs no ranks.

Every case is compared with the same function called as it is: output, gradients, random state.
"""

import torch

from lib import recompute as libs
from lib.check.framework import Claim, Exercise, Problem
from lib.check.lab0.cases import form_of
from lib.check.lab3.compare import wrong
from lib.check.lab4.recompute_cases import NAMES, kept, noting_theirs, run
from lib.check.lab4.recompute_hints import HINTS


def _measure(fn):
    """{claim: {case: None, or the Problem}}; only values are looked at where they are wrong."""
    with noting_theirs() as theirs:
        answers = {name: run(name, fn) for name in NAMES}
    if theirs:
        return {"value": {NAMES[0]: Problem("built-in", f"it calls {theirs[0]}, which this exercise builds")}}
    plain = {name: run(name, lambda f, x: f(x)) for name in NAMES}
    values = {name: _wrong_value(name, answers[name], plain[name]) for name in NAMES}
    right = [name for name in NAMES if values[name] is None]
    return {
        "value": values,
        "random": {name: _wrong_state(name, answers[name], plain[name]) for name in right},
        "kept": {"layers": _keeps_more(fn)} if "layers" in right else {},
        "calls": {name: _called(name, answers[name]) for name in right if name not in ("twice", "nested")},
    }


def _wrong_value(name, got, want):
    if got.raised:
        way, error = got.raised
        return Problem("raised", f"{name}, {way}: {type(error).__name__}: {error}")
    if not torch.is_tensor(got.y):
        return Problem("form", f"{name}: expected {form_of(want.y)}, got {form_of(got.y)}")
    if problem := wrong(f"{name}: y", got.y, want.y, {}):
        return problem
    if not got.needs_gradient:
        return Problem("cut off", f"{name}: y does not need a gradient, so no backward will come here", {"case": name})
    for tensor, gradient in want.gradients.items():
        mine = got.gradients[tensor]
        facts = {"of x": tensor == "x", "case": name}
        if mine is None:
            return Problem("no gradient", f"{name}: {tensor} got no gradient", facts)
        if problem := wrong(f"{name}: the gradient of {tensor}", mine, gradient, {"2 x expected": 2 * gradient}):
            problem.kind = "gradient"
            problem.facts |= facts
            return problem
    return None


def _wrong_state(name, got, want):
    for way in ("forward", "backward"):
        if not torch.equal(got.states[way], want.states[way]):
            text = f"{name}: after {way} the random generator is not where it would be without recomputation"
            return Problem("state", text, {"way": way})
    return None


def _keeps_more(fn):
    got, most = kept(fn)
    if got <= most:
        return None
    return Problem("kept", f"layers: between forward and backward {got} bytes are kept, expected {most}: x alone")


def _called(name, got):
    if got.calls == [1, 1]:
        return None
    text = f"{name}: f was called {got.calls[0]} times in forward and {got.calls[1]} in backward, expected once each"
    return Problem("calls", text, {"calls": got.calls})


def _found(claim, *names):
    def judge(runs):
        records = runs[0].results[0]
        return next(filter(None, (records.get(claim, {}).get(name) for name in names or NAMES)), None)

    return judge


EXERCISE = Exercise(
    name="recompute",
    reference=libs.recompute,
    measure=_measure,
    worlds=(),
    claims=(
        Claim("output and gradients", 5, "of x and the weights; tokens", _found(
            "value", "layers", "features", "tokens")),
        Claim("the same random numbers", 3, "dropout; the generator is left where it was", lambda runs: (
            _found("value", "dropout")(runs) or _found("random")(runs))),
        Claim("again and again", 2, "f(f(x)), and inside one another", _found("value", "twice", "nested")),
        Claim("keeps x alone", 2, "bytes that the graph has saved", _found("kept")),
        Claim("f runs twice", 2, "in forward, and in backward", _found("calls")),
    ),
    hints=HINTS,
)  # fmt: skip
