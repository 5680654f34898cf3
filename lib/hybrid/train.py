"""A GPT on a mesh: stages over pp, rows over dp, tokens over cp, heads and hidden units over tp,
experts over ep.

    one step                                                             sends along
    1  each micro-batch through stages and back  pipeline schedule       pp
         inside a stage                          f and g                 tp
         inside attention                        keys and values         cp
         inside a mixture                        tokens to experts       ep
    2  the embedding's gradient + the head's     split.py                pp, its two ends
    3  gradients of what tp ranks share          sum                     tp, if sequence parallel
    4  gradients over the data ranks             mean                    dp, ep and cp
    5  norm, clip                                a few numbers           tp, ep, pp, data if sharded
    6  update                                    nothing, or all-gather  dp, ep, cp, for shards only

Each part is given the group of ranks that it communicates in, so no part has to know about the
others. Lines 2, 3 and 4 may run in any order, because all of them are sums. Line 5 has to come
after them and before 6, because clipping needs the norm of the full gradient. If each rank clipped
by the norm of its own part, the direction of the step would change.

Source: Narayanan et al. 2021, "Efficient large-scale language model training on GPU clusters using
Megatron-LM".
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lib import collectives
from lib.hybrid.context import split_over_context
from lib.hybrid.mesh import Mesh, groups_along
from lib.hybrid.sets import global_norm, norm_sets, sets_of
from lib.hybrid.update import ReplicatedUpdate
from lib.pipeline import balance, one_f_one_b
from lib.pipeline.actions import count_stages
from lib.pipeline.links import connect
from lib.pipeline.split import split_gpt
from lib.pipeline.stage import Pipeline
from lib.tensor_parallel import parallel_gpt, vocab_parallel_cross_entropy
from lib.tensor_parallel.context_parallel import shard
from lib.tensor_parallel.layouts import zigzag
from lib.training.clip import scale_gradients
from lib.training.model import GPT

# ranks that differ along these axes have different rows or tokens, and so different gradients
DATA = ("dp", "ep", "cp")
EXPERT_DATA = ("dp", "cp")  # axes along which ranks have the same experts
SETS = [DATA, EXPERT_DATA]  # the sets of several axes for which a mesh needs groups


def mesh_of(pp: int = 1, dp: int = 1, ep: int = 1, cp: int = 1, tp: int = 1) -> Mesh:
    """A Mesh in Megatron-LM's order, in which tp varies fastest. Every rank has to make it. For
    another order use Mesh(sizes, SETS)."""
    return Mesh({"pp": pp, "dp": dp, "ep": ep, "cp": cp, "tp": tp}, SETS)


def local_batch(batch: Tensor, mesh: Mesh) -> Tensor:
    """This rank's local batch of a global batch, (B, T) -> (B/(dp ep), T). Ranks that differ only
    along pp, cp or tp get the same rows.

    Raises ValueError if dp x ep does not divide B, because the mean of the ranks' means would then
    not be the mean of the batch.
    """
    shares = mesh.size("dp", "ep")
    if len(batch) % shares:
        fits = [len(batch) - len(batch) % shares, len(batch) - len(batch) % shares + shares][
            len(batch) < shares :
        ]
        use = " or ".join(map(str, fits))
        raise ValueError(
            f"{len(batch)} rows over dp={mesh.size('dp')} x ep={mesh.size('ep')} ranks: use {use} "
            f"rows"
        )
    return batch.chunk(shares)[mesh.local_rank("dp", "ep")]


class Hybrid:
    """This rank's part of a GPT that the ranks of a mesh train together.

        mesh = mesh_of(pp=2, dp=2, tp=2)
        tokens, targets = local_batch(tokens, mesh), local_batch(targets, mesh)
        make_adam = lambda groups: torch.optim.AdamW(groups, lr=3e-4)
        hybrid = Hybrid(GPT(shape), mesh, tokens, 2, make_adam)
        loss = hybrid.backward(tokens, targets)  # once per step
        norm = hybrid.clip(1.0)  # optional
        hybrid.step()

    part: this rank's parameters, under the full model's names. On the last stage of a pipeline the
    tied parameter is called "head.weight".
    """

    def __init__(
        self,
        model: GPT,
        mesh: Mesh,
        tokens: Tensor,
        b: int,
        make_optimizer: Callable[..., torch.optim.Optimizer],
        schedule: Callable = one_f_one_b,
        split: Callable = parallel_gpt,
        update: Callable = ReplicatedUpdate,
        layout: Callable = zigzag,
    ) -> None:
        """model: the full `lib.training.model.GPT`, the same on all ranks; it is not changed.

        mesh: of the axes pp, dp, ep, cp and tp, with SETS. tokens: (rows, T) int64, of the shape
        that `backward` will get. b: rows of a micro-batch; the last one may have fewer.
        make_optimizer(groups): a torch optimizer. schedule(p, m): the list of actions of each rank;
        `partial(interleaved, v=2)` puts two stages on a rank. split(model, group): `parallel_gpt`,
        `sequence_parallel_gpt`, or for experts `expert_gpt` of experts.py. With dropout, call
        torch.manual_seed with the same seed on tp ranks, and with different ones on data ranks,
        which would otherwise use the same masks. update: `ReplicatedUpdate` or `ShardedUpdate`.
        layout(T, cp): which positions each context rank has.
        Sends: what the pipeline's links and its shape inference send; with a ShardedUpdate also a
        broadcast of the parameters. Raises ValueError for sizes that an axis does not divide.
        """
        self.mesh, self.b = mesh, b
        self.tp, self.pp, self.cp, self.data = (
            mesh.group(*axes) for axes in (["tp"], ["pp"], ["cp"], DATA)
        )
        self.part = split(model, self.tp)
        self.layout = layout(tokens.shape[1], mesh.size("cp"))
        if mesh.size("cp") > 1:
            split_over_context(self.part, self.layout, self.cp)

        microbatches = self.cut(tokens)
        self.schedule = schedule(mesh.size("pp"), len(microbatches))
        # [range of stage 0's, ...]
        blocks = balance([1] * len(self.part.blocks), count_stages(self.schedule))
        links = connect(groups_along(["pp"], mesh.sizes))
        self.pipeline = Pipeline(split_gpt(self.part, blocks), links, microbatches)
        free_other_stages(self.part, blocks, self.pipeline.stages)

        self.sets = sets_of(self.part, self.pipeline.tied)
        self.dense = update(self.sets.dense, make_optimizer, self.data)
        self.experts = None
        if self.sets.experts:
            self.experts = update(
                [{"params": self.sets.experts}], make_optimizer, mesh.group(*EXPERT_DATA)
            )
        self.updates = [self.dense, self.experts] if self.experts else [self.dense]
        self.counted = norm_sets(self.sets, self.dense, self.experts, mesh)

    def cut(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Tokens or targets of all positions, (rows, T) -> this rank's positions of them, in
        micro-batches of (b, T/cp) each."""
        return shard(rows, self.layout, self.cp).split(self.b)

    def backward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Forward and backward of one step; returns the mean loss of the whole batch, (), on every
        rank.

        tokens, targets: (rows, T) int64, this rank's `local_batch`. Afterwards the gradient of that
        loss is in `.grad` of this rank's parameters or, with a ShardedUpdate, of its shards. Sends:
        lines 1 to 4 above, and two all-reduces of one number, the loss.
        """
        # 1, 2
        loss = self.pipeline.run(self.schedule, self.cut(tokens), self.cut(targets), self.loss_of)
        self.complete_gradients()  # 3, 4
        return self.mean_loss(loss)

    def loss_of(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The mean over a micro-batch's tokens on this rank: (b, t, V/tp), (b, t) -> ()."""
        return vocab_parallel_cross_entropy(logits, targets, self.tp)

    def complete_gradients(self) -> None:
        """Sum and average the gradients after backward, so that each `.grad` is that of the whole
        batch's loss. Sends: lines 3 and 4."""
        self.part.sum_gradients()  # 3
        self.average_gradients()  # 4

    def average_gradients(self) -> None:
        """Replace the gradients by their means over the data ranks. Sends: what `average_gradients`
        of the updates sends."""
        for parameter in self.sets.experts:
            # the experts got tokens of all ep ranks, so their gradients are already sums over these
            parameter.grad /= self.mesh.size("ep")
        for update in self.updates:
            update.average_gradients()

    def mean_loss(self, loss: Any) -> Tensor:
        """The mean loss over the data ranks, (), on every rank. loss: (), of this rank's rows; None
        on all stages but the last."""
        total = torch.zeros(1, dtype=torch.float64) if loss is None else loss.double().reshape(1)
        collectives.all_reduce(total, self.data)
        collectives.all_reduce(total, self.pp)  # the other stages add 0
        return total[0] / self.mesh.size(*DATA)

    def norm(self) -> Tensor:
        """|g| of the full model, () on every rank. Sends: an all-reduce of one number for each
        group of each set in sets.py."""
        return global_norm(self.counted)

    def clip(self, max_norm: float) -> Tensor:
        """Scale all gradients so that their global norm is at most `max_norm`. Returns the norm
        before clipping, ()."""
        norm = self.norm()
        scale_gradients(self.trained(), norm, max_norm)
        return norm

    def trained(self) -> list[Tensor]:
        """The tensors that have this rank's gradients. The tied parameter is among them on both of
        its stages, although the norm counts it only once."""
        dense = [parameter for parameters in self.sets[:3] for parameter in parameters]
        return self.dense.held(dense) + (
            self.experts.held(self.sets.experts) if self.experts else []
        )

    def step(self) -> None:
        """Update, and clear the gradients. Sends: with a ShardedUpdate, an all-gather per flat,
        over the data ranks, or for experts over dp and cp."""
        for update in self.updates:
            update.step()
            update.zero_grad()


def free_other_stages(part: Any, blocks: Sequence[Iterable[int]], mine: Collection[int]) -> None:
    """Leave in `part` only the modules of the stages `mine`. The modules of other stages are
    replaced by Identity, which frees their parameters and keeps the indices of the blocks.

    blocks: [range of stage 0's blocks, of stage 1's, ...].
    """
    for s, numbers in enumerate(blocks):
        for i in numbers if s not in mine else []:
            part.blocks[i] = nn.Identity()
    if 0 not in mine:
        part.embedding = nn.Identity()
    if len(blocks) - 1 not in mine:
        part.norm, part.head = nn.Identity(), nn.Identity()
