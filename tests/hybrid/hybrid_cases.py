"""What the tests of meshes share: a GPT whose sizes all factors of 8 divide, batches, training on
one process and on 8.

Equal means what it means in tests/tensor_parallel/parallels.py, with a tolerance of 1e-10.
"""

import functools
import math
from typing import NamedTuple

import torch
import torch.distributed as dist
from parallels import differences, gpt

from lib import backend, collectives
from lib.hybrid import DATA, SETS, Hybrid, ReplicatedUpdate, local_batch
from lib.hybrid.mesh import Mesh, groups_along
from lib.pipeline import one_f_one_b
from lib.tensor_parallel import merge_state_dicts, parallel_gpt
from lib.training.buckets import slots
from lib.training.model import Shape

SHAPES = {
    L: Shape(vocab_size=16, seq_len=10, n_layers=L, hidden=16, n_heads=8, mlp_hidden=16)
    for L in (2, 4, 8)
}
WORLD, STEPS, ROWS, LENGTH = 8, 3, 24, 8  # sequences are shorter than the table of positions
MAX_NORM, TOLERANCE = 0.4, 1e-10
TIED = "embedding.token.weight"


class Run(NamedTuple):
    """A Hybrid on a mesh; what is left out is Hybrid's default."""

    sizes: dict
    b: int = 5  # rows of a micro-batch: with dp = 2 there are 5, 5 and 2
    schedule: callable = one_f_one_b
    split: callable = parallel_gpt
    update: type = ReplicatedUpdate
    optimizer: str = "sgd"
    n_layers: int = 2

    @property
    def shape(self):
        return SHAPES[self.n_layers]


def sizes(pp=1, dp=1, cp=1, tp=1, ep=1):
    """Megatron's order: tp fastest."""
    return {"pp": pp, "dp": dp, "ep": ep, "cp": cp, "tp": tp}


def factorisations(n):
    """All ordered triples whose product is n."""
    return [
        (a, b, n // a // b) for a in range(1, n + 1) for b in range(1, n + 1) if n % (a * b) == 0
    ]


OPTIMIZERS = {
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.5),
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=0.01, eps=1e-3),
}


def batch(step):
    """tokens, targets of the whole batch: (ROWS, LENGTH) int64."""
    draw = torch.Generator("cpu").manual_seed(step)
    tokens = torch.randint(SHAPES[2].vocab_size, (2, ROWS, LENGTH), generator=draw, device="cpu")
    return tokens.to(backend.device())


def build(run, mesh):
    """A Hybrid of `run`, on a mesh of its sizes."""
    tokens = local_batch(batch(0)[0], mesh)
    return Hybrid(
        gpt(run.shape), mesh, tokens, run.b, OPTIMIZERS[run.optimizer],
        run.schedule, run.split, run.update,
    )  # fmt: skip


def gradients(hybrid):
    """{name: gradient} of this rank's part; gathered from the shards, where there are any."""
    names = {p: name for name, p in hybrid.part.named_parameters()}
    if not hybrid.dense.shards_over:
        return {name: p.grad.clone() for p, name in names.items()}
    found = {}
    for flat in (flat for update in hybrid.updates for flat in update.flats):
        line = collectives.all_gather(flat.shard.grad, flat.group)
        found |= {
            names[p]: g.clone()
            for p, g in zip(flat.parameters, slots(line[: flat.n], flat.slots), strict=True)
        }
    return found


def parameters(hybrid):
    return {name: p.detach().clone() for name, p in hybrid.part.named_parameters()}


def steps(hybrid, mesh, numbers):
    """[(loss, norm, {name: gradient}, {name: parameter})] of clipped steps, of this rank's part."""
    seen = []
    for step in numbers:
        tokens, targets = batch(step)
        loss = hybrid.backward(local_batch(tokens, mesh), local_batch(targets, mesh))
        whole = gradients(hybrid)
        norm = hybrid.clip(MAX_NORM)
        hybrid.step()
        seen.append((loss.item(), norm.item(), whole, parameters(hybrid)))
    return seen


@functools.cache
def single_process(optimizer, shape):
    """The same of the plain model on the whole batch, with torch's clipping."""
    model = gpt(shape)
    return plain_steps(model, OPTIMIZERS[optimizer](model.parameters()), range(STEPS))


def plain_steps(model, optimizer, numbers):
    """`steps` of one process."""
    seen = []
    for step in numbers:
        optimizer.zero_grad()
        loss = model.loss(*batch(step))
        loss.backward()
        whole = {name: p.grad.clone() for name, p in model.named_parameters()}
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        after = {name: p.detach().clone() for name, p in model.named_parameters()}
        seen.append((loss.item(), norm.item(), whole, after))
    return seen


def train_each(runs, mistakes):
    """{name: what this rank saw} of {name: Run}; one mesh for all runs of the same sizes.

    mistakes: {name: (Run, change)}: one step with what `change(hybrid)` has spoilt.
    """
    meshes, seen = {}, {}
    for name, (run, change) in (
        {name: (run, None) for name, run in runs.items()} | mistakes
    ).items():
        key = tuple(run.sizes.items())
        if key not in meshes:
            meshes[key] = Mesh(run.sizes, SETS)
        hybrid = build(run, meshes[key])
        if change:
            change(hybrid)
        seen[name] = steps(hybrid, meshes[key], range(1 if change else STEPS))
    assert dist.get_world_size() == WORLD
    return seen


def assemble(parts, sizes):
    """The whole model's {name: tensor} from those of all ranks, by rank.

    AssertionError or ValueError where ranks differ in a bit of what they should have alike: data
    ranks in anything, tp ranks in what is not cut, the first and the last stage in the tied
    parameter.
    """
    for group in groups_along(DATA, sizes):
        for other in group[1:]:
            assert parts[other].keys() == parts[group[0]].keys()
            assert all(torch.equal(t, parts[group[0]][name]) for name, t in parts[other].items()), (
                group
            )
    model = groups_along(["pp", "tp"], sizes)[0]  # the ranks of one whole model
    whole = {}
    for ranks in groups_along(["tp"], sizes):
        if ranks[0] in model:
            of_stage = merge_state_dicts([parts[rank] for rank in ranks])
            again = of_stage.pop("head.weight", None)
            assert again is None or torch.equal(again, whole[TIED]), (
                "the two copies of the tied parameter"
            )
            whole |= of_stage
    return whole


def compare(run, parts, want):
    """Every step of `parts`, by rank, against one process's."""
    assert {len(part) for part in parts} == {len(want)} and len(parts) == math.prod(
        run.sizes.values()
    )
    for step, (right_loss, right_norm, right_gradients, right_parameters) in enumerate(want):
        losses, norms, grads, params = zip(*(part[step] for part in parts), strict=True)
        assert len(set(losses)) == 1 and len(set(norms)) == 1, "the same bits on every rank"
        assert abs(losses[0] - right_loss) < TOLERANCE * right_loss
        assert abs(norms[0] - right_norm) < TOLERANCE * right_norm, (
            f"norm {norms[0]}, should be {right_norm}"
        )
        wrong = [
            f"gradient {w}"
            for w in differences(assemble(grads, run.sizes), right_gradients, TOLERANCE)
        ]
        wrong += [
            f"parameter {w}"
            for w in differences(assemble(params, run.sizes), right_parameters, TOLERANCE)
        ]
        assert not wrong, f"step {step}: " + "; ".join(wrong[:4])


def microbatches(run):
    """[rows of each micro-batch] of one data rank."""
    rows = ROWS // run.sizes["dp"]
    return [min(run.b, rows - first) for first in range(0, rows, run.b)]
