"""Lab 2, section 13, bonus: fastest(puzzle), the lists with the shortest makespan, on three levels.

    points in steps  lists that run within the cap; half the way from 1F1B's makespan to the
                     shortest one, on every level; the shortest on level 1; three quarters of the
                     way, on every level; the shortest on level 2; the shortest on level 3

All times come from the simulator. The shortest makespans are stored in pipeline/puzzle.json, and
students know them. Branch and bound (pipeline/shortest.py) has proved that no makespan is shorter.
Any lists that reach the shortest makespan are right.
"""

from contextlib import suppress
from fractions import Fraction
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from lib.check.causes import hints
from lib.check.lab2 import schedules
from lib.check.left_out import NO_TENSORS
from lib.check.side_by_side import SideBySide, here
from lib.pipeline import shortest
from lib.pipeline.actions import Action, Dependencies
from lib.pipeline.puzzle import LEVELS
from lib.pipeline.shortest import fastest
from lib.pipeline.simulate import simulate
from lib.pipeline.validate import ScheduleError

OF_NAME = {f"level {number}": puzzle for number, puzzle in LEVELS.items()}
CASES = here(*OF_NAME)
# ways to make the lists faster; a hint suggests one of them
MOVES = ("an F in the wait", "W at once", "an action in the wait", "an exchange")
HALF, THREE_QUARTERS = Fraction(1, 2), Fraction(3, 4)


def script(make, case, show):
    puzzle = OF_NAME[case.what]
    own = puzzle._replace(times=dict(puzzle.times))  # a copy, because an answer may write into it
    out = show.run(make, own)
    schedules.judge(out, show, (puzzle.p, puzzle.m), "FIW", partial(_shown, puzzle))


def _shown(puzzle, show, schedule, *_):
    for rank, cap in enumerate(puzzle.cap):
        most, at = schedules.most_kept(schedule[rank])
        if most > cap:
            text = f"rank {rank} keeps {most} micro-batches, F done and W not; its cap is {cap}"
            show("over the cap", f"{text}\n{schedules.row(schedule, rank, at)}")
            return
    time, slow, best = puzzle.time(schedule), puzzle.of_1f1b, puzzle.best
    if time == best:
        return
    move, told = _advice(schedule, puzzle, time)
    for part in (HALF, THREE_QUARTERS):
        enough = int(slow - part * (slow - best))
        text = f"it takes {time}: {enough} is {part} of the way, from 1F1B's {slow} to {best}"
        if time > enough:
            show(f"{part}: {move}", f"{text}\n{told}")
    show(f"the shortest: {move}", f"it takes {time}, the shortest is {best}\n{told}")


def _advice(schedule, puzzle, time):
    """(one of MOVES, a text). The text describes the wait that the next move should shorten, or the
    chain of actions that ends last."""
    wait = next_move(schedule, puzzle)
    if wait is None or wait.time >= time:
        move = "an exchange"
        told = f"the chain that ends last: {' '.join(map(str, chain(schedule, puzzle)))}"
    else:
        move = "an F in the wait" if wait.filler.kind == "F" else "an action in the wait"
        told = f"rank {wait.rank} waits from {wait.begin} to {wait.end}, before {wait.before}; "
        told += f"with {wait.filler} there it takes {wait.time}"
    follows = [pair for actions in schedule for pair in pairwise(actions) if pair[1].kind == "W"]
    if move != "an F in the wait" and all(a == b._replace(kind="I") for a, b in follows):
        move = "W at once"
    return move, told


def chain(schedule, puzzle):
    """The actions that determine the makespan, in order. Each begins as soon as the one before it
    has ended and, between ranks, its message has arrived."""
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
    """A rank that waits from `begin` to `end`, and an action that it could run meanwhile."""

    rank: int
    begin: int
    end: int
    before: Action
    filler: Action  # a later action of the rank's list
    time: float  # the makespan if the filler runs in the wait


def next_move(schedule, puzzle):
    """The Wait whose filler gives the shortest makespan; the longest of these if there are several,
    and None if no wait can be filled."""
    waits = []
    for last, then in pairwise(simulate(schedule, puzzle.times, puzzle.message).bars):
        i, begin, end = then.rank, last.end, then.start
        if last.rank != i or begin == end:
            continue
        at = schedule[i].index(then.action)
        following = {action.kind: action for action in reversed(schedule[i][at:])}
        for filler in following.values():
            actions = [action for action in schedule[i] if action != filler]
            moved = [*schedule[:i], actions[:at] + [filler] + actions[at:], *schedule[i + 1 :]]
            if schedules.most_kept(moved[i])[0] <= puzzle.cap[i]:
                with suppress(ScheduleError):
                    waits.append(Wait(i, begin, end, then.action, filler, puzzle.time(moved)))
    return min(waits, key=lambda wait: (wait.time, wait.begin - wait.end), default=None)


MEASURE = SideBySide(script, fastest, CASES, (shortest.__file__,), groups=None, excused=NO_TENSORS)


def _steps(name, cases=CASES):
    return tuple(f"{name}: {move}" for move in MOVES), cases


EXERCISE = MEASURE.exercise(
    ("every action once, on its rank", 1, "F, I, W; three levels", *schedules.EVERY_ACTION,
     "arguments"),
    ("it runs, within the cap", 1, "no deadlock; F done and W not", *schedules.NEEDS,
     "over the cap"),
    ("half the way", 1, "from 1F1B's time to the shortest, every level", _steps(HALF)),
    ("level 1: the shortest", 1, f"{LEVELS[1].best}",
     _steps("the shortest", cases=CASES[:1])),
    ("three quarters of the way", 1, "every level", _steps(THREE_QUARTERS)),
    ("level 2: the shortest", 1, f"{LEVELS[2].best}",
     _steps("the shortest", cases=CASES[1:2])),
    ("level 3: the shortest", 2, f"{LEVELS[3].best}", _steps("the shortest")),
    hints=hints("lab2", "fastest", "schedules"),
    leaves_out=schedules.LEAVES_OUT | {"alone": "no level has one rank: there nothing can wait"},
    bonus=True,
)  # fmt: skip
