"""Lab 4, section 3: Zero2(zero.Zero1), whose gradients leave during backward.

Two models: a small one, with tied, frozen and unused parameters; and a chain whose backward passes
a gate behind each layer, where it is seen what has been sent, and what memory gradients hold.
"""

from functools import partial

import torch.distributed as dist

from lib.check import symptoms as s
from lib.check.cases import groups_and_control, in_step
from lib.check.claims import claim, each
from lib.check.comm import MAY_CALL, Recorder
from lib.check.exercise import Exercise, Hint, Problem
from lib.check.lab4.zero_chain import GATES, LAYERS, ChainSetup, Held
from lib.check.lab4.zero_models import SEVERAL, STEPS, Setup
from lib.check.lab4.zero_runs import (
    Run,
    built_in,
    by,
    drain,
    first,
    in_case,
    is_libs,
    numbers,
    value,
)
from lib.check.overlap import Gates
from lib.check.traffic import only_calls
from lib.training.buckets import plan_tapered_buckets
from lib.zero import zero2
from lib.zero.flat import padded_size

NAME, WORLD = "Zero2", 4
CHAIN, TWISTED = (
    ChainSetup("a chain of layers"),
    ChainSetup("layers named in another order", (0, 1, 2, 4, 3)),
)
SECOND = Setup("SGD", 72)  # of two models
SETUPS = {
    setup.case(members): setup
    for members, setup in (
        ((0, 1, 2, 3), CHAIN), ((0, 1, 2), TWISTED), ((0, 1, 2), Setup("SGD")),
        ((0, 1, 2, 3), Setup("AdamW")),
        ((1, 3), Setup("AdamW")), ((2,), Setup("AdamW")), ((0, 1, 2), Setup("SGD", idle=1)),
        ((0, 1, 2), Setup("SGD", models=2)), ((0, 1, 2), Setup("AdamW", microbatches=2)),
    )
}  # fmt: skip
CASES = tuple(SETUPS)
# of the small model: three flats, two of several parameters. Of a chain 1: each layer is a flat
CAPACITY = 8 * 40


def _capacity(setup):
    return 1 if setup in (CHAIN, TWISTED) else CAPACITY


def _padded(setup, N):
    """The elements of each flat, in the order in which they leave."""
    parameters = [p for p in setup.model().parameters() if p.requires_grad]
    return [
        padded_size(sum(p.numel() for p in bucket), N)
        for bucket in plan_tapered_buckets(parameters, _capacity(setup))
    ]


def _several(case):
    return SEVERAL in case.what


def _measure(fn):
    return in_step(CASES, groups_and_control, partial(_one, fn), wire=dist.new_group())


def _one(fn, case, places):
    """All steps of a case, up to the first that is wrong on any rank."""
    (group, control), setup = places, SETUPS[case]
    if is_libs(fn, NAME):
        return {"ok": False, "value": built_in(NAME)}
    given = Recorder(control, [case.members], raises=False)
    runs = [_Run(case, setup if i == 0 else SECOND, fn, group, given) for i in range(setup.models)]
    if is_libs(type(runs[0].answer), NAME):
        return {"ok": False, "value": built_in(NAME)}
    for step in range(STEPS):
        for run in runs:
            run.part(step, "backward", partial(run.train, step))
            run.averaged(step)
        for run in runs:
            run.part(step, "step()", run.answer.step)
            run.updated(step, sent=run.sent, flats=run.setup.microbatches * len(run.made.shards))
        if not given.agreed(all(run.value is None for run in runs)):
            break
    calls = [call for call in given.calls if "step()" not in call.phase and case.world_size > 1]
    return given.record() | {
        "ok": all(run.value is None for run in runs),
        "value": next((run.value for run in runs if run.value), None),
        "mean": next((run.mean for run in runs if run.mean), None),
        "memory": runs[0].held and runs[0].held.problem,
        "gates": runs[0].gates,
        "in_backward": runs[0].in_backward,
        "calls": calls,
    }


