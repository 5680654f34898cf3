"""Runs a schedule on ranks whose stages sleep for given times, so that few cores can emulate p
devices.

    simulate   a computed clock             0F0 takes 8, 1F0 starts at 8 + message
    run_paced  real messages, real waits    0F0 sleeps 8 ms, 1F0 starts when the message is there

Ranks that compute share the machine's cores, so that a rank computes faster while another one is in
a bubble. Ranks that sleep do not share anything (lib/measuring/paced.py), so bubbles are as long
here as on p devices, for any number of ranks. The executor and its messages are real; over loopback
a message takes little time, and inside `collectives.slow_link` it takes as long as that link's
latency and bandwidth say.
"""

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import torch

from lib.collectives import barrier
from lib.measuring.paced import PacedStage
from lib.pipeline.actions import Action, Dependencies
from lib.pipeline.stage import Pipeline

WIDTH = 64  # elements of a row: little to compute


def run_paced(
    schedule: Sequence[Sequence[Action]], times: Mapping[str, Any], links: Any, rows: int = 1
) -> list:
    """Execute `schedule` on all ranks of the world, each of which calls it; returns this rank's
    bars, in seconds.

        schedule, times = one_f_one_b(4, 8), {"F": 8e-3, "B": 16e-3}
        results = launch.run(lambda: run_paced(schedule, times, connect()), nproc=4)
        bars = [bar for rank_bars in results for bar in rank_bars]   # for `recorded` and `times_of`

    times: as for `simulate`, in seconds: F and B, or F, I and W; numbers, or lists with one per
        stage. A B is half I, half W. Choose milliseconds: a sleep ends about 0.1 ms late.
    links: of one pipeline of all ranks. rows: of every micro-batch; a message has 256 bytes for
    each. Sends: twice, what making a `Pipeline` sends, a barrier, and what its `run` sends. The
    first time is a warm-up, in which all times are 0.
    """
    stage_ranks, m = (
        Dependencies(schedule).ranks,
        1 + max(action.microbatch for actions in schedule for action in actions),
    )
    n_stages = len(stage_ranks)

    def per_stage(time):
        return [time] * n_stages if isinstance(time, Real) else time

    F = per_stage(times["F"])
    if "B" in times:
        I = W = [time / 2 for time in per_stage(times["B"])]
    else:
        I, W = per_stage(times["I"]), per_stage(times["W"])

    xs, bars = [torch.ones(rows, WIDTH)] * m, []
    for pace in (0, 1):
        stages = [PacedStage(WIDTH, pace * F[s], pace * I[s], pace * W[s]) for s in range(n_stages)]
        pipeline = Pipeline(stages, links, xs, lambda *_: stage_ranks)
        bars.clear()
        barrier()
        pipeline.run(schedule, xs, xs, lambda y, target: y.mean(), bars.append)
    return bars
