"""The mistakes that are made in LossScaler, told by what came of them, and the hint for each."""

from math import isclose

from lib.check.framework import Hint
from lib.check.lab1.wire import COLLECTIVES

MAY_CALL = (*COLLECTIVES, "watched.given_all_reduce")


def _stepped(fits):
    """Fits if no rank skipped a step with this overflow."""
    return lambda p: p.kind == "stepped" and fits(p.facts["overflow"])


def _gradient(fits):
    return lambda p: p.kind == "gradient" and p.facts["factor"] is not None and fits(p.facts)


def _scale(*steps):
    """Fits if S is wrong after one of these steps of the run, and was right before."""
    return lambda p: p.kind == "scale" and p.facts["step"] in steps


HINTS = (
    Hint(
        "called what it builds",
        lambda p: p.kind == "built-in",
        "build it yourself: multiply the loss, divide the gradients, and all_reduce whether there was an overflow.",
    ),
    Hint(
        "the loss is not scaled",
        lambda p: p.kind == "scaled",
        "scale_loss returns the loss times self.scale, a tensor with its graph, so that backward can start from it.",
    ),
    Hint(
        "a parameter without gradient",
        lambda p: p.kind == "raised" and "None" in p.text,
        "p.grad is None where a parameter was not used: leave such parameters out.",
    ),
    Hint(
        "the group is not passed on",
        lambda p: p.kind == "group",
        "give `group` on: all_reduce(flag, group).",
    ),
    Hint(
        "only some ranks ask",
        lambda p: p.kind == "unlike",
        "every rank must take part in the all-reduce in every step, whatever its own gradients are.",
    ),
    Hint(
        "not unscaled",
        _gradient(lambda f: isclose(f["factor"], f["S"])),
        "backward left S * g in .grad. Divide every gradient by the scale before optimizer.step().",
    ),
    Hint(
        "unscaled twice",
        _gradient(lambda f: isclose(f["factor"], 1 / f["S"])),
        "the gradients are divided by S once too often.",
    ),
    Hint(
        "unscaled with the next scale",
        lambda p: p.kind == "gradient",
        "the gradients carry the scale that the loss was multiplied by. Divide by it first, change self.scale last.",
    ),
    Hint(
        "every rank for itself",
        lambda p: p.kind == "split",
        "an overflow on one rank must skip the step on all, or the models part: all_reduce the flag before anyone "
        "decides.",
    ),
    Hint(
        "steps in a skipped step",
        lambda p: p.kind == "stepped" and p.facts["returned"] is False,
        "a skipped step does not call the optimizer at all. On zeros its momentum would still move the parameters, and "
        "a step that is taken back has still been counted.",
    ),
    Hint(
        "nan is not seen",
        _stepped(lambda o: o.who == "all ranks" and o.value != o.value),
        "nan compares unequal to everything, also to inf. gradient.isfinite() is False for both.",
    ),
    Hint(
        "-inf is not seen",
        _stepped(lambda o: o.who == "all ranks" and o.value < 0),
        "a gradient can overflow to minus infinity. gradient.isfinite() is False for it too.",
    ),
    Hint(
        "not every gradient is looked at",
        _stepped(lambda o: o.who == "all ranks" and o.parameter),
        "look at every parameter of every group in optimizer.param_groups, all its elements.",
    ),
    Hint(
        "the loss is looked at",
        _stepped(lambda o: o.who == "all ranks"),
        "the overflow is in the gradients; the loss may be finite. Look for inf and nan in every p.grad.",
    ),
    Hint(
        "the votes are added up wrongly",
        lambda p: p.kind in ("stepped", "skipped"),
        "all_reduce sums. Let each rank give 1 if it has an overflow, else 0: then the sum is 0 if all are fine. (If "
        "each gives 1 where it is fine, the sum must be N.)",
    ),
    Hint(
        "a skipped step leaves traces",
        lambda p: p.kind == "touched",
        "skip means: do not call the optimizer, and change neither parameters nor its state.",
    ),
    Hint(
        "not whether it stepped",
        lambda p: p.kind == "returned",
        "return True where the step was made, False where it was skipped: a bool, the same on every rank.",
    ),
    Hint(
        "ranks with different scales",
        lambda p: p.kind == "scale" and len(set(p.facts["scales"])) > 1,
        "ranks must change the scale together: decide by the sum over ranks, not by the rank's own gradients.",
    ),
    Hint(
        "grows in every step",
        _scale(0),
        "count good steps, and multiply by growth only when there have been growth_interval of them.",
    ),
    Hint(
        "does not grow in time",
        _scale(1),
        "growth_interval good steps in a row, here 2, multiply the scale by growth; the second of them already.",
    ),
    Hint(
        "the count goes on after growth",
        _scale(2),
        "after the scale has grown, the count of good steps begins at 0 again.",
    ),
    Hint(
        "not lowered",
        _scale(3, 6, 7),
        "every overflow multiplies the scale by backoff.",
    ),
    Hint(
        "the count goes on after an overflow",
        _scale(4, 5, 8, 9),
        "good steps count in a row: an overflow sets the count to 0.",
    ),
    Hint(
        "another all-reduce",
        lambda p: p.kind == "wire" and not p.facts["got"],
        "use the argument `all_reduce`, so that your own can carry it.",
    ),
    Hint(
        "more than one number",
        lambda p: p.kind == "wire",
        "whether *any* gradient overflowed is one number: make one flag of all of them first, then all_reduce it.",
    ),
)
