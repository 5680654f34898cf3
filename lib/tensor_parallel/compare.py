"""Compares each part of a tensor-parallel model with the unsharded one, and reports the error and
what is sent.

Every function runs on the ranks of a launch, and all ranks call it with the same arguments:

    results = launch.run(compare.mlp, SHAPE, column_parallel, row_parallel, nproc=4)
    results[0]                                           the errors on rank 0
    results.ledger.section("forward").sent("elements")   what was sent in this section

An error is the largest difference of two tensors, relative to the largest value of the reference.
Where values are compared, weights and inputs come from seeds or a broadcast, so that they are the
same on every rank. Layers are passed as arguments, so you can also compare functions of your own.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from lib import backend, collectives, ledger
from lib.backend.torch_private import TorchDispatchMode
from lib.measuring.errors import error, seeded
from lib.tensor_parallel.block import ParallelMLP
from lib.tensor_parallel.gpt import parallel_gpt, sequence_parallel_gpt
from lib.tensor_parallel.linear import ColumnParallelLinear, RowParallelLinear
from lib.tensor_parallel.mappings import gather_from_group, reduce_from_group, split_to_group
from lib.tensor_parallel.shards import split_dim, split_state_dict
from lib.training.model import GPT, MLP, Shape
from lib.training.recompute import SavedBytes


def gradchecked(f: Callable, g: Callable) -> dict[str, bool]:
    """Whether torch's gradcheck accepts g(tanh(f(x) W_r)) with both mappings, and with each of them
    alone.

    x is the same on all ranks, and W_r differs from rank to rank.
    """
    x = torch.randn(2, 3, generator=seeded(0), dtype=torch.float64, requires_grad=True)
    W = torch.randn(3, 4, generator=seeded(dist.get_rank()), dtype=torch.float64)
    none = lambda x: x
    pairs = {"f and g": (f, g), "f alone": (f, none), "g alone": (none, g)}
    return {
        name: torch.autograd.gradcheck(
            lambda x, into=into, out_of=out_of: out_of(torch.tanh(into(x) @ W)),
            x,
            raise_exception=False,
        )
        for name, (into, out_of) in pairs.items()
    }


def partial_sums() -> dict[str, float]:
    """The errors of a row-split matmul whose partial results are exchanged by all-to-all, or
    added by all-reduce."""
    rank, tp = dist.get_rank(), dist.get_world_size()
    x, w = torch.randn(4, 8, generator=seeded(0)), torch.randn(8, 6, generator=seeded(1))
    partial = x.chunk(tp, 1)[rank] @ w.chunk(tp, 0)[rank]  # (4, 6)
    moved, added = torch.empty_like(partial), partial.clone()
    dist.all_to_all_single(moved, partial)
    dist.all_reduce(added)
    return {"all-to-all": error(moved, x @ w), "all-reduce": error(added, x @ w)}


def two_layers(
    column_linear: Callable, row_linear: Callable, B: int, T: int, D: int, width: int
) -> None:
    """Run a column-parallel layer and a row-parallel one, x (B, T, D) -> (B, T, width) -> (B, T,
    D). Sections of the ledger: forward, backward."""
    up, down = ColumnParallelLinear(nn.Linear(D, width)), RowParallelLinear(nn.Linear(width, D))
    x = torch.randn(B, T, D, requires_grad=True)
    ledger.mark("forward")
    y = row_linear(*column_linear(x, [up]), down)
    ledger.mark("backward")
    y.sum().backward()
    ledger.mark("")


def first_block(model: Any) -> Any:
    """A GPT's first block, typed as Any because a ModuleList does not declare what it contains."""
    return model.blocks[0]


def mlp(shape: Shape, column_linear: Callable, row_linear: Callable) -> dict[str, float]:
    """The errors of a GPT's parallel MLP: of its output, of the gradient of x, and of that of
    this rank's shard of `up`."""
    plain, rank, tp = first_block(GPT(shape).double()).mlp, dist.get_rank(), dist.get_world_size()
    parallel = ParallelMLP(plain, None, column_linear, row_linear)
    x = torch.randn(2, 8, shape.hidden, dtype=torch.float64, generator=seeded(0))
    xs = [x.clone().requires_grad_() for _ in range(2)]
    y, z = plain(xs[0]), parallel(xs[1])
    y.square().sum().backward()
    z.square().sum().backward()
    return {
        "forward": error(z, y),
        "gradient of x": error(xs[1].grad, xs[0].grad),
        "gradient of the shard": error(
            parallel.up.weight.grad, plain.up.weight.grad.chunk(tp)[rank]
        ),
    }


