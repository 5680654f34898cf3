"""A student's pure function of Lab 6: called for every case, read, and judged case by case. Lab 2 has `pure.py`.

Judging stops at the first case that is wrong.
"""

import traceback

from lib.check.framework import Problem
from lib.check.lab1.calls import noting_calls
from lib.ledger.source import place


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


def _raised(error):
    where = traceback.extract_tb(error.__traceback__)[-1]
    text = f"{type(error).__name__}: {error}\n  {place(where.filename, where.lineno, where.name)}"
    return Problem("raised", text, {"error": error})


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
