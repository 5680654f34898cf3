"""Mixed precision over shards: each rank keeps fp32 masters of its own shard only.

    16 bits   shard of w --forward, backward, reduce-scatter--> shard of g            shard of w --all-gather--> w
                                                                   | copy up             ^ copy down
    fp32      master of the shard --------------------------> gradient --update--> master

2 + 2 + 12 bytes per parameter: 16-bit weight and gradient; master, momentum and variance of 4 each in the optimizer.
ZeRO-1 divides the 12 by N, ZeRO-2 the gradient's 2 as well, ZeRO-3 all 16. The fp32 gradient lives from copy_up to
zero_grad: 4/N more, and the 16-bit one's 2/N less, at a time when no activations are kept.
"""

from lib.precision import MasterWeights
from lib.zero.groups import params_of, with_params


class MasterShards(MasterWeights):
    """Any torch optimizer, on fp32 masters of 16-bit shards. What Zero1 and Zero2 make, or what steps FSDP's shards:

        zero = Zero2(model.parameters(), lambda groups: MasterShards(groups, lambda masters: AdamW(masters, lr=3e-4)))
        optimizer = MasterShards(fsdp.groups, lambda masters: AdamW(masters, lr=3e-4))

    groups: of shards. make_optimizer: called with the groups, masters in place of shards. A shard of 32 or 64 bits is
    its own master. Micro-batches are summed in 16 bits, unless you call copy_up() after each `average_gradients`; then
    clip `masters` instead of shards.
    """

    def __init__(self, groups, make_optimizer):
        super().__init__(params_of(groups), lambda masters: make_optimizer(with_params(groups, masters)))

    def step(self):
        """Copy up what was not, update the masters, and round them into the shards. Sends nothing."""
        self.copy_up()
        super().step()
