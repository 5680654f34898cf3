"""Clipping by the global norm: one norm for all gradients, however they are sharded (Pascanu et al.
2013).

    |g| = sqrt(sum over all elements of g^2)         g <- g * min(1, max_norm / |g|)

    rank 0   shard 0 of g     sum of its squares  9 --+
    rank 1   shard 1 of g     sum of its squares 16 --+-- all-reduce: 25 -->  |g| = 5 on every rank

Squares add up over shards, whereas norms do not. If each rank clipped by the norm of its own shard,
every shard would be scaled by a different factor, and the direction of the step would change.
Replicated gradients must not be added, because adding N equal sums of squares would make the norm
sqrt(N) times too large. You therefore have to name, for each set of parameters, the groups over
which it is sharded:

    data parallel, full gradients        no group
    ZeRO and FSDP shards                 the group of the shards
    tensor- and pipeline-parallel parts  both groups; only pp's for what is replicated over tp
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from lib import backend, collectives
from lib.backend import Collective, Group


@torch.no_grad()
def squared_norm(
    parameters: Iterable[Tensor],
    groups: Sequence[Group] = (),
    all_reduce: Collective = collectives.all_reduce,
) -> Tensor:
    """The sum of the squares of all gradients, () in float64, the same on every rank of each group.

    parameters: this rank's shards, with `.grad`; one without counts as 0. groups: those over which
    the parameters are sharded; the sum is all-reduced over each in turn, and None is the world, as
    everywhere. Padding with zeros adds nothing. Sends: an all-reduce of one number per group.
    """
    total = torch.zeros(1, dtype=torch.float64, device=backend.device())  # (1,)  partial
    for parameter in parameters:
        if parameter.grad is not None:
            # 16-bit squares would overflow (fp16) or lose their last bits.
            wide = torch.promote_types(parameter.grad.dtype, torch.float32)
            total += torch.linalg.vector_norm(parameter.grad, dtype=wide).to(total).square()
    for group in groups:
        all_reduce(total, group)
    return total[0]


@torch.no_grad()
def scale_gradients(parameters: Iterable[Tensor], norm: Tensor, max_norm: float) -> None:
    """g <- g * min(1, max_norm / |g|), in place. Sends nothing.

    norm: |g|, the same on every rank. The 1e-6 is the one in torch's clip_grad_norm_, so that both
    give the same bits.
    """
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.mul_(factor.to(parameter.grad.device))


def clip_gradients(
    parameters: Iterable[Tensor],
    max_norm: float,
    groups: Sequence[Group] = (),
    all_reduce: Collective = collectives.all_reduce,
) -> Tensor:
    """Scale all gradients by one factor so that their global norm is at most `max_norm`. Returns
    the norm before clipping, ().

    `parameters`, `groups` and what is sent are as in `squared_norm`. For ZeRO:
    clip_gradients(zero.shards, 1.0, [group]). If several sets are sharded over different groups,
    add their squares yourself:

        norm = (squared_norm(split, [tp, pp]) + squared_norm(replicated, [pp])).sqrt()
        scale_gradients([*split, *replicated], norm, max_norm)

    If the norm is inf or nan, every element of the gradients becomes 0 or nan, so with fp16 let
    LossScaler check the gradients first. Raises ValueError for a max_norm that is not above 0.
    """
    if not max_norm > 0:
        raise ValueError(f"max_norm is {max_norm}: it is a length, use a number above 0")
    parameters = list(parameters)
    norm = squared_norm(parameters, groups, all_reduce).sqrt()
    scale_gradients(parameters, norm, max_norm)
    return norm
