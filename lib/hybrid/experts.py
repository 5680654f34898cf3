"""Experts on the mesh: a GPT in which every other MLP is a mixture of experts. The experts are
split over ep, and attention over tp.

    rows over dp x ep  ep ranks are data ranks: each has its own rows, and E/ep of the experts
    attention          sharded over tp; its output is the same on all tp ranks
    mixture            each tp rank routes x and sends it over its own ep group; experts are not
                       sharded over tp

With a pipeline the auxiliary losses of the mixtures need care:

    stage 0    ... --> mixture --> + --> next stage            no loss here: the last stage has it
                          |auxiliary loss a_j of micro-batch j
                          +--> backward begins here too, with the weight of micro-batch j

    L = sum_j b_j/B (cross-entropy_j + sum over mixtures a_j)   this rank's rows: b_j of B in
                                                                micro-batch j

The loss is computed on the last stage, which does not have the a_j of mixtures on earlier stages.
Therefore each mixture starts the backward pass of its own a_j. `carry` returns the mixture's output
unchanged, and in backward gives a_j the gradient dL/da_j = b_j/B, whatever gradient arrives from
the later layers. (Megatron-LM: MoEAuxLossAutoScaler.)

The tp ranks compute the same experts on the same rows, which is wasteful but simple. Megatron-LM
shards the experts over tp as well, or lets tp ranks route different tokens.
"""

import copy

import torch
from torch import nn

from lib.backend import Group
from lib.moe.expert_parallel import ExpertParallelMoE
from lib.moe.gpt import MoEBlock
from lib.tensor_parallel import parallel_gpt
from lib.training.model import GPT


def expert_gpt(model: GPT, group: Group, ep: Group, rows: int) -> nn.Module:
    """This rank's part of `model`, a `lib.moe.gpt.MoEGPT` that is the same on all ranks. As the
    `split` of a Hybrid, pass partial(expert_gpt, ep=..., rows=...).

    group: the group over tp. ep: the group over ep. rows: B, the number of this rank's rows.
    The loss that a Hybrid returns is the cross-entropy only, but the gradients are those of all of
    L. Sends nothing. Raises ValueError if ep does not divide E, or tp does not divide a size.
    """
    plain = copy.deepcopy(model)
    for block in plain.blocks:
        if isinstance(block, MoEBlock):
            block.mlp = block.mlp.experts[0]  # any MLP that can be sharded; it is replaced below
    part = parallel_gpt(plain, group)
    for i, block in enumerate(model.blocks):
        if isinstance(block, MoEBlock):
            part.blocks[i] = ExpertBlock(
                part.blocks[i], ExpertParallelMoE(block.mlp, ep), model.auxiliary, model.z, rows
            )
    return part


class ExpertBlock(MoEBlock):
    """A ParallelBlock with a mixture in place of the MLP, whose backward includes the mixture's
    auxiliary losses: (b, t, D) -> (b, t, D)."""

    def __init__(self, block, moe, auxiliary, z, rows):
        super().__init__(block, moe)
        self.auxiliary, self.z, self.rows = auxiliary, z, rows

    def forward(self, x):
        y, seen = super().forward(x), self.mlp.last
        a = self.auxiliary * seen.auxiliary + self.z * seen.z  # ()
        return carry(y, len(x) / self.rows * a)


def carry(y, loss):
    """Return y, of any shape, unchanged. In backward `loss`, (), gets the gradient 1, as if it had
    been added to the final loss."""
    return _Carry.apply(y, loss)


class _Carry(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y, loss):
        ctx.one = torch.ones_like(loss)
        return y.view_as(y)

    @staticmethod
    def backward(ctx, dy):
        return dy, ctx.one
