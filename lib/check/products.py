"""Counts the matmuls that a rank does in a block of code, however they are written.

    x @ w, matmul, einsum, F.linear, ...     torch's functions
               |
        aten::mm, aten::addmm, ...           one dispatcher entry each
               |  BackendSelect  <- our hook, like the ledger's: it records the shapes of both
               |                    factors and redispatches
           CPU or CUDA

(m, k) times (k, n) is m k n multiply-adds. An elementwise multiplication is counted only with
`outer`, and only if its result is larger than both factors.

A TorchDispatchMode would see matmuls too, but also the calls of torch.distributed. Its frame would
then be between the student's line and the op, and the ledger would name our line instead.
"""

import torch

from lib.backend import torch_private

PRODUCTS = (
    "mm", "addmm", "addmm_", "bmm", "baddbmm", "baddbmm_", "addbmm", "mv", "dot", "mm.out",
    "bmm.out",
)  # fmt: skip


class count_products:
    """`with count_products() as factors:` fills `factors` with the shapes of both factors of each
    product.

    outer: also count elementwise products that are larger than both factors, such as an outer
        product, as ((m, n), (1, 1)).
    """

    def __init__(self, outer=False):
        self.products = (*PRODUCTS, "mul.Tensor") if outer else PRODUCTS

    def __enter__(self):
        factors = []
        self.library = torch.library.Library("aten", "IMPL")
        for name in self.products:
            packet, _, overload = name.partition(".")
            op = getattr(getattr(torch.ops.aten, packet), overload or "default")
            self.library.impl(name, _noting(op, factors), "BackendSelect", with_keyset=True)
        return factors

    def __exit__(self, *error):
        self.library._destroy()


def _noting(op, factors):
    def note(keyset, *args, **kwargs):
        # the two factors come last: addmm's first tensor is the term that is added
        a, b = ([args[0]] + [arg for arg in args if isinstance(arg, torch.Tensor)])[-2:]
        out = op.redispatch(keyset & torch_private.below_backend_select, *args, **kwargs)
        if op is not torch.ops.aten.mul.Tensor:
            factors.append((tuple(a.shape), tuple(b.shape)))
        elif out.numel() > max(a.numel(), b.numel()):
            factors.append((tuple(out.shape), (1, 1)))
        return out

    return note


def multiply_adds(factors):
    """The sum of m k n over the products with these factors, [((m, k), (k, n)), ...]. A batched
    product counts once for each element of its batch."""
    return sum(torch.Size(a).numel() * (b[-1] if len(b) > 1 else 1) for a, b in factors)
