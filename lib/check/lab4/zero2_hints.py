"""The mistakes that are made in Zero2, told by what came of them, and the hint for each."""

from lib.check.framework import Hint
from lib.check.lab0.mistakes import hung
from lib.check.lab1.wire import COLLECTIVES
from lib.check.lab4.zero1_hints import by, in_case, numbers, raised, value
from lib.check.lab4.zero_given import MAY_CALL as GIVEN

# What is inherited from lib's Zero1, and its flats; the last is the name of what no line of the answer has called.
MAY_CALL = (
    *GIVEN, *COLLECTIVES, "background.start", "flat.__init__", "zero1.__init__", "zero1.reduce_gradients",
    "zero1.gather_parameters", "zero1.step", "framework._measure_all",
)  # fmt: skip


def _left(p):
    """Are parameters' gradients still there, and is that the trouble?"""
    return p.kind == "left" or (bool(p.facts.get("left")) and (p.kind == "memory" or in_case("micro-batches")(p)))


HINTS = (
    Hint(
        "called what it builds",
        lambda p: p.kind == "built-in",
        "inherit from zero.Zero1, and write the three methods.",
    ),
    Hint(
        "the group is not passed on",
        lambda p: p.kind == "group",
        "give the group on: collectives.start(self.reduce_scatter, line, flat.group).",
    ),
    Hint(
        "beyond the last flat",
        raised("IndexError", "out of range"),
        "when all flats have left, self.left is their number, and there is no such flat: "
        "`while self.left < len(self.in_order) and ...`.",
    ),
    Hint(
        "left over from the backward before",
        lambda p: p.kind in ("raised", "value", "early") and (raised("KeyError")(p) or p.facts.get("step", 0) > 0),
        "right in the first step. average_gradients() ends with self.begin_backward(), which counts anew.",
    ),
    Hint(
        "what is left is not sent",
        lambda p: (
            (p.kind == "unlike" and 0 in {code for code, _ in p.facts["told"]})
            or value(lambda f: f["sent"] < f["flats"])(p)
        ),
        "a flat with a parameter that this rank did not use is never complete. average_gradients() sends what is left, "
        "as every rank does, with zeros for what is missing.",
    ),
    Hint(
        "in the order of completion",
        lambda p: p.kind == "unlike",
        "ranks that use different parameters complete their flats in different orders. Only the flat whose turn it is, "
        "self.in_order[self.left], may leave.",
    ),
    Hint(
        "does not wait",
        lambda p: p.kind == "early" or value(lambda f: not f["has_gradients"])(p),
        "before average_gradients() returns, wait for all that is under way, and keep what comes.",
    ),
    Hint(
        "averaged twice",
        by(lambda N: 1 / N),
        "take_gradients() has divided by N already.",
    ),
    Hint(
        "not averaged",
        by(lambda N: N),
        "reduce_scatter sums. flat.take_gradients() gives a line that is divided by N.",
    ),
    Hint(
        "gradients not dropped",
        _left,
        "a gradient that has been copied into its line is no longer needed. flat.take_gradients() drops it.",
    ),
    Hint(
        "overwritten by the next micro-batch",
        lambda p: numbers(p) and in_case("micro-batches")(p),
        "each micro-batch's mean is added to what the shard has: flat.add_gradient(piece).",
    ),
    Hint(
        "a flat leaves too early",
        lambda p: p.kind in ("value", "form", "mismatch", "raised", "died") or hung(p),
        "a flat may leave when its set in self.missing is empty: with the *last* of its gradients, and once.",
    ),
    Hint(
        "not the one it was given",
        lambda p: p.kind == "another way" or (p.kind == "calls" and not p.facts["got"]),
        "whoever calls your class chooses what sends: start self.reduce_scatter.",
    ),
    Hint(
        "other messages",
        lambda p: p.kind == "calls",
        "every flat is sent once in each backward, as the line that flat.take_gradients() gives.",
    ),
    Hint(
        "no mean in the shard",
        lambda p: p.kind == "no mean",
        "after average_gradients() the shard's .grad is the ranks' mean.",
    ),
    Hint(
        "everything at the end",
        lambda p: p.kind == "late" and not p.facts["in_backward"],
        "nothing leaves before backward has ended. gradient_is_ready must send a flat with the last of its gradients.",
    ),
    Hint(
        "one at a time",
        lambda p: p.kind == "late",
        "a flat that was complete too early waits for those before it; when their turn has come, several may leave at "
        "once: `while`, not `if`.",
    ),
    Hint(
        "backward waits for the network",
        lambda p: p.kind == "stuck" and p.facts["passed"] == 0,
        "the hook sends by itself, or waits for what it has started, and autograd waits for the hook. "
        "collectives.start hands it to the communication thread.",
    ),
    Hint(
        "one under way",
        lambda p: p.kind == "stuck" and p.facts["number"] == 0,
        "two may be under way: one on the wire, the next behind it. Wait when a *third* is about to leave.",
    ),
    Hint(
        "not for the oldest",
        lambda p: p.kind == "stuck",
        "before a third leaves, wait for the oldest of the two alone. The other one has only begun.",
    ),
    Hint(
        "three under way",
        lambda p: p.kind == "memory",
        "lines pile up if the network is slower than backward. When two are under way, keep the oldest before the next "
        "line is made.",
    ),
)
