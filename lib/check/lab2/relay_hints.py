"""The mistakes that are made in relay_step, told by what came of them, and the hint for each.

Where a run hangs, or its messages do not fit, the ranks' logs tell which rank left the order of
the relay, and how:

    rank i of p     recv from i-1    send to i+1    recv from i+1    send to i-1
"""

from itertools import pairwise
from typing import NamedTuple

from lib.check import symptoms as s
from lib.check.causes import hints
from lib.check.lab2.relay_cases import CASES, WIDTHS, order, sends
from lib.check.symptoms import failed, hung


class Astray(NamedTuple):
    """The first rank of the case that did other than the relay asks. did: (op, peer), or None: it
    returned instead."""

    rank: int
    p: int
    did: tuple | None
    should: tuple | None  # None: nothing more


def astray(problem):
    """The Astray of a run that failed in a case, or None."""
    case = s.case_of(problem, CASES)
    for rank, (member, should) in enumerate(
        zip(case.members, order(case), strict=True) if case else ()
    ):
        mine = failed(problem).ledger.of(member)
        did = [(e.op, case.members.index(e.peer) if e.peer in case.members else None) for e in mine]
        at = next(
            (k for k, pair in enumerate(zip(did, should, strict=False)) if pair[0] != pair[1]),
            len(did),
        )
        if at < len(did):
            return Astray(rank, case.world_size, did[at], should[at] if at < len(should) else None)
        marks = [e.file for e in problem.facts["ledger"].of(member) if e.op == "mark"]
        if at < len(should) and marks and marks[-1] == "":  # it has returned
            return Astray(rank, case.world_size, None, should[at])
    return None


def left(fits):
    """Fits if a rank left the relay's order, in this way."""
    return lambda p: (hung(p) or p.kind == "mismatch") and (a := astray(p)) is not None and fits(a)


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


def wrong_size(back, fits=lambda got, want, rank: True):
    """Fits if a rank sent another number of elements than it should: to the previous rank,
    or to the next."""

    def of(problem):
        case = s.case_of(problem, CASES) if problem.kind == "mismatch" else None
        for rank, member in enumerate(case.members if case else ()):
            to = rank - 1 if back else rank + 1
            for e in failed(problem).ledger.of(member):
                if e.op == "send" and 0 <= to < case.world_size and e.peer == case.members[to]:
                    want = dict(sends(case)[rank])[to]
                    if e.numel != want and fits(e.numel, want, rank):
                        return True
        return False

    return of


def gives(got, want, rank):
    """Are they the elements of what the stage gives, where those of what it takes should be?"""
    return got * WIDTHS[rank] == want * WIDTHS[rank + 1]


# What failed runs tell. Wrong values are recognised by their fingerprints.
HINTS = hints(
    "lab2", "relay_step",
    the_group_is_not_used=another_group,
    a_gradient_of_the_batch=first_rank_sends_back,
    no_gradient_of_the_input=s.both(s.kind("raised"), s.refused("None")),
    tokens_have_no_gradient=s.both(s.kind("raised"), s.refused("dtype")),
    a_loss_on_every_rank=s.raised("NoTarget"),
    y_is_no_number=lambda p: s.raised("RuntimeError")(p) and not failed(p).refusals,
    no_neighbour_there=s.both(s.kind("raised"), s.refused("outside the group")),
    the_loss_sent_back=wrong_size(True, lambda got, want, rank: got == 1),
    the_gradient_of_y_sent_back=wrong_size(True, gives),
    the_input_sent_on=wrong_size(False),
    a_buffer_of_another_form=s.either(
        lambda p: p.kind == "mismatch" and failed(p).mismatch in ("size", "dtype"),
        s.refused("shape"),
    ),
    waits_too_early=left(
        lambda a: a.did == ("recv", a.rank + 1) and a.should == ("send", a.rank + 1)
    ),
    right_on_two_ranks_only=left(lambda a: 0 < a.rank < a.p - 1),
    no_gradient_received=left(lambda a: a.should == ("recv", a.rank + 1) and a.did is None),
    no_gradient_sent_back=left(lambda a: a.should == ("send", a.rank - 1) and a.did is None),
    the_wrong_neighbour=left(lambda a: a.did is not None),
    more_messages_than_two=s.kind("messages", more=True),
)  # fmt: skip
