"""Finds the shortest makespan of a puzzle and a schedule that achieves it, by branch and bound,
which proves that none is shorter.

    python -m lib.pipeline        solves all levels again and writes puzzle.json, in seconds

Is there a schedule that ends by a given deadline? Each action has a window, from its earliest
possible start to its latest. An arrow (a precedence constraint) says that one action is known to
come before another, and it narrows the windows of both. These arrows are known at the beginning:

    in order  0F0 -> 0F1 -> 0F2  all actions of one kind at a stage: micro-batches are all alike, so
                                 no shorter schedule is lost
    needs     0F0 -> 1F0, 0F0 -> 0I0, 0I0 -> 0W0; between ranks with the message's time
    cap       0W0 -> 0F2         on a rank that may keep 2

What follows for two actions of a rank:

    they fit in one order only              a new arrow
    they fit in neither order               no schedule from here: backtrack
    they fit in both orders                 try the tightest pair in one order, then in the other

There is no schedule from here either if

    a window is empty                       backtrack
    a rank has more work than time          backtrack; tested from any start to any end of a window

Once all pairs are in order, they form a schedule. The smallest deadline for which there is one is
the shortest makespan. (Branch and bound over pairs of one machine: Carlier and Pinson 1989, for the
job shop.)
"""

from itertools import combinations, count
from typing import Any

from lib.pipeline.actions import Action, dependencies_of


# exercise: lab2.fastest
def fastest(puzzle: Any) -> list[list[Action]] | None:
    """The schedule with the shortest makespan: for each rank its actions F, I and W, within
    `puzzle.cap`.

    If `puzzle.best` is None, deadlines are tried upwards from the lower bound, which proves the
    result minimal; otherwise upwards from `puzzle.best`.
    """
    deadlines = count(most_work(puzzle) if puzzle.best is None else puzzle.best)
    return next(
        schedule
        for schedule, _ in (schedule_by(puzzle, deadline) for deadline in deadlines)
        if schedule
    )


def most_work(puzzle: Any) -> float:
    """The work of the busiest rank, a lower bound on the makespan."""
    return puzzle.m * max(map(sum, zip(*puzzle.times.values(), strict=True)))


def schedule_by(puzzle, deadline):
    """(a schedule that ends by `deadline`, or None if there is none; how many nodes the search
    visited)."""
    actions = [
        Action(i, kind, j) for i in range(puzzle.p) for kind in "FIW" for j in range(puzzle.m)
    ]
    duration, at = (
        [puzzle.times[kind][i] for i, kind, _ in actions],
        {action: a for a, action in enumerate(actions)},
    )
    ranks = [range(first, first + 3 * puzzle.m) for first in range(0, len(actions), 3 * puzzle.m)]
    pairs = [pair for rank in ranks for pair in combinations(rank, 2)]
    arrows = [
        (at[need], at[action], duration[at[need]] + late)
        for action, need, late in _needs(puzzle, actions)
    ]
    stack, nodes = [([0] * len(actions), [deadline - t for t in duration], arrows, pairs)], 0
    while stack:
        nodes += 1
        found = _narrowed(duration, ranks, *stack.pop())
        if found is None:
            continue
        earliest, latest, arrows, pairs = found
        if not pairs:
            return [
                [actions[a] for a in sorted(rank, key=earliest.__getitem__)] for rank in ranks
            ], nodes
        slack = {
            (a, b): (latest[b] - earliest[a] - duration[a], latest[a] - earliest[b] - duration[b])
            for a, b in pairs
        }
        a, b = min(
            pairs, key=lambda pair: (min(slack[pair]), min(earliest[pair[0]], earliest[pair[1]]))
        )
        rest = [pair for pair in pairs if pair != (a, b)]
        most_slack_last = sorted(
            ((a, b), (b, a)), key=dict(zip(((a, b), (b, a)), slack[a, b], strict=True)).get
        )
        for first, second in most_slack_last:  # what is put on the stack last is tried first
            stack.append(
                (earliest[:], latest[:], [*arrows, (first, second, duration[first])], rest)
            )
    return None, nodes


def _needs(puzzle, actions):
    """(action, one that comes before it, the time of a message between them) for all that is known
    beforehand."""
    for action in actions:
        i, kind, j = action
        for need in dependencies_of(action, puzzle.p):
            need = need._replace(kind="I") if need.kind == "B" else need
            yield action, need, puzzle.message if need.stage != i else 0
        if j:
            yield action, Action(i, kind, j - 1), 0
        if kind == "F" and j >= puzzle.cap[i]:
            yield action, Action(i, "W", j - puzzle.cap[i]), 0


def _narrowed(duration, ranks, earliest, latest, arrows, pairs):
    """(earliest, latest, arrows, pairs) with all that follows from them; None if there is no
    schedule.

    duration, earliest, latest: of each action, by its index; the last two are start times. arrows:
    (before, after, the least time from start to start). pairs: two actions of one rank each, whose
    order is open.
    """
    while True:
        changed = True
        while changed:
            changed = False
            for a, b, gap in arrows:
                if earliest[a] + gap > earliest[b]:
                    earliest[b], changed = earliest[a] + gap, True
                if latest[b] - gap < latest[a]:
                    latest[a], changed = latest[b] - gap, True
            if any(begin > end for begin, end in zip(earliest, latest, strict=True)):
                return None
        if any(_overfull(duration, rank, earliest, latest) for rank in ranks):
            return None
        new, still_open = [], []
        for a, b in pairs:
            fits = earliest[a] + duration[a] <= latest[b], earliest[b] + duration[b] <= latest[a]
            if not any(fits):
                return None
            if all(fits):
                still_open.append((a, b))
            else:
                new.append((a, b, duration[a]) if fits[0] else (b, a, duration[b]))
        if not new:
            return earliest, latest, arrows, still_open
        arrows, pairs = arrows + new, still_open


def _overfull(duration, rank, earliest, latest):
    """Whether there are two times between which the rank must do more work than there is time."""
    for begin in {earliest[a] for a in rank}:
        end = begin
        for last, a in sorted((latest[a] + duration[a], a) for a in rank if earliest[a] >= begin):
            end += duration[a]
            if end > last:
                return True
    return False
