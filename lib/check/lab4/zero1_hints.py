"""The mistakes that are made in Zero1, told by what came of them, and the hint for each."""

from math import isclose

from lib.check.framework import Hint
from lib.check.lab0.mistakes import hung
from lib.check.lab1.cases import WORLD
from lib.check.lab1.wire import COLLECTIVES
from lib.check.lab4.zero_given import MAY_CALL as GIVEN

# A flat of lib's may be part of an answer. That other collectives are not the given ones is a claim.
MAY_CALL = (
    *GIVEN, *COLLECTIVES, "flat.__init__", "zero1.reduce_gradients", "zero1.gather_parameters",
)  # fmt: skip


def raised(*words):
    """Fits if the answer raised something that says one of `words`."""
    return lambda p: p.kind == "raised" and any(word in p.text for word in words)


def value(fits=lambda facts: True):
    return lambda p: p.kind == "value" and fits(p.facts)


def by(factor):
    """Fits if the gradient is right but for this factor, a function of N."""
    return value(lambda f: f["factor"] is not None and isclose(f["factor"], factor(f["world_size"])))


def in_case(words):
    """Fits if it went wrong in a case with these words."""
    return lambda p: words in (p.facts["failed"].case if "failed" in p.facts else p.text.splitlines()[0])


def numbers(p):
    return p.kind in ("value", "form", "raised", "unlike", "mismatch", "died") or hung(p)


HINTS = (
    Hint(
        "called what it builds",
        lambda p: p.kind == "built-in",
        "build it yourself: a line of zeros, the parameters copied into it, and a shard of it for the optimizer.",
    ),
    Hint(
        "the group is not passed on",
        lambda p: p.kind == "group",
        "hand `self.group` on: self.reduce_scatter(line, self.group), self.all_gather(shard, self.group).",
    ),
    Hint(
        "not on every rank",
        lambda p: p.kind == "unlike" and len({code for code, _ in p.facts["told"]}) > 1,
        "every rank of the group calls reduce_scatter once in average_gradients(), and all_gather once in step().",
    ),
    Hint(
        "a parameter without gradient",
        raised("None"),
        "a parameter that this rank did not use has .grad None. Its places in the line stay zero.",
    ),
    Hint(
        "ranks of the world, not of the group",
        lambda p: (numbers(p) and in_case("group (1, 3)")(p)) or by(lambda N: N / WORLD)(p),
        "ranks are counted within the group: dist.get_rank(group), dist.get_world_size(group), also where you divide.",
    ),
    Hint(
        "the padding is missing",
        lambda p: numbers(p) and p.kind != "value" and in_case("77 parameters")(p),
        "with 72 parameters it was right: N divides them. Make the line as long as the next multiple of N, "
        "-(-n // N) * N, with zeros at its end: then all shards are of one size.",
    ),
    Hint(
        "no gradient in the shard",
        value(lambda f: f["still"] and not f["has_gradients"]),
        "the optimizer steps on what it was given, the shard. Put the mean gradient in `self.shard.grad`.",
    ),
    Hint(
        "the optimizer does not step",
        value(lambda f: f["still"] and not f["moved"]),
        "step() calls self.optimizer.step() first, then gathers what it has changed.",
    ),
    Hint(
        "the model does not see it",
        value(lambda f: (f["still"] or f["partly"]) and f["gathers_new"]),
        "the new numbers were gathered, but the model's parameters are elsewhere. Make every parameter a view of the "
        "line, p.data = piece.view(p.shape), and copy what is gathered into that same line.",
    ),
    Hint(
        "the optimizer's shard is a copy",
        value(lambda f: f["moved"] and f["gathers"] and f["still"]),
        "the optimizer has changed one tensor, and another one was gathered. The shard must share memory with the line "
        "(chunk and detach do, clone does not), or be what you gather.",
    ),
    Hint(
        "gathered before the step",
        value(lambda f: f["step"] == 0 and f["partly"] and f["gathers"]),
        "this rank's part is new, the others' are of before: first self.optimizer.step(), then all_gather.",
    ),
    Hint(
        "not gathered",
        value(lambda f: f["step"] == 0 and not f["gathers"] and f["partly"]),
        "each rank has updated its shard, and nobody else knows: step() ends with an all_gather of the shards.",
    ),
    Hint(
        "the ranks' gradients are not summed",
        value(lambda f: not f["reduces"]),
        "each rank has updated its shard by its own gradient. Reduce-scatter the line in average_gradients().",
    ),
    Hint(
        "averaged twice",
        by(lambda N: 1 / N),
        "the sum is divided by N once: in the line, or after reduce_scatter, not in both.",
    ),
    Hint(
        "not averaged",
        by(lambda N: N),
        "reduce_scatter sums. Divide the line by the number of ranks.",
    ),
    Hint(
        "a new optimizer in each step",
        value(lambda f: f["made"] > 1),
        "an optimizer that is made anew has forgotten its moments. Call make_optimizer once, in __init__.",
    ),
    Hint(
        "only the last micro-batch",
        lambda p: numbers(p) and in_case("micro-batches")(p),
        "gradients of several backwards add up in .grad. Read them in average_gradients(), when all are there, or add.",
    ),
    Hint(
        "left over from the step before",
        value(lambda f: f["step"] > 0),
        "right in the first step. The line of gradients begins with zeros in every step.",
    ),
    Hint(
        "another place in the line",
        lambda p: p.kind in ("value", "form", "raised"),
        "a parameter, its gradient and its piece of what is gathered have one place in the line, from `begin` to "
        "`begin + p.numel()`. `begin` moves on by p.numel() for every parameter, also for one without gradient.",
    ),
    Hint(
        "the whole state",
        lambda p: p.kind == "kept" and p.facts["whole"],
        "the optimizer keeps state for all that it is given. Give it this rank's shard alone: "
        "make_optimizer([self.shard]).",
    ),
    Hint(
        "a shard of another size",
        lambda p: p.kind == "kept",
        "pad the whole line once, to the next multiple of N, and cut it into N equal parts, wherever parameters begin "
        "and end.",
    ),
    Hint(
        "gradients not dropped",
        lambda p: p.kind == "left",
        "the next backward would add to what is left. Set every parameter's .grad to None in average_gradients().",
    ),
    Hint(
        "no mean in the shard",
        lambda p: p.kind == "no mean",
        "clipping and logging read it there: after average_gradients() the shard's .grad is the mean, not the sum.",
    ),
    Hint(
        "not the one it was given",
        lambda p: p.kind == "another way" or (p.kind == "calls" and not p.facts["got"]),
        "whoever calls your class chooses what sends: call self.reduce_scatter and self.all_gather.",
    ),
    Hint(
        "more than one message",
        lambda p: p.kind == "calls" and len(p.facts["got"]) > 1,
        "one line for all parameters: one reduce_scatter, one all_gather, however many parameters there are.",
    ),
    Hint(
        "other elements",
        lambda p: p.kind == "calls",
        "reduce_scatter takes the padded line, all_gather this rank's shard, padded/N.",
    ),
)
