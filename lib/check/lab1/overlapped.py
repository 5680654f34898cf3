"""Lab 1, section 5: OverlappedDataParallel(module, group, all_reduce, capacity), buckets that leave
during backward.

Three models: the small one, a chain of layers with a gate before each but the first
(lib/check/overlap.py), and one whose second bucket is complete before its first. What overlaps is
shown in the last two cases, when the gradients of all others are known to be right.
"""

import contextlib

import torch
from torch import nn

from lib import backend
from lib.check import symptoms as s
from lib.check.cases import Setting, draw
from lib.check.causes import hints, of_name
from lib.check.comm import MAY_CALL
from lib.check.exercise import Exercise
from lib.check.lab1 import models
from lib.check.lab1.means import A_MODEL, ALONE, GROUPS, GROUPS_SAY, WORLD
from lib.check.shown import calls, claims
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
BUILT, WHOSE = bucketed.__name__, "whose wrapper"
INIT, LAST = "the wrapper is made", "step 2"
LACKS, EARLY, GRADIENT, SENT, MESSAGES, MORE = (
    "attributes", "back too early", "the gradient", "elements sent", "messages",
    "bytes more than after the step before",
)  # fmt: skip
OWN, BESIDE = "copied back", "bytes beside the gradients"
LATE, STUCK, TURN = "sent in time", "backward stands still", "its turn has come"
NO, INSIDE, NEVER = "a method no_sync", "elements sent inside no_sync", "sent after no_sync"
AFTER_ERROR = "sent after an error inside no_sync"


class Crossed(nn.Module):
    """Layers that are not used in the order of their parameters: in backward the second of three
    buckets is complete first.

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
    """Raised inside no_sync."""


def script(make, case, group, show):
    """Two steps. With no_sync five: in the second and the last, two micro-batches of three are
    accumulated, and in the last rank 0 has no third; before the fourth an error leaves a no_sync.
    """
    chain, no_sync = case.what in (CHAIN, NO_SYNC), case.what == NO_SYNC
    kind = {CHAIN: models.Chain, NO_SYNC: models.Chain, CROSSED: Crossed}
    module = kind.get(case.what, models.Small)(show.place, models.FINE)
    module, capacity = module.to(backend.device()), 49 if chain else 21  # in float64 elements
    without = show.made.alive()
    with show.during(INIT, section=True) as run:
        model = run(make, module, group, show.all_reduce, 8 * capacity)
    libs = show.lib and any(kind.__module__ == BUILT for kind in type(model).__mro__)
    show(WHOSE, "the answer makes a wrapper of lib's" if libs else "")
    show("weights", module.state_dict())
    lacks = [name for name in ("average_gradients", "module") if not hasattr(model, name)]
    show(LACKS, f"the model has no {lacks[0]}, which later cells use" if lacks else "")
    lacks = no_sync and not hasattr(model, "no_sync")
    show(NO, "the model has no method no_sync" if lacks else "")
    if show.wrong(WHOSE, "weights", LACKS, NO):
        return
    sizes, before = [p.numel() for p in module.parameters() if p.requires_grad], None
    for step in range(5 if no_sync else 2):
        numbers = [0, 1, 2] if no_sync and step in (1, 4) else [step]
        idle = (case.what, show.place) == (IDLE, 0)
        shards = [] if idle else [_shard(show, number) for number in numbers]
        losses = [models.loss_of(model, one) for one in shards] if len(numbers) == 1 else None
        if step == 4 and not show.place:
            shards[-1] = None
        yield
        show.begin(f"step {step + 1}")
        watch = show.gated(models.GATES if chain and len(numbers) == 1 else 0)
        watch.ahead = models.GATES  # the first is held until bucket 1 has been complete for long
        module.pass_one = watch.pass_one
        if case.what == CROSSED:
            module.pass_one = lambda watch=watch: show_turn(watch, show)
        with show.during(f"step {step + 1}", section=step > 0) as run:
            run(one_step, model, losses, shards, watch, show, no_sync and step == 3)
            show.ungated(watch)
        module.pass_one = losses = None
        show(EARLY, "average_gradients() returned while an all-reduce was in flight"
             if watch.early else "")  # fmt: skip
        if case.what == CHAIN:
            show(OWN, "the first layer's gradient is this rank's own, divided by N"
                 if is_own(module, shards[0], case.world_size) else "")  # fmt: skip
        show(GRADIENT, [(name, p.grad) for name, p in module.named_parameters()])
        shown_of_messages([one.elements for one in show.calls], sizes, capacity, show)
        if no_sync and len(numbers) == 1:
            shown_of_overlap(watch, show, {2: NEVER, 3: AFTER_ERROR}.get(step, LATE))
        beside = show.made.alive() - without
        for p in module.parameters():
            p.grad = None
        alive = show.made.alive()
        if case.what == CHAIN and before is not None:
            show(MORE, alive - before, at_most=True)
            show(BESIDE, beside, at_most=True)
        before = alive
        if show.wrong(EARLY, OWN, GRADIENT, SENT, INSIDE):
            return


def is_own(chain, shard, world_size):
    """Has the first layer, whose bucket is the last, this rank's own gradient, divided by N?"""
    alone, got = models.Chain(0, models.FINE).to(backend.device()), chain[0].weight.grad
    models.loss_of(alone, shard).backward()
    return got is not None and models.equal(got, alone[0].weight.grad / world_size)


