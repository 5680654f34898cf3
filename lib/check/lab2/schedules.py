"""What Lab 2's schedules have in common: what is wrong with one, action by action, how much it
keeps, and how long it takes. A schedule is data, so no ranks are needed.

    fn(p, m)  -->  [[0F0, 0F1, ...], [1F0, ...], ...]
    a list per rank? --> every action once? --> can the ranks run it? --> kept, and idle

    nothing, iterators, lists, actions          a list of actions for each rank
    kinds, counted from 1, unknown, wrong rank, twice, mixed,
    no backward, missing, missing W, ...        every action once, on the rank of its stage
    begins backward, B before F, ..., deadlock  what an action needs comes before it
    kept by rank 0, kept, idle                  no more, and no longer, than with lib's own

What does not hold is shown in words, under these names, in the words of lib.pipeline's `validate`.
Small pipelines come first, so that what is printed is short, and those with fewer micro-batches
than ranks come last, so that a mistake there is not taken for any other.
"""

import re
from functools import partial

from lib.check.causes import of_name
from lib.check.exercise import Problem
from lib.check.left_out import BUILT, NO_TENSORS
from lib.check.pure import iterator
from lib.check.side_by_side import SideBySide, here
from lib.pipeline.actions import KINDS, Action, loop
from lib.pipeline.simulate import UNIT, grid, kept, simulate
from lib.pipeline.validate import ScheduleError, validate

CASES_SAY = "p = 1, 2, 3, 4, 8; m = 1 to 16"
SIZES = [(2, 3), (4, 4), (3, 5), (4, 8), (1, 4), (8, 16), (3, 1), (4, 2), (1, 1)]  # p, m
LEAVES_OUT = BUILT | {
    "precise": "actions, which no type rounds",
    "empty rank": "every rank has its share of the actions",
}
EVERY_ACTION = (
    "nothing", "iterators", "lists", "actions", "kinds", "counted from 1", "unknown", "wrong rank",
    "twice", "mixed", "no backward", "missing", *(f"missing {kind}" for kind in KINDS),
    "changed later",
)  # fmt: skip
NEEDS = (
    "begins backward", *(f"{b} before {a}" for a, b in ("FF", "FB", "FI", "IW", "BB", "II")),
    "deadlock",
)  # fmt: skip
ALWAYS = ("lists", "missing", "deadlock")  # shown where they hold, too
KEPT = ("kept", *(f"kept by rank {rank}" for rank in range(8)))
# B in place of I and W: twice as long as F, and as long
WHOLE = (UNIT, {"F": 1, "B": 1})
HALVES = ({"F": 1, "I": 1, "W": 1}, {"F": 3, "I": 4, "W": 2})
WIDTH = 90  # characters of a line of the verdict


def words(p, m, v=None):
    return f"p = {p}, m = {m}" + (f", v = {v}" if v else "")


def sizes(case) -> tuple[int, ...]:
    """p, m, and v where the exercise has one."""
    return tuple(map(int, re.findall(r" = (\d+)", case.what)))


def measure(builds, *how, jobs=SIZES, refused=()):
    """how: what `script` takes. refused: cases that bring a ValueError, as lib's own does."""
    names = [words(*job) for job in jobs]
    names += [f"{words(*job)}: {job[0]} does not divide {job[1]}" for job in refused]
    show_it = partial(script, how, frozenset(names[len(jobs) :]))
    return SideBySide(show_it, builds, here(*names), groups=None, excused=NO_TENSORS)


def script(how, refused, make, case, show):
    if case.what in refused:
        show.refused(make, *sizes(case))
        return
    schedule = judged(show.run(make, *sizes(case)), show, sizes(case), *how)
    if schedule:
        show.judged = schedule


def judged(out, show, of, kinds, amounts, stages=1, placement=loop):
    """The schedule as lists, or None if ranks cannot run it. of: p, m, and v if it is not `stages`.

    amounts(show, schedule, kinds, p, m): shows what it keeps and how long it takes. placement: as
    for `validate`.
    """
    p, m, v = (*of, stages)[:3]
    schedule = read(out, p)
    unread = isinstance(schedule, Problem)
    problem = schedule if unread else wrong(schedule, kinds, m, v, placement)
    for name in dict.fromkeys([*ALWAYS, problem.kind if problem else ALWAYS[0]]):
        show(name, problem.text if problem and problem.kind == name else "")
    if problem:
        return None
    amounts(show, schedule, kinds, p, m)
    return schedule


