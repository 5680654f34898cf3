"""Lab 1, section 5: OverlappedDataParallel(module, group, all_reduce, capacity), buckets that are
sent during backward.

There are three models: the small one, a chain of layers with gates between them
(lib/check/overlap.py), and one whose second bucket is complete before its first. What overlaps is
judged in the last two cases, because by then the other cases have shown that gradients are right.
"""

import contextlib

import torch
from torch import nn

from lib import backend
from lib.check.cases import Setting, draw
from lib.check.causes import hints
from lib.check.comm import MAY_CALL
from lib.check.lab1 import models
from lib.check.lab1.means import A_MODEL, ALONE, GROUPS, GROUPS_SAY, WORLD
from lib.check.shown import calls
from lib.check.side_by_side import SideBySide
from lib.data_parallel import bucketed

CHAIN, SMALL, NO_SYNC = "a chain of layers", "unused parameters", "no_sync"
CROSSED = "bucket 1 is complete before bucket 0"
IDLE = "rank 0 without a backward"
CASES = tuple(
    Setting(members, what=what)
    for members, what in (
        (GROUPS[0], CHAIN), *((members, SMALL) for members in GROUPS), (GROUPS[1], IDLE),
        (ALONE, SMALL), (GROUPS[0], CROSSED), (GROUPS[0], NO_SYNC),
    )
)  # fmt: skip
BUILT = bucketed.__name__
MORE, BESIDE = "bytes more than after the step before", "bytes beside the gradients"
SENT = "elements sent", "elements sent inside no_sync"
IN_TIME = {2: "sent after no_sync", 3: "sent after an error inside no_sync"}


class Crossed(nn.Module):
    """Layers that are not used in the order of their parameters. In the backward pass, the second
    of three buckets is therefore complete first.

    forward   x (B, 3) -> first (B, 4) -> third (B, 4) -> second (B, 5)
    backward  second -> third -> gate -> first; buckets: third (16), second (20), first (12)
    """

    def __init__(self, seed=0, fine=1):
        super().__init__()
        linear = lambda m, n: nn.Linear(m, n, bias=False, dtype=torch.float64)
        self.first, self.second, self.third = linear(3, 4), linear(4, 5), linear(4, 4)
        self.pass_one = lambda: None
        with torch.no_grad():
            for number, parameter in enumerate(self.parameters()):
                parameter.copy_(draw(10 * number + seed, *parameter.shape) * fine)

    def forward(self, x, with_branch=False):
        h = self.first(x)
        h.register_hook(lambda gradient: self.pass_one())
        return self.second(self.third(h))


class Stopped(Exception):
    """The error that is raised inside no_sync."""


def script(make, case, group, show):
    """Two steps, or five in the case no_sync. There the second and the last step have three
    micro-batches, of which two run inside no_sync; in the last step rank 0 has no third one. At the
    beginning of the fourth step, an error is raised inside no_sync.
    """
    chain, no_sync = case.what in (CHAIN, NO_SYNC), case.what == NO_SYNC
    kind = {CHAIN: models.Chain, NO_SYNC: models.Chain, CROSSED: Crossed}
    module = kind.get(case.what, models.Small)(show.place, models.FINE)
    module, capacity = module.to(backend.device()), 49 if chain else 21  # in float64 elements
    without = show.made.alive()
    with show.during("the wrapper is made", section=True) as run:
        model = run(make, module, group, show.all_reduce, 8 * capacity)
    libs = show.lib and any(kind.__module__ == BUILT for kind in type(model).__mro__)
    show("whose wrapper", "the answer makes a wrapper of lib's" if libs else "")
    show("weights", module.state_dict())
    lacks = [name for name in ("average_gradients", "module") if not hasattr(model, name)]
    show("attributes", f"the model has no {lacks[0]}, which later cells use" if lacks else "")
    lacks = no_sync and not hasattr(model, "no_sync")
    show("a method no_sync", "the model has no method no_sync" if lacks else "")
    if show.wrong("whose wrapper", "weights", "attributes", "a method no_sync"):
        return
    sizes, before = [p.numel() for p in module.parameters() if p.requires_grad], None
    for step in range(5 if no_sync else 2):
        numbers = [0, 1, 2] if no_sync and step in (1, 4) else [step]
        idle = (case.what, show.place) == (IDLE, 0)
        shards = [] if idle else [models.shard(show.place, number) for number in numbers]
        losses = [models.loss_of(model, one) for one in shards] if len(numbers) == 1 else None
        if step == 4 and not show.place:
            shards[-1] = None
        yield
        show.begin(f"step {step + 1}")
        watch = show.gated(models.GATES if chain and len(numbers) == 1 else 0)
        watch.ahead = models.GATES  # holds the first call until bucket 1 has long been complete
        module.pass_one = watch.pass_one
        if case.what == CROSSED:
            module.pass_one = lambda watch=watch: show_turn(watch, show)
        with show.during(f"step {step + 1}", section=step > 0) as run:
            run(one_step, model, losses, shards, watch, show, no_sync and step == 3)
            show.ungated(watch)
        module.pass_one = losses = None
        early = "average_gradients() returned while an all-reduce was in flight"
        show("back too early", early if watch.early else "")
        show("the gradient", models.gradients(module))
        shown_of_messages([one.elements for one in show.calls], sizes, capacity, show)
        if no_sync and len(numbers) == 1:
            shown_of_overlap(watch, show, IN_TIME.get(step, "sent in time"))
        beside = show.made.alive() - without
        for p in module.parameters():
            p.grad = None
        alive = show.made.alive()
        if case.what == CHAIN and before is not None:
            show(MORE, alive - before, at_most=True)
            show(BESIDE, beside, at_most=True)
        before = alive
        if show.wrong("back too early", "the gradient", *SENT):
            return


