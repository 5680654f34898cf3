"""A flat parameter, `Flat` for short: some parameters as one padded buffer, of which every rank
owns a shard.

    parameters  [      w (2, 3)       ] [  b (3)  ] [s] padding    n = 10, N = 4: padded to 12
    full        w00 w01 w02 w10 w11 w12 b0  b1  b2  s   0   0
    shards      [ shard 0 ] [ shard 1 ] [ shard 2 ] [ shard 3 ]    3 elements each, for any shapes

It is sharded by elements, not by parameters, so that all ranks own the same number of bytes and
one reduce-scatter or all-gather is enough for all parameters. A shard may contain parts of several
parameters without their shapes, so the optimizer must work element by element, as SGD and Adam do.
Muon and LAMB need the full matrix, and would compute something else on a shard.

The parameters become views of `full`, so filling this buffer sets the model's weights. All three
stages of ZeRO are built from flats; they differ in what stays unsharded, and in when it is
communicated.

Source: the flat parameter of PyTorch FSDP (Zhao et al. 2023, section 3.2.1: FlatParameter).
DeepSpeed pads in the same way.

Parameter groups: weights that decay and biases that do not are kept in different flats.

    group 0  {"params": [w0, w1, w2], "weight_decay": 0.1}
    flats    [w2 w1][w0]
    shards   {"params": [.., ..],     "weight_decay": 0.1}

    group 1  {"params": [b0, b1, b2], "weight_decay": 0.0}
    flats    [b2 b1 b0]
    shards   {"params": [..],         "weight_decay": 0.0}

An optimizer treats a shard as one tensor, so a flat may hold parameters of one group only.
"""

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lib import collectives
from lib.backend import Collective, Group
from lib.training.buckets import check_replicated, dense_gradient, slots
from lib.zero.guards import guard


def padded_size(n: int, world_size: int) -> int:
    """The smallest multiple of world_size that is not below n."""
    return -(-n // world_size) * world_size


class Flat:
    """`parameters`, of one dtype on one device, as one flat buffer that is sharded over the ranks
    of `group`. Rank 0's values are broadcast.

    n              elements of the parameters; `padded`: the same plus the zeros at the end
    full           (padded,)    the unsharded flat parameter: every rank's shard
    shard          (padded/N,)  this rank's shard, a view of `full`; a leaf, for the optimizer
    slots          views of `full` in the shapes of the parameters
    requires_grad  False for a flat of frozen parameters; all parameters of a flat have the same
    Sends: a broadcast of the buffer. Raises ValueError for a parameter of which the group's ranks
    have different shards (tensor parallelism) or different experts (expert parallelism).
    """

    def __init__(self, parameters: Iterable[Any], group: Group = None) -> None:
        self.parameters, self.group, self.world_size = (
            list(parameters),
            group,
            dist.get_world_size(group),
        )
        check_replicated(self.parameters, group)
        self.n = sum(p.numel() for p in self.parameters)
        self.padded = padded_size(self.n, self.world_size)
        self.full = self.parameters[0].detach().new_zeros(self.padded)
        self.slots = slots(self.full[: self.n], self.parameters)
        for parameter, slot in zip(self.parameters, self.slots, strict=True):
            slot.copy_(parameter.detach())
        self.attach()
        guard(self)
        # The ranks are equal now, and since their gradients are equal, they stay so after every
        # step.
        collectives.broadcast(self.full, 0, group)
        self.requires_grad = self.parameters[0].requires_grad
        self.shard = self.own_shard().detach().requires_grad_(self.requires_grad)
        self.reduce_dtype = self.shard.dtype  # of the gradients' sums over the ranks

    def gather(self, all_gather: Collective) -> None:
        """All-gather the ranks' shards into `full`."""
        all_gather(self.to_gather(), self.group, out=self.full)

    def to_gather(self) -> Tensor:
        """This rank's input to the all-gather that fills `full`."""
        return self.shard

    def own_shard(self) -> Tensor:
        """This rank's shard of `full`, a view of it."""
        return self.full.chunk(self.world_size)[dist.get_rank(self.group)]

    def attach(self) -> None:
        """Make the parameters views of `full`, in their own shapes."""
        for parameter, slot in zip(self.parameters, self.slots, strict=True):
            parameter.data = slot

    @torch.no_grad()
    def write_back(self) -> None:
        """Copy the current values of the parameters into the shard (FSDP's `writeback`). Sends
        nothing."""
        self.shard.copy_(self.own_shard())

    @torch.no_grad()
    def flatten_gradients(self) -> Tensor:
        """This rank's gradients, divided by N, in one new flat buffer, (padded,); sets the
        parameters' `.grad` to None.

        The sum of these buffers over the ranks is the mean gradient. A parameter that this rank did
        not use contributes zeros.
        """
        # Zeros, so that the padding's gradient is zero; otherwise the optimizer would change the
        # padding.
        buffer = self.shard.new_zeros(self.padded, dtype=self.reduce_dtype)
        views = slots(buffer[: self.n], self.slots)
        for parameter, slot in zip(self.parameters, views, strict=True):
            if dense_gradient(parameter) is not None:
                torch.div(parameter.grad, self.world_size, out=slot)
                parameter.grad = None
        return buffer

    @torch.no_grad()
    def add_gradient(self, shard: Tensor) -> None:
        """Add this rank's shard of the mean gradient, (padded/N,), to `self.shard.grad`: like
        backward, it accumulates."""
        shard = shard.to(self.shard.dtype)
        self.shard.grad = shard if self.shard.grad is None else self.shard.grad.add_(shard)


def parameter_groups(parameters: Iterable[Any]) -> list[dict]:
    """[{"params": [...], and the group's settings}, ...] from anything that torch's optimizers
    take: parameters, or such dicts.

    Frozen parameters are left out, and a tied one is taken once. This is a pure function. It raises
    ValueError if a trained parameter is in two groups, or if there is no parameter to train.
    """
    given = as_groups(parameters)
    groups = [
        {**g, "params": [p for p in dict.fromkeys(g["params"]) if p.requires_grad]} for g in given
    ]
    seen = [p for g in groups for p in g["params"]]
    if not seen:
        raise ValueError(
            "no parameter requires a gradient: there is nothing to shard, give the model's "
            "parameters"
        )
    if len(set(seen)) < len(seen):
        twice = next(p for i, p in enumerate(seen) if p in set(seen[:i]))
        raise ValueError(
            f"a {tuple(twice.shape)} parameter is in two groups: put it in one of them"
        )
    return groups


def as_groups(parameters):
    """[{"params": [...], and the group's settings}, ...] from parameters or from such groups.
    Frozen parameters stay in."""
    parameters = list(parameters)
    groups = (
        parameters if parameters and isinstance(parameters[0], dict) else [{"params": parameters}]
    )
    return [{**group, "params": list(group["params"])} for group in groups]


def with_params(groups, tensors):
    """The groups with `tensors` in place of their params: as many tensors, in the same order."""
    tensors = iter(tensors)
    return [{**group, "params": [next(tensors) for _ in group["params"]]} for group in groups]


def params_of(groups):
    """All tensors of all groups, in order."""
    return [tensor for group in groups for tensor in group["params"]]
