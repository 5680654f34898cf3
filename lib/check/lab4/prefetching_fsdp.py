"""Lab 4, section 10: PrefetchingFSDP, whose units are gathered while the one before computes.

    started 1 | forward 0 ... | waited 1 | started 2 | forward 1 ...          events, no times

A gather that was started before a unit computes, and that nobody has waited for yet, runs beside
the compute, on any machine and under any load. First prefetch and wait_for_unshard by hand, then
trainings.
"""

from contextlib import contextmanager

import torch
import torch.distributed as dist

from lib import collectives, zero
from lib.check import symptoms as s
from lib.check.cases import groups_and_control, in_step
from lib.check.claims import claim
from lib.check.comm import Recorder
from lib.check.exercise import Exercise, Hint, Problem
from lib.check.lab4 import fsdp_models as models
from lib.check.lab4.fsdp_training import (
    MAY_CALL,
    PHASES,
    Watch,
    WatchedUnit,
    found,
    part,
    section,
    trained,
)
from lib.check.lab4.unit import CALLS_LIB, LEAVES_OUT, NOT_GIVEN, inherits
from lib.check.traffic import fitting, only_calls
from lib.collectives import background

BY_HAND = "by hand"
CASES = (models.Training((0, 1, 2), what=BY_HAND), *models.CASES)
METHODS = ("prefetch", "wait_for_unshard", "before_forward", "before_backward")


class AheadWatch(Watch):
    """`Watch`, which is told of the works too. works: {index: [a unit's gathers since its
    memory was freed]}."""

    def __init__(self, *args):
        super().__init__(*args)
        self.works, self.waited = {}, set()

    def started(self, work, args):
        shard = args[0].data_ptr() if args and torch.is_tensor(args[0]) else None
        for index, unit in self.units.items():
            if shard in [flat.shard.data_ptr() for flat in unit.flats]:
                self.works.setdefault(index, []).append(work)

    def is_waited_for(self, index: int) -> None:
        """Has every gather of the unit been waited for?"""
        return self.waited.issuperset(self.works.get(index, []))

    def freed(self, unit):
        super().freed(unit)
        self.works.pop(next(index for index, one in self.units.items() if one is unit), None)

    def computes(self, way, index):
        if self.fsdp.units[index].is_unsharded and not self.is_waited_for(index):
            self.note(
                "value",
                "not waited",
                f"the {way} of unit {index} began before its gathers had been waited for",
            )
        super().computes(way, index)
        ahead = index + (1 if way == "forward" else -1)
        if self.evaluates or not 0 <= ahead < len(self.fsdp.units):
            return
        in_flight = [p for p in self.works if p != "root" and not self.is_waited_for(p)]
        if ahead not in in_flight:
            whole = self.fsdp.units[ahead].is_unsharded
            then = (
                "it was unsharded already"
                if whole
                else f"in flight were those of {in_flight or 'no unit'}"
            )
            text = f"during the {way} of unit {index} unit {ahead} was not being gathered: {then}"
            self.note("ahead", "ahead", text, way=way, whole=whole)

    def sent(self, calls, forwards):
        # a second forward finds what was fetched for backward, and may let go of it
        if forwards == 1:
            super().sent(calls, forwards)


@contextmanager
def _noting_starts(watch_of):
    """Within, every work that is started, by whomever, is told to the newest of the watches; so is
    its first wait."""

    def start(fn, *args, **kwargs):
        work, watch = background.start(fn, *args, **kwargs), watch_of[-1]
        watch.started(work, args)
        plain = work.wait

        def wait():
            watch.waited.add(work)
            return plain()

        work.wait = wait
        return work

    before, collectives.start = collectives.start, start
    try:
        yield
    finally:
        collectives.start = before


def _measure(fn):
    def one(case, groups):
        if inherits(fn, zero.PrefetchingFSDP, *METHODS):
            return {"ok": False, "hand": Problem("built-in", "a method of the answer is lib's")}
        kind, watches = type("PrefetchingFSDP", (fn,), {"unit_type": WatchedUnit}), []

        def watch_type(*args):
            watches.append(AheadWatch(*args))
            return watches[-1]

        with _noting_starts(watches):
            if case.what == BY_HAND:
                return _by_hand(case, kind, groups, watch_type)
            return trained(case, kind, groups, 2, watch_type)

    return in_step(CASES, groups_and_control, one, wire=dist.new_group())


