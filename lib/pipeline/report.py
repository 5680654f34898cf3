"""A pipeline of a real model on one page: its slowest rank, its bubble, its memory and its MFU.

    a row of items      embedding, 126 blocks, head                       forward times
    balance             items --> p v stages, stage s on rank s mod p
    interleaved         stages --> a schedule of m micro-batches
    simulate            schedule and times --> idle time, and micro-batches x stages in flight

Llama 3 405B (arXiv 2407.21783, section 3.3.2) is the case of Lab 2: p = 16, and one block less on
the first and on the last rank.
"""

from collections.abc import Sequence

from lib.pipeline.balance import balance
from lib.pipeline.schedules import interleaved
from lib.pipeline.simulate import simulate


# exercise: lab2.pipeline_report
def pipeline_report(
    costs: Sequence[float], p: int, v: int, m: int, stage_gb: float, rank_mfu: float
) -> dict[str, float]:
    """Pace, bubble, memory and MFU of a model on p ranks with v stages each, m micro-batches.

    costs: forward time of each item in the row (embedding, blocks, head), any unit; a backward
        takes twice as long. The row is split into p*v stages by `balance`.
    stage_gb: what one stage keeps of one micro-batch in flight, GB. rank_mfu: MFU of a rank while
        it computes, 0 to 1.
    Returns {"pace": forward and backward time of one micro-batch on the slowest rank, all of its
    v stages; "bubble": idle share of all ranks' time; "memory": GB of activations on the fullest
    rank; "MFU": rank_mfu, with idle time included}. Messages take no time.
    """
    stages = balance(costs, p * v)
    forward = [sum(costs[i] for i in stage) for stage in stages]
    times = {"F": forward, "B": [2 * time for time in forward]}
    step = simulate(interleaved(p, m, v), times)
    return {
        "pace": max(sum(forward[rank::p] + times["B"][rank::p]) for rank in range(p)),
        "bubble": step.bubble,
        "memory": stage_gb * max(step.peak_kept),
        "MFU": rank_mfu * (1 - step.bubble),
    }
