"""Broadcast and reduce down and up a binomial tree; all-reduce is a reduce and then a broadcast.

Broadcast from rank 0, N = 8: every rank that has the tensor forwards it, so the number of holders
doubles each round.

    round 0   0 -> 1
    round 1   0 -> 2   1 -> 3
    round 2   0 -> 4   1 -> 5   2 -> 6   3 -> 7

This takes ceil(log2 N) rounds of n elements, and fewer rounds are not enough. Reduce is the same
picture read from the bottom, with the arrows reversed and each arrival added. For any other root,
number the ranks from the root, v = (rank - root) mod N.

Source: Thakur, Rabenseifner, Gropp 2005; Chan, Heimlich, Purkayastha, van de Geijn 2007 ("minimum
spanning tree").
"""

import torch
import torch.distributed as dist
from torch import Tensor

from lib.backend import Group, Op
from lib.collectives import p2p
from lib.collectives.local import combiner, divide_if_average, powers_of_two


# exercise: lab0.broadcast
def broadcast(tensor: Tensor, src: int, group: Group = None) -> Tensor:
    """Copy `tensor` of rank `src` of `group` to every rank, in place; returns it.

    tensor: the same shape on every rank; read on `src`, filled on the others.
    Sends: each rank but `src` receives once; n elements per message, (N-1)n in all, and
    ceil(log2 N) messages from `src`.
    """
    world_size = dist.get_world_size(group)
    v = from_root(dist.get_rank(group), src, world_size)
    rank_of = lambda v: (v + src) % world_size
    for distance in powers_of_two(world_size):  # 1, 2, 4, ...: ranks v < distance have it
        if v < distance and v + distance < world_size:
            p2p.send(tensor, rank_of(v + distance), group)
        elif distance <= v < 2 * distance:
            p2p.recv(tensor, rank_of(v - distance), group)
    return tensor


def reduce(tensor: Tensor, dst: int, group: Group = None, op: Op = dist.ReduceOp.SUM) -> Tensor:
    """Reduce `tensor` over the ranks of `group` into rank `dst`'s `tensor`; returns it. The tensors
    of other ranks do not change.

    Sends: each rank but `dst` sends once, n elements; (N-1)n in all, in ceil(log2 N) rounds.
    """
    world_size = dist.get_world_size(group)
    v = from_root(dist.get_rank(group), dst, world_size)
    rank_of = lambda v: (v + dst) % world_size
    combine, x = combiner(op, tensor), tensor.detach()
    partial, received = x, torch.empty_like(x)
    total = x if v == 0 else torch.empty_like(x)
    # ..., 4, 2, 1: ranks v < 2*distance still take part
    for distance in reversed(powers_of_two(world_size)):
        if v < distance and v + distance < world_size:
            p2p.recv(received, rank_of(v + distance), group)
            partial = combine(partial, received, out=total)
        elif distance <= v < 2 * distance:
            p2p.send(partial, rank_of(v - distance), group)
    if v == 0:
        divide_if_average(x, op, world_size)
    return tensor


def tree_all_reduce(tensor: Tensor, group: Group = None, op: Op = dist.ReduceOp.SUM) -> Tensor:
    """Reduce `tensor` over the ranks of `group`, in place, up the tree to rank 0 and down again;
    returns it.

    Sends: 2 ceil(log2 N) rounds; 2(N-1)n elements in all, at most n ceil(log2 N) by one rank.
    Bit-identical on all ranks: rank 0 alone computes the result, and sends copies.
    """
    reduce(tensor, 0, group, op)
    return broadcast(tensor, 0, group)


def from_root(rank: int, root: int, world_size: int) -> int:
    """v, this rank's index counted from the root, which has v = 0."""
    p2p.check_rank("the root is", root, world_size)
    return (rank - root) % world_size
