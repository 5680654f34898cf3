"""Eight collectives of PyTorch on marked values: each rank's values before and after them.

    launch.capture(before_and_after, nproc=4)   ->   what `plots.before_after` draws

Chunk c of rank r is (c + 1) 10^r, so a value says which chunk it is and from which rank: 30 is
chunk 2 of rank 1, and 3333 is the sum of chunk 2 over ranks 0 to 3.
"""

import torch
import torch.distributed as dist
from torch import Tensor


def before_and_after() -> dict[str, tuple[Tensor | None, Tensor | None]]:
    """{collective: (this rank's values before it, its values afterwards)}, with root 0.

    The values are None if a rank passes in nothing, or has nothing defined afterwards. A chunk
    is one element. Use at most 7 ranks, because float32 rounds some of the sums over more. Sends:
    each of the eight collectives once.
    """
    rank, N = dist.get_rank(), dist.get_world_size()
    is_root = rank == 0
    values = lambda: torch.arange(1.0, N + 1) * 10**rank  # one chunk for each rank
    empty = lambda: list(torch.zeros(N).split(1))
    mine, seen = values()[rank : rank + 1], {}

    x = values()
    dist.broadcast(x, src=0)
    seen["broadcast"] = values(), x
    x = values()
    dist.reduce(x, dst=0)
    seen["reduce"] = values(), x if is_root else None
    chunk = torch.zeros(1)
    dist.scatter(chunk, list(values().split(1)) if is_root else None, src=0)
    seen["scatter"] = values() if is_root else None, chunk
    chunks = empty()
    dist.gather(mine, chunks if is_root else None, dst=0)
    seen["gather"] = mine, torch.cat(chunks) if is_root else None
    chunks = empty()
    dist.all_gather(chunks, mine)
    seen["all-gather"] = mine, torch.cat(chunks)
    chunk = torch.zeros(1)
    dist.reduce_scatter(chunk, list(values().split(1)))
    seen["reduce-scatter"] = values(), chunk
    x = values()
    dist.all_reduce(x)
    seen["all-reduce"] = values(), x
    received = torch.zeros(N)
    dist.all_to_all_single(received, values())
    seen["all-to-all"] = values(), received
    return seen
