"""A student's pure function: called in every case and, last, in the first case again; read, and judged case by case.

    fn(p, m)  -->  [[0F0, 0F1, ...], [1F0, ...], ...]      a schedule, or the Problem that it is none

Judging stops at the first case that is wrong. Small pipelines come first, so that what is printed is short, and those
with fewer micro-batches than ranks come last, so that a mistake there is not taken for any other.
"""

import copy

from lib.check import guard
from lib.check.exercise import Problem
from lib.check.lab0.left_out import FUNCTION, NOTHING_GIVEN
from lib.check.lab1.calls import noting_calls
from lib.pipeline.actions import KINDS, Action

CASES = [(2, 3), (4, 4), (3, 5), (4, 8), (1, 4), (8, 16), (3, 1), (4, 2), (1, 1)]  # p, m
CASES_SAY = "p = 1, 2, 3, 4, 8; m = 1 to 16"
SCHEDULE = (
    FUNCTION
    | NOTHING_GIVEN
    | {"precise": "actions, which no type rounds", "empty rank": "every rank has its share of the actions"}
)


def asked(fn, function, arguments, read):
    """{case: read(what fn returned, *arguments)}, or the Problem that it gave nothing to read.

    function: lib's own, which an answer does not call; arguments: {case: tuple}.
    """
    seen, results = {}, []
    first = next(iter(arguments))
    for case, args in [*arguments.items(), (first, arguments[first])]:
        given = copy.deepcopy(args)
        seen[case], out = _one(fn, function, given, read)
        if not isinstance(seen[case], Problem) and given != args:
            seen[case] = Problem("input", f"what it was given was {args}, and is {given} afterwards")
        if not isinstance(seen[case], Problem):
            results.append((case, out, copy.deepcopy(out)))
    for case, out, before in reversed(results):
        if out != before:
            seen[case] = Problem("not kept", "what it returned was changed by a later call")
    return seen


def asked_for_schedules(fn, function, cases):
    """{(p, m): schedule, or what is wrong with it as such}; cases may be (p, m, v) as well."""
    return asked(fn, function, {case: case for case in cases}, _schedule)


def _one(fn, function, args, read):
    """(what `read` makes of the answer's result, or the Problem; that result)"""
    out = error = None
    with noting_calls(function) as calls:
        try:
            out = fn(*args)
        except Exception as raised:
            if type(raised) is NotImplementedError:
                raise
            error = raised
    if calls:
        name = f"{function.__module__}.{function.__name__}"
        return Problem("built-in", f"it calls {name}, which is what this exercise builds"), None
    if error:
        problem = guard.raised(error)
        problem.facts["error"] = error
        return problem, None
    return read(out, *args), out


def is_iterator(out) -> bool:
    return hasattr(out, "__next__") or isinstance(out, map | zip | filter | reversed)


def iterator(what, out) -> Problem:
    return Problem("iterator", f"{what} a {type(out).__name__}, which can be gone through once, expected a list")


def _schedule(out, p, *_):
    """[[Action, ...] of rank 0, ...] if `out` is a list (or tuple) of p lists of Actions; else the Problem."""
    if out is None:
        return Problem("nothing", "got None, expected a list of actions for each rank")
    if is_iterator(out):
        return iterator("got", out)
    for rank, actions in enumerate(out if isinstance(out, (list, tuple)) else ()):
        if is_iterator(actions):
            return iterator(f"rank {rank} has", actions)
    lists = isinstance(out, (list, tuple)) and all(_is_list(actions) for actions in out)
    if not lists or len(out) != p:
        return Problem("lists", f"got {described(out)}, expected {p} list{'s'[: p > 1]} of actions, one per rank")
    for rank, actions in enumerate(out):
        for action in actions:
            if not isinstance(action, Action):
                shown = f"{action!r:.40}, " if type(action) in (tuple, list, str, int) else ""
                text = f"rank {rank} has {shown}a {type(action).__name__}, expected lib.pipeline's Action"
                return Problem("actions", text)
            if not (type(action.stage) is int and type(action.microbatch) is int and action.kind in KINDS):
                text = (
                    f"rank {rank} has {_action(action)}, expected Action(stage, one of {' '.join(KINDS)}, micro-batch)"
                )
                return Problem("actions", text)
    return [list(actions) for actions in out]


def _is_list(actions):
    return isinstance(actions, (list, tuple)) and not isinstance(actions, Action)


def _action(action):
    plain = (repr(x) if type(x) in (int, float, bool, str, type(None)) else f"a {type(x).__name__}" for x in action)
    return f"Action({', '.join(plain)})"


def described(out):
    if not isinstance(out, (list, tuple)):
        return f"a {type(out).__name__}"
    if isinstance(out, Action):
        return "an Action"
    inside = sorted({type(item).__name__ for item in out if not _is_list(item)}) or ["list"]
    return f"{len(out)} {' and '.join(inside)}{'s'[: len(out) != 1]}"


def words(p, m, v=None):
    return f"p = {p}, m = {m}" + (f", v = {v}" if v else "")


def each(cases, judge, words=words):
    """As a claim's judge: judge(answer, *case) -> Problem or None, case by case up to the first that is wrong.

    words(*case) names it. The Problem's facts also have `case`, and `seen`: {case: answer} of all cases that could be
    read, for the hints.
    """

    def of(runs):
        ((answers,),) = (run.results for run in runs)
        for case in cases:
            answer = answers[case]
            problem = answer if isinstance(answer, Problem) else judge(answer, *case)
            if problem:
                seen = {c: answers[c] for c in cases if not isinstance(answers[c], Problem)}
                facts = {**problem.facts, "case": case, "seen": seen}
                return Problem(problem.kind, f"{words(*case)}: {problem.text}", facts, problem.trace)
        return None

    return of
