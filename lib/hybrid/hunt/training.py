"""A job of the hunt on ranks. It uses `Hybrid`'s model, pipeline and norm, but writes out the step
itself, so that each rule of rules.py is applied in one place, where it can be broken.

The first line shows the parts of a step, and the second the evidence that each of them leaves:

    rows, masks | micro-batches both ways | tied, LayerNorms, mean, experts | norm, clip | update
    input         activation  loss          gradient                          norm         update

Each piece of evidence is one number: a count, a loss, a checksum of integers, or the length of a
vector. Elements are float64, so numbers that should be the same on two ranks agree to about 1e-12.
"""

import math
from functools import partial

import torch
from torch import nn

from lib import collectives, ledger
from lib.hybrid import Hybrid, expert_gpt, global_norm
from lib.hybrid.hunt.rules import DATA, LR, MAX_NORM
from lib.hybrid.mesh import rank_at
from lib.moe.gpt import MoEGPT
from lib.tensor_parallel import sequence_parallel_gpt, split_dim, vocab_parallel_cross_entropy
from lib.tensor_parallel.sequence import sum_gradients
from lib.training.buckets import flatten, unflatten
from lib.training.clip import scale_gradients
from lib.training.model import GPT, Shape

SHAPE = Shape(vocab_size=16, seq_len=12, n_layers=2, hidden=16, n_heads=2)
ROWS, EXPERTS, DROPPED = 8, 4, 0.1
# By how many tokens the rows of a data rank are shorter than the sequence. Sums of two of these
# differ from each other, so a wrong count of tokens always shows.
SHORTER = (0, 1, 2, 4)
PADDING = -1


def whole_model(setup):
    """The unsharded model of a job in float64, the same on every rank."""
    if setup.mixture:
        return MoEGPT(SHAPE, EXPERTS, factor=2.0, auxiliary=0.0, z=0.0, seed=setup.seed).double()
    return GPT(SHAPE, seed=setup.seed).double()


def batch(setup, step):
    """The tokens and targets of all rows of a step, (ROWS, T) int64 each. Small ids are more
    frequent, and the end of a row is padding.

    All rows of a data rank have the same length, and different data ranks have different lengths.
    """
    generator = torch.Generator().manual_seed(1000 * setup.seed + step)
    draws = torch.rand(ROWS, SHAPE.seq_len + 1, generator=generator)
    rows = (SHAPE.vocab_size * draws**3).long()  # (ROWS, T+1)
    tokens, targets = rows[:, :-1].clone(), rows[:, 1:].clone()
    shorter = torch.randperm(len(SHORTER), generator=generator).tolist()
    for place, mine in enumerate(torch.arange(ROWS).chunk(data_ranks(setup))):
        end = SHAPE.seq_len - SHORTER[shorter[place]]
        tokens[mine, end:], targets[mine, end:] = 0, PADDING
    return tokens, targets


def data_ranks(setup):
    """How many data ranks there are, each with its own rows: the product of dp and ep."""
    return math.prod(setup.sizes.get(axis, 1) for axis in DATA)


def kept(setup, step, j, where):
    """The dropout mask of micro-batch j on the rank with the coordinates `where`, (b, t, D), with
    values 0 or 1 / (1 - p). An axis that is missing in `where` counts as coordinate 0."""
    place = sum(where.get(axis, 0) * 4**i for i, axis in enumerate(("dp", "ep", "tp")))
    generator = torch.Generator().manual_seed(((setup.seed * 100 + step) * 100 + j) * 100 + place)
    t = SHAPE.seq_len // (1 if setup.mixture else setup.sizes.get("tp", 1))
    draws = torch.rand(
        ROWS // data_ranks(setup) // 2, t, SHAPE.hidden, generator=generator, dtype=torch.float64
    )
    return (draws >= DROPPED) / (1 - DROPPED)


def checksum(whole_numbers):
    """A checksum of integers or booleans of any shape. It changes with their values and with their
    order."""
    flat = whole_numbers.flatten().long()
    return int((flat * torch.arange(1, len(flat) + 1) ** 2).sum())


