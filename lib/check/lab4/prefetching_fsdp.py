"""Lab 4, section 5: PrefetchingFSDP, whose units are gathered while the one before computes.

    started 1 | forward 0 ... | waited 1 | started 2 | forward 1 ...          events, no times

A gather that was started before a unit computes, and that nobody has waited for yet, runs beside
the compute, on any machine and under any load. First fetch and take by hand, then trainings.
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
METHODS = ("fetch", "take", "before_forward", "before_backward")


class AheadWatch(Watch):
    """`Watch`, which is told of the works too. works: {place: [a unit's gathers since its
    memory was freed]}."""

    def __init__(self, *args):
        super().__init__(*args)
        self.works, self.waited = {}, set()

    def started(self, work, args):
        shard = args[0].data_ptr() if args and torch.is_tensor(args[0]) else None
        for place, unit in self.units.items():
            if shard in [flat.shard.data_ptr() for flat in unit.flats]:
                self.works.setdefault(place, []).append(work)

    def is_waited_for(self, place):
        """Has every gather of the unit been waited for?"""
        return self.waited.issuperset(self.works.get(place, []))

    def freed(self, unit):
        super().freed(unit)
        self.works.pop(next(place for place, one in self.units.items() if one is unit), None)

    def computes(self, way, place):
        if self.fsdp.units[place].is_unsharded and not self.is_waited_for(place):
            self.note(
                "value",
                "not waited",
                f"the {way} of unit {place} began and nobody had waited for its gathers",
            )
        super().computes(way, place)
        coming = place + (1 if way == "forward" else -1)
        if self.evaluates or not 0 <= coming < len(self.fsdp.units):
            return
        under_way = [p for p in self.works if p != "root" and not self.is_waited_for(p)]
        if coming not in under_way:
            whole = self.fsdp.units[coming].is_unsharded
            then = (
                "it was whole already"
                if whole
                else f"under way were those of {under_way or 'no unit'}"
            )
            text = f"during the {way} of unit {place} unit {coming} was not being gathered: {then}"
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
    told = part(case, "fetch and take", recorder, _walk, fsdp, watch, recorder)
    problem = told and Problem(told[0], f"{watch.where}: {told[1]}")
    return recorder.record() | {
        "ok": recorder.agreed(not problem and recorder.clash is None),
        "hand": problem,
    }


def _walk(fsdp, watch, recorder):
    """fetch and take, asked one after the other: what is wrong first, (kind, text), or None. Unit 1
    has two flats."""
    begun = lambda: sum(map(len, watch.works.values()))
    gathered = lambda place: sum(call.elements in sizes[place] for call in recorder.calls)
    sizes = [[flat.padded // flat.world_size for flat in unit.flats] for unit in fsdp.units]
    flats = len(fsdp.units[1].flats)
    fsdp.fetch(1)
    if begun() == 0:
        whole = fsdp.units[1].is_unsharded
        text = (
            "the unit was whole, and nothing under way"
            if whole
            else "no gather of it was under way"
        )
        return "at once" if whole else "nothing fetched", f"after fetch(1) {text}"
    if watch.waited:
        return "at once", "fetch(1) waited for what it had begun"
    fsdp.fetch(1)
    if begun() != flats:
        return (
            "again",
            f"a second fetch(1), unit 1 being on its way, began {begun() - flats} gathers more",
        )
    for place in (-1, len(fsdp.units)):
        fsdp.fetch(place)
        if begun() != flats:
            return (
                "no such unit",
                f"fetch({place}) began to gather something: units are 0 to {len(fsdp.units) - 1}",
            )
    seen, attach = [], fsdp.units[1].attach
    fsdp.units[1].attach = lambda: (seen.append(watch.is_waited_for(1)), attach())
    fsdp.take(1)
    if not watch.is_waited_for(1) or not all(seen):
        return (
            "not waited",
            f"take(1) did not wait for all gathers of unit 1{' before attach()' if seen else ''}",
        )
    if not fsdp.units[1].is_unsharded:
        return "not attached", "after take(1) unit 1 was not attached"
    fsdp.fetch(1)
    if begun() != flats or gathered(1) != flats:
        return "again", f"fetch(1), unit 1 being whole, gathered its {flats} flats once more"
    for place in (2, 0):
        fsdp.take(place)
        if not (gathered(place) and watch.is_waited_for(place) and fsdp.units[place].is_unsharded):
            fsdp.units[place].reshard()
            fsdp.fetch(place)
            if not watch.works.get(place):
                return (
                    "no such unit",
                    f"fetch({place}) began nothing: units are 0 to {len(fsdp.units) - 1}",
                )
            return (
                "not coming",
                f"after take({place}), unit {place} not being on its way, it was not whole",
            )
        if not watch.works.get(place):
            return (
                "by itself",
                f"take({place}) gathered unit {place} outside the communication thread",
            )
    fsdp.units[1].reshard()
    fsdp.take(1)
    if gathered(1) == flats:
        return "coming stays", "unit 1 was taken and freed; the next take(1) did not gather it"
    for way, then in (("before_forward", 2), ("before_backward", 0)):
        for unit in fsdp.units:
            unit.reshard()
        getattr(fsdp, way)(1)
        if [*watch.works] == [then, 1]:
            return (
                "order",
                f"{way}(1) began to gather unit {then} before unit 1, which then waits for it",
            )
        fsdp.settle()
    return None


EXERCISE = Exercise(
    name="PrefetchingFSDP", reference=zero.PrefetchingFSDP, measure=_measure, worlds=(4,),
    may_call=(*MAY_CALL, "prefetching_fsdp.start", "fsdp_training.unshard", "unit.unshard",
              *(f"prefetch.{name}" for name in ("after_backward", "average_gradients",
              "before_model", "after_model"))),
    leaves_out=LEAVES_OUT | {"empty rank": "every rank runs the same units: a rule of FSDP"},
    claims=(
        claim("fetch begins, take waits", 3, "once, and only what there is", found(CASES, "hand"),
            fitting(CASES)),
        claim("trains as one process does", 1, models.GROUPS_SAY, found(CASES, "value")),
        claim("gathered during the unit before", 6, "forward and backward; by events",
            found(CASES, "ahead")),
        claim("two units whole at most", 1, "and the root", found(CASES, "memory")),
        claim("sends 3 (N-1)/N psi", 1, "each unit gathered twice",
              only_calls(CASES, None, ("fetch and take", *PHASES), section), found(CASES, "sent")),
    ),
    hints=(
        CALLS_LIB,
        Hint("no end", s.either(s.kind("no such unit"), s.raised("IndexError")),
             "behind the last unit and before the first there is nothing to fetch: 0 <= place < "
             "len(self.units). (units[-1] is the last one.)"),
        Hint("nothing is fetched", s.kind("nothing fetched"),
             "self.coming[place] = zero.start_unshard(self.units[place])."),
        Hint("not in the background", s.either(s.kind("at once"), s.kind("ahead", whole=True)),
             "fetch begins, and does not wait: zero.start_unshard(unit) returns works. take waits "
             "for them, when the unit is needed."),
        Hint("fetched again", s.kind("again"),
             "fetch does nothing for a unit that is on its way (place in self.coming) or whole "
             "(unit.is_unsharded)."),
        Hint("does not wait", s.kind("not waited"),
             "a unit has a gather for each of its flats: wait() for every work in "
             "self.coming[place] before it is used."),
        Hint("not attached", s.kind("not attached"),
             "when the gathers have ended, the parameters become views of what came: "
             "self.units[place].attach()."),
        Hint("only what was coming", s.either(s.kind("not coming"), s.raised("KeyError")),
             "nobody may have fetched the unit before: take begins with fetch(place), which does "
             "nothing if it is coming."),
        Hint("not by fetch", s.kind("by itself"),
             "while anything is under way the group belongs to the communication thread. All "
             "gathers begin in fetch, with zero.start_unshard."),
        Hint("the next one first", s.kind("order"),
             "gathers go over the wire in the order in which they begin, and this unit is needed "
             "now: take it first, then fetch the next."),
        Hint("coming is not emptied", s.kind("coming stays"),
             "take the works out of self.coming (pop): what is left there counts as on its way for "
             "ever."),
        Hint("not taken", s.kind("not whole"),
             "before a unit computes it is taken: take(place) in before_forward and in "
             "before_backward."),
        Hint("backward goes down", s.kind("ahead", way="backward"),
             "in backward unit place-1 comes after unit place, and is fetched while this one "
             "computes."),
        Hint("nothing is fetched ahead", s.kind("ahead"),
             "after take(place) comes fetch of the next one, place+1 in forward: it is gathered "
             "while this one computes."),
        Hint("too many whole", s.kind("memory", "left"),
             "fetch the next unit and no other: two are whole at a time, the one that computes and "
             "the one that comes."),
        Hint("gathered too often", s.kind("gathers", "reduced"),
             "a unit is gathered once for forward and once for backward."),
        NOT_GIVEN,
        *s.ANYWHERE,
    ),
)  # fmt: skip
