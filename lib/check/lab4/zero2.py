"""Lab 4, section 3: Zero2(zero.Zero1), which reduce-scatters gradients during backward.

There are two models: a small one with tied, frozen and unused parameters, and a chain of layers
with a gate between every two layers. In the case CHAIN each reduce-scatter is held until backward
has passed a later gate, which shows whether backward continues meanwhile. The gradient buffers that
are alive are counted there, too.
"""

import weakref
from functools import partial

from lib import collectives
from lib.check.causes import hints
from lib.check.comm import MAY_CALL
from lib.check.lab4 import zero_models as models
from lib.check.lab4.zero_models import Setup
from lib.check.shown import calls
from lib.check.side_by_side import SideBySide
from lib.zero import zero2

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
# Bytes per flat. It splits the small model into three flats, two of them with several parameters.
# Chains have a capacity of 1, so that each layer is a flat of its own.
CAPACITY = 8 * 40
NOTHING_SENT = "nothing had been sent when only the first layer's gradient was still missing"
EARLY = "average_gradients() came back while a reduce_scatter was under way"
STILL = (
    "until the reduce-scatter of flat {} had ended, which was after {} of "
    f"{models.LAYERS} layers; expected it to wait only before a third leaves, for the oldest"
)
KEPT = "the gradients of a flat that had been sent were still there when the next one was"
NOT_READY = "in backward flat {} was sent before all of its gradients were there"


def script(make, case, group, show):
    setup = SETUPS[case]
    capacity = 1 if setup.chain else CAPACITY
    model, made, zero = models.wrapped(make, setup, group, show, capacity=capacity)
    yield
    for step in range(1, models.STEPS + 1):
        show.begin(f"step {step}, backward")
        for batch in setup.batches(show.place, step - 1):
            with show.during(f"step {step}, backward and average_gradients()") as run:
                run(lambda batch=batch: train(setup, model, zero, batch, show))
        models.show_gradients(show, model, made)
        for parameter in model.parameters():
            parameter.grad = None
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
    """Run backward for a micro-batch, then average_gradients(). In CHAIN, backward has gates."""
    is_gated = setup == CHAIN
    buffers, watch = Buffers(zero.in_order), show.gated(models.GATES if is_gated else 0)
    if is_gated:
        model.gate = watch.pass_one
    before = len(show.calls)
    if batch is not None:
        setup.loss(model, batch).backward()
    watch.end()
    buffers.in_backward = False
    show("sent when ready", buffers.incomplete)
    if not is_gated:
        collectives.start(lambda: None).wait()  # runs after everything that was started in backward
        if show.case.world_size > 1:
            show("flats sent when backward has ended", len(show.calls) - before)
    zero.average_gradients()
    show.ungated(watch)
    if is_gated:
        show("sent in time", "" if watch.begun_in_time else NOTHING_SENT)
        show("backward stands still", STILL.format(*watch.stuck) if watch.stuck else "")
        show("back too early", EARLY if watch.early else "")
        show("buffers beside a new one", buffers.most, at_most=True)
        show("gradients freed at once", KEPT if buffers.kept else "")
    buffers.leave()


class Buffers:
    """The buffers that flatten_gradients() makes. most: the largest number of earlier buffers that
    were alive when a new one was made; one may be, because it is in flight. kept: whether a
    gradient of an earlier flat was alive then. incomplete: a sentence about the first flat whose
    buffer was made before backward had computed all of its gradients, or ""."""

    def __init__(self, flats):
        self.flats, self.seen, self.in_backward = flats, [], True
        self.most, self.kept, self.incomplete = 0, False, ""
        for number, flat in enumerate(flats):
            flat.flatten_gradients = partial(self.made, number, flat.flatten_gradients)

    def made(self, number, make):
        *sent, flat = self.flats[: number + 1]
        if self.in_backward and any(p.grad is None for p in flat.parameters):
            self.incomplete = self.incomplete or NOT_READY.format(number)
        self.most = max(self.most, sum(one() is not None for one in self.seen))
        self.kept |= any(p.grad is not None for before in sent for p in before.parameters)
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
EXERCISE = MEASURE.exercise(
    ("as one process, step by step", 4,
     "1 to 4 ranks, a subgroup; SGD, AdamW; tied, frozen, unused",
     "sent when ready", ("parameters", ONE_BATCH)),
    ("micro-batches add up", 2, "average_gradients() after each", "parameters"),
    ("each flat once, in one order", 2,
     "padded elements, by the reduce_scatter it was given", calls(MEASURE)),
    ("sent while backward runs", 5, "two in flight, and backward goes on", "sent in time",
     "backward stands still", "flats sent when backward has ended", "back too early"),
    ("two buffers at most", 5, "and no gradients of what has been sent"),
    hints=hints("lab4", "Zero2"), worlds=(models.WORLD,),
    # what is inherited from lib's Zero1, and its flats
    may_call=(*MAY_CALL, *models.MAY_CALL, "zero1.__init__", "zero1.step"),
    leaves_out={
        "returned": "nothing is returned: the model and the shards hold the result",
        "attributes": "those that later cells read are inherited from lib's Zero1",
    },
)  # fmt: skip
