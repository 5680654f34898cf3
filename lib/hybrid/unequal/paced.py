"""Measures what unequal shares of the batch are worth, in data-parallel steps on ranks that emulate
devices of different speeds.

    rank 0, speed 4   [forward, backward of 8 rows][ all-reduce ]
    rank 1, speed 1   [forward, backward of 2 rows][ all-reduce ]    a row takes row_seconds / speed

A rank sleeps for each row instead of computing it (lib/measuring/paced.py), but gradients and
messages are real. The splits take turns, one step each, so that a second in which the machine is
slow affects all of them.
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
    """Returns on every rank ([[seconds of each step] of each of `splits`], the gradient of the last
    step, of WIDTH elements).

    splits: [[rows of rank 0, ...], ...]. speeds: one per rank; with speed 1 a row takes
    row_seconds, forward and backward together. Row i of the batch has the value i + 1, so the
    gradient of the mean loss is (B + 1) / 2 / WIDTH for every split. Sends: an all-reduce of WIDTH
    elements a step, and barriers.
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
