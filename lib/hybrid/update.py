"""Two ways to average the gradients over the data ranks and to update the parameters: each rank
updates all of its parameters, or only its shard of them.

                      gradients       update       optimizer state  sent per rank
    ReplicatedUpdate  all-reduce      all of them  replicated       2 (N-1)/N psi
    ShardedUpdate     reduce-scatter  a shard      1/N              2 (N-1)/N psi, padded

N ranks, each with psi parameters. The first is plain data parallelism, as in torch's
DistributedDataParallel; the second is ZeRO-1, as in Megatron-LM's DistributedOptimizer. Both are
used in the same way, so `Hybrid` takes either. N includes context ranks, because they have the same
parameters.
"""

from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lib.backend import Group
from lib.data_parallel import reduce_bucket
from lib.training.buckets import plan_buckets
from lib.zero import Zero1


class ReplicatedUpdate:
    """Plain data parallelism, with Zero1's methods. The parameters have to be the same on all ranks
    of `group` already; they are not broadcast.

    groups: parameter groups. make_optimizer(groups) -> a torch optimizer.
    """

    shards_over = ()  # groups

    def __init__(
        self,
        groups: Iterable[dict],
        make_optimizer: Callable[..., torch.optim.Optimizer],
        group: Group,
    ) -> None:
        self.optimizer, self.group = make_optimizer(groups), group
        self.buckets = [bucket for g in groups for bucket in plan_buckets(g["params"])]

    def average_gradients(self) -> None:
        """Replace every `.grad` by its mean over the ranks. Sends: an all-reduce per bucket."""
        for bucket in self.buckets:
            reduce_bucket(bucket, self.group)

    def step(self) -> None:
        """Update. Sends nothing."""
        self.optimizer.step()

    def zero_grad(self) -> None:
        """Clear the gradients."""
        self.optimizer.zero_grad()

    def held(self, parameters: Iterable[nn.Parameter]) -> list[Tensor]:
        """The tensors whose `.grad` has this rank's gradients of these parameters: here the
        parameters themselves."""
        return list(parameters)

    def lines(self) -> list:
        """[([parameter], the tensor that the optimizer updates for it), ...] in the optimizer's
        order, for a checkpoint (state.py). Here the tensor is the parameter itself."""
        return [([p], p) for g in self.optimizer.param_groups for p in g["params"]]

    def own_piece(self, line: Tensor, mine: Tensor) -> Tensor:
        """This rank's part of `line`, (n,), which has the elements of one entry of `lines`. Here it
        is all of them, in the shape of `mine`."""
        return line.view(mine.shape)


class ShardedUpdate(Zero1):
    """ZeRO-1 over the data ranks. Rank 0's parameters are broadcast."""

    @property
    def shards_over(self) -> list:
        """[the group over whose ranks the averaged gradients are sharded]"""
        return [self.group]

    def held(self, parameters: Iterable[nn.Parameter]) -> list[Tensor]:
        """The tensors whose `.grad` has this rank's gradients of these parameters: the shards of
        their flats."""
        wanted = set(parameters)
        return [flat.shard for flat in self.flats if flat.parameters[0] in wanted]

    def lines(self) -> list:
        """[([parameter, ...] of a flat, this rank's shard of the flat), ...] in the optimizer's
        order."""
        return [(flat.parameters, flat.shard) for flat in self.flats]

    def own_piece(self, line: Tensor, mine: Tensor) -> Tensor:
        """This rank's part of `line`, (n,), which has the elements of a flat. Here it is the rank's
        shard, (padded/N,)."""
        rank, world_size = dist.get_rank(self.group), dist.get_world_size(self.group)
        padding = line.new_zeros(world_size * len(mine) - len(line))
        return torch.cat([line, padding]).chunk(world_size)[rank]
