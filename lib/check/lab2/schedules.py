"""What is wrong with a schedule, action by action. A schedule is data, so no ranks are needed.

    fn(p, m)  -->  [[0F0, 0F1, ...], [1F0, ...], ...]
    a list per rank? --> every action once? --> can the ranks run it? --> how long does it take?

Small pipelines come first, so that what is printed is short, and those with fewer micro-batches
than ranks come last, so that a mistake there is not taken for any other.

The lists are judged by lib.pipeline's own `validate` and `simulate`, and what is wrong with an
action is said in their words, with the list of the rank that has it.
"""

from fractions import Fraction

from lib.check import pure
from lib.check.exercise import Problem
from lib.check.left_out import BUILT
from lib.check.pure import iterator
from lib.pipeline.actions import KINDS, Action, loop
from lib.pipeline.simulate import UNIT, grid, simulate
from lib.pipeline.validate import ScheduleError, validate

CASES = [(2, 3), (4, 4), (3, 5), (4, 8), (1, 4), (8, 16), (3, 1), (4, 2), (1, 1)]  # p, m
CASES_SAY = "p = 1, 2, 3, 4, 8; m = 1 to 16"
LEAVES_OUT = BUILT | {
    "precise": "actions, which no type rounds",
    "empty rank": "every rank has its share of the actions",
}
TIMES = (UNIT, {"F": 1, "B": 1, "I": 1, "W": 1})
WIDTH = 90  # characters of a line of the verdict


def words(p, m, v=None):
    return f"p = {p}, m = {m}" + (f", v = {v}" if v else "")


def measure(builds, cases=CASES):
    return lambda fn: pure.asked(fn, builds, cases, read=read)


def each(cases, judge):
    return pure.each(cases, judge, words)


def read(out, p, *_):
    """[[Action, ...] of rank 0, ...] if `out` is a list (or tuple) of p lists of Actions;
    else the Problem."""
    if out is None:
        return Problem("nothing", "got None, expected a list of actions for each rank")
    if found := iterator(out, "rank {} has"):
        return found
    lists = isinstance(out, (list, tuple)) and all(_is_list(actions) for actions in out)
    if not lists or len(out) != p:
        return Problem(
            "lists",
            f"got {described(out)}, expected {p} list{'s'[: p > 1]} of actions, one per rank",
        )
    for rank, actions in enumerate(out):
        for action in actions:
            if not isinstance(action, Action):
                shown = f"{action!r:.40}, " if type(action) in (tuple, list, str, int) else ""
                text = (
                    f"rank {rank} has {shown}a {type(action).__name__}, expected lib.pipeline's "
                    f"Action"
                )
                return Problem("actions", text)
            if not (
                type(action.stage) is int
                and type(action.microbatch) is int
                and action.kind in KINDS
            ):
                text = (
                    f"rank {rank} has {_action(action)}, expected Action(stage, one of "
                    f"{' '.join(KINDS)}, micro-batch)"
                )
                return Problem("actions", text)
    return [list(actions) for actions in out]


def _is_list(actions):
    return isinstance(actions, (list, tuple)) and not isinstance(actions, Action)


def _action(action):
    plain = (
        repr(x) if type(x) in (int, float, bool, str, type(None)) else f"a {type(x).__name__}"
        for x in action
    )
    return f"Action({', '.join(plain)})"


def described(out):
    if not isinstance(out, (list, tuple)):
        return f"a {type(out).__name__}"
    if isinstance(out, Action):
        return "an Action"
    inside = sorted({type(item).__name__ for item in out if not _is_list(item)}) or ["list"]
    return f"{len(out)} {' and '.join(inside)}{'s'[: len(out) != 1]}"


def once(kinds, cases=CASES, stages=1, placement=loop, words=words):
    """A judge: every action once, on the rank where its stage lives, also later. kinds: those of
    this exercise.

    stages: of a rank, where the cases do not say it. placement: as for `validate`. words: what
    names a case.
    """

    def judge(schedule, p, m, v=stages):
        for rank, actions in enumerate(schedule):
            other = next((action for action in actions if action.kind not in kinds), None)
            if other:
                text = f"rank {rank} has {other}: expected are the kinds {' '.join(kinds)}"
                return Problem("kinds", f"{text}\n{row(schedule, rank, other)}", {"action": other})
        error, homes = _error(schedule, m, v, placement), placement(p, v * p)
        if error is None or error.kind in ("order", "deadlock"):
            return None
        expected = [Action(s, kind, j) for j in range(m) for s in range(v * p) for kind in kinds]
        missing = [action for action in expected if action not in schedule[homes[action.stage]]]
        if error.kind == "missing":
            error = ScheduleError(
                "missing", f"rank {homes[missing[0].stage]} never runs {missing[0]}", missing[0]
            )
        return _problem(error, schedule, {"missing": {*missing}, "expected": {*expected}})

    in_each, kept = pure.each(cases, judge, words), pure.kept(words)
    return lambda runs: in_each(runs) or kept(runs)


def runs_through(schedule, p, m, v=1, placement=loop):
    """Every action after what it needs, and no deadlock."""
    error = _error(schedule, m, v, placement)
    return error and _problem(error, schedule, {})


def _error(schedule, m, v, placement):
    try:
        validate(schedule, m, v, placement)
    except ScheduleError as error:
        return error
    return None


def _problem(error, schedule, facts):
    action, text = error.actions[0], str(error)
    if error.kind != "deadlock":
        rank = next(
            (r for r, actions in enumerate(schedule) if action in actions),
            action.stage % len(schedule),
        )
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
            text = (
                f"idle {got} of the time, expected {formula} = {want}, for F = {times['F']}, B = "
                f"{times['B']}"
            )
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