class _Run(Run):
    """gates: (begun in time, stuck) of each backward with gates; in_backward: calls
    begun in each."""

    def __init__(self, case, setup, fn, group, given):
        model, self.held = setup.model(), None
        if setup is CHAIN:
            self.held = Held(case.group, _padded(setup, case.world_size), case.world_size, model)
        self.gates, self.in_backward = [], []
        ready = self.held.begin if self.held else lambda: None
        super().__init__(case, setup, fn, group, given, model, ready, capacity=_capacity(setup))
        if self.held:
            self.held.shards = self.made.shards
        for flat in self.answer.in_order if self.held else ():
            flat.flatten_gradients = partial(self.held.taken, flat.flatten_gradients)

    def train(self, step):
        """Backward, and average_gradients(), of each micro-batch."""
        given, before = self.recorder, len(self.recorder.calls)
        for batch in self.setup.batches(self.rank, step):
            if self.held:
                self._past_gates(step, batch)
                continue
            if batch is not None:
                self.setup.loss(self.model, batch).backward()
            drain()  # what has been started in backward is sent without more
            self.in_backward.append(len(given.calls) - before)
            self.answer.average_gradients()
        self.sent = len(given.calls) - before

    def _past_gates(self, step, batch):
        with Gates(GATES, at_gate=self.held.at_gate) as gates:
            self.recorder.before, self.model.gate = gates.hold, gates.pass_one
            loss = self.setup.loss(self.model, batch)
            self.held.begin_backward(step)
            loss.backward()
            gates.end()
            self.answer.average_gradients()
        drain()
        self.gates.append((gates.begun_in_time, gates.stuck))
        self.early = gates.early


def _expected(case, rank):
    setup, N = SETUPS[case], case.world_size
    sizes = [
        n for one in [setup, SECOND][: setup.models] for n in _padded(one, N) * setup.microbatches
    ]
    return [
        ("reduce_scatter", f"step {step}, backward", n)
        for step in range(1, STEPS + 1)
        for n in sizes
        if N > 1
    ]


def _beside(case, rank, record):
    """A Problem unless flats leave during backward, and backward goes on meanwhile."""
    where = f"{case.name}: {case.rank(rank)}"
    for in_time, stuck in record["gates"]:
        if not in_time:
            text = (
                f"{where} had sent nothing when only the first layer's gradient was still missing"
            )
            return Problem("late", text, {"in_backward": 0})
        if stuck:
            number, passed = stuck
            text = (
                f"{where}: backward stood still after {passed} of {LAYERS} layers, until "
                f"reduce-scatter "
            )
            text += (
                f"{number + 1} had ended; expected it to stand still only before a third leaves, "
                f"for the oldest"
            )
            return Problem("stuck", text, {"number": number, "passed": passed})
    if SETUPS[case] is TWISTED and (n := min(record["in_backward"])) < LAYERS:
        text = (
            f"{where} had sent {n} of {LAYERS} flats when backward ended. All were complete, but "
            f"flat 1 "
        )
        return Problem("late", f"{text}before flat 0.", {"in_backward": n})
    return None


