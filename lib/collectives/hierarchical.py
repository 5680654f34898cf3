"""All-reduce in two levels: fast links inside a node (intra-node), slow links between nodes
(inter-node).

    node 0: ranks 0 1 2 3    inside: my node's ranks     across: same index in every node
    node 1: ranks 4 5 6 7            0 1 2 3 | 4 5 6 7           0 4 | 1 5 | 2 6 | 3 7

    1. inside, reduce-scatter   rank i of each node has chunk i, summed over its node     fast links
    2. across, all-reduce       of that chunk alone: n/R elements instead of n            slow links
    3. inside, all-gather       every rank has every chunk, summed over all nodes         fast links

R ranks per node, M nodes. Each node sends 2(M-1)/M n elements over its slow link, whatever R is, in
2(M-1) rounds. A flat ring over N = M R ranks sends 2(N-1)/N n there, and all its 2(N-1) rounds run
at the slow link's speed.

Source: BlueConnect (Cho et al. 2019), which decomposes all-reduce like this over any number of
levels.
"""

import torch.distributed as dist
from torch import Tensor

from lib.backend import Group, Op
from lib.collectives.local import flattened
from lib.collectives.ring import ring_all_gather, ring_all_reduce, ring_reduce_scatter


# exercise: lab0.hierarchical_all_reduce
def hierarchical_all_reduce(
    tensor: Tensor, inside: Group, across: Group, op: Op = dist.ReduceOp.SUM
) -> Tensor:
    """Reduce `tensor` over all ranks of all nodes, in place; returns it.

    tensor: any shape, the same on every rank. inside, across: this rank's two groups, from
    `node_groups`; every node needs the same number of ranks (so that for AVG the mean of the nodes'
    means is the mean over all ranks).
    Sends: 2(R-1) rounds inside, 2(M-1) across; over all ranks 2 M (R-1) n elements inside and
    2(M-1) n across. Bit-identical on all ranks: one rank computes each chunk's result, the others
    receive copies.
    """
    with flattened(tensor) as x:
        chunk = ring_reduce_scatter(x, inside, op)  # (n/R,)  summed over my node
        ring_all_reduce(chunk, across, op)  #         (n/R,)  summed over all nodes
        ring_all_gather(chunk, inside, out=x)  #      (n,)
    return tensor


def node_groups(ranks_per_node: int) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    """This rank's (inside, across) groups, where a node is `ranks_per_node` consecutive global
    ranks.

    Every rank of the world must call it (it makes M + R groups, all ranks in the same order).
    Raises ValueError if `ranks_per_node` does not divide the world size.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if world_size % ranks_per_node:
        raise ValueError(
            f"{world_size} ranks cannot form nodes of {ranks_per_node}: "
            f"every node needs the same number of ranks"
        )
    firsts = range(0, world_size, ranks_per_node)
    inside = [dist.new_group(range(first, first + ranks_per_node)) for first in firsts]
    across = [
        dist.new_group(range(local_rank, world_size, ranks_per_node))
        for local_rank in range(ranks_per_node)
    ]
    return inside[rank // ranks_per_node], across[rank % ranks_per_node]
