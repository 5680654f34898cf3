"""Executes any valid list of actions on ranks: what each action waits for, and when tensors are
sent. The function that computes is an argument.

    rank 0  0F0 ---activation---> rank 1  1F0
            0B0 <---gradient-----         1B0

Each rank runs its own list. There is no coordinator: an action waits for what it needs, and for
nothing else. For each action, in the order of the list:

    post      receives of what this action and the next one need
    wait      until what this action needs has arrived
    free      what was sent and has certainly arrived by now (transfers.py explains why)
    compute
    send      the result to the rank that needs it, without waiting

So a rank waits only in order to receive, which is what `validate` assumes, and a schedule that it
accepts cannot deadlock. `transfers` determines in advance which messages each of these lines means.
"""

import time

import torch

from lib import backend
from lib.pipeline.simulate import Bar


def execute(steps, dependencies, compute, shape_of, links, record=None):
    """Run this rank's list of a schedule. All ranks of `links` have to call it.

    steps: this rank's entry of `transfers(schedule)`.
    dependencies: `Dependencies(schedule)`, the placement of its stages and the dependency graph of
        its actions.
    compute: compute(action, given) -> the tensor that `dependencies.target(action)` needs, or None
        if there is none. given: the result of `dependencies.source(action)`, received or made on
        this rank; None if it has no source.
    shape_of: shape_of(action) -> (shape, dtype) of the result of an action of another rank.
    record: called after each action with its Bar (rank, action, start, end), in seconds of a clock
        that the ranks of a machine share. The start is the time when everything that the action
        needs has arrived. On a GPU the rank waits for its stream before it reads the clock.
    Sends: every result that another rank needs, once.
    """
    recv_buffers = {}  # action of another rank: (buffer, its receive)
    sent = {}  # action: the send of its result
    local_results = {}  # action: its result, for another action of this rank

    for recvs_to_post, waits_on, sends_completed, action, sends in steps:
        for a in recvs_to_post:
            shape, dtype = shape_of(a)
            out = torch.empty(shape, dtype=dtype)
            recv_buffers[a] = out, links.receive(out, dependencies.rank(a))
        given = local_results.pop(dependencies.source(action), None)
        if waits_on:
            given, arriving = recv_buffers.pop(waits_on)
            arriving.wait()
        for a in sends_completed:
            sent.pop(a).wait()

        began = _clock(record)
        result = compute(action, given)
        if record:
            record(Bar(links.rank, action, began, _clock(record)))

        if sends:
            sent[action] = links.send(result, dependencies.rank(dependencies.target(action)))
        elif dependencies.target(action):
            local_results[action] = result
        # keep no tensor alive while waiting for the next one
        given = result = out = arriving = None

    for work in sent.values():
        work.wait()


def _clock(record):
    """The time in seconds; if times are recorded, after all work on this stream has finished."""
    if record:
        backend.synchronize_stream()
    return time.monotonic()
