"""What a rank does in a pipeline, action by action, and what each action needs from the others.

    2F0   stage 2 runs forward on micro-batch 0
    2B0   ... backward, full: the gradients of its input and of its weights
    2I0   ... backward, first half: the gradient of its input (dgrad), which stage 1 waits for
    2W0   ... backward, second half: the gradient of its weights (wgrad), for which no stage waits

    0F0 --> 1F0 --> 2F0        forward: from the previous stage
     |       |       |
     v       v       v         B (or I) reads what the F of its own stage kept
    0B0 <-- 1B0 <-- 2B0        backward: from the next stage

A schedule is a list with one list of actions per rank: `schedule[rank]` is what that rank does, in
this order. schedules.py makes such lists, validate.py and simulate.py examine them, and stage.py
executes them. The last three read two things from the lists: the placement, which is the rank of
each stage, and the dependency graph, which says whose result an action needs. `Dependencies` holds
both.

p      ranks, so the length of a schedule
v      stages per rank, 1 unless stated otherwise; stages are 0 ... v p - 1 (Megatron: virtual
       stages)
m      micro-batches, 0 ... m-1

Which rank has a stage follows from the schedule: it is the rank whose list has the stage's actions.
Two placements have a name:

    stage    0 1 2 3 4 5 6 7  p = 4, v = 2
    loop     0 1 2 3 0 1 2 3  round the ranks, which is the default
    v_shape  0 1 2 3 3 2 1 0  down the ranks and up again: the first and the last stage share a rank

The notation is that of torch.distributed.pipelining. The split of backward into two halves is due
to Qi et al. (2024, arXiv 2401.10241), whose "B" is our I.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

KINDS = ("F", "B", "I", "W")
TEXT = re.compile(r"(\d+)([FBIW])(\d+)")


class Action(NamedTuple):
    """One stage's work on one micro-batch."""

    stage: int
    kind: str  # one of KINDS
    microbatch: int

    def __str__(self):
        return f"{self.stage}{self.kind}{self.microbatch}"


def parse(text: str) -> Action:
    """The Action that `text` stands for, such as "2F0". Raises ValueError if `text` is not of that
    form."""
    found = TEXT.fullmatch(text)
    if not found:
        raise ValueError(
            f"{text!r} is no action: write stage, one of {' '.join(KINDS)}, micro-batch, "
            f"as in '2F0'"
        )
    stage, kind, microbatch = found.groups()
    return Action(int(stage), kind, int(microbatch))


def source(action: Action, n_stages: int) -> Action | None:
    """The action of another stage whose result this one receives; None if it receives nothing.

    A forward receives the previous stage's output, a B or I the gradient of its own output from the
    next stage. Here that is an action of the same kind; `Dependencies` looks up whether the
    schedule has a B or an I there. n_stages: stages of the whole pipeline, v p.
    """
    stage, kind, microbatch = action
    if kind == "F" and stage > 0:
        return Action(stage - 1, kind, microbatch)
    if kind in "BI" and stage < n_stages - 1:
        return Action(stage + 1, kind, microbatch)
    return None


def target(action: Action, n_stages: int) -> Action | None:
    """The action of another stage that receives this one's result; None if none does. The reverse
    of `source`."""
    stage, kind, microbatch = action
    if kind == "F" and stage < n_stages - 1:
        return Action(stage + 1, kind, microbatch)
    if kind in "BI" and stage > 0:
        return Action(stage - 1, kind, microbatch)
    return None


def dependencies_of(action: Action, n_stages: int) -> list[Action]:
    """The actions whose results this one needs: first of its own stage, then of another."""
    stage, kind, microbatch = action
    own = {"F": None, "B": "F", "I": "F", "W": "I"}[kind]
    before = [Action(stage, own, microbatch)] if own else []
    received = source(action, n_stages)
    return before + [received] if received else before


def count_stages(schedule):
    """The number of stages in a schedule, v p."""
    return 1 + max(action.stage for actions in schedule for action in actions)


def loop(p: int, n_stages: int) -> list[int]:
    """[rank of stage 0, 1, ...]: stage s on rank s mod p."""
    return [stage % p for stage in range(n_stages)]


def v_shape(p: int, n_stages: int) -> list[int]:
    """[rank of stage 0, 1, ...]: 0 to p-1, then p-1 to 0, and so on: stages p-1 and p are on one
    rank."""
    return [stage % p if stage // p % 2 == 0 else p - 1 - stage % p for stage in range(n_stages)]


class Dependencies:
    """The placement of a schedule and the dependency graph of its actions, both read from the
    schedule: which rank has which stage, and which action needs whose result.

    n_stages: v p. ranks: [rank of stage 0, 1, ...], torch's stage_index_to_group_rank; None for a
    stage without actions in the schedule.
    """

    def __init__(self, schedule: Sequence[Sequence[Action]]) -> None:
        self.n_stages = count_stages(schedule)
        self.ranks: list[int] = [None] * self.n_stages  # type: ignore[list-item]
        for rank, actions in enumerate(schedule):
            for action in actions:
                self.ranks[action.stage] = rank
        # (stage, micro-batch) whose backward is I and W. A B may receive from an I, and vice versa.
        self.split_backwards = {
            (a.stage, a.microbatch) for actions in schedule for a in actions if a.kind == "I"
        }

    def rank(self, action: Action) -> int:
        """The rank that runs `action`."""
        return self.ranks[action.stage]

    def source(self, action: Action) -> Action | None:
        """`source`, with the kind of backward that the schedule has."""
        return self._as_listed(source(action, self.n_stages))

    def target(self, action: Action) -> Action | None:
        """`target`, with the kind of backward that the schedule has."""
        return self._as_listed(target(action, self.n_stages))

    def of(self, action: Action) -> list[Action]:
        """`dependencies_of`, with the kind of backward that the schedule has."""
        return [self._as_listed(need) for need in dependencies_of(action, self.n_stages)]

    def sender(self, action: Action) -> Action | None:
        """The action of another rank whose result `action` receives; None if it receives nothing
        from another rank."""
        return self._elsewhere(self.source(action), action)

    def receiver(self, action: Action) -> Action | None:
        """The action of another rank that receives the result of `action`; None if it stays on its
        rank."""
        return self._elsewhere(self.target(action), action)

    def _as_listed(self, action):
        if action is None or action.kind not in "BI":
            return action
        return action._replace(
            kind="I" if (action.stage, action.microbatch) in self.split_backwards else "B"
        )

    def _elsewhere(self, other, action):
        return other if other and self.rank(other) != self.rank(action) else None


def messages(schedule: Sequence[Sequence[Action]]) -> list[tuple[Action, Action]]:
    """[(action, target)] for every result that is sent to another rank: rank 0's in the order of
    sending, then rank 1's, ...

    With one stage per rank there are 2(p-1)m of them. With v stages on each of several ranks there
    are 2(v p - 1)m in a loop, and 2 v (p-1)m in a V, where a rank passes results to itself at every
    turn.
    """
    dependencies = Dependencies(schedule)
    pairs = [(action, dependencies.receiver(action)) for actions in schedule for action in actions]
    return [(action, to) for action, to in pairs if to]


def at_least_one(**sizes):
    """Raise a ValueError that names the first of these sizes that is below 1."""
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(
                f"{name} = {size}: a pipeline has at least 1 rank, "
                f"1 stage per rank and 1 micro-batch"
            )
