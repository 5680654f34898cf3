"""A data-parallel step on ranks that are as fast as they are told: what the shares are worth,
measured.

    rank 0, speed 4   [forward, backward of 8 rows][ all-reduce ]
    rank 1, speed 1   [forward, backward of 2 rows][ all-reduce ]    a row takes row_seconds / speed

Rows wait instead of computing (lib/measuring/paced.py); the gradients and messages are real. Splits
are measured side by side: one step of each, then again, so that a machine that is slow for a second
is slow for all of them.
"""

import time

import torch
import torch.distributed as dist
from torch import nn

from lib.collectives import barrier
from lib.hybrid.unequal.averaging import average_by_share
from lib.measuring.paced import PacedLayer

WIDTH = 1024  # parameters


def paced_steps(splits, speeds, row_seconds, steps, group=None):
    """On every rank: ([seconds of each step] for each of `splits`, the gradient of the last one,
    (WIDTH,)).

    splits: [[rows of rank 0, ...], ...]. speeds: one per rank; 1 computes a row there and back in
    row_seconds. Row i of the batch is i + 1, so the mean loss's gradient is (B + 1) / 2 / WIDTH
    whatever the split. Sends: an all-reduce of WIDTH numbers a step, and barriers.
    """
    rank = dist.get_rank(group)
    model = nn.Sequential(
        PacedLayer(WIDTH, row_seconds / 3 / speeds[rank], row_seconds * 2 / 3 / speeds[rank])
    )
    seconds = [[] for _ in splits]
    for _ in range(steps):
        for rows, found in zip(splits, seconds, strict=True):
            B, first = sum(rows), sum(rows[:rank])
            x = torch.arange(first + 1.0, first + rows[rank] + 1).unsqueeze(1)  # (b_r, 1)
            model.zero_grad()
            barrier(group)
            began = time.monotonic()
            if len(x):
                model(x).mean().backward()
            average_by_share(model.parameters(), rows[rank] / B, group)
            model[0].weight.grad[
                0
            ].item()  # on a GPU too, a step is over when its gradient can be read
            found.append(time.monotonic() - began)
    return seconds, model[0].weight.grad
