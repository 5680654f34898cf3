"""Lab 4, section 5: PrefetchingFSDP, whose units are gathered while the one before computes.

First fetch and take by hand, then trainings in which all that is started and waited for is noted.
"""

from dataclasses import replace

from lib import zero
from lib.check.framework import Claim, Exercise, Problem
from lib.check.lab0.cases import called
from lib.check.lab1.cases import Case
from lib.check.lab3.groups import agreed, found
from lib.check.lab4.fsdp import WORLD, by_what_it_was_given, inherits, on_groups
from lib.check.lab4.fsdp_given import MAY_CALL, Given
from lib.check.lab4.fsdp_prefetch_hints import HINTS
from lib.check.lab4.fsdp_runs import GROUPS_SAY, UNIT_OF, cases_of, made, trained
from lib.check.lab4.fsdp_started import AheadWatch, noting_starts
from lib.check.lab4.fsdp_watched import WatchedUnit

NAME, BY_HAND = "PrefetchingFSDP", "by hand"
CASES = [Case(NAME, (0, 1, 2), BY_HAND), *cases_of(NAME)]
METHODS = ("fetch", "take", "before_forward", "before_backward")


def _measure(fn):
    def one(case, rank, group, wire):
        if inherits(fn, zero.PrefetchingFSDP, *METHODS):
            return {"ok": False, "hand": Problem("built-in", "a method of the answer is lib's")}
        watch = AheadWatch(f"{case.where}: {case.rank(rank)}")
        kind = type(NAME, (fn,), {"unit_type": UNIT_OF.get(case.what, WatchedUnit)})
        with noting_starts(watch):
            if case.what == BY_HAND:
                return _by_hand(case, kind, rank, group, wire, watch)
            return trained(case, kind, rank, group, wire, watch)

    return on_groups(CASES, one)


def _by_hand(case, kind, rank, group, wire, watch):
    given = Given(group, wire)
    fsdp, _ = made(case, kind, rank, given)
    watch.watches(fsdp, given)
    told = called(replace(case, what=f"{BY_HAND}, fetch and take"), _walk, fsdp, watch)
    given.end()
    problem = None
    if told:
        sort, text = told
        problem = Problem(sort, f"{watch.where}: {text}")
    problem = given.wrong_group(watch.where) or problem
    return {"ok": agreed(problem is None, wire), "wire": wire.group_name, "hand": problem}


def _walk(fsdp, watch):
    """fetch and take, asked one after the other: what is wrong first, (sort, text), or None. Unit 1 has two flats."""
    begun = lambda: sum(map(len, watch.works.values()))
    flats = len(fsdp.units[1].flats)
    fsdp.fetch(1)
    if begun() == 0:
        whole = fsdp.units[1].is_unsharded
        text = "the unit was whole, and nothing under way" if whole else "no gather of it was under way"
        return "at once" if whole else "nothing fetched", f"after fetch(1) {text}"
    if watch.waited:
        return "at once", "fetch(1) waited for what it had begun"
    fsdp.fetch(1)
    if begun() != flats:
        return "again", f"a second fetch(1), unit 1 being on its way, began {begun() - flats} gathers more"
    for place in (-1, len(fsdp.units)):
        fsdp.fetch(place)
        if begun() != flats:
            return "no such unit", f"fetch({place}) began to gather something: units are 0 to {len(fsdp.units) - 1}"
    fsdp.take(1)
    if not watch.is_waited_for(1):
        return "not waited", "take(1) did not wait for all gathers of unit 1"
    if not fsdp.units[1].is_unsharded:
        return "not attached", "after take(1) unit 1 was not attached"
    fsdp.fetch(1)
    if begun() != flats or watch.gathers[1] != flats:
        return "again", f"fetch(1), unit 1 being whole, gathered its {flats} flats once more"
    fsdp.take(2)
    if not (2 in watch.filled and watch.is_waited_for(2) and fsdp.units[2].is_unsharded):
        return "not coming", "after take(2), unit 2 not being on its way, it was not whole"
    fsdp.units[1].reshard()
    fsdp.take(1)
    if 1 not in watch.filled:
        return "coming stays", "unit 1 was taken and freed; the next take(1) did not gather it"
    return None


EXERCISE = Exercise(
    name=NAME,
    reference=zero.PrefetchingFSDP,
    measure=_measure,
    worlds=(WORLD,),
    may_call=MAY_CALL,
    claims=(
        Claim("fetch begins, take waits", 4, "once, and only what there is", found(CASES, "hand")),
        Claim("trains as one process does", 3, GROUPS_SAY, found(CASES, "value")),
        Claim("gathered during the unit before", 3, "forward and backward; by events", found(CASES, "ahead")),
        Claim("two units whole at most", 1, "and the root", found(CASES, "memory")),
        Claim("sends 3 (N-1)/N psi", 1, "each unit gathered twice", by_what_it_was_given(CASES, found(CASES, "sent"))),
    ),
    hints=HINTS,
)
