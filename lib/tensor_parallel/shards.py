"""A rank's shard of a tensor or of a checkpoint, and the full one merged from all ranks' shards.

    dim 0, tp = 2     dim 1, tp = 2    tp ranks, shard r = chunk(tp, dim)[r]
    +-------+         +---+---+
    | rank 0|         |   |   |        torch stores the weight of x -> x A + a as (out, in), so
    +-------+         | 0 | 1 |        columns of A are rows of the weight: a column split is a
    | rank 1|         |   |   |        split on dim 0 (Shard(0)), a row split one on dim 1
    +-------+         +---+---+

All shards have the same size, so that every rank has the same amount of work and shards can be
merged without further information.

`split_state_dict` splits the state_dict of the unsharded model for tp ranks, and
`merge_state_dicts` merges the shards again:

    full["blocks.0.mlp.up.weight"]     (F, D)    ->  rank r  (F/tp, D)     sharded on dim 0
    full["blocks.0.mlp.down.weight"]   (D, F)    ->  rank r  (D, F/tp)     sharded on dim 1
    full["blocks.0.norm1.weight"]      (D,)      ->  rank r  (D,)          replicated

A fused weight stacks the weights of layers that read the same x, such as q, k and v, or an MLP's
gate and up. Each of its parts is sharded on its own; a plain chunk would give rank 0 all of q:

    fused (q | k | v)    q0 q1 | k0 k1 | v0 v1     ->   rank 0: q0 k0 v0    rank 1: q1 k1 v1

Names are those of `lib.training.model.GPT`, in one process and on ranks, because the parallel
modules keep them. Any tensor with a parameter's name is sharded like it, such as a weight, a
gradient or one of Adam's averages. To go from tp=2 to tp=4, merge, then split. (torch's DCP does
both while it loads: "resharding".)
"""

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lib import collectives
from lib.training.buckets import mark_sharded


def divide(n, tp, what):
    """n / tp, a whole number. Otherwise raises ValueError, which names the sizes that would
    work."""
    if n % tp:
        fits = [d for d in range(1, min(n, 64) + 1) if n % d == 0]
        sizes = [n - n % tp, n - n % tp + tp][n < tp :]
        raise ValueError(
            f"{what} {n} over tp={tp} ranks is not whole: use {what} {_or(sizes)}, or "
            f"tp={_or(fits)}"
        )
    return n // tp


def own_shard(parameter, dim, group, what):
    """This rank's shard of `parameter` on `dim`, as a new parameter; dim None: a full copy. None
    stays None.

    what: what is counted along `dim`, for the ValueError if the ranks do not divide it. Sends
    nothing.
    """
    if parameter is None:
        return None
    part = parameter.detach()
    if dim is not None:
        rank, tp = dist.get_rank(group), dist.get_world_size(group)
        divide(part.shape[dim], tp, what)
        part = part.chunk(tp, dim)[rank]
    own = nn.Parameter(part.clone(), requires_grad=parameter.requires_grad)
    if dim is not None:
        mark_sharded([own], group)
    return own


def gather_along_dim(shard, dim, group=None, all_gather=collectives.all_gather):
    """All ranks' shards, concatenated on `dim`: contiguous, tp times as long on `dim` as `shard`.

    Sends: an all-gather of the shards. The inverse is chunk(tp, dim)[rank].
    """
    # The collective concatenates tensors on dim 0.
    return all_gather(shard.movedim(dim, 0).contiguous(), group).movedim(0, dim).contiguous()


def _or(numbers):
    *first, last = map(str, numbers)
    return f"{', '.join(first)} or {last}" if first else last


SPLIT = {  # name ends in: dim
    "embedding.token.weight": 0,
    "head.weight": 0,
    "attention.q.weight": 0, "attention.q.bias": 0,
    "attention.k.weight": 0, "attention.k.bias": 0,
    "attention.v.weight": 0, "attention.v.bias": 0,
    "attention.out.weight": 1,
    "mlp.up.weight": 0, "mlp.up.bias": 0,
    "mlp.down.weight": 1,
}  # fmt: skip


def split_dim(name: str) -> int | None:
    """The dim on which the parameter `name` is sharded; None if it is replicated."""
    return next((dim for ending, dim in SPLIT.items() if name.endswith(ending)), None)


def _split_how(name, tensor, fused):
    """(dim, sizes of the parts along it), each of which is sharded; (None, []): replicated."""
    parts = next((sizes for ending, sizes in fused.items() if name.endswith(ending)), None)
    if parts is not None:
        return 0, list(parts)
    dim = split_dim(name)
    return dim, [] if dim is None else [tensor.shape[dim]]


# exercise: lab3.split_state_dict
def split_state_dict(
    state: Mapping[str, Tensor],
    rank: int,
    tp: int,
    fused: Mapping[str, Sequence[int]] | None = None,
) -> dict[str, Tensor]:
    """Rank `rank`'s {name: tensor} of tp ranks, as copies, from that of the unsharded model. A pure
    function that needs no ranks.

    fused: {how a name ends: the sizes of its parts along dim 0}, for weights that stack several
    layers, such as {"qkv.weight": (H*d, K*d, K*d)}. Each part is sharded on its own. Raises
    ValueError for a size that tp does not divide. It checks columns, not heads; `ParallelAttention`
    checks heads.
    """
    shards = {}
    for name, tensor in state.items():
        dim, sizes = _split_how(name, tensor, fused or {})
        if dim is not None:
            for size in sizes:
                divide(size, tp, f"dim {dim} of {name}")
            parts = tensor.split(sizes, dim)
            tensor = torch.cat([part.chunk(tp, dim)[rank] for part in parts], dim)
        shards[name] = tensor.detach().clone()
    return shards


def merge_state_dicts(
    parts: Sequence[Mapping[str, Tensor]], fused: Mapping[str, Sequence[int]] | None = None
) -> dict[str, Tensor]:
    """The unsharded model's {name: tensor} from those of all ranks, [rank 0's, rank 1's, ...]. A
    pure function that needs no ranks.

    fused: as in `split_state_dict`. Raises ValueError if ranks differ in what should be the same:
    their copies of a replicated tensor, such as a norm, or their names.
    """
    first, *others = parts
    for rank, other in enumerate(others, 1):
        if other.keys() != first.keys():
            raise ValueError(
                f"ranks 0 and {rank} differ in their names: {sorted(other.keys() ^ first.keys())}"
            )
    state = {}
    for name, tensor in first.items():
        dim, sizes = _split_how(name, tensor, fused or {})
        if dim is None:
            _check_alike(name, [part[name] for part in parts])
            state[name] = tensor.detach().clone()
        elif len(sizes) == 1:
            state[name] = torch.cat([part[name] for part in parts], dim)
        else:
            own = [size // len(parts) for size in sizes]  # of each part, on a rank
            of_ranks = zip(*(part[name].split(own, dim) for part in parts), strict=True)
            state[name] = torch.cat([shard for ranks in of_ranks for shard in ranks], dim)
    return state


def _check_alike(name, copies):
    for rank, other in enumerate(copies):
        if not torch.equal(other, copies[0]):
            raise ValueError(
                f"{name} is replicated, but rank {rank}'s copy differs from rank 0's: the replicas "
                f"have diverged. Different gradients (in sequence parallel: sum_gradients() after "
                "backward), seeds or data?"
            )
