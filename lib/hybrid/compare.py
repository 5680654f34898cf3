"""Compares a model on a mesh with a single process that trains the full model on the full batch.

    mesh = mesh_of(dp=4, tp=2)
    part = parallel_gpt(model, mesh.group("tp"))      ...backward, average over dp...
    gradient_errors(part, mesh, model, tokens, targets)      {"sharded": 2e-16, "replicated": 3e-16}

    train_alone(model, make_optimizer, batches)              [(loss, norm) of each step]

    dtensor_norm(parameters)                                 |g| of torch's DTensors

`tied_not_summed` and `replicated_counted_tp_times` contain mistakes with which training still runs
without raising an error.

Use small sizes and float64, so that values that should be equal differ by rounding only.
"""

import logging
from collections.abc import Iterable

import torch

from lib.backend import Group
from lib.hybrid.by_hand import average_over_mesh, norm_over_mesh
from lib.hybrid.mesh import Mesh
from lib.hybrid.sets import Sets
from lib.hybrid.train import Hybrid, local_batch, mesh_of
from lib.tensor_parallel import sequence_parallel_gpt, split_dim, split_state_dict
from lib.training.model import GPT


def gradient_errors(
    part: torch.nn.Module,
    mesh: Mesh,
    model: GPT,
    tokens: torch.Tensor,
    targets: torch.Tensor,
) -> dict[str, float]:
    """{"sharded": ..., "replicated": ...}: the largest error of a gradient of this rank's `part`,
    relative to the largest value in the gradient of the full model. (An error relative to each
    parameter's own gradient would be meaningless for the bias of the keys: its gradient is 0 except
    for rounding, because softmax ignores a shift of all scores.)

    part: of `parallel_gpt` or `sequence_parallel_gpt`, without a pipeline. model: the full model,
    whose gradients are computed here and stay in its `.grad`. tokens, targets: (B, T) int64, the
    full batch. Sends nothing.
    """
    model.zero_grad()
    model.loss(tokens, targets).backward()
    full = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    right = split_state_dict(full, mesh.here["tp"], mesh.size("tp"))
    largest = max(gradient.abs().max() for gradient in full.values())
    worst = {"sharded": 0.0, "replicated": 0.0}
    for name, parameter in part.named_parameters():
        kind = "replicated" if split_dim(name) is None else "sharded"
        if parameter.grad is None:
            raise ValueError(f"{name} has no gradient: call backward before you compare")
        off = (parameter.grad - right[name]).abs().max() / largest
        worst[kind] = max(worst[kind], off.item())
    return worst


def parameters_held(shape, sizes) -> tuple[dict[str, int], dict[str, int]]:
    """On each rank: its coordinates, and how many parameters of a GPT of this shape it has in each
    set under sequence parallelism, {"sharded": ..., "replicated": ..., "tied": ...}.

    sizes: of the axes pp, dp and tp, as keyword arguments of `mesh_of`.
    """
    mesh = mesh_of(**sizes)
    tokens = local_batch(torch.zeros(mesh.size("dp"), shape.seq_len, dtype=torch.long), mesh)
    sgd = lambda groups: torch.optim.SGD(groups, lr=0.1)
    sets = Hybrid(GPT(shape), mesh, tokens, 1, sgd, split=sequence_parallel_gpt).sets
    held = {kind: getattr(sets, kind) for kind in ("sharded", "replicated", "tied")}
    return (
        {axis: mesh.here[axis] for axis in sizes},
        {kind: sum(p.numel() for p in parameters) for kind, parameters in held.items()},
    )


def train_alone(model: GPT, make_optimizer, batches, max_norm=1.0) -> list[tuple[float, float]]:
    """[(loss, norm before clipping) of each step] of `model` in a single process.

    batches: [(tokens, targets), ...], full batches. The gradient is clipped to `max_norm`.
    """
    optimizer, seen = make_optimizer(model.parameters()), []
    for tokens, targets in batches:
        optimizer.zero_grad()
        loss = model.loss(tokens, targets)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        seen.append((loss.item(), norm.item()))
    return seen


def dtensor_norm(parameters: Iterable[torch.nn.Parameter]) -> torch.Tensor:
    """|g|, (), on every rank, of parameters whose gradients are DTensors, on one mesh or several.

    torch's clip_grad_norm_ takes DTensors of one mesh only. Sends: one value for each gradient and
    dimension of its mesh. torch warns that these could be one message; here it does not.
    """
    log = logging.getLogger("torch.distributed.tensor._redistribute")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        return torch.stack([p.grad.norm().full_tensor() for p in parameters]).norm()
    finally:
        log.setLevel(level)


def tied_not_summed(sets: Sets, mesh: Mesh, ends: Group) -> None:
    """`average_over_mesh` with a mistake: the gradients of the tied matrix's two uses are not
    added."""
    average_over_mesh(sets._replace(tied=[], sharded=[*sets.sharded, *sets.tied]), mesh, ends)


def replicated_counted_tp_times(sets: Sets, mesh: Mesh) -> torch.Tensor:
    """`norm_over_mesh` with a mistake: the squares of replicated parameters count tp times, as if
    they were added up over tp, although all tp ranks have the same gradients of these."""
    return norm_over_mesh(sets._replace(replicated=sets.replicated * mesh.size("tp")), mesh)
