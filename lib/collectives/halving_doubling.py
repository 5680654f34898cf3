"""All-reduce by recursive halving, then doubling (Rabenseifner): few rounds and few bytes.

Reduce-scatter by halving, N = 4: exchange half of what you still hold, add, and continue with the
half you kept.

    distance 2  0 <-> 2, 1 <-> 3  ranks 0, 1 keep chunks 0 1, ranks 2, 3 keep 2 3  n/2 elements sent
    distance 1  0 <-> 1, 2 <-> 3  rank r keeps chunk r, and it is the sum of all   n/4 elements sent

All-gather by doubling has the same pairs in reverse order: distance 1, then 2. In all, 2 log2 N
rounds instead of the ring's 2(N-1), with as many elements per rank as the ring, 2(N-1)/N * n. But
half of a tensor is sent to a partner N/2 ranks away, whereas a ring needs neighbours only: over a
network with slow links between nodes, the ring may still be faster for long tensors.

If N is no power of two, there is a pre-step to P ranks (`fold`) and a post-step (`unfold`), as in
`doubling.py`.

Source: Rabenseifner 2004; Thakur, Rabenseifner, Gropp 2005, section 4.4.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from lib.backend import Group, Op
from lib.collectives import p2p
from lib.collectives.doubling import fold, unfold
from lib.collectives.local import (
    combiner,
    divide_if_average,
    flattened,
    largest_power_of_two,
    powers_of_two,
)


def halving_doubling_all_reduce(
    tensor: Tensor, group: Group = None, op: Op = dist.ReduceOp.SUM
) -> Tensor:
    """Reduce `tensor` over the ranks of `group`, in place; returns it.

    tensor: any shape, n elements, the same on every rank; n need not be a multiple of N.
    Sends: P ranks, the largest power of two up to N, exchange 2(P-1)n elements in 2 log2 P rounds.
    If N > P, fold and unfold add 2 rounds and 2(N-P)n elements.
    Bit-identical on all ranks: one rank computes each chunk's result, the others receive copies.
    """
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    P = largest_power_of_two(world_size)
    combine = combiner(op, tensor)
    with flattened(tensor) as x:
        received = torch.empty_like(x)
        fold(x, received, rank, P, world_size, group, combine)
        # chunk c is x[bounds[c]:bounds[c + 1]]; here the sizes may differ from tensor_split's
        bounds = [len(x) * chunk // P for chunk in range(P + 1)]
        block = lambda first, count: slice(bounds[first], bounds[first + count])

        if rank < P:
            for distance in reversed(powers_of_two(P)):  # halving: from P/2 down to 1 chunks kept
                partner = rank ^ distance
                keep, give = (
                    block(start_of(rank, distance), distance),
                    block(start_of(partner, distance), distance),
                )
                p2p.send_recv(x[give], partner, partner, group, out=received[keep])
                combine(x[keep], received[keep], out=x[keep])
            divide_if_average(x[block(rank, 1)], op, world_size)
            for distance in powers_of_two(P):  # doubling: from 1 up to P/2 chunks held
                partner = rank ^ distance
                have, get = (
                    block(start_of(rank, distance), distance),
                    block(start_of(partner, distance), distance),
                )
                p2p.send_recv(x[have], partner, partner, group, out=x[get])
        unfold(x, rank, P, world_size, group)
    return tensor


def start_of(rank: int, distance: int) -> int:
    """The index of the first of the `distance` chunks that `rank` holds: `rank` with the bits below
    `distance` cleared."""
    return rank - rank % distance