def gated_mlp(
    column_linear: Callable, row_linear: Callable, D: int = 64, width: int = 96
) -> dict[str, float]:
    """The errors of a SwiGLU MLP, down(silu(gate(x)) * up(x)) without biases, forward and in the
    gradient of x. Sections of the ledger: forward, backward."""
    torch.manual_seed(0)
    gate, up = (nn.Linear(D, width, bias=False).double() for _ in range(2))
    down = nn.Linear(width, D, bias=False).double()
    shards = ColumnParallelLinear(gate), ColumnParallelLinear(up), RowParallelLinear(down)
    x = torch.randn(2, 8, D, dtype=torch.float64, generator=seeded(0))
    xs = [x.clone().requires_grad_() for _ in range(2)]
    y = down(F.silu(gate(xs[0])) * up(xs[0]))
    y.square().sum().backward()
    ledger.mark("forward")
    a, b = column_linear(xs[1], shards[:2])  # one f for both
    z = row_linear(F.silu(a) * b, shards[2])
    ledger.mark("backward")
    z.square().sum().backward()
    ledger.mark("")
    return {"forward": error(z, y), "gradient of x": error(xs[1].grad, xs[0].grad)}


def mlp_orders(shape: Shape) -> dict[str, float]:
    """The errors of an MLP with something between its two layers: nothing, a gather before the row
    split, an all-reduce after the column split. Each has a section of the ledger."""
    plain = first_block(GPT(shape)).mlp
    up, down = ColumnParallelLinear(plain.up), RowParallelLinear(plain.down)
    x = torch.randn(2, 8, shape.hidden, generator=seeded(0))
    between = {
        "nothing": lambda h: h,
        "gather before the row split": lambda h: split_to_group(gather_from_group(h)),
        "all-reduce after the column split": reduce_from_group,
    }
    errors = {}
    for name, communicate in between.items():
        ledger.mark(name)
        errors[name] = error(down(communicate(F.gelu(up(x)))), plain(x))
    ledger.mark("")
    return errors


def block(shape: Shape, attention: Callable) -> dict[str, float]:
    """The errors of a GPT's block with this parallel attention class, forward and in the
    gradient of x. Sections of the ledger: forward, backward."""
    plain, parallel = first_block(GPT(shape)), first_block(parallel_gpt(GPT(shape)))
    parallel.attention = attention(plain.attention)
    x = torch.randn(2, shape.seq_len, shape.hidden, generator=seeded(0))  # (B, T, D)
    xs = [x.clone().requires_grad_() for _ in range(2)]
    ledger.mark("forward")
    y = parallel(xs[0])
    ledger.mark("backward")
    y.square().sum().backward()
    ledger.mark("")
    z = plain(xs[1])
    z.square().sum().backward()
    return {"forward": error(y, z), "gradient of x": error(xs[0].grad, xs[1].grad)}


