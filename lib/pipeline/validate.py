"""Is this schedule one that p ranks can run? If not, which action is at fault?

    every action once      each stage runs F and B (or F, I and W) for each micro-batch, on the rank where it lives
    its needs before it    on one rank: B after its F, W after its I
    no deadlock            across ranks, with sends that do not block: a rank waits only in order to receive

A deadlock is a circle. Two ranks are enough:

    rank 0   0F0 0B0 0F1        at 0B0, which needs 1B0
    rank 1   1F0 1F1 1B0        at 1F1, which needs 0F1, and that stands behind 0B0 in rank 0's list

Ranks that run their lists as far as they can, in whatever order, always get equally far; so one walk decides.
"""

from collections import Counter

from lib.pipeline.actions import KINDS, Action, at_least_one, count_stages, inputs


class ScheduleError(ValueError):
    """A schedule that cannot be run. kind: what is wrong, one word; actions: the ones at fault, worst first."""

    def __init__(self, kind, text, *actions):
        super().__init__(text)
        self.kind = kind  # "unknown", "place", "missing", "twice", "mixed", "order", "deadlock"
        self.actions = actions


def validate(schedule, m, v=1):
    """Raise ScheduleError, a ValueError, if `schedule` is not one of m micro-batches over v stages per rank.

    schedule: list per rank of Actions. Returns it, so that a call can stand where the schedule is used.
    A schedule splits all of its backwards into I and W, or none.
    """
    at_least_one(p=len(schedule), m=m, v=v)
    _check_places(schedule, m, v)
    _check_once(schedule, m, v)
    _check_order(schedule)
    for _ in walk(schedule):
        pass
    return schedule


def walk(schedule):
    """Yield (rank, action) such that every action comes after all that it needs and after those before it in its list.

    Raises ScheduleError where the ranks would wait for each other, or for an action that no list holds.
    """
    n_stages, done, at = count_stages(schedule), set(), [0] * len(schedule)
    while any(at[rank] < len(actions) for rank, actions in enumerate(schedule)):
        before = list(at)
        for rank, actions in enumerate(schedule):
            while at[rank] < len(actions) and done.issuperset(inputs(actions[at[rank]], n_stages)):
                action = actions[at[rank]]
                at[rank] += 1
                done.add(action)
                yield rank, action
        if at == before:
            raise _deadlock(schedule, at, done)


def _check_places(schedule, m, v):
    p = len(schedule)
    for rank, actions in enumerate(schedule):
        for action in actions:
            stage, kind, microbatch = action
            if not (0 <= stage < v * p and kind in KINDS and 0 <= microbatch < m):
                there_are = f"stages 0 ... {v * p - 1}, kinds {' '.join(KINDS)}, micro-batches 0 ... {m - 1}"
                text = f"rank {rank} has {action}: with p = {p}, v = {v}, m = {m} there are {there_are}"
                raise ScheduleError("unknown", text, action)
            if action.stage % p != rank:
                home = f"stage {action.stage} lives on rank {action.stage % p}"
                raise ScheduleError("place", f"rank {rank} has {action}, but {home}", action)


def _check_once(schedule, m, v):
    p = len(schedule)
    times = Counter(action for actions in schedule for action in actions)
    split = any(action.kind in "IW" for action in times)
    for action, n in times.items():
        if split and action.kind == "B":
            text = f"{action} is a whole backward, but other actions are halves (I, W): split all, or none"
            raise ScheduleError("mixed", text, action)
        if n > 1:
            raise ScheduleError("twice", f"rank {action.stage % p} has {action} {n} times", action)
    for j in range(m):
        for stage in range(v * p):
            for kind in "FIW" if split else "FB":
                action = Action(stage, kind, j)
                if action not in times:
                    raise ScheduleError("missing", f"rank {stage % p} never runs {action}", action)


def _check_order(schedule):
    n_stages = count_stages(schedule)
    for rank, actions in enumerate(schedule):
        place = {action: i for i, action in enumerate(actions)}
        for action in actions:
            for need in inputs(action, n_stages):
                if place.get(need, -1) > place[action]:
                    text = f"rank {rank} has {action} before {need}, which it needs"
                    raise ScheduleError("order", text, action, need)


def _deadlock(schedule, at, done):
    """Follow from a waiting rank to the rank that it waits for, until a rank comes up again: that is the circle."""
    p, n_stages = len(schedule), count_stages(schedule)
    rank = next(rank for rank, actions in enumerate(schedule) if at[rank] < len(actions))
    chain = {}  # rank -> (the action where it stands, what that needs)
    while rank not in chain:
        action = schedule[rank][at[rank]]
        need = next(need for need in inputs(action, n_stages) if need not in done)
        chain[rank] = action, need
        rank = need.stage % p
        if need not in schedule[rank]:
            text = f"rank {action.stage % p} waits at {action} for {need}, which is not in rank {rank}'s list"
            return ScheduleError("missing", text, need, action)

    circle = list(chain)[list(chain).index(rank) :]
    lines = [
        f"rank {r} waits at {action} for {need}, which rank {need.stage % p} runs after {chain[need.stage % p][0]}"
        for r, (action, need) in ((r, chain[r]) for r in circle)
    ]
    return ScheduleError("deadlock", "deadlock:\n  " + "\n  ".join(lines), *(chain[r][0] for r in circle))
