"""Predicates for hints: functions of a Problem, which look at its kind and its facts.

No predicate reads a Problem's text. Most of them are used by name, in `when` of sentences/*.toml
(causes.py). `kind` and `fact` make predicates: kind("value"), kind("form", dtype=True).
"""

from lib.check.failure import HANGS

P2P = ("send", "recv", "p2p.send", "p2p.recv", "p2p.send_recv", "p2p.exchange")
SHAPES = ("value", "form", "mismatch", "raised", "died", *HANGS)  # what a wrong size can lead to


def failed(p):
    """The `Failed` of a run that failed (it raised, hung, died, or its messages do not match), else
    None."""
    return p.fact("failed")


def hung(p):
    return p.kind in HANGS


def kind(*kinds, **facts):
    """A predicate: the Problem is of one of these kinds, and each of these facts is as `fact`
    requires."""
    return lambda p: p.kind in kinds and all(fact(name, value)(p) for name, value in facts.items())


def fact(name, value=True):
    """A predicate: this fact of the Problem is true or, if a value is given, equals the value."""
    return lambda p: bool(p.fact(name)) if value is True else p.fact(name) == value


def both(*predicates):
    return lambda p: all(fits(p) for fits in predicates)


def either(*predicates):
    return lambda p: any(fits(p) for fits in predicates)


def refused(*names):
    """A predicate: torch or lib refused a call for one of these reasons. names: keys of
    `failure.REFUSALS`."""
    return lambda p: failed(p) is not None and bool(failed(p).refusals & set(names))


def raised(*types):
    return lambda p: (
        p.kind == "raised" and (failed(p).raised if failed(p) else p.fact("raised")) in types
    )


def all_wait_in(op):
    return lambda p: failed(p) is not None and failed(p).all_wait_in(op)


def case_of(p, cases):
    """The Case in which the Problem was observed, or None. cases: the exercise's."""
    if "case" in p.facts:
        return p.facts["case"]
    return next((case for case in cases if failed(p) and case.name == failed(p).case), None)


def members(p):
    """The global ranks of the case in which the Problem was observed; () if it belongs to no
    case."""
    if "case" in p.facts:
        return p.facts["case"].members
    return failed(p).members if failed(p) and failed(p).case else ()


def left_under_way(p):
    """True if the answer returned while something that it had started was still in flight, or if
    ranks wait for each other outside of any call of the answer."""
    if failed(p) is not None and failed(p).raised == "NotWaitedFor":
        return True
    return (
        p.kind == "timeout"
        and failed(p) is not None
        and not failed(p).case
        and bool(failed(p).awaited)
    )


def mixed_up_ranks(p):
    """True if something went wrong in a group whose ranks are not 0 to N-1. Groups of ranks 0 to
    N-1 come before such a group, so the answer was right in those."""
    where = members(p)
    return len(where) > 1 and where != tuple(range(len(where)))


def whose_ranks(p):
    """True if the answer has probably taken global ranks for ranks of the group."""
    beyond = failed(p) is not None and (
        failed(p).beyond_the_group() or "to itself" in failed(p).refusals
    )
    return p.kind == "group" or beyond or (p.kind in SHAPES and mixed_up_ranks(p))


def in_case(cases, test, *kinds):
    """A predicate: the Problem was observed in a case for which test(case) holds, and is of one of
    these kinds if any are given.

    For example, in_case(CASES, lambda case: case.world_size == 1, *SHAPES).
    """

    def fits(p):
        case = case_of(p, cases)
        return p.kind in (kinds or (p.kind,)) and case is not None and bool(test(case))

    return fits


def another_dtype(p):
    mismatch = failed(p) is not None and failed(p).mismatch == "dtype"
    return mismatch or p.kind == "wire dtype" or (p.kind == "form" and bool(p.fact("dtype")))