def amounts(show, schedule, kinds, p, m):
    each_keeps(show, schedule)
    idle(show, schedule, kinds)


def each_keeps(show, schedule):
    """The most micro-batches x stages with F done, and B or W not, on each rank."""
    for rank in range(len(schedule)):
        keeps(show, f"kept by rank {rank}", schedule, rank)


def keeps(show, name, schedule, rank):
    most, at = most_kept(schedule[rank])
    show(name, most, at_most=True, beside=f"{most} after {at}, {row(schedule, rank, at)}")


def most_kept(actions):
    """(how many at most, after which action for the first time)"""
    counts = [live + waiting for live, waiting in kept(actions)]
    return max(counts), actions[counts.index(max(counts))]


def idle(show, schedule, kinds):
    """How long a rank is idle, simulated. All are as long: each has the same work."""
    for times in HALVES if "W" in kinds else WHOLE:
        run = simulate(schedule, times)
        told = ", ".join(f"{kind} = {time}" for kind, time in times.items() if kind in kinds)
        beside = f"for {told}\n{drawn(schedule, times)}".rstrip()
        show("idle", run.makespan - run.busy[0], at_most=True, beside=beside)


def read(out, p, *_):
    """[[Action, ...] of rank 0, ...] if `out` is a list (or tuple) of p lists of Actions;
    else the Problem."""
    if out is None:
        return Problem("nothing", "got None, expected a list of actions for each rank")
    if found := iterator(out, "rank {} has"):
        return Problem("iterators", found.text)
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


def wrong(schedule, kinds, m, v=1, placement=loop) -> Problem | None:
    """The first thing that is wrong with an action, if there is one. kinds: those of the exercise.
    Problem.kind: one of the names above."""
    every = [action for actions in schedule for action in actions]
    other = next((action for action in every if action.kind not in kinds), None)
    if other:
        text = f"{other} is there: expected are the kinds {' '.join(kinds)}"
        return _with_row("kinds", text, schedule, other)
    try:
        validate(schedule, m, v, placement)
    except ScheduleError as error:
        name, text, (action, *needs) = error.kind, str(error), error.actions
    else:
        return None
    if name == "unknown" and not (
        any(a.stage == 0 for a in every) and any(a.microbatch == 0 for a in every)
    ):
        name = "counted from 1"
    if name == "missing":
        expected = (
            Action(stage, kind, j)
            for j in range(m)
            for stage in range(v * len(schedule))
            for kind in kinds
        )
        missing = [one for one in expected if one not in {*every}]
        action, rank = missing[0], placement(len(schedule), v * len(schedule))[missing[0].stage]
        text = f"rank {rank} never runs {action}"
        if {a.kind for a in every} <= {"F"}:
            name = "no backward"
        elif len({a.kind for a in missing}) == 1:
            name = f"missing {action.kind}"
    if name == "order":
        begins = any(actions[0].kind != "F" for actions in schedule)
        name = "begins backward" if begins else f"{action.kind} before {needs[0].kind}"
    return _with_row(name, text, schedule, action)


def _with_row(name, text, schedule, action):
    holds = [rank for rank, actions in enumerate(schedule) if action in actions]
    rank = holds[0] if holds else action.stage % len(schedule)
    return Problem(name, text if name == "deadlock" else f"{text}\n{row(schedule, rank, action)}")


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


# Hints


def in_sizes(test):
    """Was it in a case whose p, m and v pass this test?"""

    def fits(problem):
        found = sizes(problem.fact("case")) if "case" in problem.facts else ()
        return bool(found) and test(*found)

    return fits


# those cases come last
FEW_MICROBATCHES = in_sizes(lambda p, m: m < p)


OF_ANY_P = {"right_for_several_ranks_only": in_sizes(lambda p, m, v=1: p == 1 and m > 1)}
FORM = {
    "nothing_returned": of_name("nothing"),
    "an_iterator": of_name("iterators"),
    "not_a_list_per_rank": of_name("lists"),
    "not_actions": of_name("actions"),
}
ACTIONS = {
    "another_rank's_stage": of_name("wrong rank"),
    "past_the_last": of_name("unknown"),
    "counted_from_one": of_name("counted from 1"),
    "no_backward": of_name("no backward"),
    "twice": of_name("twice"),
}