def one_step(model, losses, shards, watch, show, after_error):
    """losses: a list with the only loss, or None if the step has several micro-batches."""
    if after_error:
        with contextlib.suppress(Stopped), model.no_sync():
            raise Stopped
    if losses is None:
        for shard in shards[:-1]:
            with model.no_sync():
                models.loss_of(model, shard).backward()
        show("elements sent inside no_sync", sum(one.elements for one in show.calls))
        losses = [models.loss_of(model, one) for one in shards[-1:] if one]
    for loss in losses:
        loss.backward()
    watch.end()
    model.average_gradients()


def shown_of_messages(got, sizes, capacity, show):
    if show.case.world_size == 1:
        return
    show("elements sent", sum(got), beside=f"Its messages, in elements: {got}")
    most = max(capacity, *sizes)
    expected = f"fewer messages than the {len(sizes)} parameters, none above {most} elements"
    right = len(got) < len(sizes) and max(got, default=0) <= most
    text = f"messages of {got} elements, expected {expected}: capacity={8 * capacity} bytes"
    show("messages", "" if right else text)


def show_turn(watch, show):
    """Called when bucket 0 is complete, after bucket 1, so that both have to start. An answer that
    starts neither of them fails elsewhere."""
    with watch.changed:
        watch._until(lambda: len(show.calls) >= 2, watch._nobody_will_begin)
    got = [one.elements for one in show.calls]
    text = f"buckets 0 and 1 were complete, but only a message of {got} elements had been started"
    show("its turn has come", text if len(got) == 1 else "")


def shown_of_overlap(watch, show, name):
    none = "nothing had been sent when only the first layer's gradients were missing"
    sent = f"{none}\nIts messages, in elements: {[one.elements for one in show.calls]}"
    show(name, "" if watch.begun_in_time else sent)
    if name == "sent in time":
        still = "backward stood still until an all-reduce had ended"
        show("backward stands still", still if watch.stuck else "")


MEASURE = SideBySide(
    script, bucketed.OverlappedDataParallel, CASES, (BUILT,),
    excused={
        "once more": "nothing is returned; two steps follow each other",
        "alive": "the flat buffers may stay if the gradients lie in them, which a name shows",
        "alive at the end": "the parameters' hooks hold what they call, in a cycle of torch's",
    } | A_MODEL,
)  # fmt: skip
SYNCED = [case for case in MEASURE.runs() if case.what != NO_SYNC]
EXERCISE = MEASURE.exercise(
    ("rank 0's weights everywhere", 1, "parameters and buffers",
     "whose wrapper", "weights", "attributes"),
    ("the mean gradient everywhere", 6, f"{GROUPS_SAY}; tied, frozen, unused; 2 steps",
     (("back too early", "the gradient"), SYNCED)),
    ("buckets on the wire", 2, "every gradient once, at most `capacity` bytes a message",
     calls(MEASURE, nothing_else=False), (("elements sent", "messages"), SYNCED),
     MORE, BESIDE),
    ("sent before backward ends", 5, "the first bucket, while backward goes on",
     "sent in time", "backward stands still", "its turn has come"),
    ("no_sync", 6, "sends nothing; the next backward sends the sum"),
    hints=hints("lab1", "OverlappedDataParallel", "given", "mean"), worlds=(WORLD,),
    may_call=(*MAY_CALL, "replicate.broadcast_parameters", "replicate.__init__",
              "bucketed.reduce_bucket", "background.start"),
    leaves_out={"generators": "it is given a module",
                "returned": "only forward returns, what the module does"},
)  # fmt: skip
