"""A student's pure function: called for every case, read, and judged case by case.

    fn(p, m)  -->  [[0F0, 0F1, ...], [1F0, ...], ...]      a schedule, or the Problem that it is none

Judging stops at the first case that is wrong. Small pipelines come first, so that what is printed is short, and those
with fewer micro-batches than ranks come last, so that a mistake there is not taken for any other.
"""

import traceback

from lib.check.framework import Problem
from lib.check.lab1.calls import noting_calls
from lib.ledger.source import place
from lib.pipeline.actions import KINDS, Action

CASES = [(2, 3), (4, 4), (3, 5), (4, 8), (1, 4), (8, 16), (3, 1), (4, 2), (1, 1)]  # p, m
CASES_SAY = "p = 1, 2, 3, 4, 8; m = 1 to 16"


def asked(fn, function, arguments, read):
    """{case: read(what fn gives)}, or the Problem that it gave nothing to read. NotImplementedError passes through.

    function: lib's own, which an answer does not call; arguments: {case: tuple}.
    """
    seen = {}
    for case, args in arguments.items():
        with noting_calls(function) as calls:
            try:
                out = fn(*args)
            except Exception as error:
                if type(error) is NotImplementedError:
                    raise
                out = _raised(error)
        if calls:
            name = f"{function.__module__}.{function.__name__}"
            seen[case] = Problem("built-in", f"it calls {name}, which is what this exercise builds")
        else:
            seen[case] = out if isinstance(out, Problem) else read(out, *args)
    return seen


def asked_for_schedules(fn, function, cases):
    """{(p, m): schedule, or what is wrong with it as such}; cases may be (p, m, v) as well."""
    return asked(fn, function, {case: case for case in cases}, _read)


def _raised(error):
    where = traceback.extract_tb(error.__traceback__)[-1]
    text = f"{type(error).__name__}: {error}\n  {place(where.filename, where.lineno, where.name)}"
    return Problem("raised", text, {"error": error})


def _read(out, p, *_):
    """`out` if it is a list (or tuple) of p lists of Actions; else the Problem."""
    if out is None:
        return Problem("nothing", "got None, expected a list of actions for each rank")
    lists = isinstance(out, (list, tuple)) and all(_is_list(actions) for actions in out)
    if not lists or len(out) != p:
        return Problem("lists", f"got {_described(out)}, expected {p} list{'s'[: p > 1]} of actions, one per rank")
    for rank, actions in enumerate(out):
        for action in actions:
            if not isinstance(action, Action):
                text = f"rank {rank} has {action!r:.40}, a {type(action).__name__}, expected an Action"
                return Problem("actions", text)
            if not (isinstance(action.stage, int) and isinstance(action.microbatch, int) and action.kind in KINDS):
                text = f"rank {rank} has {action!r:.70}, expected Action(stage, one of {' '.join(KINDS)}, micro-batch)"
                return Problem("actions", text)
    return out


def _is_list(actions):
    return isinstance(actions, (list, tuple)) and not isinstance(actions, Action)


def _described(out):
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
                return Problem(problem.kind, f"{words(*case)}: {problem.text}", facts)
        return None

    return of
