"""Dropout over tp ranks: the same mask where tensors are replicated, another one on each rank where
they are sharded.

    where                              on the tp ranks   mask        or else
    after embedding, attention, MLP    replicated        the same    residual streams drift apart
    attention's weights                sharded by heads  of its own  heads 0 and H/tp drop the same
    in sequence parallel: all of them  sharded           of its own  tokens 0 and T/tp drop the same

The tp ranks of one group start from one random state (the same torch.manual_seed) and draw alike:
that is the first row. For the others a rank draws one number, still the same on all, adds its rank,
and continues from there for a while; afterwards all ranks return to the common state. So there is
no second state to keep: what saves and restores torch's random state (a checkpoint, recomputation)
restores these masks too.

Megatron-LM keeps a second state per rank instead (its `CudaRNGStatesTracker`), for the same two
kinds of masks.
"""

import contextlib
from collections.abc import Iterator

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from lib import backend
from lib.backend import Group


@contextlib.contextmanager
def own_random_numbers(group: Group = None, draws: bool = True) -> Iterator[None]:
    """The block draws numbers that differ between the ranks of `group`; afterwards their random
    states are the same again.

    draws: False if the block is going to draw nothing: then the random state stays as it is. Sends
    nothing.
    """
    if not draws:
        yield
        return
    seed = torch.randint(2**62, (), device="cpu").item()  # the same on all ranks of the group
    on_gpu = [backend.device().index] if backend.device().type == "cuda" else []
    with torch.random.fork_rng(devices=on_gpu):
        torch.manual_seed(seed + dist.get_rank(group))
        yield


class ShardedDropout(nn.Module):
    """nn.Dropout for what is sharded over `group`: each rank draws a mask of its own."""

    def __init__(self, p: float, group: Group = None) -> None:
        super().__init__()
        self.p, self.group = p, group

    def forward(self, x: Tensor) -> Tensor:
        with own_random_numbers(self.group, self.training and self.p > 0):
            return F.dropout(x, self.p, self.training)
