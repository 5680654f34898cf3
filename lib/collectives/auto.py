"""The all-reduce that picks its algorithm by message size and world size, as NCCL and MPI libraries
do.

    few bytes   latency dominates    recursive doubling: fewest rounds; star: fewest messages
    more bytes  both matter          tree: 2 log2 N rounds, and no rank receives from all others
    many bytes  bandwidth dominates  ring, halving and doubling, direct: fewest bytes per rank

The size at which one algorithm overtakes another depends on the machine, so it is measured and
stored in `thresholds.json`. The file maps a world size to rows [largest size in bytes, algorithm],
in increasing size; null means no upper limit. A world size that it does not contain uses the rows
of the nearest smaller one.
"""

import functools
import json
from pathlib import Path

import torch.distributed as dist
from torch import Tensor

from lib.backend import Group, Op
from lib.collectives.direct import direct_all_reduce
from lib.collectives.doubling import recursive_doubling_all_reduce
from lib.collectives.halving_doubling import halving_doubling_all_reduce
from lib.collectives.ring import ring_all_reduce
from lib.collectives.star import star_all_reduce
from lib.collectives.tree import tree_all_reduce

ALL_REDUCE = {
    "star": star_all_reduce,
    "tree": tree_all_reduce,
    "ring": ring_all_reduce,
    "direct": direct_all_reduce,
    "recursive_doubling": recursive_doubling_all_reduce,
    "halving_doubling": halving_doubling_all_reduce,
}
THRESHOLDS = json.loads(Path(__file__).with_name("thresholds.json").read_text())["all_reduce"]


def all_reduce(tensor: Tensor, group: Group = None, op: Op = dist.ReduceOp.SUM) -> Tensor:
    """Reduce `tensor` over the ranks of `group`, in place, by the algorithm that was measured to be
    the fastest; returns it.

    tensor: any shape, the same on every rank. What is sent depends on the algorithm that `choose`
    names. The result is bit-identical on all ranks, as with each of the algorithms.
    """
    name = choose(tensor.numel() * tensor.element_size(), dist.get_world_size(group))
    return ALL_REDUCE[name](tensor, group, op)


@functools.lru_cache(1024)
def choose(nbytes: int, world_size: int) -> str:
    """The name, in ALL_REDUCE, of the algorithm for `nbytes` bytes a rank over `world_size`
    ranks."""
    row = max((int(size) for size in THRESHOLDS if int(size) <= world_size), default=2)
    return next(name for up_to, name in THRESHOLDS[str(row)] if up_to is None or nbytes <= up_to)
