"""Ours at every stage, torch's fully_shard, and one process: what `job.train` trains.

    forward(tokens) -> logits      backward(loss, last)      step()

At stages 0 and 1 micro-batches add up in the full gradient, which is averaged after the last; at 2
and 3 no rank has a full gradient, so each micro-batch is averaged.
"""

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from lib import backend, collectives
from lib.data_parallel import BucketedDataParallel
from lib.demo.beside.job import BUCKET, SHAPE, STEPS, adamw, batch, mean_loss, walk
from lib.training.model import GPT, cross_entropy
from lib.zero import PrefetchingFSDP, Zero1, Zero2


class Ours:
    """lib's, at a stage from 0 to 3."""

    def __init__(self, stage, k):
        self.stage, self.k, self.model = stage, k, GPT(SHAPE)
        if stage == 0:
            self.sharded = BucketedDataParallel(self.model, all_reduce=collectives.ring_all_reduce)
            self.optimizer = adamw(self.model.parameters())
        elif stage == 3:
            self.sharded = PrefetchingFSDP(self.model, self.model.blocks)
            self.optimizer = adamw(self.sharded.groups)
        else:
            kind = Zero1 if stage == 1 else Zero2
            # bytes
            self.sharded = self.optimizer = kind(
                self.model.parameters(), adamw, capacity=4 * BUCKET
            )

    def forward(self, tokens):
        """tokens (B, T) -> logits (B, T, V)."""
        return self.model(tokens)

    def backward(self, loss, last):
        """Gradients of one micro-batch; after the last the mean over ranks and
        micro-batches is there."""
        (loss / self.k).backward()
        if last or self.stage >= 2:
            self.sharded.average_gradients()

    def step(self):
        """Update, and forget the gradients."""
        self.optimizer.step()
        self.optimizer.zero_grad()


class FullyShard:
    """torch's FSDP2: a block is a unit, the rest the root."""

    def __init__(self, k):
        self.k, self.model = k, GPT(SHAPE)
        mesh = init_device_mesh(backend.device().type, (dist.get_world_size(),))
        for block in self.model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.optimizer = adamw(self.model.parameters())

    def forward(self, tokens):
        """tokens (B, T) -> logits (B, T, V)."""
        return self.model(tokens)

    def backward(self, loss, last):
        """Gradients of one micro-batch, reduce-scattered during backward."""
        (loss / self.k).backward()

    def step(self):
        """Update, and forget the gradients."""
        self.optimizer.step()
        self.optimizer.zero_grad()


def one_process():
    """The losses of one process on the whole batch: what all others must reach. Sends nothing."""
    model, data, losses = GPT(SHAPE), walk(), []
    optimizer = adamw(model.parameters())
    for step in range(STEPS):
        tokens, targets = batch(data, step)  # (B, T) each
        logits = model(tokens)
        losses.append(mean_loss(logits, targets))
        cross_entropy(logits, targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    return losses
