"""Lab 2, section 13, bonus: fastest(puzzle), the lists with the shortest makespan, on three levels.

    points in steps  lists that run within the cap; half the way, from 1F1B's time to the shortest
                     there is, on every level; the shortest of level 1; three quarters of the way;
                     the shortest of level 2; of level 3

All times are the simulator's. The shortest are stored and told, pipeline/puzzle.json; that nothing
is shorter was found by branch and bound, pipeline/shortest.py. Any lists that take as long are
right.
"""

from fractions import Fraction
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from lib.check import pure
from lib.check import symptoms as s
from lib.check.claims import claim
from lib.check.exercise import Exercise, Hint, Problem
from lib.check.lab2 import hints, schedules
from lib.check.pure import all_seen
from lib.pipeline.actions import Action, Dependencies
from lib.pipeline.puzzle import LEVELS
from lib.pipeline.shortest import fastest, schedule_by
from lib.pipeline.simulate import kept, simulate

PUZZLES = {(puzzle.p, puzzle.m): puzzle for puzzle in LEVELS.values()}
CASES = [*PUZZLES]  # p and m of level 1, 2, 3: no two have the same


def _words(p, m):
    return f"level {1 + CASES.index((p, m))}"


def _given(p, m):
    """Anew for each call: an answer may write into it."""
    return (PUZZLES[p, m]._replace(times=dict(PUZZLES[p, m].times)),)


def each(cases, judge):
    return pure.each(cases, judge, _words)


def _within_the_cap(schedule, p, m):
    if problem := schedules.runs_through(schedule, p, m):
        return problem
    for i, (actions, cap) in enumerate(zip(schedule, PUZZLES[p, m].cap, strict=True)):
        at, got = schedules.most([live + waiting for live, waiting in kept(actions)])
        if got > cap:
            text = (
                f"rank {i} keeps {got} micro-batches after {actions[at]}, F done and W not; its "
                f"cap is {cap}"
            )
            return Problem(
                "kept",
                f"{text}\n{schedules.row(schedule, i, actions[at])}",
                {"action": actions[at]},
            )
    return None


def _some_of_the_way(schedule, p, m, part):
    """Is it as fast as `part` of the way from 1F1B's time to the shortest?"""
    puzzle = PUZZLES[p, m]
    from_, best = puzzle.of_1f1b, puzzle.best
    time, enough = puzzle.time(schedule), int(from_ - part * (from_ - best))
    if time > enough:
        return _slow(
            schedule,
            puzzle,
            f"it takes {time}: {enough} is {part} of the way, from 1F1B's {from_} to {best}",
        )
    return None


def _best(schedule, p, m):
    puzzle = PUZZLES[p, m]
    time = puzzle.time(schedule)
    return (
        _slow(schedule, puzzle, f"it takes {time}, the shortest is {puzzle.best}")
        if time > puzzle.best
        else None
    )


def _slow(schedule, puzzle, text):
    """The Problem, with the longest wait that the next move should shorten."""
    time, wait = puzzle.time(schedule), next_move(schedule, puzzle)
    helps = wait is not None and wait.time < time
    if helps:
        text += f"\nrank {wait.rank} waits from {wait.begin} to {wait.end}, before {wait.before}; "
        text += f"with {wait.filler} there it takes {wait.time}"
    else:
        text += f"\nthe chain that ends last: {' '.join(map(str, chain(schedule, puzzle)))}"
    return Problem(
        "slow",
        text,
        {"filler": wait.filler.kind if helps else None, "near": time - puzzle.best <= 2},
    )


def chain(schedule, puzzle):
    """The actions that make it take so long, from the first on: each begins when the one
    before it lets it."""
    run, dependencies = simulate(schedule, puzzle.times, puzzle.message), Dependencies(schedule)
    bars = {bar.action: bar for bar in run.bars}
    found = [max(run.bars, key=lambda bar: bar.end).action]
    while bars[found[0]].start > 0:
        rank, action, start, _ = bars[found[0]]
        at = schedule[rank].index(action)
        before = [schedule[rank][at - 1]] * (at > 0) + dependencies.of(action)
        lets = lambda other, rank=rank: (
            bars[other].end + puzzle.message * (bars[other].rank != rank)
        )
        found.insert(0, next(other for other in before if lets(other) == start))
    return found


class Wait(NamedTuple):
    """A rank that waits, and what it could do meanwhile."""

    rank: int
    begin: int
    end: int
    before: Action
    filler: Action  # a later action of its list that could begin in this time, within the cap
    time: float  # the makespan if it did


