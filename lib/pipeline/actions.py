"""What a rank does in a pipeline, action by action, and what each action needs from the others.

    2F0   stage 2 runs forward on micro-batch 0
    2B0   ... backward, whole: the gradients of its input and of its weights
    2I0   ... backward, first half: the gradient of its input, which stage 1 waits for
    2W0   ... backward, second half: the gradient of its weights, which nobody waits for

    0F0 --> 1F0 --> 2F0        forward: from the previous stage
             |       |
             v       v         B (or I) reads what its own F kept
    0B0 <-- 1B0 <-- 2B0        backward: from the next stage

A schedule is a list with one list of actions per rank: `schedule[rank]` is what that rank does, in this order.
All files of this room that decide (schedules, validate, simulate, grid) pass such lists around, and so does stage.py,
which executes them.

p      ranks, so the length of a schedule        stage s lives on rank s mod p
v      stages per rank, 1 if not said            stages are 0 ... vp-1
m      micro-batches                             0 ... m-1

Notation: torch.distributed.pipelining. Halves of backward: Qi et al. 2024, who call I "B".
"""

import re
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


def parse(text):
    """The Action that is written `text`, such as "2F0". Raises ValueError if `text` is not of that form."""
    found = TEXT.fullmatch(text)
    if not found:
        raise ValueError(f"{text!r} is no action: write stage, one of {' '.join(KINDS)}, micro-batch, as in '2F0'")
    stage, kind, microbatch = found.groups()
    return Action(int(stage), kind, int(microbatch))


def source(action, n_stages):
    """The action of another stage whose result this one receives; None if it receives nothing.

    A forward receives the previous stage's output, a B or I the gradient of its own output from the next stage.
    n_stages: stages of the whole pipeline, vp.
    """
    stage, kind, microbatch = action
    if kind == "F" and stage > 0:
        return Action(stage - 1, kind, microbatch)
    if kind in "BI" and stage < n_stages - 1:
        return Action(stage + 1, kind, microbatch)
    return None


def target(action, n_stages):
    """The action of another stage that receives this one's result; None if nobody does. The reverse of `source`."""
    stage, kind, microbatch = action
    if kind == "F" and stage < n_stages - 1:
        return Action(stage + 1, kind, microbatch)
    if kind in "BI" and stage > 0:
        return Action(stage - 1, kind, microbatch)
    return None


def inputs(action, n_stages):
    """All actions that must be done before this one: of its own stage, then of another."""
    stage, kind, microbatch = action
    own = {"F": None, "B": "F", "I": "F", "W": "I"}[kind]
    before = [Action(stage, own, microbatch)] if own else []
    received = source(action, n_stages)
    return before + [received] if received else before


def count_stages(schedule):
    """The number of stages that a schedule is about, vp."""
    return 1 + max(action.stage for actions in schedule for action in actions)


def messages(schedule):
    """[(action, target)] for every result that goes to another rank, by sender and in the order of sending.

    2(p-1)m of them with one stage per rank; 2(vp-1)m with v stages on each of several ranks.
    """
    p, n_stages = len(schedule), count_stages(schedule)
    pairs = [(action, target(action, n_stages)) for actions in schedule for action in actions]
    return [(action, to) for action, to in pairs if to and to.stage % p != action.stage % p]


def at_least_one(**sizes):
    """Raise ValueError for a size below 1, by its name."""
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} = {size}: a pipeline has at least 1 rank, 1 stage per rank and 1 micro-batch")
