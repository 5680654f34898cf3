"""A GPT with experts: every other MLP is a mixture (GShard, Lepikhin et al. 2020, section 2.1).

    tokens -> embedding -> block 0 -> block 1 -> block 2 -> block 3 -> ... -> norm -> head -> logits
                           MLP        E MLPs     MLP        E MLPs
    one process            full       all E      full       all E
    on each of ep ranks    replicated E/ep       replicated E/ep            its own sequences

    L = cross-entropy + auxiliary * sum over layers of (E sum_e f_e P_e)
                      + z * sum over layers of (mean (log sum exp)^2)

With one expert per token (Switch), the experts have E times the parameters of the MLP that they
replace, and the same computation per token. With k experts per token, the computation is the same
if each expert has 1/k of the width. The router adds a little to both.

On ranks, each rank has its own sequences, and its loss is that of its own tokens. We train on the
mean of these losses; call `reduce_gradients` (gradients.py) after backward to get its gradients. A
single process computes the same if it calls `loss` once for each rank's sequences and takes the
mean.

B sequences of T tokens, E experts, ep ranks.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from lib import collectives
from lib.backend import Collective, Group
from lib.moe.capacity import Routing, assign_slots
from lib.moe.choice import Choice
from lib.moe.expert_parallel import ExpertParallelMoE
from lib.moe.gates import switch_gate, uniform_per_token
from lib.moe.layer import MoE
from lib.training.model import GPT, MLP, Block, Shape, cross_entropy


class MoEBlock(nn.Module):
    """A `lib.training.model.Block` with a mixture in place of its MLP. `uniform` (B*T,) is for a
    gate that samples."""

    def __init__(self, block: Block, moe: MoE) -> None:
        super().__init__()
        self.norm1, self.attention, self.norm2, self.mlp = (
            block.norm1,
            block.attention,
            block.norm2,
            moe,
        )

    def forward(self, x: Tensor, uniform: Tensor | None = None) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x), uniform)


class MoEGPT(GPT):
    """A `lib.training.model.GPT` whose blocks 1, 3, 5, ... have E experts in place of the MLP. The
    weights depend only on `seed`.

    gate, factor, assign_slots: see `lib.moe.layer.MoE`; a gate that is a module is copied for every
    layer. expert_hidden: the width of an expert's MLP, by default the shape's. auxiliary, z: the
    factors of the two auxiliary losses (0.01: Switch; 0.001: ST-MoE). Raises ValueError for a shape
    with no second block.
    """

    def __init__(
        self,
        shape: Shape,
        n_experts: int,
        gate: Callable[..., Choice] = switch_gate,
        factor: float = 1.25,
        assign_slots: Callable[..., Routing] = assign_slots,
        auxiliary: float = 0.01,
        z: float = 0.001,
        seed: int = 0,
        expert_hidden: int | None = None,
    ) -> None:
        if shape.n_layers < 2:
            raise ValueError(
                f"n_layers is {shape.n_layers}: every other block has experts, use 2 layers or more"
            )
        super().__init__(shape, seed)
        self.auxiliary, self.z = auxiliary, z
        expert = shape if expert_hidden is None else replace(shape, mlp_hidden=expert_hidden)
        generator = torch.Generator("cpu").manual_seed(seed + 1)
        with torch.device("cpu"), torch.random.fork_rng(devices=[]):
            for i in range(1, shape.n_layers, 2):
                experts = [MLP(expert) for _ in range(n_experts)]
                moe = MoE(shape.hidden, experts, copy.deepcopy(gate), factor, assign_slots)
                initialise(moe, shape.n_layers, generator)
                self.blocks[i] = MoEBlock(self.blocks[i], moe)  # type: ignore[arg-type]
        self.to(torch.get_default_device())

    @property
    def moe_layers(self) -> list[MoE]:
        """The layers with experts, first to last; each one's `last` holds its Statistics."""
        return [block.mlp for block in self.blocks if isinstance(block, MoEBlock)]

    def forward(self, tokens: Tensor, first: int | None = None) -> Tensor:
        """tokens (B, T) int64 -> logits (B, T, V).

        first: the index of the first of these B*T tokens in the entire run, over all ranks and
        steps. A gate that samples needs it, because what a token draws depends on its index, so one
        process and many ranks take the same samples.
        """
        x = self.embedding(tokens)  # (B, T, D)
        for i, block in enumerate(self.blocks):
            if first is not None and isinstance(block, MoEBlock):
                numbers = first + torch.arange(tokens.numel(), device=tokens.device)  # (B*T,)
                x = block(x, uniform_per_token(numbers, seed=i))
            else:
                x = block(x)
        return self.head(self.norm(x))  # (B, T, V)

    def loss(self, tokens: Tensor, targets: Tensor, first: int | None = None) -> Tensor:  # type: ignore[override]
        """The mean cross-entropy over these tokens plus the weighted auxiliary losses: ()."""
        prediction = cross_entropy(self(tokens, first), targets)
        seen: list[Any] = [layer.last for layer in self.moe_layers]
        return (
            prediction
            + self.auxiliary * sum(s.auxiliary for s in seen)
            + self.z * sum(s.z for s in seen)
        )


def expert_parallel_gpt(
    model: GPT, group: Group = None, all_to_all: Collective = collectives.all_to_all_at_once
) -> GPT:
    """This rank's part of `model`, a MoEGPT that is identical on all ranks; `model` itself is not
    changed.

    Everything but the experts is replicated, and parameters keep their names. Give every rank its
    own sequences. This call sends nothing; for what the model sends, see `ExpertParallelMoE`.
    Raises ValueError if ep does not divide E.
    """
    part = copy.deepcopy(model)
    for block in part.blocks:
        if isinstance(block, MoEBlock):
            block.mlp = ExpertParallelMoE(block.mlp, group, all_to_all)
    return part


@torch.no_grad()
def initialise(moe, n_layers, generator):
    """Initialise the experts like GPT-2's MLP, and the router as well: weights normal(0, 0.02),
    scaled down where they write to the residual stream; biases 0."""
    for part in (moe.router, *moe.experts):
        for name, parameter in part.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
            else:
                scale = 1 / math.sqrt(2 * n_layers) if name == "down.weight" else 1.0
                parameter.normal_(0.0, 0.02 * scale, generator=generator)