def next_move(schedule, puzzle):
    """The Wait that is best filled: with the shortest makespan then, and of equals the longest;
    None if none can be."""
    run, waits = simulate(schedule, puzzle.times, puzzle.message), []
    ends, dependencies = {bar.action: bar.end for bar in run.bars}, Dependencies(schedule)
    for last, then in pairwise(run.bars):
        i, begin, end = then.rank, last.end, then.start
        if last.rank != i or begin == end:
            continue
        actions = schedule[i]
        at, keeps = actions.index(then.action), [live + waiting for live, waiting in kept(actions)]
        ready = [
            action
            for to, action in enumerate(actions[at + 1 :], at + 1)
            if (action.kind != "F" or max(keeps[at - 1 : to]) < puzzle.cap[i])
            and all(
                ends[need] + puzzle.message * (need.stage != i) < end
                for need in dependencies.of(action)
            )
        ]
        waits += [
            Wait(i, begin, end, then.action, action, puzzle.time(_moved(schedule, i, action, at)))
            for action in ready
        ]
    return min(waits, key=lambda wait: (wait.time, wait.begin - wait.end), default=None)


def _moved(schedule, rank, action, to):
    """The schedule with one action of a rank before all others from place `to` on."""
    actions = schedule[rank]
    moved = actions[:to] + [action] + [other for other in actions[to:] if other != action]
    return [*schedule[:rank], moved, *schedule[rank + 1 :]]


EXERCISE = Exercise(
    name="fastest", reference=fastest, measure=lambda fn: pure.asked(fn, schedule_by, CASES, _given,
        schedules.read), worlds=(),
    leaves_out=schedules.LEAVES_OUT | {"alone": "no level has one rank: there nothing can wait"},
    bonus=True,
    claims=(
        claim("every action once, on its rank", 1, "F, I, W; three levels",
              schedules.once("FIW", CASES, words=_words),
              pure.left_alone(_words)),
        claim("it runs, within the cap", 1, "no deadlock; F done and W not",
              each(CASES, _within_the_cap)),
        claim("half the way", 1, "from 1F1B's time to the shortest, every level",
              each(CASES, partial(_some_of_the_way, part=Fraction(1, 2)))),
        claim("level 1: the shortest", 1, f"{LEVELS[1].best}", each(CASES[:1], _best)),
        claim("three quarters of the way", 1, "every level",
              each(CASES, partial(_some_of_the_way, part=Fraction(3, 4)))),
        claim("level 2: the shortest", 1, f"{LEVELS[2].best}", each(CASES[1:2], _best)),
        claim("level 3: the shortest", 2, f"{LEVELS[3].best}", each(CASES[2:], _best)),
    ),
    hints=(
        s.CALLED_LIB.saying("that search is the course's: write lists, or a search of your own."),
        *(hint for hint in hints.FORM if hint not in (hints.CALLED_LIBS, hints.SEVERAL_RANKS_ONLY)),
        pure.CHANGED,
        hints.NOT_ITS_STAGE,
        *hints.NUMBERS,
        Hint("a whole backward", s.kind("kinds"),
             "every backward is in halves here, I and W: puzzle.times has no B."),
        hints.NO_BACKWARD,
        Hint("W left out",
             lambda p: p.kind == "missing"
             and all(action.kind == "W" for action in p.facts["missing"]),
             "what is delayed must still be done: every rank ends with the W that are left."),
        Hint("some left out", s.kind("missing"),
             "every rank runs F, I and W for all puzzle.m micro-batches."),
        hints.TWICE,
        Hint("backward first", s.kind("order"),
             "F of a micro-batch stands before its I, and I before its W."),
        Hint("a circle", s.kind("deadlock"),
             "a rank waits for a gradient that another can only make of what this rank has not "
             "sent yet: begin with 1F1B's order of F and I."),
        Hint("over the cap", s.kind("kept"),
             "a micro-batch is kept from its F to its W. Where a rank is full, a W must stand "
             "before the next F."),
        Hint("not far enough ahead", s.kind("slow", filler="F"),
             "let that rank run further ahead, as far as its cap goes: an F in the wait keeps the "
             "ranks behind it at work, and leaves it an I less to wait for at the end."),
        Hint("W at once", lambda p: p.kind == "slow" and all_seen(hints.weights_at_once)(p),
             "a W right behind its I keeps the previous rank waiting. Put it off: to where its "
             "rank would wait anyway, or where the cap asks for it."),
        Hint("a wait to fill", s.kind("slow", filler=True),
             "move that action into the wait. If it takes longer than the wait, see whether what "
             "comes after may be late."),
        Hint("nearly", s.kind("slow", near=True),
             "no W or F moved into a wait helps any more: only an exchange on that chain does. Or "
             "let a program try: exchange neighbours, keep what is valid and not slower, now and "
             "then what is slower by 1, and begin again."),
        Hint("no single move", s.kind("slow"),
             "each action on that chain begins when the one before it lets it, so only a change on "
             "it helps: a W in the middle of it could be done later, and an F or an I behind "
             "another rank's could come sooner."),
        *s.ANYWHERE,
    ),
)  # fmt: skip
