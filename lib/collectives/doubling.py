"""All-reduce by recursive doubling: log2 N exchanges of the full tensor. If N is a power of two,
no algorithm has fewer rounds, so this one suits short tensors.

    distance 1   0 <-> 1   2 <-> 3   4 <-> 5   6 <-> 7      each pair has the sum of its 2
    distance 2   0 <-> 2   1 <-> 3   4 <-> 6   5 <-> 7      ... of 4
    distance 4   0 <-> 4   1 <-> 5   2 <-> 6   3 <-> 7      ... of all 8

Partner = rank with one bit flipped, rank XOR distance. Every rank sends n elements in each round,
so it loses to the ring once n is long; but while a message's latency costs more than its bytes,
log2 N rounds beat the ring's 2(N-1).

If N is no power of two, only P ranks do this, P being the largest power of two below N. In a
pre-step (`fold`) rank P+i sends its tensor to rank i, which adds it to its own; in a post-step
(`unfold`) rank P+i receives the result. That makes two more rounds.

Source: Thakur, Rabenseifner, Gropp 2005, section 4.4.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from lib.backend import Group, Op
from lib.collectives import p2p
from lib.collectives.local import combiner, divide_if_average, largest_power_of_two, powers_of_two


def recursive_doubling_all_reduce(
    tensor: Tensor, group: Group = None, op: Op = dist.ReduceOp.SUM
) -> Tensor:
    """Reduce `tensor` over the ranks of `group`, in place; returns it.

    tensor: any shape, n elements, the same on every rank. Sends: log2 N rounds of n elements a
    rank; if N is not a power of two, log2 P + 2 rounds. Bit-identical on all ranks: both partners
    compute lower + upper, in this order, from the same two partial sums.
    """
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    P = largest_power_of_two(world_size)
    combine, x = combiner(op, tensor), tensor.detach()
    received = torch.empty_like(x)

    fold(x, received, rank, P, world_size, group, combine)
    if rank < P:
        for distance in powers_of_two(P):
            partner = rank ^ distance
            p2p.send_recv(x, partner, partner, group, out=received)
            lower, upper = (x, received) if rank < partner else (received, x)
            combine(lower, upper, out=x)
        divide_if_average(x, op, world_size)
    unfold(x, rank, P, world_size, group)
    return tensor


def fold(
    x: Tensor, received: Tensor, rank: int, P: int, world_size: int, group: Group, combine: Callable
) -> None:
    """The pre-step for an N that is no power of two: ranks P, P+1, ... send their x to ranks 0, 1,
    ..., which add it to theirs. It does nothing if N = P."""
    if rank >= P:
        p2p.send(x, rank - P, group)
    elif rank + P < world_size:
        p2p.recv(received, rank + P, group)
        combine(x, received, out=x)


def unfold(x: Tensor, rank: int, P: int, world_size: int, group: Group) -> None:
    """The post-step, the reverse of `fold`: ranks P, P+1, ... receive the result from ranks 0, 1,
    ..."""
    if rank >= P:
        p2p.recv(x, rank - P, group)
    elif rank + P < world_size:
        p2p.send(x, rank + P, group)
