"""Prefetch: gather the next unit while this one computes.

    FSDP         gather 0 [ compute 0 ] gather 1 [ compute 1 ] gather 2 [ compute 2 ]
    prefetching  gather 0 [ compute 0 ][ compute 1 ][ compute 2 ]
                          [ gather 1 ] [ gather 2 ]             in backward: 1 while 2, 0 while 1

In backward the wire has two things to do beside the compute of a unit: gather the next one's
weights, and reduce-scatter the gradients of the one before. The gather is put in line first: the
next unit waits for it, and nothing waits for gradients until the step.

The price is memory: two units are whole at a time, and the root; and gradients of two, of which one
is on its way.

Sources: ZeRO-Infinity (Rajbhandari et al. 2021, section 6.2); PyTorch FSDP (Zhao et al. 2023,
section 3.3).

HSDP: shards inside a node, replicas across nodes (Zhao et al. 2023, section 3.2.2).

              S ranks of a node: group
    node 0  shard 0   shard 1   shard 2  shard 3  gather, reduce-scatter: 3 (S-1)/S psi, over the
                                                  fast links
               |         |         |        |
    node 1  shard 0   shard 1   shard 2  shard 3  R replicas of each shard: all-reduce of its
                                                  gradient,
            one column: replicas                  2 (R-1)/R psi/S, over the slow ones

psi: padded parameters. FSDP over all S R ranks would send its 3 psi across nodes too, and wait for
the slow link before every unit. Here the nodes meet once per step, for an S-th of the gradients.
The price is memory: a rank keeps 1/S of the model state, not 1/(S R).
"""

import torch
import torch.distributed as dist

from lib import collectives
from lib.zero.fsdp import FSDP


# exercise: lab4.PrefetchingFSDP
class PrefetchingFSDP(FSDP):
    """FSDP, with all communication on the communication thread, beside compute. Used alike.

    From forward to `average_gradients` the group is in use there.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.coming = {}  # {place: [work]}: gathers under way
        self.leaving = []  # [(flat, work)]: reduce-scatters under way, of one unit

    def fetch(self, place):
        """Begin to gather unit `place`, if there is such a unit and it is not there, or coming."""
        if (
            0 <= place < len(self.units)
            and place not in self.coming
            and not self.units[place].is_unsharded
        ):
            self.coming[place] = start_unshard(self.units[place])

    def take(self, place):
        """Wait until unit `place` is whole."""
        self.fetch(place)
        for work in self.coming.pop(place, []):
            work.wait()
        self.units[place].attach()

    def before_model(self):
        self.settle()
        self.backward_will_come = torch.is_grad_enabled() or self.root.is_unsharded
        works = start_unshard(self.root)
        self.fetch(0)
        for work in works:
            work.wait()
        self.root.attach()

    def after_model(self):
        if torch.is_grad_enabled():
            # backward begins where forward ended; the loss is computed meanwhile
            self.fetch(len(self.units) - 1)
        super().after_model()

    def before_forward(self, place):
        self.take(place)
        self.fetch(place + 1)

    def before_backward(self, place):
        self.take(place)
        self.fetch(place - 1)

    def after_backward(self, place):
        self.keep_gradients()  # of the unit before: two units' gradients at a time, no more
        self.send_gradients(self.units[place])
        self.units[place].reshard()

    def send_gradients(self, unit):
        self.leaving += [
            (flat, collectives.start(unit.reduce_scatter, flat.take_gradients(), flat.group))
            for flat in unit.trained
        ]

    def keep_gradients(self):
        for flat, work in self.leaving:
            flat.add_gradient(work.wait())
        self.leaving = []

    def average_gradients(self):
        """After each backward: what is left, and the root. Then the mean is in every
        shard's `.grad`."""
        for place in tuple(self.in_backward):
            self._end(place)
        self.send_gradients(self.root)
        self.root.reshard()
        self.settle()

    def settle(self):
        """Nothing under way, and no unit gathered that nobody came to use."""
        self.keep_gradients()
        for place in tuple(self.coming):
            self.take(place)
            self.units[place].reshard()


def start_unshard(unit):
    """Begin to gather a unit's parameters; returns the works. When all have ended,
    `attach()` it."""
    unit.allocate()
    return [
        collectives.start(unit.all_gather, flat.to_gather(), flat.group, out=flat.whole)
        for flat in unit.flats
    ]


class HSDP(PrefetchingFSDP):
    """PrefetchingFSDP over `group`, a node; used alike, and once per step, before clipping and the
    optimizer:

        hsdp.average_over_replicas()

    replicas: the group of the ranks that hold this rank's shard, one of each node. The values of
    its rank 0 count. To clip: clip_gradients(hsdp.shards, 1.0, [group]): replicas are equal, and
    would be counted R times.
    """

    def __init__(self, module, units, group, replicas, all_reduce=collectives.all_reduce, **named):
        for tensor in [*module.parameters(), *module.buffers()]:
            collectives.broadcast(tensor.detach(), 0, replicas)
        super().__init__(module, units, group, **named)
        self.replicas, self.all_reduce = replicas, all_reduce

    def average_over_replicas(self):
        """The mean of every shard's gradient over its replicas. Sends: an all-reduce of
        (padded/S,) per flat."""
        for shard in self.shards:
            shard.grad /= dist.get_world_size(self.replicas)
            self.all_reduce(shard.grad, self.replicas)
