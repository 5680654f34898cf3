"""What is wrong with a schedule, action by action. A schedule is data, so no ranks are needed.

    every action once?  -->  can the ranks run it?  -->  how long does it take?

The lists are judged by lib.pipeline's own `validate` and `simulate`, and what is wrong with an action is said in their
words, with the list of the rank that has it.
"""

from fractions import Fraction

from lib.check.exercise import Problem
from lib.pipeline.actions import Action
from lib.pipeline.grid import grid
from lib.pipeline.simulate import UNIT, simulate
from lib.pipeline.validate import ScheduleError, validate

TIMES = (UNIT, {"F": 1, "B": 1, "I": 1, "W": 1})
WIDTH = 90  # characters of a line of the verdict


def once(kinds):
    """Every action once, on the rank where its stage lives. kinds: those of a schedule of this exercise."""

    def judge(schedule, p, m, v=1):
        for rank, actions in enumerate(schedule):
            other = next((action for action in actions if action.kind not in kinds), None)
            if other:
                text = f"rank {rank} has {other}: expected are the kinds {' '.join(kinds)}"
                return Problem("kinds", f"{text}\n{row(schedule, rank, other)}", {"action": other})
        error = _error(schedule, m, v)
        if error is None or error.kind in ("order", "deadlock"):
            return None
        expected = [Action(s, kind, j) for j in range(m) for s in range(v * p) for kind in kinds]
        missing = [action for action in expected if action not in schedule[action.stage % p]]
        if error.kind == "missing":
            error = ScheduleError("missing", f"rank {missing[0].stage % p} never runs {missing[0]}", missing[0])
        return _problem(error, schedule, {"missing": {*missing}, "expected": {*expected}})

    return judge


def runs_through(schedule, p, m, v=1):
    """Every action after what it needs, and no deadlock."""
    error = _error(schedule, m, v)
    return error and _problem(error, schedule, {})


def _error(schedule, m, v):
    try:
        validate(schedule, m, v)
    except ScheduleError as error:
        return error
    return None


def _problem(error, schedule, facts):
    action, text = error.actions[0], str(error)
    if error.kind != "deadlock":
        rank = next((r for r, actions in enumerate(schedule) if action in actions), action.stage % len(schedule))
        text += "\n" + row(schedule, rank, action)
    return Problem(error.kind, text, {**facts, "action": action})


def bubble(schedule, p, m, v=1):
    """The share of the ranks' time in which they are idle, (p-1) / (vm + p-1)."""
    want = Fraction(p - 1, v * m + p - 1)
    for times in TIMES:
        run = simulate(schedule, times)
        got = 1 - Fraction(sum(run.busy), p * run.makespan)
        if got != want:
            formula = "(p-1)/(m+p-1)" if v == 1 else "(p-1)/(vm+p-1)"
            text = f"idle {got} of the time, expected {formula} = {want}, for F = {times['F']}, B = {times['B']}"
            return Problem("bubble", f"{text}\n{drawn(schedule, times)}".rstrip())
    return None


def most(counts):
    """(where, how many) of the largest of `counts`, the first of them."""
    at = max(range(len(counts)), key=lambda i: (counts[i], -i))
    return at, counts[at]


def row(schedule, rank, action=None):
    """One rank's list in a line, cut short around `action`."""
    actions, show = schedule[rank], 16
    first = actions.index(action) - show // 2 if action in actions else 0
    first = max(0, min(first, len(actions) - show))
    shown = [*map(str, actions[first : first + show])]
    shown = ["..."] * (first > 0) + shown + ["..."] * (first + show < len(actions))
    return f"rank {rank}: {' '.join(shown) or 'an empty list'}"


def drawn(schedule, times=UNIT):
    """The grid of a valid schedule where it is small enough to be read, else ""."""
    lines = grid(schedule, times).splitlines()
    return "\n".join(lines) if len(lines) <= 4 and max(map(len, lines)) <= WIDTH else ""
