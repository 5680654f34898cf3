"""What a collective does on its own rank: combine two partial results, split a tensor into chunks,
flatten it.

op        combine(a, b)                                    dtype
SUM       a + b                                            integer or floating point
PRODUCT   a * b                                            integer or floating point
MAX, MIN  max(a, b), min(a, b)                             integer or floating point
AVG       a + b; at the end the total is divided by N      floating point only

Chunk r of n elements (or rows) over N ranks is `tensor.tensor_split(N)[r]`: contiguous, in order,
without padding. The sizes differ by at most one: the first n mod N chunks have one more.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributed import ReduceOp

from lib.backend import Op

_COMBINE: dict[Op, Callable] = {
    ReduceOp.SUM: torch.add,
    ReduceOp.PRODUCT: torch.mul,
    ReduceOp.MAX: torch.maximum,
    ReduceOp.MIN: torch.minimum,
    ReduceOp.AVG: torch.add,
}


def combiner(op: Op, tensor: Tensor) -> Callable:
    """The function `combine(a, b, out=c)` of `op`. Raises ValueError for an `op` that is not in the
    table, and for AVG of a dtype that is not floating point."""
    if op not in _COMBINE:
        raise ValueError(
            f"op={op}: use SUM, PRODUCT, MAX, MIN or AVG of torch.distributed.ReduceOp"
        )
    if op == ReduceOp.AVG and not tensor.is_floating_point():
        raise ValueError(
            f"the average of {tensor.dtype} is no integer: use op=SUM and divide, or tensor.float()"
        )
    return _COMBINE[op]


def divide_if_average(total: Tensor, op: Op, world_size: int) -> Tensor:
    """Turn the total over `world_size` ranks into `op`'s result, in place: for AVG divide it by
    `world_size`; for every other op the total is the result."""
    return total.div_(world_size) if op == ReduceOp.AVG else total


class flattened:
    """`with flattened(tensor) as x:` x is `tensor` as a flat buffer, (n,); what is written to x is
    in `tensor` afterwards.

    x is a view of `tensor` if that is contiguous. Otherwise it may be a copy, which is written back
    when the block ends without an error.
    """

    def __init__(self, tensor):
        self.tensor = tensor.detach()

    def __enter__(self):
        self.buffer = self.tensor.reshape(-1)
        return self.buffer

    def __exit__(self, error, *_):
        if error is None and not self.tensor.is_contiguous():
            self.tensor.copy_(self.buffer.view(self.tensor.shape))


def largest_power_of_two(n: int) -> int:
    """The largest power of two up to n >= 1."""
    return 1 << (n.bit_length() - 1)


def powers_of_two(n: int) -> list[int]:
    """[1, 2, 4, ...] below n: ceil(log2 n) of them, the distances of a tree over n ranks."""
    return [1 << bit for bit in range((n - 1).bit_length())]
