"""One matmul, split over N ranks in the four ways of data, tensor and pipeline parallelism.

    y = x w          x (B, K)   w (K, M)   y (B, M)         B samples, K inputs, M outputs

    rows       rank r has rows of x       its rows of y          nothing is sent   data parallel
    columns    rank r has columns of w    its columns of y       all-gather        tensor parallel
    inner      rank r has columns of x,   a partial y, as large  all-reduce (sum)  tensor parallel
               and those rows of w        as y
    pipeline   rank r has layers of many  the activation         send to the next  pipeline parallel

Each of the first three needs 1/N of the multiplications on every rank. Every rank has x and w in
full, as if loaded from one file, but uses only its shard, an entry of `tensor_split(N)`. If N does
not divide the split dim, `split_rows` and `split_inner` have shards that differ by one.

Source of the two tensor-parallel splits: Megatron-LM (Shoeybi et al. 2019, section 3).
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from lib.backend import Group
from lib.collectives import p2p


# exercise: lab0.split_rows
def split_rows(x: Tensor, w: Tensor, group: Group = None) -> Tensor:
    """Rank r multiplies the r-th shard of x's rows: (B/N, K) (K, M) -> (B/N, M), its own rows of x
    w.

    Sends nothing: in data parallelism a sample's result is needed only where the sample is. (Its
    gradient is another matter: that of w is a sum over all samples, so over all ranks.)
    """
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    return x.tensor_split(world_size)[rank] @ w  # (B/N, M)


# exercise: lab0.split_columns
def split_columns(x: Tensor, w: Tensor, group: Group = None) -> Tensor:
    """Rank r multiplies by the r-th shard of w's columns: (B, K) (K, M/N) -> (B, M/N); returns x w,
    (B, M).

    Sends: an all-gather of every rank's (B, M/N). Raises ValueError if N does not divide M.
    """
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    if w.shape[1] % world_size:
        raise ValueError(
            f"{w.shape[1]} columns over {world_size} ranks: all-gather needs as many from every "
            f"rank"
        )
    mine = x @ w.tensor_split(world_size, dim=1)[rank]  # (B, M/N)  some columns of y, finished
    pieces = [torch.empty_like(mine) for _ in range(world_size)]
    dist.all_gather(pieces, mine, group)
    return torch.cat(pieces, dim=1)  # (B, M)


# exercise: lab0.split_inner
def split_inner(x: Tensor, w: Tensor, group: Group = None) -> Tensor:
    """Rank r multiplies the r-th shard of the inner dimension: (B, K/N) (K/N, M) -> (B, M), and the
    ranks add up.

    y[i, j] is a sum over k; each rank has some of its terms. Returns x w, (B, M). Sends: an
    all-reduce of (B, M).
    """
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    # (B, M)  partial
    y = x.tensor_split(world_size, dim=1)[rank] @ w.tensor_split(world_size)[rank]
    dist.all_reduce(y, group=group)
    return y  # (B, M)


# exercise: lab0.pipeline
def pipeline(x: Tensor, layers: Sequence[Tensor], group: Group = None) -> Tensor | None:
    """Rank r applies the r-th shard of `layers`, a list of (K, K) matrices, to what rank r-1 sends,
    (B, K).

    Returns the activation that leaves this rank, (B, K): on the last rank x T1 T2 ... TL. The first
    rank begins with x. Sends: (B, K) to the next rank. With one batch, only one rank works at a
    time; Lab 2 improves on that. Raises ValueError if N does not divide the number of layers.
    """
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    per_rank, left_over = divmod(len(layers), world_size)
    if left_over:
        raise ValueError(
            f"{len(layers)} layers over {world_size} ranks: every rank takes as many layers"
        )
    h = x if rank == 0 else p2p.recv(torch.empty_like(x), rank - 1, group)  # (B, K)
    for layer in layers[rank * per_rank : (rank + 1) * per_rank]:
        h = h @ layer  # (B, K)
    if rank < world_size - 1:
        p2p.send(h, rank + 1, group)
    return h
