"""The baseline of a job: the same training in one process, with the full model, all rows and no
messages. We take from it the part that a rank should hold, and compare this with what it held.

    rows 0 1 | 2 3 | 4 5 | 6 7  for 2 data ranks; the micro-batches of all data ranks run one after
                                the other, so that each expert gets the tokens it gets on the ranks
    gradients                   add up over the micro-batches; torch computes their norm

A rank's part consists of its rows, its tokens of these rows, its pipeline stage, its shard of each
matrix, and its experts.
"""

import torch

from lib.hybrid.hunt.rules import DATA, LR, MAX_NORM
from lib.hybrid.hunt.training import (
    PADDING,
    SETS,
    Masked,
    batch,
    checksum,
    data_ranks,
    kept,
    length,
    whole_model,
)
from lib.hybrid.mesh import coordinates
from lib.tensor_parallel import split_dim
from lib.training.model import cross_entropy


class Alone:
    """What the rank of `job`, a Job, should hold. `step(step)` trains a step without mistakes and
    returns {(kind, what): number}, like `Job.step`."""

    def __init__(self, job):
        self.setup, self.job, self.model = job.setup, job, whole_model(job.setup)
        # the tied parameter has two names
        self.parameters = dict(self.model.named_parameters(remove_duplicate=False))
        names = {p: name for name, p in job.hybrid.part.named_parameters()}
        self.names = {kind: [names[p] for p in job.sets.get(kind, ())] for kind in SETS}
        # over how many tp ranks the tokens of a row are split (sequence parallelism)
        self.tp = 1 if self.setup.mixture else self.setup.sizes.get("tp", 1)
        self.tokens_of = job.mesh.here["tp"] if self.tp > 1 else 0
        self.outputs = {}
        modules = {
            "embedding": self.model.embedding,
            "last block": self.model.blocks[job.blocks[-1]],
        }
        for what, module in modules.items():
            if what != "embedding" or job.is_first:
                module.register_forward_hook(self.note(what))

    def note(self, what):
        return lambda module, given, out: self.outputs.setdefault(what, []).append(out.detach())

    def step(self, step):
        """Train one step, and return what this rank should hold in it. Sends nothing."""
        N, places = data_ranks(self.setup), {axis: self.setup.sizes.get(axis, 1) for axis in DATA}
        tokens, targets = batch(self.setup, step)
        mine, n = self.job.rows(step, DATA), (targets != PADDING).sum()
        self.outputs.clear()
        losses, masks = [], []
        for s, (given, wanted) in enumerate(
            zip(tokens.chunk(2 * N), targets.chunk(2 * N), strict=True)
        ):
            where = coordinates(s // 2, places)
            parts = [kept(self.setup, step, s % 2, where | {"tp": r}) for r in range(self.tp)]
            self.model.embedding.dropout = Masked([torch.cat(parts, 1)])
            real = wanted != PADDING
            loss = cross_entropy(self.model(given)[real], wanted[real], "sum") / n
            loss.backward()
            losses.append(loss.item())
            masks.append(parts[self.tokens_of])
        own = slice(2 * self.job.place(DATA), 2 * self.job.place(DATA) + 2)
        seen = {
            ("input", "tokens"): checksum(mine[0]),
            ("input", "real tokens"): int((mine[1] != PADDING).sum()),
        }
        seen["activation", "mask"] = (
            checksum(torch.stack(masks[own]) > 0) if self.job.is_first else None
        )
        for what in ("embedding", "last block"):
            seen["activation", what] = length(
                [self.own_tokens(x) for x in self.outputs.get(what, ())[own]]
            )
        seen["loss", "own share"] = sum(losses[own]) if self.job.is_last else None
        seen["loss", "of the batch"] = sum(losses)
        return seen | self.update()

    def update(self):
        """Clip and update. Returns the lengths of this rank's part of the gradients and of the
        update, and the norm."""
        seen = {("gradient", kind): self.part(kind, lambda p: p.grad) for kind in SETS}
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), MAX_NORM)
        seen["norm", "reported"] = norm.item()
        seen |= {("update", kind): self.part(kind, lambda p: LR * p.grad) for kind in SETS}
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter -= LR * parameter.grad
                parameter.grad = None
        return seen

    def part(self, kind, tensor_of):
        """The length of this rank's part of the tensors tensor_of(parameter) of a set."""
        return length(
            [self.shard(name, tensor_of(self.parameters[name])) for name in self.names[kind]]
        )

    def shard(self, name, tensor):
        """This rank's shard over tp, as `lib.tensor_parallel` splits a parameter of that name."""
        dim, tp = split_dim(name), self.job.mesh.size("tp")
        return tensor if dim is None else tensor.chunk(tp, dim)[self.job.mesh.here["tp"]]

    def own_tokens(self, x):
        """This rank's tokens of a micro-batch: (b, T, D) -> (b, t, D)."""
        return x.chunk(self.tp, 1)[self.tokens_of]
