"""The mistakes that are made in accumulate, told by what came of them, and the hint for each."""

from fractions import Fraction

from lib.check.framework import Hint
from lib.check.lab1.cases import WORLD


def _value(fits):
    return lambda p: p.kind == "value" and bool(fits(p.facts))


def _all(share):
    """Fits if each micro-batch's share is this one, a function of k."""
    return _value(lambda f: f["shares"] and not f["local"] and all(c == share(f["k"]) for c in f["shares"]))


def _events(fits):
    return lambda p: p.kind == "events" and fits(p.facts)


def _lost(p):
    """Fits if the loss is a number, but the wrong one."""
    return p.kind == "loss" and isinstance(p.facts["got"], float)


HINTS = (
    Hint(
        "called what it builds",
        lambda p: p.kind == "built-in",
        "build it from the model's `no_sync` and `average_gradients`.",
    ),
    Hint(
        "not averaged over ranks",
        _value(lambda f: f["absent"] or f["local"]),
        "each rank still has its own gradient: call model.average_gradients() after the last backward.",
    ),
    Hint(
        "not divided by k",
        _all(lambda k: 1),
        "gradients of micro-batches add up. The batch's loss is the mean of theirs: loss / k before backward.",
    ),
    Hint(
        "divided twice",
        _all(lambda k: Fraction(1, k * k)),
        "divide by k once, the loss or the gradient. loss_fn gives the mean over a micro-batch already.",
    ),
    Hint(
        "divided by the number of ranks too",
        _all(lambda k: Fraction(1, k * WORLD)),
        "average_gradients() divides by the number of ranks. Here divide by k, the number of micro-batches, only.",
    ),
    Hint(
        "gradients thrown away",
        _value(lambda f: f["shares"] and not any(f["shares"][:-1]) and f["shares"][-1]),
        "only the last micro-batch is left. backward adds to .grad: no zero_grad between micro-batches.",
    ),
    Hint(
        "a micro-batch is missing",
        _value(lambda f: f["shares"] and not all(f["shares"])),
        "every micro-batch needs its backward, the last one too, and all before average_gradients().",
    ),
    Hint(
        "unequal shares",
        _value(lambda f: True),
        "every micro-batch counts alike, 1/k: average over the ranks once, when all gradients have been added.",
    ),
    Hint(
        "nothing returned",
        lambda p: p.kind == "loss" and p.facts["got"] is None,
        "end with `return` of the mean loss.",
    ),
    Hint(
        "the sum of the losses",
        lambda p: _lost(p) and p.facts["got"] == sum(p.facts["losses"]),
        "that is the sum over micro-batches: divide by k, so that losses can be compared whatever k is.",
    ),
    Hint(
        "the last loss only",
        lambda p: _lost(p) and p.facts["got"] in (p.facts["losses"][-1], p.facts["losses"][-1] / p.facts["k"]),
        "that is the last micro-batch's. Add up the losses of all k.",
    ),
    Hint(
        "another loss",
        lambda p: p.kind == "loss",
        "return one number, the mean of this rank's k losses; nothing has to be sent for it.",
    ),
    Hint(
        "a loss with its graph",
        lambda p: p.kind == "attached",
        "it keeps every micro-batch's graph alive. Add up loss.detach().",
    ),
    Hint(
        "one backward at the end",
        _events(lambda f: f["backward"] + f["backward alone"] < f["k"]),
        "summing losses first keeps the activations of all k micro-batches. Call backward after each forward.",
    ),
    Hint(
        "an average in every micro-batch",
        _events(lambda f: f["average"] > 1),
        "k exchanges instead of one. Call average_gradients() after the loop.",
    ),
    Hint(
        "no_sync for the last one too",
        _events(lambda f: f["backward"] == 0),
        "in no_sync no bucket can leave during backward. The last micro-batch runs outside of it.",
    ),
    Hint(
        "every micro-batch sends",
        _events(lambda f: f["backward"] > 1),
        "a bucket that leaves in an earlier backward misses the gradients still to come: run all micro-batches "
        "but the last, forward and backward, inside `with model.no_sync():`.",
    ),
    Hint(
        "computed twice",
        _events(lambda f: f["forward"] > f["k"]),
        "loss_fn runs the forward pass. Call it once per micro-batch, and keep the loss.",
    ),
)