EXERCISE = Exercise(
    name=NAME,
    reference=zero2.Zero2,
    measure=_measure,
    worlds=(WORLD,),
    # What is inherited from lib's Zero1, and its flats; the last is the name of what no line of the
    # answer has called.
    may_call=(
        *MAY_CALL, "flat.__init__", "zero1.__init__", "zero1.reduce_gradients",
        "zero1.gather_parameters", "flat.gather",
        "zero1.step",
    ),
    leaves_out={
        "returned": "nothing is returned: the model and the shards hold the result",
        "attributes": "those that later cells read are inherited from lib's Zero1",
    },
    claims=(
        claim("as one process, step by step", 4,
              "1 to 4 ranks, a subgroup; SGD, AdamW; tied, frozen, unused",
            first(CASES, "value", lambda case: not _several(case))),
        claim("micro-batches add up", 2, "average_gradients() after each", first(CASES, "value")),
        claim("each flat once, in one order", 2,
              "padded elements, by the reduce_scatter it was given",
            only_calls(CASES, _expected)),
        claim("sent while backward runs", 5, "two in flight, and backward goes on",
              each(CASES, _beside)),
        claim("two buffers at most", 5, "bytes of gradients, after each layer of backward",
            first(CASES, "memory"), first(CASES, "mean")),
    ),
    hints=(
        s.BUILT_IN.saying("inherit from zero.Zero1, and write the three methods."),
        s.NO_GROUP.saying("pass the group on: collectives.start(self.reduce_scatter, buffer, "
                          "flat.group)."),
        Hint("beyond the last flat", s.raised("IndexError"),
             "when all flats have been sent, self.n_sent is their number, and there is no such "
             "flat: `while self.n_sent < len(self.in_order) and ...`."),
        s.NARROW, s.WRONG_DTYPE,
        Hint("kept for all of the class", s.both(numbers, in_case(CASES,
            lambda case: SETUPS[case].models > 1)),
            "two models are trained side by side, each by a Zero2 of its own, and one's state went "
            "to the other. Keep everything on self: nothing on the class, in a global or in a "
            "default argument."),
        Hint("left over from the backward before", s.either(s.raised("KeyError"),
            lambda p: p.fact("step", 0) > 0),
             "right in the first step. average_gradients() ends with self.begin_backward(), which "
             "counts anew."),
        Hint("the rest is not sent", s.either(s.kind("clash", over=True),
            value(lambda f: f["sent"] < f["flats"])),
             "a flat with a parameter that this rank did not use is never complete. "
             "average_gradients() sends the rest, as on every rank, with zeros for what is "
             "missing."),
        Hint("in the order of completion", s.kind("clash"),
             "ranks that use different parameters complete their flats in different orders. Only "
             "the flat whose turn it is, self.in_order[self.n_sent], may be sent."),
        Hint("does not wait", s.either(s.kind("early"), value(lambda f: not f["has_gradients"])),
             "before average_gradients() returns, wait for all that is in flight, and add what is "
             "received."),
        Hint("averaged twice", by(lambda N: 1 / N),
             "flatten_gradients() has divided by N already."),
        Hint("not averaged", by(lambda N: N),
             "reduce_scatter sums. flat.flatten_gradients() has divided by N."),
        Hint("gradients not dropped",
             s.either(s.kind("left"), s.both(s.fact("left"), s.either(s.kind("memory"),
                 in_case(CASES, _several)))),
             "a gradient that has been copied into its flat buffer is no longer needed. "
             "flat.flatten_gradients() frees it."),
        Hint("overwritten by the next micro-batch", s.both(numbers, in_case(CASES, _several)),
             "each micro-batch's mean is added to what the shard has: flat.add_gradient(shard)."),
        Hint("a flat is sent too early", s.both(numbers, lambda p: p.kind != "raised"),
             "a flat may be sent when its set in self.missing is empty, that is with the *last* of "
             "its gradients, once, and only if it is its turn: self.in_order[self.n_sent]."),
        Hint("not the one it was given",
            s.either(s.kind("another way"), s.both(s.kind("calls"), lambda p: not p.facts["got"])),
             "the caller of your class chooses the collective: start self.reduce_scatter."),
        Hint("other messages", s.kind("calls"),
            "every flat is sent once in each backward, as the buffer that flat.flatten_gradients() "
            "returns."),
        Hint("no mean in the shard", s.kind("no mean"),
            "after average_gradients() the shard's .grad is the ranks' mean."),
        Hint("everything at the end", s.kind("late", in_backward=0),
             "nothing is sent before backward has ended. gradient_is_ready must send a flat with "
             "the last of its gradients."),
        Hint("one at a time", s.kind("late"),
             "a flat that was complete too early waits for those before it; then several may be "
             "sent at once: `while`, not `if`."),
        Hint("backward waits for the network", s.kind("stuck", passed=0),
             "the hook sends by itself, or waits for what it has started, and autograd waits for "
             "the hook. collectives.start leaves it to the communication thread."),
        Hint("one in flight", s.kind("stuck", number=0),
             "two may be in flight: one is being sent, the next is queued. Wait when a *third* is "
             "about to be sent."),
        Hint("not for the oldest", s.kind("stuck"),
             "before a third is sent, wait only for the oldest of the two. The other one has only "
             "begun."),
        Hint("buffers kept for all flats", s.kind("memory", before=True),
            "between two steps nothing waits for gradients: a buffer is allocated when its flat is "
            "sent, and freed when it has been sent."),
        Hint("three in flight", s.kind("memory"),
             "buffers add up if the network is slower than backward. When two are in flight, wait "
             "for the oldest before the next buffer is allocated."),
        *s.ANYWHERE,
    ),
)  # fmt: skip
