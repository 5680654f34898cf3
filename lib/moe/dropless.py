"""Dropless experts: without capacity and slots, each expert computes all tokens that chose it
(MegaBlocks, Gale et al. 2022).

    asked for     slots, factor 1: C = 2  dropless: m = 6 rows
    e0: a c d f   [a c]    d, f dropped   [a c d f | b | e]     times w[0], w[1], w[2], a group each
    e1: b         [b .]    an empty slot
    e2: e         [e .]    an empty slot

With slots, all experts have inputs of the same shape, so (E, C, D) times (E, D, F) is one batched
matmul, which also computes the empty slots. Without slots the groups have different lengths and
need a grouped GEMM, which multiplies group e of the rows by the e-th matrix. MegaBlocks implemented
it as a block-sparse matmul; in Megatron Core it is `--moe-grouped-gemm`.

    multiply-adds of a matmul, D to F   slots     E C D F, about factor m D F; the rest is dropped
                                        dropless  m D F, always

Tokens that are not dropped have to be waited for. A rank computes all rows that its experts are
asked for, and the other ranks wait for the one with the most rows. Capacity bounds this time and
the memory for the rows, whereas a dropless layer bounds neither.

Sent over all ranks: (ep-1) E counts of 8 bytes; for dispatch, for combine and for the backward of
each, D elements for every pair (token, expert) whose expert is on another rank.

n tokens of this rank, D hidden, F an expert's width, E experts over ep ranks, k choices a token, m
pairs.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lib import collectives
from lib.backend import Collective, Group
from lib.moe.capacity import assign_slots, capacity
from lib.moe.choice import Choice, load
from lib.moe.dispatch import combine, dispatch
from lib.moe.exchange import exchange_counts, exchange_tokens
from lib.moe.expert_parallel import own_experts, transpose_blocks


# exercise: lab5.grouped_mm
def grouped_mm(rows: Tensor, weights: Tensor, counts: Tensor) -> Tensor:
    """Multiply each group of rows by its own matrix: rows (m, D), weights (E, D, F) -> (m, F).

    counts: (E,) int64, how many rows each group has; the groups follow one another in `rows`, and a
    group may be empty. No rows are padded. This is one kernel if torch has one for these tensors
    (`is_one_kernel`), and otherwise one matmul per group.
    """
    if is_one_kernel(rows, weights):
        return F.grouped_mm(rows, weights, offs=counts.cumsum(0).to(torch.int32))
    # y[group e] = rows[group e] w[e]
    return torch.cat(
        [group @ w for group, w in zip(rows.split(counts.tolist()), weights, strict=True)]
    )


def is_one_kernel(rows, weights):
    """Whether torch has a grouped GEMM for these tensors. It is documented for bfloat16 on GPUs of
    compute capability 8.0 or more.

    It also needs the rows of all tensors to be multiples of 16 bytes.
    """
    fits = (
        rows.is_cuda and rows.dtype == weights.dtype == torch.bfloat16 and hasattr(F, "grouped_mm")
    )
    aligned = all(n * rows.element_size() % 16 == 0 for n in weights.shape[1:])
    return fits and aligned and torch.cuda.get_device_capability(rows.device) >= (8, 0)


# exercise: lab5.dropless
def dropless(
    x: Tensor,
    choice: Choice,
    n_experts: int,
    experts: Callable[[Tensor, Tensor], Tensor],
    group: Group = None,
    all_to_all: Collective = collectives.all_to_all_at_once,
) -> Tensor:
    """Run every token through all the experts that it chose, whichever ranks they are on: x (n, D)
    -> (n, D). Nothing is dropped.

    choice: of these n tokens. n_experts: E; rank r has E/ep consecutive experts, starting with
    r*E/ep. experts: this rank's experts, such as `GroupedExperts`, called as experts(rows (M, D),
    sorted by expert, counts (E/ep,)) -> (M, D). Every rank of the group has to make this call and
    run its backward, even without any tokens. Raises ValueError if ep does not divide E.
    """
    own_experts(n_experts, group)  # raises if ep does not divide E
    asked, k = choice.experts.flatten(), choice.experts.shape[1]  # (n*k,)
    pairs = asked.argsort(stable=True)  # sorted by expert, no expert (-1) first
    pairs = pairs[asked[pairs] >= 0]  # (m,)
    token, counts = pairs // k, load(asked, n_experts)  # (m,), (E,)

    received = exchange_counts(counts, group, all_to_all)  # (ep, E/ep)  by sender and expert
    send_counts, receive_counts = counts.view_as(received).sum(1).tolist(), received.sum(1).tolist()
    # (M, D)  sender by sender
    rows = exchange_tokens(x[token], send_counts, receive_counts, group, all_to_all)
    rows = experts(transpose_blocks(rows, received), received.sum(0))  # (M, D)  expert by expert
    rows = transpose_blocks(rows, received.t())  # (M, D)  sender by sender
    rows = exchange_tokens(rows, receive_counts, send_counts, group, all_to_all)  # (m, D)

    # y[t] = sum over pairs i of token t: weight_i * rows[i]
    weighted = choice.weights.flatten()[pairs].unsqueeze(1) * rows  # (m, D)
    return torch.zeros_like(x).index_add(0, token, weighted)  # (n, D)


class GroupedExperts(nn.Module):
    """Experts whose weights are stacked in two tensors. Called with rows (M, D), sorted by expert,
    and counts (each,); returns (M, D). each: how many experts there are.

        expert_e(x) = gelu(x w_in[e]) w_out[e]            w_in (each, D, F), w_out (each, F, D)

    grouped_mm: (rows, weights, counts) -> rows, as the function of that name. Sends nothing.
    """

    def __init__(
        self, each: int, hidden: int, width: int, grouped_mm: Callable[..., Tensor] = grouped_mm
    ) -> None:
        super().__init__()
        self.grouped_mm = grouped_mm
        self.w_in = nn.Parameter(torch.randn(each, hidden, width) / hidden**0.5)
        self.w_out = nn.Parameter(torch.randn(each, width, hidden) / width**0.5)

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        return self.grouped_mm(F.gelu(self.grouped_mm(rows, self.w_in, counts)), self.w_out, counts)

    def in_slots(self, slots: Tensor) -> Tensor:
        """The same experts on slots, full or empty: (each, C, D) -> (each, C, D), as one batched
        matmul per linear layer."""
        return F.gelu(slots @ self.w_in) @ self.w_out


def padded_to_capacity(x: Tensor, choice: Choice, experts: Any, factor: float) -> Tensor:
    """The alternative to `dropless`, in one process: x (n, D) -> (n, D) through E C slots, full or
    empty. Megatron Core: `--moe-pad-expert-input-to-capacity`.

    experts: a GroupedExperts of all E. factor: the capacity factor; pairs that do not fit are
    dropped. Sends nothing.
    """
    n_experts, (n, k) = len(experts.w_in), choice.experts.shape
    C = capacity(n, n_experts, k, factor)
    routing = assign_slots(choice, n_experts, C)
    slots = x.new_zeros(n_experts, C, x.shape[1])  # (E, C, D)
    slots = slots.index_put((routing.expert, routing.slot), dispatch(x, routing))
    return combine(experts.in_slots(slots)[routing.expert, routing.slot], routing, n)