def length(tensors):
    """The Euclidean norm of these tensors as one vector; None if there are none."""
    return math.sqrt(sum(float(t.detach().square().sum()) for t in tensors)) if tensors else None


class Job:
    """This rank's part of a job. `step` trains one step by the given Rules, and returns the
    evidence, {(kind, what): number}."""

    def __init__(self, setup, mesh):
        self.setup, self.mesh, self.axes = setup, mesh, {a: mesh.here[a] for a in setup.sizes}
        tokens, _ = self.rows(0, DATA)
        split = (
            partial(expert_gpt, ep=mesh.group("ep"), rows=len(tokens))
            if setup.mixture
            else sequence_parallel_gpt
        )
        sgd = lambda groups: torch.optim.SGD(groups, lr=LR)
        self.hybrid = Hybrid(whole_model(setup), mesh, tokens, len(tokens) // 2, sgd, split=split)
        self.sets = {kind: params for kind, params in self.hybrid.sets._asdict().items() if params}
        self.blocks = [
            i
            for i, block in enumerate(self.hybrid.part.blocks)
            if not isinstance(block, nn.Identity)
        ]
        self.masks, self.outputs = [], {}
        if self.is_first:
            self.hybrid.part.embedding.dropout = Masked(self.masks)
            self.hybrid.part.embedding.register_forward_hook(self.note("embedding"))
        self.hybrid.part.blocks[self.blocks[-1]].register_forward_hook(self.note("last block"))

    @property
    def is_first(self):
        """Is this rank on the pipeline's first stage, the one with the embedding?"""
        return self.mesh.here["pp"] == 0

    @property
    def is_last(self):
        """Is it on the last stage, the one with the loss?"""
        return self.mesh.here["pp"] == self.mesh.size("pp") - 1

    def note(self, what):
        """A forward hook that keeps the outputs of a module under the name `what`."""
        return lambda module, given, out: self.outputs.setdefault(what, []).append(out.detach())

    def at(self, axes):
        """This rank's coordinates along these axes, as {axis: coordinate}."""
        return {axis: i for axis, i in self.axes.items() if axis in axes}

    def rows(self, step, axes):
        """This rank's tokens and targets, (rows, T) each. Ranks have different rows if they differ
        along these axes."""
        return [
            whole.chunk(data_ranks(self.setup))[self.place(axes)]
            for whole in batch(self.setup, step)
        ]

    def place(self, axes):
        """The index of this rank's share of the rows, if the shares differ only along these
        axes."""
        sizes = {axis: self.setup.sizes.get(axis, 1) for axis in DATA}
        return rank_at({axis: self.at(axes).get(axis, 0) for axis in DATA}, sizes)

    def step(self, step, rules):
        """Train one step by these rules, and return the evidence of this rank. Sends: what the
        rules say, and what `Hybrid`'s pipeline sends."""
        ledger.mark(f"step {step}")
        hybrid, seen = self.hybrid, {}
        tokens, targets = self.rows(step, rules.rows)
        seen["input", "tokens"], seen["input", "real tokens"] = (
            checksum(tokens),
            int((targets != PADDING).sum()),
        )
        self.masks[:] = (
            [kept(self.setup, step, j, self.at(rules.masks)) for j in range(2)]
            if self.is_first
            else []
        )
        seen["activation", "mask"] = checksum(torch.stack(self.masks) > 0) if self.masks else None
        self.outputs.clear()

        scale = data_ranks(self.setup) / self.count(targets, rules.counted)
        loss_of = lambda logits, wanted: scale * summed_loss(logits, wanted, hybrid.tp)
        losses = hybrid.pipeline.execute(
            hybrid.schedule, hybrid.cut(tokens), hybrid.cut(targets), loss_of
        )
        seen |= {
            ("activation", what): length(self.outputs.get(what))
            for what in ("embedding", "last block")
        }
        seen |= self.losses(losses, targets, scale, rules)

        self.complete(rules)
        of_sets = lambda tensor_of: {
            kind: length([tensor_of(p) for p in self.sets.get(kind, ())]) for kind in SETS
        }
        seen |= {("gradient", kind): size for kind, size in of_sets(lambda p: p.grad).items()}
        norm = self.norm(rules.squares)
        reported = norm if rules.reported_norm == rules.squares else self.norm(rules.reported_norm)
        seen["norm", "reported"] = reported.item()
        scale_gradients(hybrid.trained(), norm, MAX_NORM)
        before = {p: p.detach().clone() for p in hybrid.trained()}
        hybrid.step()
        return seen | {
            ("update", kind): size for kind, size in of_sets(lambda p: p - before[p]).items()
        }

    def count(self, targets, axes):
        """How many real tokens all data ranks have. Along these axes the ranks' counts are summed.
        Along the other data axes, every rank is assumed to have as many as this one."""
        n = (targets != PADDING).sum().reshape(1)
        for axis in DATA:
            if axis in axes:
                collectives.all_reduce(n, self.mesh.group(axis))
            else:
                n *= self.mesh.size(axis)
        return n.item()

    def losses(self, losses, targets, scale, rules):
        """Evidence: this rank's share of the loss (None on all stages but the last), and the loss
        of the whole batch."""
        share = (
            sum(losses.values()).reshape(1) / scale
            if losses
            else torch.zeros(1, dtype=torch.float64)
        )
        share /= self.count(targets, rules.reported_tokens)
        seen = {("loss", "own share"): share.item() if losses else None}
        for axis in (*DATA, "pp"):
            collectives.all_reduce(share, self.mesh.group(axis))
        return seen | {("loss", "of the batch"): share.item()}

    @torch.no_grad()
    def complete(self, rules):
        """Sum, divide and average the gradients as the rules say. With the right rules each `.grad`
        is then the gradient of the whole batch's loss."""
        hybrid, mesh = self.hybrid, self.mesh
        for parameter in hybrid.sets.tied if "pp" in rules.tied else ():
            collectives.all_reduce(parameter.grad, hybrid.pipeline.links.ends)
        if not self.setup.mixture:
            named = [
                (name, p) for name, p in hybrid.part.named_parameters() if split_dim(name) is None
            ]
            sum_gradients(
                [p for name, p in named if "norm" not in name or "tp" in rules.norms], hybrid.tp
            )
        for parameter in hybrid.sets.experts:
            parameter.grad /= math.prod(mesh.size(axis) for axis in rules.experts)
        dense = [p for kind in SETS[:3] for p in self.sets.get(kind, ())]
        for parameters, axes in ((dense, rules.mean), (hybrid.sets.experts, ("dp",))):
            gradients = [p.grad for p in parameters]
            line = flatten(gradients) if gradients else torch.zeros(0, dtype=torch.float64)
            for axis in axes if gradients else ():
                collectives.all_reduce(line, mesh.group(axis))
                line /= mesh.size(axis)
            unflatten(line, gradients)

    def norm(self, axes):
        """The norm of the gradient if squares are summed along these axes, () in float64."""
        along = [self.mesh.group(axis) for axis in axes]
        chosen = lambda groups: [group for group in groups if any(group is one for one in along)]
        return global_norm([(tensors, chosen(groups)) for tensors, groups in self.hybrid.counted])


SETS = ("sharded", "replicated", "tied", "experts")


class Masked(nn.Module):
    """Dropout that takes the next of the given masks in each call: x (b, t, D) -> (b, t, D)."""

    def __init__(self, masks):
        super().__init__()
        self.masks = masks

    def forward(self, x):
        return x * self.masks.pop(0)


def summed_loss(logits, targets, group):
    """The sum of the losses of all tokens but padding: (b, T, V/tp), (b, T) -> ()."""
    real = targets != PADDING
    return vocab_parallel_cross_entropy(logits[real], targets[real], group, "sum")
