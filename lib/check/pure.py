"""Judges functions without ranks. They are called in every case and, at the end, in the first case
again; what they return is read, and judged case by case.

    seen = asked(fn, shares, CASES, given, read)  {case: what was read, or the Problem};
                                                  and facts about all calls together
    each(CASES, judge, words)                     a judge: the first case with something wrong
    same_again(words)                             a judge: the first case gives the same again

A case is a tuple, and words(*case) is its name.
"""

import re
import sys
from contextlib import contextmanager

from lib.check import symptoms as s
from lib.check.claims import without_ranks
from lib.check.exercise import Hint, Problem
from lib.check.failure import REFUSALS, Failed
from lib.check.guard import raised
from lib.check.left_out import NO_RANKS, but

AGAIN = "once more"  # the first case, after all others
CHANGED_ONE = "changed"
LEAVES_OUT = but(NO_RANKS, "again", "returned")


@contextmanager
def noting_calls(*theirs):
    """`with noting_calls(f, file) as calls:` afterwards, `calls` has the names of those of `theirs`
    that were called, from anywhere.

    theirs: functions, or the paths of files of which nothing may be called. This is for functions
    that send nothing; what sends is in the ledger.
    """
    # by id, because another function may have equal code
    known = {one if isinstance(one, str) else id(one.__code__) for one in theirs}
    calls, before = [], sys.getprofile()

    def note(frame, event, arg):
        if event == "call":
            code = frame.f_code
            if id(code) in known or code.co_filename in known:
                calls.append(f"{frame.f_globals.get('__name__')}.{code.co_qualname}")

    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(before)


def call(fn, builds, args):
    """Return what fn returns, or the Problem if it raised, or called lib's own, `builds`.
    NotImplementedError passes through.

    facts: error, the exception; failed, at which `symptoms.raised` and `symptoms.refused` look.
    """
    with noting_calls(builds) as calls:
        try:
            out = fn(*args)
        except Exception as error:
            if type(error) is NotImplementedError:  # not written yet
                raise
            out = of_error(error)
    if calls:
        return Problem(
            "built-in", f"it calls lib's {builds.__name__}, which this exercise asks you to build"
        )
    return out


def of_error(error):
    """The Problem of an exception, with the names of what torch or lib refused."""
    problem, text = raised(error), str(error)
    refusals = frozenset(name for name, words in REFUSALS.items() if re.search(words, text))
    failed = Failed(
        problem.kind, problem.text, "", (), None, raised=type(error).__name__, refusals=refusals
    )
    problem.facts |= {"error": error, "failed": failed}
    return problem


def asked(fn, builds, cases, given=lambda *case: case, read=lambda out, *case: out):
    """Return {case: read(what fn returns, *case), or the Problem that it raised}, and two facts
    about all calls.

    given(*case): the arguments, made anew for each call. CHANGED_ONE: the Problem of an argument
    that a call has changed, or None. AGAIN: [what was read of the first case, called once more].
    """
    seen = {CHANGED_ONE: None}
    for case in (*cases, cases[0]):
        args = given(*case)
        out = call(fn, builds, args)
        got = out if isinstance(out, Problem) else read(out, *case)
        seen |= {AGAIN: [got]} if case in seen else {case: got}
        for now, before in zip(args, given(*case), strict=True):
            if repr(now) != repr(before) and not seen[CHANGED_ONE]:
                text = f"{before} that was given is {now} afterwards"
                seen[CHANGED_ONE] = Problem("input", text, {"case": case})
    return seen


def each(cases, judge, words, trace=lambda got: got):
    """As a claim's judge: judge(got, *case) -> Problem or None, case by case up to the first
    Problem.

    The facts of the Problem also have `case`, `again`, and `seen`: {case: got} of all that could be
    read.
    """

    @without_ranks
    def of(answers):
        to_judge = [(case, answers[case], "") for case in cases]
        to_judge += [
            (case, answers[AGAIN][0], f", {AGAIN}") for case in cases if _first(answers) == case
        ]
        for case, got, again in to_judge:
            problem = got if isinstance(got, Problem) else judge(got, *case)
            if problem:
                seen = {c: answers[c] for c in cases if not isinstance(answers[c], Problem)}
                facts = {**problem.facts, "case": case, "again": bool(again), "seen": seen}
                trace_of = [*map(trace, seen.values())] if problem.trace is None else problem.trace
                return Problem(
                    problem.kind, f"{words(*case)}{again}: {problem.text}", facts, trace_of
                )
        return None

    return of


def _first(answers):
    return next(case for case in answers if isinstance(case, tuple))


def same_again(words):
    """A judge: the first case, called once more, gives the same result."""

    @without_ranks
    def of(answers):
        case, (again,) = _first(answers), answers[AGAIN]
        if isinstance(again, Problem) or again == answers[case]:
            return None
        text = (
            f"{words(*case)}: {answers[case]!r:.60}, and {again!r:.60} when it is called once more"
        )
        return Problem("not kept", text, {"case": case, "again": True})

    return of


def iterator(out, item):
    """The Problem if `out`, or one of its items, can be iterated over only once, else None. item:
    "rank {} has"."""
    inside = enumerate(out) if isinstance(out, (list, tuple)) else ()
    for what, one in [("got", out), *((item.format(number), one) for number, one in inside)]:
        if hasattr(one, "__next__") or isinstance(one, map | zip | filter | reversed):
            text = f"{what} a {type(one).__name__}, which can be gone through once, expected a list"
            return Problem("iterator", text)
    return None


NOTHING = Hint("nothing returned", s.kind("nothing"), "Try: end the function with `return ...`.")
