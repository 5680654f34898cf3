"""HSDP: shards inside a node, replicas across nodes (Zhao et al. 2023, section 3.2.2).

              S ranks of a node: group
    node 0    shard 0   shard 1   shard 2   shard 3      gather, reduce-scatter: 3 (S-1)/S psi, over the fast links
                 |         |         |         |
    node 1    shard 0   shard 1   shard 2   shard 3      R replicas of each shard: all-reduce of its gradient,
              one column: replicas                       2 (R-1)/R psi/S, over the slow ones

psi: padded parameters. FSDP over all S R ranks would send its 3 psi across nodes too, and wait for the slow link before
every unit. Here the nodes meet once per step, for an S-th of the gradients. The price is memory: a rank keeps 1/S of
the model state, not 1/(S R).
"""

import torch.distributed as dist

from lib import collectives
from lib.zero.prefetch import PrefetchingFSDP


class HSDP(PrefetchingFSDP):
    """PrefetchingFSDP over `group`, a node; used alike, and once per step, before clipping and the optimizer:

        hsdp.average_over_replicas()

    replicas: the group of the ranks that hold this rank's shard, one of each node. The values of its rank 0 count.
    To clip: clip_gradients(hsdp.shards, 1.0, [group]): replicas are equal, and would be counted R times.
    """

    def __init__(self, module, units, group, replicas, all_reduce=collectives.all_reduce, **named):
        for tensor in [*module.parameters(), *module.buffers()]:
            collectives.broadcast(tensor.detach(), 0, replicas)
        super().__init__(module, units, group, **named)
        self.replicas, self.all_reduce = replicas, all_reduce

    def average_over_replicas(self):
        """The mean of every shard's gradient over its replicas. Sends: an all-reduce of (padded/S,) per flat."""
        for shard in self.shards:
            shard.grad /= dist.get_world_size(self.replicas)
            self.all_reduce(shard.grad, self.replicas)
