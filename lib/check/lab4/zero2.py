"""Lab 4, section 3: Zero2(zero.Zero1), whose gradients leave during backward.

Two models: a small one, with tied, frozen and unused parameters; and a chain whose backward passes
a gate behind each layer, where it is seen what has been sent, and what memory gradients hold.
"""

import weakref
from functools import partial

from lib import collectives
from lib.check import symptoms as s
from lib.check.causes import hints, of_name
from lib.check.comm import MAY_CALL
from lib.check.exercise import Exercise
from lib.check.lab4 import zero_models as models
from lib.check.lab4.zero_models import Setup
from lib.check.shown import calls, claims
from lib.check.side_by_side import SideBySide
from lib.zero import zero2

WORLD = 4
CHAIN, TWISTED = Setup("SGD", chain=(0, 1, 2, 3, 4)), Setup("SGD", chain=(0, 1, 2, 4, 3))
SETUPS = {
    setup.case(members): setup
    for members, setup in (
        ((0, 1, 2, 3), CHAIN), ((0, 1, 2), TWISTED), ((0, 1, 2), Setup("SGD")),
        ((0, 1, 2, 3), Setup("AdamW")), ((1, 3), Setup("AdamW")), ((2,), Setup("AdamW")),
        ((0, 1, 2), Setup("SGD", idle=1)), ((0, 1, 2), Setup("AdamW", microbatches=2)),
    )
}  # fmt: skip
CASES = tuple(SETUPS)
# of the small model: three flats, two of several parameters. Of a chain 1: each layer is a flat
CAPACITY = 8 * 40
NOTHING_SENT = "nothing had been sent when only the first layer's gradient was still missing"
EARLY = "average_gradients() came back while a reduce_scatter was under way"
STILL = (
    "until the reduce-scatter of flat {} had ended, which was after {} of "
    f"{models.LAYERS} layers; expected it to wait only before a third leaves, for the oldest"
)
KEPT = "the gradients of a flat that had been sent were still there when the next one was"


def script(make, case, group, show):
    setup = SETUPS[case]
    capacity = 1 if setup.chain else CAPACITY
    model, made = setup.model(), models.Made(setup.optimizer)
    ways = {"reduce_scatter": show.reduce_scatter, "all_gather": show.all_gather}
    with show.during("__init__", section=True) as run:
        zero = run(make, model.parameters(), made, group, **ways, capacity=capacity)
    show("parameters", model.named_parameters())
    yield
    for step in range(1, models.STEPS + 1):
        show.begin(f"step {step}, backward")
        for batch in setup.batches(show.place, step - 1):
            with show.during(f"step {step}, backward and average_gradients()") as run:
                run(lambda batch=batch: train(setup, model, zero, batch, show))
        left = {n: p for n, p in model.named_parameters() if p.grad is not None}
        show("gradients left", f".grad is still there of {', '.join(left)}" if left else "")
        for parameter in left.values():
            parameter.grad = None
        found = [shard.grad for shard in made.shards if shard.grad is not None]
        show("the norm of the mean gradient", show.length(found))
        show.begin(f"step {step}, step()")
        with show.during(f"step {step}, step()") as run:
            run(zero.step)
        show("parameters", model.named_parameters())
        for shard in made.shards:
            shard.grad = None
        yield
        if show.wrong("parameters"):
            return


def train(setup, model, zero, batch, show):
    """Backward of a micro-batch, and average_gradients()."""
    if setup == CHAIN:
        past_gates(setup, model, zero, batch, show)
        return
    before = len(show.calls)
    if batch is not None:
        setup.loss(model, batch).backward()
    collectives.start(lambda: None).wait()  # what has been started in backward is sent without more
    if show.case.world_size > 1:
        show("flats sent when backward has ended", len(show.calls) - before)
    zero.average_gradients()


def past_gates(setup, model, zero, batch, show):
    buffers, watch = Buffers(zero.in_order), show.gated(models.GATES)
    model.gate = watch.pass_one
    setup.loss(model, batch).backward()
    watch.end()
    zero.average_gradients()
    show.ungated(watch)
    show("sent in time", "" if watch.begun_in_time else NOTHING_SENT)
    show("backward stands still", STILL.format(*watch.stuck) if watch.stuck else "")
    show("back too early", EARLY if watch.early else "")
    show("buffers beside a new one", buffers.most, at_most=True)
    show("gradients freed at once", KEPT if buffers.kept else "")
    buffers.leave()


class Buffers:
    """Those that flatten_gradients() makes. most: of those before, how many were there when one
    was made; one, which is under way, may be. kept: was a gradient of those before still there?"""

    def __init__(self, flats):
        self.flats, self.seen, self.most, self.kept = flats, [], 0, False
        for number, flat in enumerate(flats):
            flat.flatten_gradients = partial(self.made, flats[:number], flat.flatten_gradients)

    def made(self, sent, make):
        self.most = max(self.most, sum(one() is not None for one in self.seen))
        self.kept |= any(p.grad is not None for flat in sent for p in flat.parameters)
        buffer = make()
        self.seen.append(weakref.ref(buffer))
        return buffer

    def leave(self):
        for flat in self.flats:
            del flat.flatten_gradients


MEASURE = SideBySide(
    script, zero2.Zero2, CASES, (zero2.__name__,), together=(CASES[2], CASES[6]),
    excused=models.EXCUSED
    | {"alive at the end": "the parameters' hooks hold what they call, in a cycle of torch's"},
    slack={"alive": models.slack},
)  # fmt: skip
ONE_BATCH = [case for case in MEASURE.runs() if models.SEVERAL not in case.what]
EXERCISE = Exercise(
    name="Zero2", reference=zero2.Zero2, worlds=(WORLD,), measure=MEASURE,
    # What is inherited from lib's Zero1, and its flats; the last is the name of what no line of the
    # answer has called.
    may_call=(
        *MAY_CALL, "flat.__init__", "zero1.__init__", "zero1.reduce_gradients",
        "zero1.gather_parameters", "flat.gather", "zero1.step",
    ),
    leaves_out={
        "returned": "nothing is returned: the model and the shards hold the result",
        "attributes": "those that later cells read are inherited from lib's Zero1",
    },
    claims=claims(
        MEASURE,
        ("as one process, step by step", 4,
         "1 to 4 ranks, a subgroup; SGD, AdamW; tied, frozen, unused", ("parameters", ONE_BATCH)),
        ("micro-batches add up", 2, "average_gradients() after each", "parameters"),
        ("each flat once, in one order", 2,
         "padded elements, by the reduce_scatter it was given", calls(MEASURE)),
        ("sent while backward runs", 5, "two in flight, and backward goes on", "sent in time",
         "backward stands still", "flats sent when backward has ended", "back too early"),
        ("two buffers at most", 5, "and no gradients of what has been sent"),
    ),
    hints=hints(
        "lab4", "Zero2",
        left_over_from_the_backward_before=s.either(
            s.raised("KeyError"),
            s.both(of_name("parameters"), s.fact("time", 3), s.in_case(CASES, CASES[0].__eq__)),
        ),
    ),
)  # fmt: skip
