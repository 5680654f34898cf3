r"""Reads from the schedule what a rank receives, when it must post the receive, and when it may
free what it sent.

Messages from one rank to another arrive in the order in which they were sent, and they carry no
tag that says which is which. So a rank posts its receives in the order of the *sender's* list,
whatever the order of its own:

    rank 0    0F0   0F1   0F2   ...            sends the results in this order
                 \     \     \
    rank 1       recv  recv  recv              before 1F1 starts: all three, for 1F1 and for 1F2
              1F1   1F2   1F0   ...

Receives are posted one action ahead: while an action computes, what the next one needs may already
arrive. So the buffers on a rank are few, however long its list is.

A sent tensor must stay in memory until it has arrived. No message confirms that, but a rank may
conclude it: if what it has just received could not exist unless the other rank had used the
message, the message has arrived.

    rank 0  0F0 --activation--> rank 1  1F0 1B0 --gradient--> rank 0  0B0: so the activation arrived

    past(a) = what is certainly done when a starts
            = the actions before a in its list, those whose results it needs,
              and the pasts of all these

The actions of a list are done in order, so a past needs only one number per rank: how many of its
actions are done. (Such rows of numbers are vector clocks: Fidge 1988, Mattern 1989.)
"""

from typing import NamedTuple

from lib.pipeline.actions import Action, Dependencies
from lib.pipeline.validate import walk


class Step(NamedTuple):
    """One action of a rank, and what the rank does about messages around it, in this order."""

    recvs_to_post: list[Action]  # receives of the results of these actions of other ranks
    waits_on: Action | None  # wait for the result of this one
    # the results of these, sent by this rank, have certainly arrived by now
    sends_completed: list[Action]
    action: Action  # compute
    sends: bool  # send the result to another rank


def transfers(schedule):
    """[[Step, ...] of rank 0, of rank 1, ...]: the schedule, together with the receives, waits
    and sends of each rank.

    schedule: a valid one. Raises ScheduleError for one that deadlocks.
    """
    dependencies, before = Dependencies(schedule), pasts(schedule)
    return [_steps(schedule, dependencies, rank, before) for rank in range(len(schedule))]


def pasts(schedule):
    """{action: [how many actions of rank 0, 1, ... are certainly done when it starts]}"""
    dependencies = Dependencies(schedule)
    # the past when an action starts, and when it has ended
    before, after = {}, {None: [0] * len(schedule)}
    last = [None] * len(schedule)  # the last action of each rank
    for rank, action in walk(schedule):
        needed = dependencies.source(action)
        before[action] = [max(both) for both in zip(after[last[rank]], after[needed], strict=True)]
        after[action] = [n + (r == rank) for r, n in enumerate(before[action])]
        last[rank] = action
    return before


def _steps(schedule, dependencies, rank, before):
    mine = schedule[rank]
    waits_on = [dependencies.sender(action) for action in mine]
    sends = [dependencies.receiver(action) is not None for action in mine]
    recvs_to_post = _recvs_to_post(waits_on, _arriving(schedule, dependencies, rank), dependencies)
    sends_completed = _sends_completed(mine, sends, schedule, dependencies, before)
    return [
        Step(*of_one)
        for of_one in zip(recvs_to_post, waits_on, sends_completed, mine, sends, strict=True)
    ]


def _arriving(schedule, dependencies, rank):
    """[the actions whose results rank 0, 1, ... sends here, in the order of its list]"""
    comes_here = lambda action: (
        (to := dependencies.receiver(action)) and dependencies.rank(to) == rank
    )
    return [[action for action in actions if comes_here(action)] for actions in schedule]


def _recvs_to_post(waits_on, arriving, dependencies):
    """Per action: the receives to post before it, so that its own message can arrive, and the next
    action's too.

    Receives from one rank are posted in the order of its list, so the receive of a message comes
    after those of all earlier ones.
    """
    lists = []
    for i in range(len(waits_on)):
        posts = []
        for needed in waits_on[i : i + 2]:
            while needed and needed in (queue := arriving[dependencies.rank(needed)]):
                posts.append(queue.pop(0))
        lists.append(posts)
    return lists


def _sends_completed(mine, sends, schedule, dependencies, before):
    """Per action: what was sent earlier, and has certainly been used when this action starts."""
    index = {action: i for actions in schedule for i, action in enumerate(actions)}

    def has_been_used(sent, now):
        user = dependencies.target(sent)
        return before[now][dependencies.rank(user)] > index[user]

    lists, pending = [], []
    for action, is_sent in zip(mine, sends, strict=True):
        lists.append([sent for sent in pending if has_been_used(sent, action)])
        pending = [sent for sent in pending if sent not in lists[-1]] + [action] * is_sent
    return lists


def in_flight(steps):
    """[(inbound, outbound), ...] while each action of a rank computes: messages, not counted by
    `simulate.kept`.

    inbound: their receives are posted, and no action that uses them has ended.
    outbound: sent, and not known to have arrived.
    """
    inbound = outbound = 0
    counts = []
    for step in steps:
        inbound += len(step.recvs_to_post)
        outbound -= len(step.sends_completed)
        counts.append((inbound, outbound))
        inbound -= step.waits_on is not None
        outbound += step.sends
    return counts
