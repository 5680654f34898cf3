"""The mistakes that are made in OverlappedDataParallel, told by what came of them, and the hint for each."""

from math import isclose

from lib.check.framework import Hint
from lib.check.lab1.cases import WORLD
from lib.check.lab1.wire import COLLECTIVES

# The parts of earlier sections may be lib's, where the student's own are not right yet.
EARLIER = ("replicate.broadcast_parameters", "replicate.__init__", "bucketed.reduce_bucket")
MAY_CALL = (*COLLECTIVES, *EARLIER, "background.start", "watched.given_all_reduce")
CHAIN = "a chain of layers"  # the case whose model uses every parameter
FORWARD_ORDER = [41, 36, 49]  # the chain's buckets, if they are planned from the first layer on


def _raised(*words):
    """Fits if the answer raised something that says one of `words`."""
    return lambda p: p.kind == "raised" and any(word in p.text for word in words)


def _in(words):
    """Fits if it failed in a case with these words."""
    return lambda p: "failed" in p.facts and words in p.facts["failed"].case


def _value(fits):
    return lambda p: p.kind == "value" and fits(p.facts)


def _by(factor):
    """Fits if the mean is right but for this factor, a number or a function of N."""

    def fits(facts):
        expected = factor(facts["world_size"]) if callable(factor) else factor
        return facts["factor"] is not None and isclose(facts["factor"], expected)

    return fits


HINTS = (
    Hint(
        "called what it builds",
        lambda p: p.kind == "built-in",
        "build it yourself from plan_buckets, parameter.register_post_accumulate_grad_hook and collectives.start.",
    ),
    Hint(
        "weights not made equal",
        lambda p: p.kind == "weights",
        "ranks that begin with different weights stay different, though their gradients are equal. Call "
        "broadcast_parameters(module, group) when the wrapper is made.",
    ),
    Hint(
        "hooks on frozen parameters",
        _raised("requires grad", "require grad", "requires_grad"),
        "a frozen parameter has no gradient and takes no hook. Plan buckets of those with requires_grad only.",
    ),
    Hint(
        "the hook comes before the gradient",
        lambda p: _raised("None")(p) and _in(f"{CHAIN}, step 1")(p),
        "`.grad` is None in a model that uses every parameter: it is read too early. register_hook runs before .grad "
        "is written, register_post_accumulate_grad_hook after; and a bucket leaves with its *last* gradient.",
    ),
    Hint(
        "left over from the step before",
        lambda p: _value(lambda f: f["step"] > 0)(p) or _in("step 2")(p),
        "right in the first step. What counts the missing gradients, and the list of started works, must begin anew "
        "in every step: reset them at the end of average_gradients().",
    ),
    Hint(
        "a parameter without gradient",
        _raised("None"),
        "a parameter that this rank did not use has .grad None. It contributes zeros, and gets the others' mean.",
    ),
    Hint(
        "the group is not used",
        lambda p: p.kind == "group" or _value(lambda f: _by(f["world_size"] / WORLD)(f))(p),
        "give `self.group` to all_reduce, and divide by dist.get_world_size(self.group).",
    ),
    Hint(
        "does not wait",
        lambda p: p.kind == "early",
        "average_gradients() must wait for every bucket (work.wait()) before it returns, or the optimizer reads "
        "gradients that are still on their way.",
    ),
    Hint(
        "zeros left out",
        lambda p: p.kind == "unlike" and len(set(p.facts["sent"])) > 1,
        "ranks send different amounts. A rank that did not use a parameter sends zeros in its place, and every rank "
        "sends every bucket: average_gradients() starts those that have not left yet.",
    ),
    Hint(
        "in the order of completion",
        lambda p: p.kind == "unlike",
        "ranks that use different parameters complete their buckets in different orders. Start bucket i only after "
        "bucket i-1, on every rank.",
    ),
    Hint(
        "divided twice",
        _value(_by(lambda N: 1 / N)),
        "the sum over ranks is divided by N once: in the hook or in average_gradients(), not in both.",
    ),
    Hint(
        "not divided",
        _value(_by(lambda N: N)),
        "all_reduce sums. Divide by the number of ranks once it has ended.",
    ),
    Hint(
        "what is left is not sent",
        _value(lambda f: f["own"] or f["absent"]),
        "this gradient never left its rank. A bucket that is not full, or not complete, when backward ends must be "
        "sent too: average_gradients() starts what is left.",
    ),
    Hint(
        "a bucket leaves too early",
        _value(lambda f: True),
        "the bucket left before this gradient was in it. It may leave only when the *last* of its gradients is ready; "
        "and what comes back goes to the places from which it was taken.",
    ),
    Hint(
        "another all-reduce",
        lambda p: p.kind == "elements" and not p.facts["elements"],
        "send with `self.all_reduce`, the one that the wrapper was given, so that your ring can carry your gradients.",
    ),
    Hint(
        "sent twice, or frozen ones too",
        lambda p: p.kind == "elements",
        "module.parameters() names a tied parameter once, and of these only those with requires_grad have gradients.",
    ),
    Hint(
        "one message per parameter",
        lambda p: p.kind == "messages" and len(p.facts["elements"]) >= len(p.facts["sizes"]),
        "each gradient leaves by itself, and each message costs its latency. Wait until a whole bucket is ready.",
    ),
    Hint(
        "more than `capacity`",
        lambda p: p.kind == "messages",
        "use plan_buckets(parameters, capacity): one large bucket is complete only when backward ends.",
    ),
    Hint(
        "buckets in the order of forward",
        lambda p: p.kind == "late" and p.facts["forward"],
        "bucket 0 holds the first layer, whose gradient comes last, and the others wait for it. plan_buckets goes "
        "through the parameters in reverse.",
    ),
    Hint(
        "everything at the end",
        lambda p: p.kind == "late",
        "the buckets leave when backward has ended. The hook of a bucket's last gradient must start it: "
        "collectives.start(self.all_reduce, flat, self.group).",
    ),
    Hint(
        "backward waits for the network",
        lambda p: p.kind == "stuck",
        "the hook runs the all-reduce itself, or waits for it, and autograd waits for the hook. collectives.start "
        "hands it to the communication thread; wait in average_gradients().",
    ),
    Hint(
        "no_sync is missing",
        lambda p: p.kind == "no no_sync",
        "write `no_sync`, a context manager (contextlib.contextmanager) that switches the hooks off, and on again.",
    ),
    Hint(
        "no_sync still sends",
        lambda p: p.kind == "sent alone",
        "inside no_sync the hook must return at once. Set a flag on entry, look at it in the hook.",
    ),
    Hint(
        "no_sync counts",
        lambda p: p.kind == "not accumulated",
        "gradients of micro-batches inside no_sync must stay in .grad, and must not count as ready: the bucket leaves "
        "in the backward after it, with the sum.",
    ),
)
