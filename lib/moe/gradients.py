"""Experts and data parallelism: over which ranks each gradient is summed, and what divides the sum.

    dp = 2, ep = 2, E = 4  holds                           exchanges tokens  same experts (expert
                                                           (ep group)        data-parallel group)
    rank 0                 experts 0 1, all dense weights  0 1               0 2
    rank 1                 experts 2 3, all dense weights  0 1               1 3
    rank 2                 experts 0 1, all dense weights  2 3               0 2
    rank 3                 experts 2 3, all dense weights  2 3               1 3

Each of the N = dp * ep ranks has its own tokens and a loss L_r over them. The total loss is
L = 1/N sum_r L_r, so the gradient of every parameter w is

    g = 1/N sum_r dL_r/dw          over all N ranks

and the two kinds differ only in where the terms are after backward:

    dense   rank r has its own dL_r/dw                sum over all ranks,               divide by N
    expert  its rank received the tokens of the ep    sum over the ranks that have it,  divide by N
            group and their gradients, so it already
            has the sum over that group

A common mistake is to divide an expert's sum by the number of dp ranks that have it, which makes
its gradient ep times too large. Adam hides this, because its updates hardly depend on a constant
factor. SGD shows it, and so does the global norm by which gradients are clipped.

If ranks have different numbers of tokens, L is still the mean of the L_r. For the mean over all n
tokens, multiply each L_r by N n_r / n before backward.

Sources: GShard (Lepikhin et al. 2020); DeepSpeed-MoE (Rajbhandari et al. 2022), whose two kinds of
groups these are.
"""

import torch
import torch.distributed as dist
from torch import nn

from lib import collectives
from lib.backend import Collective, Group
from lib.moe.expert_parallel import ExpertParallelMoE
from lib.training.buckets import flatten, gradient, unflatten


def expert_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The parameters of this rank's experts, in all ExpertParallelMoE layers of `model`, in order,
    each once."""
    layers = [module for module in model.modules() if isinstance(module, ExpertParallelMoE)]
    return list(dict.fromkeys(p for layer in layers for p in layer.experts.parameters()))


# exercise: lab5.reduce_gradients
@torch.no_grad()
def reduce_gradients(
    model: nn.Module,
    expert_dp_group: Group,
    world: Group = None,
    all_reduce: Collective = collectives.all_reduce,
) -> None:
    """Replace every gradient of `model` by the gradient of the mean of all ranks' losses. Call it
    once, after backward.

    expert_dp_group: the ranks with the same experts as this one; `lib.collectives.node_groups(ep)`
    gives the ep group and this one. world: the group of all N ranks. Frozen parameters are left
    alone, and the gradients of unused ones count as zeros. Sends: an all-reduce of the experts'
    gradients over expert_dp_group and one of all others over `world`.
    """
    experts = expert_parameters(model)
    ids = set(map(id, experts))
    dense = [p for p in model.parameters() if id(p) not in ids]
    N = dist.get_world_size(world)
    # g = 1/N sum_r dL_r/dw
    for parameters, holders in ((dense, world), (experts, expert_dp_group)):
        gradients = [gradient(p) for p in parameters if p.requires_grad]
        if gradients:
            flat = flatten(gradients)  # (n,)  partial
            all_reduce(flat, holders)
            unflatten(flat / N, gradients)
