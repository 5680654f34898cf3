"""What Lab 6's functions without ranks share: a function is called in many cases, and each result is read.

seen = asked(fn, shares, cases, given, read)     {case: what was read, or a Problem}, and what is true of all calls
each(CASES, judge, words)                        a judge: the first case in which something is wrong
not_libs, left_alone, new_each_time              judges of all calls
refused(CASES, words)                            a judge: a ValueError in each of these
"""

from lib.check import symptoms as s
from lib.check.exercise import Hint, Problem
from lib.check.guard import raised
from lib.check.lab0.left_out import NO_RANKS
from lib.check.lab1.calls import noting_calls

LEAVES_OUT = {name: why for name, why in NO_RANKS.items() if name not in ("again", "returned")}


def asked(fn, builds, cases, given, read):
    """{case: read(what fn returns, *case), or the Problem that it raised}; of all calls the Problems "called", ...

    builds: lib's own function, which an answer does not call; given(*case): the arguments, made anew for each call.
    """
    seen, returned = dict.fromkeys(("called", "changed", "shared", "kept")), {}
    for case in cases:
        args = given(*case)
        with noting_calls(builds) as calls:
            try:
                out = fn(*args)
            except Exception as error:
                if type(error) is NotImplementedError:  # not written yet
                    raise
                out = raised(error)
                out.facts |= {"error": error, "refused": isinstance(error, ValueError)}
        seen[case] = out if isinstance(out, Problem) else read(out, *case)
        returned[case] = out
        if calls:
            seen["called"] = Problem(
                "built-in", f"it calls lib's {builds.__name__}, which is what this exercise builds"
            )
        for now, before in zip(args, given(*case), strict=True):
            if repr(now) != repr(before) and not seen["changed"]:
                seen["changed"] = Problem("changed", f"{before} that was given is {now} afterwards", {"case": case})
            if out is now and isinstance(out, (list, dict)):
                seen["shared"] = Problem("shared", f"it returned {now}, which it was given", {"case": case})
    for case, out in returned.items():
        if not isinstance(out, Problem) and not _same(seen[case], read(out, *case)):
            seen["kept"] = Problem(
                "not kept", f"it returned {seen[case]!r:.60}, {out!r:.60} after later calls", {"case": case}
            )
            break
    return seen


def _same(before, now):
    return isinstance(before, Problem) or before == now


def each(cases, judge, words, trace=lambda got: got):
    """As a claim's judge: judge(got, *case) -> Problem or None, case by case up to the first that is wrong.

    words(*case) names it. The facts of the Problem also have `case`, and `seen`: {case: got} of all that could be read.
    """

    def of(runs):
        ((answers,),) = (run.results for run in runs)
        for case in cases:
            got = answers[case]
            problem = got if isinstance(got, Problem) else judge(got, *case)
            if problem:
                seen = {c: answers[c] for c in cases if not isinstance(answers[c], Problem)}
                facts = {**problem.facts, "case": case, "seen": seen}
                return Problem(problem.kind, f"{words(*case)}: {problem.text}", facts, [*map(trace, seen.values())])
        return None

    return of


def refused(cases, words, why, trace=lambda got: got):
    """A judge: each of these cases brings a ValueError. why(*case): what cannot be."""

    def of(runs):
        ((answers,),) = (run.results for run in runs)
        for case in cases:
            got, want = answers[case], f"{why(*case)}, expected a ValueError"
            if not isinstance(got, Problem) or "error" not in got.facts:
                said = got.text if isinstance(got, Problem) else f"got {trace(got)}"
                return Problem("not refused", f"{words(*case)}: {said}; {want}", {"case": case})
            if not got.facts["refused"]:
                return Problem("another error", f"{words(*case)}: {got.text}\n{want}", {"case": case})
        return None

    return of


def _of_all_calls(what):
    def judge(words):
        def of(runs):
            ((seen,),) = (run.results for run in runs)
            found = seen[what]
            where = f"{words(*found.facts['case'])}: " if found and "case" in found.facts else ""
            return found and Problem(found.kind, where + found.text, found.facts)

        return of

    return judge


not_libs, left_alone = _of_all_calls("called"), _of_all_calls("changed")
_not_shared, _kept = _of_all_calls("shared"), _of_all_calls("kept")


def new_each_time(words):
    """A judge: what is returned is no argument, and later calls leave it as it is."""
    return lambda runs: _not_shared(words)(runs) or _kept(words)(runs)


def all_seen(fits):
    """For hints: is fits(got, *case) true of all cases that could be read?"""

    def of(problem):
        seen = problem.fact("seen")
        return bool(seen) and all(fits(got, *case) for case, got in seen.items())

    return of


NOTHING = Hint("nothing returned", s.kind("nothing"), "the function must end with `return ...`.")
CHANGED = Hint(
    "arguments changed",
    s.kind("changed"),
    "these arguments are the caller's, who needs them again: change a dict or list of your own.",
)
GENERAL = (s.NOT_KEPT, *s.ANYWHERE)
