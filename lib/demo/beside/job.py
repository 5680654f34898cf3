"""The run that all make: a GPT of 209 thousand parameters, 4 steps of AdamW in fp32, and what is
noted along the way.

    a step      [ forward | loss | backward, gradients averaged ] k times      [ update ]
    noted              loss ^                  after backward ^             ^ after the step

N ranks hold B/N sequences each, in k micro-batches. What a side does of the averaging during
backward is its own affair: "after backward" the mean is there, in whatever a rank keeps of it.

The data are the same numbers on every machine and Python: a walk, each token the one before plus 0,
1 or 2. Losses are noted in float64 from the fp32 logits: float32 numbers near 4.4 are already 5e-7
apart. Adam's eps is 1e-3, or it would turn rounding into steps where a gradient is zero, as that of
attention's key bias is.
"""

import time
from typing import NamedTuple

import torch
import torch.distributed as dist

from lib import collectives, ledger
from lib.training import text as texts
from lib.training.model import Shape, cross_entropy
from lib.zero import live_bytes, start_counting

SHAPE = Shape(vocab_size=104, seq_len=32, n_layers=4, hidden=64, n_heads=4)
SEQUENCES, STEPS = 8, 4
BUCKET = 50_000  # elements that are sent together, on all sides: about a block


class Row(NamedTuple):
    """One side's run. Bytes are those of the rank that holds most; elements are of the last step,
    the ranks' mean."""

    who: str
    stage: int
    N: int  # ranks
    k: int  # micro-batches
    losses: list[float]  # of each step, before its update, over the whole batch
    after_backward: int  # bytes of live tensors
    after_step: int
    given: dict[str, float]  # {op: elements that a rank gives to it}; ours: {"send": ...}
    # elements that a rank sends: counted for ours, by rings for the collectives of others
    sent: float


def adamw(parameters):
    """The optimizer of all sides."""
    return torch.optim.AdamW(parameters, lr=3e-3, eps=1e-3, weight_decay=0.01, foreach=False)


def walk(length=20_000):
    """(length,) int64 on the CPU: a random walk through the vocabulary, of which a model
    can learn the steps."""
    with torch.device("cpu"):
        steps = torch.randint(3, (length,), generator=torch.Generator("cpu").manual_seed(0))
        return steps.cumsum(0) % SHAPE.vocab_size


def batch(data, step, rank=0, N=1):
    """tokens and targets of a rank's share of a step, (B/N, T) each."""
    return texts.batch(data, step, rank, N, SEQUENCES, SHAPE.seq_len)


def mean_loss(logits, targets):
    """The loss in float64, a Python number."""
    return cross_entropy(logits.detach().double(), targets).item()


def settled_bytes():
    """Live bytes. gloo's thread lets go of a tensor only a moment after the op has ended: the least
    of some looks."""
    looks = []
    for _ in range(3):
        time.sleep(0.02)
        looks.append(live_bytes())
    return min(looks)


def train(make, label, k, count=settled_bytes, steps=STEPS):
    """On every rank: train what make(k) makes. Returns (losses, after_backward, after_step), bytes
    of this rank.

    make(k): an object with forward(tokens) -> logits, backward(loss, last), both called k times,
    and step(). count() -> bytes; None: they are not asked for, and 0.
    The last step is the section `label` of the ledger, and the one whose bytes are counted.
    """
    rank, N, data = dist.get_rank(), dist.get_world_size(), walk()
    shares = [batch(data, step, rank, N) for step in range(steps)]
    counted = steps - 1 if count else None
    if count:
        start_counting()
    side, losses = make(k), []
    for step, (tokens, targets) in enumerate(shares):
        ledger.mark(label if step == steps - 1 else "")
        loss_here = 0.0
        for i in range(k):
            logits = side.forward(tokens.chunk(k)[i])  # (B/(N k), T, V)
            loss = cross_entropy(logits, targets.chunk(k)[i])
            loss_here += mean_loss(logits, targets.chunk(k)[i]) / k
            side.backward(loss, last=i == k - 1)
            del logits, loss
        after_backward = count() if step == counted else 0
        side.step()
        after_step = count() if step == counted else 0
        ledger.mark("")
        # The mean over the ranks' equal shares is the loss of the whole batch.
        losses.append(
            collectives.all_reduce(torch.tensor([loss_here / N], dtype=torch.float64)).item()
        )
    return losses, after_backward, after_step