def _shard(show, number):
    x, y, with_branch = models.shard(show.place, number)
    return x.to(backend.device()), y.to(backend.device()), with_branch


def one_step(model, losses, shards, watch, show, after_error):
    """losses: of the one micro-batch, if there are not several."""
    if after_error:
        with contextlib.suppress(Stopped), model.no_sync():
            raise Stopped
    if losses is None:
        for shard in shards[:-1]:
            with model.no_sync():
                models.loss_of(model, shard).backward()
        show(INSIDE, sum(one.elements for one in show.calls))
        losses = [models.loss_of(model, one) for one in shards[-1:] if one]
    for loss in losses:
        loss.backward()
    watch.end()
    model.average_gradients()


def shown_of_messages(got, sizes, capacity, show):
    if show.case.world_size == 1:
        return
    show(SENT, sum(got), beside=f"Its messages, in elements: {got}")
    most = max(capacity, *sizes)
    expected = f"fewer messages than the {len(sizes)} parameters, none above {most} elements"
    right = len(got) < len(sizes) and max(got, default=0) <= most
    text = f"messages of {got} elements, expected {expected}: capacity={8 * capacity} bytes"
    show(MESSAGES, "" if right else text)


def show_turn(watch, show):
    """Bucket 1 was complete first, and now bucket 0 is: both have to start. An answer that starts
    none is told so elsewhere."""
    with watch.changed:
        watch._until(lambda: len(show.calls) >= 2, watch._nobody_will_begin)
    got = [one.elements for one in show.calls]
    text = f"buckets 0 and 1 were complete, but only a message of {got} elements had been started"
    show(TURN, text if len(got) == 1 else "")


def shown_of_overlap(watch, show, name):
    none = "nothing had been sent when only the first layer's gradients were missing"
    sent = f"{none}\nIts messages, in elements: {[one.elements for one in show.calls]}"
    show(name, "" if watch.begun_in_time else sent)
    if name == LATE:
        still = "backward stood still until an all-reduce had ended"
        show(STUCK, still if watch.stuck else "")


def _in(*parts):
    """Was it in such a part of the script, or did it raise there?"""

    def fits(p):
        where = s.failed(p).case if s.failed(p) else getattr(p.fact("case"), "what", "")
        return any(part in where for part in parts)

    return fits


MEASURE = SideBySide(
    script, bucketed.OverlappedDataParallel, CASES, (BUILT,),
    excused={
        "once more": "nothing is returned; two steps follow each other",
        "alive": "the flat buffers may stay if the gradients lie in them, which a name shows",
        "alive at the end": "the parameters' hooks hold what they call, in a cycle of torch's",
    } | A_MODEL,
)  # fmt: skip
SYNCED = [case for case in MEASURE.runs() if case.what != NO_SYNC]
EXERCISE = Exercise(
    name="OverlappedDataParallel", reference=bucketed.OverlappedDataParallel, measure=MEASURE,
    worlds=(WORLD,),
    may_call=(*MAY_CALL, "replicate.broadcast_parameters", "replicate.__init__",
              "bucketed.reduce_bucket", "background.start"),
    leaves_out={"generators": "it is given a module",
                "returned": "only forward returns, what the module does"},
    claims=claims(
        MEASURE,
        ("rank 0's weights everywhere", 1, "parameters and buffers", WHOSE, "weights", LACKS),
        ("the mean gradient everywhere", 6, f"{GROUPS_SAY}; tied, frozen, unused; 2 steps",
         (EARLY, SYNCED), (OWN, SYNCED), (GRADIENT, SYNCED)),
        ("buckets on the wire", 2, "every gradient once, at most `capacity` bytes a message",
         calls(MEASURE, nothing_else=False), (SENT, SYNCED), (MESSAGES, SYNCED), MORE, BESIDE),
        ("sent before backward ends", 5, "the first bucket, while backward goes on", LATE, STUCK,
         TURN),
        ("no_sync", 6, "sends nothing; the next backward sends the sum"),
    ),
    hints=hints(
        "lab1", "OverlappedDataParallel", "given", "mean",
        hooks_on_frozen_parameters=s.both(s.raised("RuntimeError"), _in(INIT)),
        no_sync_still_sends=s.either(of_name(INSIDE), s.both(s.kind("raised"), _in(NO_SYNC))),
        left_over_from_the_step_before=s.both(
            _in(CHAIN, SMALL, IDLE),
            s.either(s.both(of_name(GRADIENT, EARLY), s.fact("time", 2)), _in(LAST))),
        the_hook_comes_before_the_gradient=s.both(s.refused("None"), _in(CHAIN)),
        accumulated__and_not_sent=s.both(of_name(GRADIENT), _in(NO_SYNC), s.fact("time", 5)),
        no_sync_counts=s.both(of_name(GRADIENT, SENT), _in(NO_SYNC)),
        a_bucket_leaves_too_early=s.both(of_name(GRADIENT), lambda p: not p.fact("narrowed")),
    ),
)  # fmt: skip
