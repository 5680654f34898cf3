"""Lab 4, section 10: PrefetchingFSDP, which gathers each unit while the one before it computes.

    started 1 | forward 0 ... | waited 1 | started 2 | forward 1 ...

The check judges events, not times, so its result does not depend on the machine or its load. A
gather that was started before a unit computes, and that has not been waited for yet, can overlap
with the computation. In the first case the script calls methods by hand; in the others it trains.
"""

from functools import partial
from unittest import mock

import torch

from lib import collectives, zero
from lib.check.causes import hints
from lib.check.lab4 import fsdp_models as models
from lib.check.lab4 import fsdp_training as training
from lib.check.lab4.unit import LEAVES_OUT
from lib.check.shown import calls
from lib.check.side_by_side import SideBySide

BY_HAND = "by hand"
CASES = (models.Training((0, 1, 2), what=BY_HAND), *models.CASES)
METHODS = ("prefetch", "wait_for_unshard", "before_forward", "before_backward")
WAITED = ("waited for, in forward", "waited for, in backward")
AHEAD = ("the next", "the one before")
EARLY = "attached when gathered"
HAND = ("gathers begun", "gathers waited for", "attached", "in self.gathers", "this one first")


class AheadWatch(training.Watch):
    """A Watch that also sees what runs in the background. works: {unit: [its gathers since its
    memory was freed]}, in the order in which they began; waited: the works that were waited for."""

    rules = (*training.RULES, *WAITED, *AHEAD, EARLY)

    def __init__(self, show, fsdp):
        super().__init__(show, fsdp)
        self.works, self.waited = {}, set()

    def looks(self, f, *args):
        with mock.patch.object(collectives, "start", partial(self.start, collectives.start)):
            return super().looks(f, *args)

    def start(self, plain, fn, *args, **named):
        """Call collectives.start, and note the Work that it returns."""
        work = plain(fn, *args, **named)
        shard = args[0].data_ptr() if args and torch.is_tensor(args[0]) else None
        for name, unit in self.units.items():
            if shard in [flat.shard.data_ptr() for flat in unit.flats]:
                self.works.setdefault(name, []).append(work)
        work.wait = partial(self.wait, work, work.wait)
        return work

    def wait(self, work, plain):
        self.waited.add(work)
        return plain()

    def is_waited_for(self, name):
        """Has every gather of the unit been waited for?"""
        return self.waited.issuperset(self.works.get(name, []))

    def attached(self, unit):
        super().attached(unit)
        if not self.is_waited_for(name := self.name_of(unit)):
            self.note(EARLY, f"attach() of {name} came before its gathers had been waited for")

    def freed(self, unit):
        super().freed(unit)
        self.works.pop(self.name_of(unit), None)

    def computes(self, index, way):
        forward, what = way == "forward", f"the {way} of unit {index}"
        if self.fsdp.units[index].is_unsharded and not self.is_waited_for(f"unit {index}"):
            text = f"{what} began before its gathers had been waited for"
            self.note(WAITED[not forward], text)
        super().computes(index, way)
        ahead = index + (1 if forward else -1)
        if not 0 <= ahead < len(self.fsdp.units):
            return
        flying = [name for name in self.works if name != "root" and not self.is_waited_for(name)]
        if f"unit {ahead}" not in flying:
            whole = self.fsdp.units[ahead].is_unsharded
            then = f"in flight: {', '.join(flying) or 'no unit'}"
            text = f"during {what} unit {ahead} was not being gathered: "
            self.note(AHEAD[not forward], text + ("it was whole already" if whole else then))

    def sent(self, forwards):
        # a second forward finds units that were prefetched for backward, and may free them
        if forwards == 1:
            super().sent(forwards)


def script(make, case, group, show):
    kind = training.with_libs_units(make)
    if case.what == BY_HAND:
        return by_hand(kind, group, show)
    return training.trained(kind, case, group, show, AheadWatch)


def by_hand(kind, group, show):
    """Call prefetch and wait_for_unshard in several orders, then before_forward(1) and
    before_backward(1). Unit 1 has two flats."""
    net = models.Net(seed=show.place)
    ways = (show.reduce_scatter, show.all_gather)
    with show.during("the model is wrapped", section=True) as run:
        fsdp = run(kind, net, net.layers, group, None, *ways)
    watch, units = AheadWatch(show, fsdp), fsdp.units
    yield
    for name, index in (
        ("prefetch", 1), ("prefetch", 1), ("prefetch", -1), ("prefetch", len(units)),
        ("prefetch", 2), ("wait_for_unshard", 1), ("prefetch", 1), ("wait_for_unshard", 2),
        ("wait_for_unshard", 0), ("reshard", 1), ("wait_for_unshard", 1),
    ):  # fmt: skip
        if name == "reshard":
            units[index].reshard()
            continue
        with show.during(f"{name}({index})") as run:
            run(watch.looks, getattr(fsdp, name), index)
        works = {f"of {unit}": watch.works.get(unit, []) for unit in watch.units}
        waited = {unit: len(watch.waited.intersection(mine)) for unit, mine in works.items()}
        show("gathers begun", {unit: len(mine) for unit, mine in works.items()})
        show("gathers waited for", waited)
        show("attached", {f"is unit {i}": f"{unit.is_unsharded}" for i, unit in enumerate(units)})
        show("in self.gathers", ", ".join(map(str, sorted(fsdp.gathers))) or "none")
        show(EARLY, watch.broken.get(EARLY, ""))
        if show.wrong(*HAND, EARLY):
            return
    for way in ("before_forward", "before_backward"):
        for unit in units:
            unit.reshard()
        with show.during(f"{way}(1)") as run:
            run(watch.looks, getattr(fsdp, way), 1)
            begun = [*watch.works]
            run(fsdp.finish_communication)
        late = f"{begun[0]} was started before unit 1, which waits for it" if begun else ""
        show("this one first", late * ("unit 1" in begun[1:]))
    yield


MEASURE = SideBySide(
    script, zero.PrefetchingFSDP, CASES, writes=METHODS,
    excused=training.EXCUSED | {"alive": "in the background memory comes and goes by itself"},
)  # fmt: skip
EXERCISE = MEASURE.exercise(
    ("fetch begins, take waits", 3, "once, and only what there is",
     ((*HAND, EARLY), CASES[:1])),
    ("trains as one process does", 1, models.GROUPS_SAY,
     *training.COMPUTED, *WAITED, EARLY),
    ("gathered during the unit before", 4, "forward and backward; by events", *AHEAD),
    ("two units whole at most", 1, "and the root", *training.MEMORY),
    ("sends 3 (N-1)/N psi", 1, "each unit gathered twice",
     calls(MEASURE, nothing_else=False), *training.SENT),
    hints=hints("lab4", "PrefetchingFSDP"), worlds=(4,), bonus=True,
    may_call=(*training.MAY_CALL, "prefetching_fsdp.start", "unit.unshard",
              *(f"prefetch.{name}" for name in ("after_backward", "average_gradients",
              "before_model", "after_model"))),
    leaves_out=LEAVES_OUT | {"empty rank": "every rank runs the same units: a rule of FSDP"},
)  # fmt: skip
