r"""What a rank receives, when it must make room for it, and when it may forget what it sent: read from the schedule.

Messages from one rank to another arrive in the order in which they were sent, and nothing in them says which is which.
So a rank makes room for them in the order of the *sender's* list, whatever the order of its own:

    rank 0    0F0   0F1   0F2   ...            sends the results in this order
                 \     \     \
    rank 1       room  room  room              before 1F1 starts: room for 0F0 and for 0F1
              1F1   1F2   1F0   ...

Room is made one action ahead: while an action computes, what the next one needs may already arrive. So the buffers on
a rank are few, however long its list is.

A sent tensor must stay until it has arrived. Nobody confirms that, but a rank may conclude it: if what it has just
received could not exist unless the other rank had used the message, the message has arrived.

    rank 0   0F0 ---activation---> rank 1   1F0 1B0 ---gradient---> rank 0   0B0: so the activation has arrived

    past(a) = what is certainly done when a starts = the actions before a in its list, those whose results it needs,
              and the pasts of all these

The actions of a list are done in order, so a past is one number per rank: how many of its actions. (Such rows of
numbers are vector clocks: Fidge 1988, Mattern 1989.)
"""

from typing import NamedTuple

from lib.pipeline.actions import Action, count_stages, source, target
from lib.pipeline.validate import walk


class Step(NamedTuple):
    """One action of a rank, and what the rank does about messages around it, in this order."""

    post: list[Action]  # make room for the results of these actions of other ranks
    needs: Action | None  # wait for the result of this one
    over: list[Action]  # the results of these, sent by this rank, have now arrived for certain
    action: Action  # compute
    sends: bool  # send the result to another rank


def transfers(schedule):
    """[[Step, ...] of rank 0, of rank 1, ...]: the schedule's lists, with what each rank does about messages.

    schedule: a valid one. Raises ScheduleError for one that comes to a stand.
    """
    before = pasts(schedule)
    return [_steps(schedule, rank, before) for rank in range(len(schedule))]


def pasts(schedule):
    """{action: [how many actions of rank 0, 1, ... are certainly done when it starts]}"""
    n_stages = count_stages(schedule)
    before, after = {}, {None: [0] * len(schedule)}  # the past when an action starts, and when it has ended
    last = [None] * len(schedule)  # the last action of each rank
    for rank, action in walk(schedule):
        needed = source(action, n_stages)
        before[action] = [max(both) for both in zip(after[last[rank]], after[needed], strict=True)]
        after[action] = [n + (r == rank) for r, n in enumerate(before[action])]
        last[rank] = action
    return before


def _steps(schedule, rank, before):
    p, n_stages = len(schedule), count_stages(schedule)
    place = {action: i for actions in schedule for i, action in enumerate(actions)}

    def elsewhere(action):  # `action`, if there is one and it is another rank's
        return action if action and action.stage % p != rank else None

    def arrived(action, now):  # has its result been used, in the past of `now`?
        user = target(action, n_stages)
        return before[now][user.stage % p] > place[user]

    coming = [  # per sender: the actions whose results it sends here, in its order, less those that have room
        [a for a in actions if sender != rank and (to := target(a, n_stages)) and to.stage % p == rank]
        for sender, actions in enumerate(schedule)
    ]
    steps, under_way, mine = [], [], schedule[rank]
    for i, action in enumerate(mine):
        post = []
        for needed in (elsewhere(source(a, n_stages)) for a in mine[i : i + 2]):  # this action's, and the next one's
            while needed and needed in (queue := coming[needed.stage % p]):
                post.append(queue.pop(0))
        over = [a for a in under_way if arrived(a, action)]
        sends = elsewhere(target(action, n_stages)) is not None
        steps.append(Step(post, elsewhere(source(action, n_stages)), over, action, sends))
        under_way = [a for a in under_way if a not in over] + [action] * sends
    return steps


def in_flight(steps):
    """[(inbound, outbound), ...] while each action of a rank computes: messages, not counted by `simulate.kept`.

    inbound: there is room for them and they are not used up; what this action uses is one of them.
    outbound: sent, and not known to have arrived.
    """
    inbound = outbound = 0
    counts = []
    for step in steps:
        inbound += len(step.post)
        outbound -= len(step.over)
        counts.append((inbound, outbound))
        inbound -= step.needs is not None
        outbound += step.sends
    return counts
