"""What a pipeline did, from the bars that its ranks recorded: a Simulation to draw, and the times
to simulate it with.

    # results: what Pipeline.run(..., record=...) recorded on every rank
    bars = [bar for rank_bars in results for bar in rank_bars]
    run = recorded(bars)                                 # as it ran
    # as it would run if every F took the mean F, ...
    predicted = simulate(run.schedule, *times_of(bars))
    run.makespan / predicted.makespan                    # what the simulation leaves out

A bar's length is its action's time. A message's time lies between two bars: from the end of the
action whose result it is to the start of the action that needs it, if the receiver was waiting
when it was sent,

    rank 0   [ 0F3 ]                          message = start(1F3) - end(0F3)
                   `--------.
    rank 1   [1F2] waiting   [ 1F3 ]          1F2 ended before 0F3 did

If the receiver was computing, the message's time is unknown, because the action started when the
receiver was free, and the message may have arrived long before.

The measured and the predicted makespan differ by what the simulation leaves out: variation between
the F of a stage, messages that slow each other down, and what a rank does between two actions.
"""

from collections.abc import Sequence
from math import inf
from statistics import mean
from typing import Any

from lib.pipeline.actions import Dependencies
from lib.pipeline.simulate import Simulation


def recorded(bars: Sequence[Any]) -> Simulation:
    """All ranks' bars of one run as a Simulation, whose schedule is the order in which they ran; it
    begins at 0.

    bars: of all ranks, in any order, with times of one clock.
    """
    begin = min(bar.start for bar in bars)
    bars = sorted(
        (bar._replace(start=bar.start - begin, end=bar.end - begin) for bar in bars), key=_in_order
    )
    p = 1 + max(bar.rank for bar in bars)
    return Simulation([[bar.action for bar in bars if bar.rank == rank] for rank in range(p)], bars)


def times_of(bars: Sequence[Any]) -> tuple[dict[str, list[float]], list[float]]:
    """(times, message) for `simulate`, in seconds, from all ranks' bars of one run.

    times: {kind: [mean length of that kind's bars at stage 0, 1, ...]}, of the kinds that ran.
    message: [mean time of a message between stages s and s+1, either way, ...], of those that were
        waited for. If no receiver was waiting, no message was timed, and the entry is the shortest
        time from a result to its use. That message took no longer than this, but another one may
        have: it bounds the mean from above only if all messages between the two stages take equal
        time. 0 between stages of one rank.
    """
    n_stages = 1 + max(bar.action.stage for bar in bars)
    lengths = {}
    for bar in bars:
        lengths.setdefault((bar.action.kind, bar.action.stage), []).append(bar.end - bar.start)
    kinds = [kind for kind in "FBIW" if (kind, 0) in lengths]
    times = {kind: [mean(lengths[kind, stage]) for stage in range(n_stages)] for kind in kinds}

    waited, all_of_them = ([[] for _ in range(n_stages - 1)] for _ in range(2))
    for sent, received, free in _messages(bars):
        edge, time = min(sent.action.stage, received.action.stage), received.start - sent.end
        all_of_them[edge].append(time)
        if free <= sent.end:
            waited[edge].append(time)
    message = [
        mean(some or [min(every, default=0)])
        for some, every in zip(waited, all_of_them, strict=True)
    ]
    return times, message


def _messages(bars):
    """(the sender's bar, the receiver's bar, the time at which the receiver became free) of each
    message."""
    by_action = {bar.action: bar for bar in bars}
    dependencies = Dependencies(recorded(bars).schedule)
    free = {}  # rank: the end of its latest bar so far
    for bar in sorted(bars, key=_in_order):
        sent = by_action.get(dependencies.source(bar.action))
        if sent and sent.rank != bar.rank:
            yield sent, bar, free.get(bar.rank, -inf)
        free[bar.rank] = bar.end


def _in_order(bar):
    return bar.rank, bar.start