def losses(cross_entropy: Callable, vocabularies: Sequence[int], B: int = 4, T: int = 16) -> None:
    """Run the sharded loss, forward and backward, and an all-gather of the logits, for each size of
    the vocabulary. Sections of the ledger: "loss 1000", "gather 1000", ..."""
    tp = dist.get_world_size()
    for V in vocabularies:
        logits = torch.randn(B, T, V // tp, requires_grad=True)
        targets = torch.randint(V, (B, T), generator=seeded(0))
        ledger.mark(f"loss {V}")
        cross_entropy(logits, targets).backward()
        ledger.mark(f"gather {V}")
        gather_from_group(logits)
    ledger.mark("")


def padded_loss(cross_entropy: Callable, words: int = 10, padded: int = 12) -> dict[str, float]:
    """Three losses: of a vocabulary that was padded to `padded` rows, of the same with the padded
    logits masked to -1e9, and the correct one, of `words` rows."""
    rank, tp = dist.get_rank(), dist.get_world_size()
    logits = torch.randn(2, 8, padded, generator=seeded(0))
    targets = torch.randint(words, (2, 8), generator=seeded(1))
    masked = logits.masked_fill(torch.arange(padded) >= words, -1e9)
    mine = {"padded": logits, "padded and masked": masked}
    found = {n: cross_entropy(x.chunk(tp, -1)[rank], targets).item() for n, x in mine.items()}
    right = F.cross_entropy(logits[..., :words].flatten(0, 1), targets.flatten())
    return {"unpadded": right.item(), **found}


def kept_for_backward(make: Callable, shape: Shape, tokens_here: int, B: int = 4) -> int:
    """Bytes that one block of make(gpt) keeps for backward on this rank; x is (B, tokens_here, D).
    Sections of the ledger: forward, backward."""
    block = make(GPT(shape)).blocks[0]
    x = torch.randn(B, tokens_here, shape.hidden, requires_grad=True)
    with SavedBytes(besides=block.parameters()) as saved:
        ledger.mark("forward")
        y = block(x)
        kept = saved.nbytes()
        ledger.mark("backward")
        y.sum().backward()
    ledger.mark("")
    return kept


def kept_by_formula(
    shape: Shape, inputs: float, outputs: float, inside: float, B: int = 4
) -> float:
    """Bytes that one block keeps for backward on a rank in float32: the norms' inputs with their
    statistics, the norms' outputs, and what is inside the parallel layers, each times its share.

    The causal mask adds a byte per pair of positions, once.
    """
    T, D, width, H = shape.seq_len, shape.hidden, shape.mlp_hidden, shape.n_heads
    elements = (2 * D + 4) * inputs + 2 * D * outputs + (4 * D + H * T + 2 * width) * inside
    return 4 * B * T * elements + T * T


def full_gpt(shape: Shape, tokens: Tensor, targets: Tensor) -> dict[str, dict[str, float]]:
    """{"tensor" or "sequence" parallel: the full GPT's errors in float64}: the absolute difference
    of the loss, the error of this rank's gradients, and its number of parameters."""
    plain, rank, tp = GPT(shape).double(), dist.get_rank(), dist.get_world_size()
    loss = plain.loss(tokens, targets)
    loss.backward()
    gradients = {name: p.grad for name, p in plain.named_parameters() if p.grad is not None}
    mine, found = split_state_dict(gradients, rank, tp), {}
    for name, make in (("tensor", parallel_gpt), ("sequence", sequence_parallel_gpt)):
        parallel = make(plain)
        parallel_loss = parallel.loss(tokens, targets)
        parallel_loss.backward()
        parallel.sum_gradients()
        pairs = [(p.grad.flatten(), mine[n].flatten()) for n, p in parallel.named_parameters()]
        found[name] = {
            "loss": abs(parallel_loss - loss).item(),
            "gradient": error(*map(torch.cat, zip(*pairs, strict=True))),
            "parameters": sum(p.numel() for p in parallel.parameters()),
        }
    return found


def parameter_share(shape: Shape, tp: int) -> float:
    """The share of a GPT's parameters that each of tp ranks has: 1/tp of the sharded ones, and all
    replicated ones."""
    sizes = [(p.numel(), split_dim(name)) for name, p in GPT(shape).named_parameters()]
    here = sum(n if dim is None else n / tp for n, dim in sizes)
    return here / sum(n for n, _ in sizes)


def dtensor_mlp(shape: Shape) -> dict[str, float]:
    """The differences between this package's MLP and the one that `parallelize_module` makes of
    the same weights, forward and in the gradient of x."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    plain = MLP(shape)
    for p in plain.parameters():
        collectives.broadcast(p.data, 0)  # the same weights on all ranks
    mesh = init_device_mesh(backend.device().type, (dist.get_world_size(),))
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    ours, theirs = ParallelMLP(plain), parallelize_module(copy.deepcopy(plain), mesh, plan)
    x = torch.randn(2, shape.seq_len, shape.hidden, generator=seeded(0))
    xs = [x.clone().requires_grad_() for _ in range(2)]
    y, z = ours(xs[0]), theirs(xs[1])
    y.square().sum().backward()
    z.square().sum().backward()
    return {"forward": error(y, z), "gradient of x": error(xs[0].grad, xs[1].grad)}


class LargestTensor(TorchDispatchMode):
    """Inside `with LargestTensor() as seen`, seen.elements is the size of the largest tensor so far
    that an operation returned as its only result."""

    elements = 0

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        out = op(*args, **(kwargs or {}))
        self.elements = max(self.elements, out.numel() if torch.is_tensor(out) else 0)
        return out


__all__ = [
    "LargestTensor", "block", "dtensor_mlp", "error", "full_gpt", "gated_mlp", "gradchecked",
    "kept_by_formula", "kept_for_backward", "losses", "mlp", "mlp_orders", "padded_loss",
    "parameter_share", "partial_sums", "seeded", "two_layers",
]  # fmt: skip
