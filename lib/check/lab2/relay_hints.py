"""The mistakes that are made in relay_step, told by what came of them, and the hint for each.

Where a run hangs, or its messages do not fit, the ranks' logs tell which rank left the order of
the relay, and how:

    rank i of p     recv from i-1    send to i+1    recv from i+1    send to i-1
"""

from itertools import pairwise, zip_longest
from typing import NamedTuple

from lib.check import symptoms as s
from lib.check.causes import hints
from lib.check.lab2.relay_cases import CASES, order
from lib.check.symptoms import failed, hung

NOTHING = ("", None, 0)


class Astray(NamedTuple):
    """The first rank of the case that did other than the relay asks. did, should: (op, peer,
    elements); NOTHING if it has returned instead, or should have."""

    rank: int
    p: int
    did: tuple
    should: tuple


def astray(problem):
    """The Astray of a run that failed in a case, or None."""
    case = s.case_of(problem, CASES)
    for rank, member in enumerate(case.members if case else ()):
        place = {other: number for number, other in enumerate(case.members)}
        mine = failed(problem).ledger.of(member)
        did = [(e.op, place.get(e.peer), e.numel) for e in mine]
        marks = [e.file for e in problem.facts["ledger"].of(member) if e.op == "mark"]
        returned = marks[-1:] == [""]
        for one, should in zip_longest(did, order(case)[rank], fillvalue=NOTHING):
            if one != should and (one != NOTHING or returned):
                return Astray(rank, case.world_size, one, should)
    return None


def left(fits):
    """Fits if a rank left the relay's order, in this way."""
    return lambda p: (hung(p) or p.kind == "mismatch") and (a := astray(p)) is not None and fits(a)


def sends_another_to(step):
    """Fits if the number of elements that a rank sends to rank + step is wrong."""
    return lambda a: a.did[:2] == a.should[:2] == ("send", a.rank + step)


def another_group(problem):
    """Did it fail in another group than the case's, or only where the group's ranks
    are not the world's?"""
    case, run = s.case_of(problem, CASES), failed(problem)
    if case is None or run is None:
        return False
    return s.mixed_up_ranks(problem) or any(e.members != case.members for e in run.ledger.entries)


def first_rank_sends_back(problem):
    """Has the first rank got all that it waits for, or is it alone? Then it is its own x, which
    needs no gradient, that has none."""
    case = s.case_of(problem, CASES)
    if case is None or not (problem.kind == "raised" and s.refused("None")(problem)):
        return False
    first = list(pairwise(case.members))[:1]
    return not first or any(
        e.op == "send" and e.peer == before
        for before, member in first
        for e in failed(problem).ledger.of(member)
    )


# What failed runs tell, and what is missing. Wrong values are recognised by their fingerprints.
HINTS = hints(
    "lab2", "relay_step",
    the_group_is_not_used=another_group,
    a_gradient_of_the_batch=first_rank_sends_back,
    y_is_no_number=lambda p: s.raised("RuntimeError")(p) and not failed(p).refusals,
    more_messages_than_two=s.either(
        s.kind("messages", more=True), left(lambda a: a.should == NOTHING)
    ),
    another_tensor_sent_on=left(sends_another_to(+1)),
    another_tensor_sent_back=left(sends_another_to(-1)),
    a_buffer_of_another_form=s.either(
        lambda p: p.kind == "mismatch" and failed(p).mismatch in ("size", "dtype"),
        s.refused("shape"),
    ),
    waits_too_early=left(
        lambda a: [a.did[:2], a.should[:2]] == [(op, a.rank + 1) for op in ("recv", "send")]
    ),
    right_on_two_ranks_only=left(lambda a: 0 < a.rank < a.p - 1),
    no_gradient_received=left(
        lambda a: a.did == NOTHING and a.should[:2] == ("recv", a.rank + 1)
    ),
    no_gradient_sent_back=left(
        lambda a: a.did == NOTHING and a.should[:2] == ("send", a.rank - 1)
    ),
    the_wrong_neighbour=left(lambda a: a.did != NOTHING),
)  # fmt: skip
