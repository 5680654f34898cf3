"""Dispatch and combine: copy tokens to the experts' slots, and add the outputs up for each token.

    x (n, D)          routed tokens, sorted by expert      y (n, D)
    token 0 -----+    +-> [ token 0 | token 2 ] e0 --+     w0 e0(x0) + w0' e1(x0)
    token 1 --+  +----+-> [ token 0 ]           e1 --+-->  w1 e2(x1)
    token 2 --+---------> [ token 1 ]           e2 --+     w2 e0(x2)

               einsum over one-hot masks              by index, after a sort
    what       E*C slots, full or empty               the m pairs that are kept
    cost       n * E*C * D multiply-adds each way     m * D copies or adds each way

E*C is about factor * k * n, so the einsum's cost grows with n squared, and nearly all of it is
spent on multiplying zeros. GShard and Switch used it nevertheless, because matmuls are cheap on
TPUs and every shape is known at compile time. Megatron Core calls the versions by index `permute`
and `unpermute`.

n tokens of one set, D hidden, E experts, C slots per expert, m kept pairs. The pairs are a
`Routing` (capacity.py).

Sources: the einsums: GShard (Lepikhin et al. 2020, Algorithm 2); sorting: MegaBlocks (Gale et al.
2022).
"""

import torch
from torch import Tensor

from lib.moe.capacity import Routing


# exercise: lab5.dispatch
def dispatch(x: Tensor, routing: Routing) -> Tensor:
    """Copy each token once per expert: x (n, D) -> the routed tokens (m, D), in the order of the
    routing. Sends nothing.

    Backward adds up the gradients of a token's copies. A result without rows is still part of the
    autograd graph, because the exchange after it has to take part in the backward pass.
    """
    # rows[i] = x[token_i]
    return x.index_select(0, routing.token)  # (m, D)


# exercise: lab5.combine
def combine(rows: Tensor, routing: Routing, n: int) -> Tensor:
    """Add up each token's outputs, weighted: rows (m, D), the experts' outputs for the routed
    tokens in the order of the routing, -> (n, D). Sends nothing.

    A token without a pair gets zeros. In backward, a row's gradient is its weight times the
    gradient of its token. The sums have the dtype of the rows, even if a router in float32 gave the
    weights. The zeros of a rank without pairs are part of the autograd graph as well, because the
    exchange before them has to take part in the backward pass.
    """
    # y[t] = sum over pairs i of token t: weight_i * rows[i]
    weighted = (routing.weight.unsqueeze(-1) * rows).to(rows.dtype)  # (m, D)
    return rows.new_zeros(n, rows.shape[-1]).index_add(0, routing.token, weighted)  # (n, D)


def dispatch_einsum(x: Tensor, routing: Routing, n_experts: int, C: int) -> Tensor:
    """`dispatch` with a mask: x (n, D) -> slots (E, C, D), zeros where a slot is empty. Sends
    nothing."""
    # (n, E, C)  1 at the slots of token n
    mask = masked(torch.ones_like(routing.weight), routing, len(x), n_experts, C)
    # slots[e, c] = sum_n mask[n, e, c] x[n]
    return torch.einsum("nec,nd->ecd", mask, x)  # (E, C, D)


def combine_einsum(slots: Tensor, routing: Routing, n: int) -> Tensor:
    """`combine` with a mask: slots (E, C, D) -> (n, D). Sends nothing."""
    n_experts, C, _ = slots.shape
    weights = masked(routing.weight, routing, n, n_experts, C)  # (n, E, C)
    # y[n] = sum_{e, c} weights[n, e, c] slots[e, c]
    return torch.einsum("nec,ecd->nd", weights, slots)  # (n, D)


def masked(values, routing, n, n_experts, C):
    """A tensor (n, E, C) that has values[i] at the (token, expert, slot) of pair i, and zeros
    elsewhere. values: (m,)."""
    zeros = values.new_zeros(n, n_experts, C)
    return zeros.index_put((routing.token, routing.expert, routing.slot), values)
