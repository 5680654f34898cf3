"""Checks whether p ranks can run a schedule, and if not, names the action at fault.

    every action once    each stage runs F and B (or F, I and W) for each micro-batch, on the rank
                         that has the stage
    order on a rank      an action after those of the rank that it needs: B after its F, ...
    no deadlock          across ranks, with sends that do not block: a rank waits only in order to
                         receive

A deadlock is a cycle of waits. Two ranks are enough:

    rank 0   0F0 0B0 0F1        at 0B0, which needs 1B0
    rank 1   1F0 1F1 1B0        at 1F1, which needs 0F1, which comes after 0B0 in rank 0's list

How far the ranks get through their lists does not depend on the order in which they take turns, so
a single walk through the schedule decides.
"""

from collections import Counter
from collections.abc import Callable, Sequence

from lib.pipeline.actions import KINDS, Action, Dependencies, at_least_one, loop


class ScheduleError(ValueError):
    """A schedule that cannot be run. kind: what is wrong, one of the names below. actions: the one
    at fault, then the other one involved, if any; for a deadlock, all in the order of the cycle."""

    def __init__(self, kind: str, text: str, *actions: Action) -> None:
        super().__init__(text)
        # "unknown", "wrong rank", "missing", "twice", "mixed", "order", "deadlock"
        self.kind = kind
        self.actions = actions


def validate(
    schedule: Sequence[Sequence[Action]],
    m: int,
    v: int = 1,
    placement: Callable[[int, int], list[int]] = loop,
) -> Sequence[Sequence[Action]]:
    """Raise ScheduleError, a ValueError, if `schedule` is not one that its ranks can run, for m
    micro-batches and v stages per rank.

    schedule: a list of Actions for each rank. It is also returned, so that you can call `validate`
    where the schedule is used. placement: (p, v p) -> [rank of stage 0, 1, ...], where the stages
    have to be: `loop`, `v_shape`, or your own. Each backward is either full (B) or in
    halves (I and W).
    """
    p = len(schedule)
    at_least_one(p=p, m=m, v=v)
    stage_ranks = placement(p, v * p)
    _check_ranks(schedule, m, stage_ranks)
    _check_once(schedule, m, stage_ranks)
    _check_order(schedule)
    for _ in walk(schedule):
        pass
    return schedule


def walk(schedule):
    """Yield (rank, action) in an order in which every action comes after all that it needs and
    after those before it in its list.

    Raises ScheduleError if the ranks would wait for each other, or for an action that is in no
    list.
    """
    dependencies, done, at = Dependencies(schedule), set(), [0] * len(schedule)
    while any(at[rank] < len(actions) for rank, actions in enumerate(schedule)):
        before = list(at)
        for rank, actions in enumerate(schedule):
            while at[rank] < len(actions) and done.issuperset(dependencies.of(actions[at[rank]])):
                action = actions[at[rank]]
                at[rank] += 1
                done.add(action)
                yield rank, action
        if at == before:
            raise _deadlock(schedule, dependencies, at, done)


def _check_ranks(schedule, m, stage_ranks):
    p, v = len(schedule), len(stage_ranks) // len(schedule)
    for rank, actions in enumerate(schedule):
        for action in actions:
            stage, kind, microbatch = action
            if not (0 <= stage < len(stage_ranks) and kind in KINDS and 0 <= microbatch < m):
                there_are = (
                    f"stages 0 ... {len(stage_ranks) - 1}, kinds {' '.join(KINDS)}, micro-batches "
                    f"0 ... {m - 1}"
                )
                text = (
                    f"rank {rank} has {action}: with p = {p}, v = {v}, m = {m} there are "
                    f"{there_are}"
                )
                raise ScheduleError("unknown", text, action)
            if stage_ranks[stage] != rank:
                text = (
                    f"rank {rank} has {action}, but stage {stage} is on rank {stage_ranks[stage]}"
                )
                raise ScheduleError("wrong rank", text, action)


def _check_once(schedule, m, stage_ranks):
    times = Counter(action for actions in schedule for action in actions)
    for action, n in times.items():
        if n > 1:
            raise ScheduleError(
                "twice", f"rank {stage_ranks[action.stage]} has {action} {n} times", action
            )
    kinds = {action.kind for action in times}
    # the kinds to report as missing if a micro-batch has no backward action at all
    halves = "IW" if kinds & {"I", "W"} and "B" not in kinds else "B"
    for j in range(m):
        for stage, rank in enumerate(stage_ranks):
            has = {kind for kind in KINDS if Action(stage, kind, j) in times}
            if {"B"} < has - {"F"}:
                text = (
                    f"rank {rank} has {stage}B{j}, a full backward, and a half of it: B, or I and W"
                )
                raise ScheduleError("mixed", text, Action(stage, "B", j))
            backward = "IW" if has & {"I", "W"} else "B" if "B" in has else halves
            for kind in "F" + backward:
                if kind not in has:
                    action = Action(stage, kind, j)
                    raise ScheduleError("missing", f"rank {rank} never runs {action}", action)


def _check_order(schedule):
    dependencies = Dependencies(schedule)
    for rank, actions in enumerate(schedule):
        index = {action: i for i, action in enumerate(actions)}
        for action in actions:
            for need in dependencies.of(action):
                if index.get(need, -1) > index[action]:
                    text = f"rank {rank} has {action} before {need}, which it needs"
                    raise ScheduleError("order", text, action, need)


def _deadlock(schedule, dependencies, at, done):
    """The ScheduleError of a schedule that stopped. We follow the waits from rank to rank until we
    reach a rank for the second time, which closes the cycle."""
    rank = next(rank for rank, actions in enumerate(schedule) if at[rank] < len(actions))
    chain = {}  # rank -> (the action that it waits at, what that needs)
    while rank not in chain:
        action = schedule[rank][at[rank]]
        need = next(need for need in dependencies.of(action) if need not in done)
        chain[rank] = action, need
        waits, rank = rank, dependencies.rank(need)
        if rank is None or need not in schedule[rank]:
            where = "in no list" if rank is None else f"not in rank {rank}'s list"
            text = f"rank {waits} waits at {action} for {need}, which is {where}"
            return ScheduleError("missing", text, need, action)

    cycle = list(chain)[list(chain).index(rank) :]
    lines = []
    for waits in cycle:
        action, need = chain[waits]
        runs = dependencies.rank(need)
        lines.append(
            f"rank {waits} waits at {action} for {need}, which rank {runs} runs after "
            f"{chain[runs][0]}"
        )
    return ScheduleError(
        "deadlock", "deadlock:\n  " + "\n  ".join(lines), *(chain[r][0] for r in cycle)
    )