def _by_hand(case, kind, groups, watch_type):
    (group, control), rank = groups, dist.get_rank(groups[1])
    recorder, watch = (
        Recorder(control, [case.members]),
        watch_type(f"{case.name}: {case.rank(rank)}", 3),
    )
    net = models.Net(seed=rank)
    fsdp = kind(net, net.layers, group, None, recorder.reduce_scatter, recorder.all_gather)
    watch.watches(fsdp)
    told = part(case, "prefetch and wait", recorder, _walk, fsdp, watch, recorder)
    problem = told and Problem(told[0], f"{watch.where}: {told[1]}")
    return recorder.record() | {
        "ok": recorder.agreed(not problem and recorder.clash is None),
        "hand": problem,
    }


def _walk(fsdp, watch, recorder):
    """prefetch and wait_for_unshard, called in turn: what is wrong first, (kind, text), or None.
    Unit 1 has two flats."""
    begun = lambda: sum(map(len, watch.works.values()))
    gathered = lambda index: sum(call.elements in sizes[index] for call in recorder.calls)
    sizes = [[flat.padded // flat.world_size for flat in unit.flats] for unit in fsdp.units]
    flats = len(fsdp.units[1].flats)
    fsdp.prefetch(1)
    if begun() == 0:
        whole = fsdp.units[1].is_unsharded
        text = (
            "the unit was unsharded, and nothing in flight"
            if whole
            else "no gather of it was in flight"
        )
        return "at once" if whole else "nothing fetched", f"after prefetch(1) {text}"
    if watch.waited:
        return "at once", "prefetch(1) waited for what it had started"
    fsdp.prefetch(1)
    if begun() != flats:
        return (
            "again",
            f"a second prefetch(1), with unit 1 in flight, started {begun() - flats} gathers more",
        )
    for index in (-1, len(fsdp.units)):
        fsdp.prefetch(index)
        if begun() != flats:
            return (
                "no such unit",
                f"prefetch({index}) started a gather: units are 0 to {len(fsdp.units) - 1}",
            )
    seen, attach = [], fsdp.units[1].attach
    fsdp.units[1].attach = lambda: (seen.append(watch.is_waited_for(1)), attach())
    fsdp.wait_for_unshard(1)
    if not watch.is_waited_for(1) or not all(seen):
        return (
            "not waited",
            "wait_for_unshard(1) did not wait for all gathers of unit 1"
            f"{' before attach()' if seen else ''}",
        )
    if not fsdp.units[1].is_unsharded:
        return "not attached", "after wait_for_unshard(1) unit 1 was not attached"
    fsdp.prefetch(1)
    if begun() != flats or gathered(1) != flats:
        return "again", f"prefetch(1), with unit 1 unsharded, gathered its {flats} flats once more"
    for index in (2, 0):
        fsdp.wait_for_unshard(index)
        if not (gathered(index) and watch.is_waited_for(index) and fsdp.units[index].is_unsharded):
            fsdp.units[index].reshard()
            fsdp.prefetch(index)
            if not watch.works.get(index):
                return (
                    "no such unit",
                    f"prefetch({index}) started nothing: units are 0 to {len(fsdp.units) - 1}",
                )
            return (
                "not coming",
                f"after wait_for_unshard({index}), with unit {index} not in flight, it was not "
                f"unsharded",
            )
        if not watch.works.get(index):
            return (
                "by itself",
                f"wait_for_unshard({index}) gathered unit {index} outside the communication thread",
            )
    fsdp.units[1].reshard()
    fsdp.wait_for_unshard(1)
    if gathered(1) == flats:
        text = "unit 1 was unsharded and resharded; the next wait_for_unshard(1) did not gather it"
        return "coming stays", text
    for way, then in (("before_forward", 2), ("before_backward", 0)):
        for unit in fsdp.units:
            unit.reshard()
        getattr(fsdp, way)(1)
        if [*watch.works] == [then, 1]:
            return (
                "order",
                f"{way}(1) started to gather unit {then} before unit 1, which then waits for it",
            )
        fsdp.finish_communication()
    return None


EXERCISE = Exercise(
    name="PrefetchingFSDP", reference=zero.PrefetchingFSDP, measure=_measure, worlds=(4,),
    bonus=True,
    may_call=(*MAY_CALL, "prefetching_fsdp.start", "fsdp_training.unshard", "unit.unshard",
              *(f"prefetch.{name}" for name in ("after_backward", "average_gradients",
              "before_model", "after_model"))),
    leaves_out=LEAVES_OUT | {"empty rank": "every rank runs the same units: a rule of FSDP"},
    claims=(
        claim("fetch begins, take waits", 3, "once, and only what there is", found(CASES, "hand"),
              fitting(CASES)),
        claim("trains as one process does", 1, models.GROUPS_SAY, found(CASES, "value")),
        claim("gathered during the unit before", 4, "forward and backward; by events",
              found(CASES, "ahead")),
        claim("two units whole at most", 1, "and the root", found(CASES, "memory")),
        claim("sends 3 (N-1)/N psi", 1, "each unit gathered twice",
              only_calls(CASES, None, ("prefetch and wait", *PHASES), section),
              found(CASES, "sent")),
    ),
    hints=(
        CALLS_LIB,
        Hint("no end", s.either(s.kind("no such unit"), s.raised("IndexError")),
             "after the last unit and before the first there is nothing to gather: 0 <= index < "
             "len(self.units). (units[-1] is the last one.)"),
        Hint("prefetch starts nothing", s.kind("nothing fetched"),
             "self.gathers[index] = zero.start_unshard(self.units[index])."),
        Hint("not in the background", s.either(s.kind("at once"), s.kind("ahead", whole=True)),
             "prefetch starts and does not wait: zero.start_unshard(unit) returns works. "
             "wait_for_unshard waits for them, when the unit is needed."),
        Hint("prefetched again", s.kind("again"),
             "prefetch does nothing for a unit that is in flight (index in self.gathers) or "
             "unsharded (unit.is_unsharded)."),
        Hint("does not wait", s.kind("not waited"),
             "a unit has a gather for each of its flats: wait() for every work in "
             "self.gathers[index] before it is used."),
        Hint("not attached", s.kind("not attached"),
             "when the gathers have ended, make the parameters views of the result: "
             "self.units[index].attach()."),
        Hint("only what was prefetched", s.either(s.kind("not coming"), s.raised("KeyError")),
             "the unit may not have been prefetched: wait_for_unshard begins with prefetch(index), "
             "which does nothing if it is in flight."),
        Hint("not by prefetch", s.kind("by itself"),
             "while anything is in flight only the communication thread may use the group. Start "
             "all gathers in prefetch, with zero.start_unshard."),
        Hint("the next one first", s.kind("order"),
             "gathers are sent in the order in which they are started, and this unit is needed "
             "now: wait for it first, then prefetch the next."),
        Hint("gathers is not emptied", s.kind("coming stays"),
             "take the works out of self.gathers (pop): what stays there counts as in flight for "
             "ever."),
        Hint("not waited for", s.kind("not whole"),
             "a unit has to be unsharded before it computes: wait_for_unshard(index) in "
             "before_forward and in before_backward."),
        Hint("backward goes down", s.kind("ahead", way="backward"),
             "in backward unit index-1 comes after unit index, and is prefetched while this one "
             "computes."),
        Hint("nothing is prefetched", s.kind("ahead"),
             "after wait_for_unshard(index) prefetch the next one, index+1 in forward: it is "
             "gathered while this one computes."),
        Hint("too many unsharded", s.kind("memory", "left"),
             "prefetch the next unit and no other: two are unsharded at a time, the one that "
             "computes and the next."),
        Hint("gathered too often", s.kind("gathers", "reduced"),
             "a unit is gathered once for forward and once for backward."),
        NOT_GIVEN,
        *s.ANYWHERE,
    ),
)  # fmt: skip
