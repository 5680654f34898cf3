"""Dropout over tp ranks: replicated tensors need the same mask on all ranks, and sharded tensors a
different one on each rank.

    where                              on the tp ranks   mask        otherwise
    after embedding, attention, MLP    replicated        the same    residual streams drift apart
    attention's weights                sharded by heads  of its own  heads 0 and H/tp drop the same
    in sequence parallel: all of them  sharded           of its own  tokens 0 and T/tp drop the same

The tp ranks of a group start from the same random state (the same torch.manual_seed), so they draw
the same masks, as the first row needs. For the other rows a rank draws one number, which is still
the same on all ranks, adds its rank, and uses the result as a temporary seed. Afterwards all ranks
return to the common state. So there is no second state to keep, and code that saves and restores
torch's random state (a checkpoint, recomputation) restores these masks too.

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
    """A context in which the ranks of `group` draw different numbers. Afterwards their random
    states are the same again.

    draws: False if the block is going to draw nothing, so that the random state does not change.
    Sends nothing.
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
    """nn.Dropout for tensors that are sharded over `group`: each rank draws a mask of its own."""

    def __init__(self, p: float, group: Group = None) -> None:
        super().__init__()
        self.p, self.group = p, group

    def forward(self, x: Tensor) -> Tensor:
        with own_random_numbers(self.group, self.training and self.p > 0):
            return F.dropout(x, self.p, self.training)
