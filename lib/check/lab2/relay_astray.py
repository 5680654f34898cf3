"""A run of relay_step that hangs, or whose messages do not fit: which rank left the order of the relay, and how.

    rank i of p     recv from i-1    send to i+1    recv from i+1    send to i-1

The ranks' books tell, up to where each of them came.
"""

from typing import NamedTuple

from lib.check.lab0.mistakes import failed, hung
from lib.check.lab2.relay_cases import NAMED, WIDTHS, order, sends


def case_of(problem):
    """The Case that a run failed in; None if it did not fail, or outside of any."""
    run = failed(problem)
    return NAMED.get(run.case) if run else None


class Astray(NamedTuple):
    """The first rank of the case that did other than the relay asks. did: (op, peer), or None: it returned instead."""

    rank: int
    p: int
    did: tuple | None
    should: tuple | None  # None: nothing more


def astray(problem):
    """The Astray of a run that failed in a case, or None."""
    case = case_of(problem)
    if case is None:
        return None
    book = failed(problem).book
    for rank, (member, should) in enumerate(zip(case.members, order(case), strict=True)):
        did = [(e.op, case.members.index(e.peer) if e.peer in case.members else None) for e in book.of(member)]
        at = next((k for k, pair in enumerate(zip(did, should, strict=False)) if pair[0] != pair[1]), len(did))
        if at < len(did):
            return Astray(rank, case.world_size, did[at], should[at] if at < len(should) else None)
        if at < len(should) and _returned(problem, member):
            return Astray(rank, case.world_size, None, should[at])
    return None


def _returned(problem, member):
    marks = [e.file for e in problem.facts["ledger"].of(member) if e.op == "mark"]
    return bool(marks) and marks[-1] == ""


def left(fits):
    """Fits if a rank left the relay's order, in this way."""
    return lambda p: (hung(p) or p.kind == "mismatch") and (a := astray(p)) is not None and fits(a)


def back(a):
    """Is what it should have done the message of a gradient to the previous rank?"""
    return a.should == ("send", a.rank - 1)


def another_group(problem):
    """Was a message sent in another group than the case's?"""
    case = case_of(problem)
    return case is not None and any(e.members != case.members for e in failed(problem).book.entries)


def counted_in_the_world(problem):
    """Did it fail only where the group's ranks are not the world's?"""
    case = case_of(problem)
    return case is not None and case.world_size > 1 and not case.counts_up


def _sent(problem, back):
    """[(elements sent, by which rank, elements that it should have sent)] of messages to the previous or next rank."""
    case = case_of(problem)
    if case is None or problem.kind != "mismatch":
        return []
    found, n = [], sends(case)
    for rank, member in enumerate(case.members):
        to = rank - 1 if back else rank + 1
        for e in failed(problem).book.of(member):
            if e.op == "send" and 0 <= to < case.world_size and e.peer == case.members[to]:
                found.append((e.numel, rank, dict(n[rank])[to]))
    return found


def wrong_size(back, fits=lambda got, want, rank: True):
    """Fits if a rank sent another number of elements than it should: back, or forward."""
    return lambda p: any(got != want and fits(got, want, rank) for got, rank, want in _sent(p, back))


def gives(got, want, rank):
    """Are they the elements of what the stage gives, where those of what it takes should be?"""
    return got * WIDTHS[rank] == want * WIDTHS[rank + 1]
