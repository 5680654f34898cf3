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

    recvs_to_post: list[Action]  # make room for the results of these actions of other ranks
    waits_on: Action | None  # wait for the result of this one
    sends_completed: list[Action]  # the results of these, sent by this rank, have now arrived for certain
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
    n_stages, mine = count_stages(schedule), schedule[rank]
    waits_on = [_of_another_rank(source(action, n_stages), rank, schedule) for action in mine]
    sends = [_of_another_rank(target(action, n_stages), rank, schedule) is not None for action in mine]
    recvs_to_post = _recvs_to_post(waits_on, _arriving(schedule, rank))
    sends_completed = _sends_completed(mine, sends, schedule, before)
    return [Step(*of_one) for of_one in zip(recvs_to_post, waits_on, sends_completed, mine, sends, strict=True)]


def _of_another_rank(action, rank, schedule):
    """`action`, if there is one and it is another rank's; else None."""
    return action if action and action.stage % len(schedule) != rank else None


def _arriving(schedule, rank):
    """[the actions whose results rank 0, 1, ... sends here, in the order of its list]"""
    p, n_stages = len(schedule), count_stages(schedule)
    comes_here = lambda action: (to := target(action, n_stages)) and to.stage % p == rank
    return [
        [action for action in actions if sender != rank and comes_here(action)]
        for sender, actions in enumerate(schedule)
    ]


def _recvs_to_post(waits_on, arriving):
    """Per action: the receives to post before it, so that its own message has room, and the next action's too.

    Receives from one rank are posted in its order: before a message all that come earlier.
    """
    p, lists = len(arriving), []
    for i in range(len(waits_on)):
        posts = []
        for needed in waits_on[i : i + 2]:
            while needed and needed in (queue := arriving[needed.stage % p]):
                posts.append(queue.pop(0))
        lists.append(posts)
    return lists


def _sends_completed(mine, sends, schedule, before):
    """Per action: what was sent earlier, and has been used in the past of this action."""
    p, n_stages = len(schedule), count_stages(schedule)
    place = {action: i for actions in schedule for i, action in enumerate(actions)}

    def has_been_used(sent, now):
        user = target(sent, n_stages)
        return before[now][user.stage % p] > place[user]

    lists, under_way = [], []
    for action, is_sent in zip(mine, sends, strict=True):
        lists.append([sent for sent in under_way if has_been_used(sent, action)])
        under_way = [sent for sent in under_way if sent not in lists[-1]] + [action] * is_sent
    return lists


def in_flight(steps):
    """[(inbound, outbound), ...] while each action of a rank computes: messages, not counted by `simulate.kept`.

    inbound: there is room for them and they are not used up; what this action uses is one of them.
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
