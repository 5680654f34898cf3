"""Expert parallelism: every rank holds E/ep of the experts, and tokens are sent to them (GShard,
Lepikhin et al. 2020).

    E = 4, ep = 2      rank 0, its tokens                    rank 1, its tokens
    gate, dispatch     [e0 e0 e1 | e2 e3]                    [e0 | e2 e2 e3]       each separately
    exchange           [e0 e0 e1 | e0]      <-- tokens -->   [e2 e3 | e2 e2 e3]    | between senders
    transpose          [e0 e0 e0 | e1]                       [e2 e2 e2 | e3 e3]    | between experts
    experts            y = expert_e(x)                       y = expert_e(x)
    transpose, exchange, combine: the same steps in reverse; the token's rank applies the weights

The full forward, with the file of each step. `MoE.forward` (layer.py) has the first two and the
last; `run` below is what comes between them, and the only part that communicates:

    routing = route(tokens)                                         # gates.py, capacity.py
    routed_tokens = dispatch(tokens, routing)                       # dispatch.py   (m, D)
    received = exchange_counts(load)                                # exchange.py   (ep, E/ep)
    routed_tokens = exchange_tokens(routed_tokens, send, receive)   # exchange.py   by sender
    routed_tokens = transpose_blocks(routed_tokens, received)       # here          by expert
    routed_tokens = run_experts(experts, routed_tokens, ...)        # layer.py
    routed_tokens = transpose_blocks(routed_tokens, received.t())   # here          by sender
    routed_tokens = exchange_tokens(routed_tokens, receive, send)   # exchange.py   (m, D)
    y = combine(routed_tokens, routing, n)                          # dispatch.py   (n, D)

Megatron Core calls it a token dispatcher, `MoEAlltoAllTokenDispatcher`: its `permute` and
`unpermute` are our dispatch and combine, its `sort_chunks_by_idxs` is our transpose_blocks.

Each rank's tokens are a set, which GShard calls a group. A rank routes its own tokens with its own
capacity, and does not need to know what other ranks' tokens choose. So only tokens and their counts
are sent, and the ranks compute what a single process computes if it takes the sets one by one. The
loss is then the mean of the ranks' losses, auxiliary losses included.

Sent over all ranks: (ep-1) E counts of 8 bytes; then, for dispatch, for combine and for the
backward of each, D elements for every kept pair (token, expert) whose expert is on another rank.

n tokens of this rank, D hidden, E experts over ep ranks, m kept pairs of this rank.
"""

import copy
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lib import collectives
from lib.backend import Collective, Group
from lib.moe.exchange import exchange_counts, exchange_tokens
from lib.moe.layer import MoE, run_experts
from lib.training.buckets import mark_sharded


# exercise: lab5.ExpertParallelMoE
class ExpertParallelMoE(MoE):
    """This rank's part of `moe`, a `lib.moe.layer.MoE` that is identical on all ranks: x (..., D)
    -> (..., D).

    It differs from that layer in one step: `run` sends the routed tokens to their experts and back.
    The router is replicated. Rank r has E/ep consecutive experts, starting with r*E/ep, under the
    names that they have in `moe`, so all ranks' state dicts together give that of `moe`. `moe`
    itself is not changed. `last`: the Statistics of this rank's tokens. Every rank of the group has
    to call the layer, in forward and in backward, even without any tokens. all_to_all: used for the
    exchange, see `exchange_tokens`. Raises ValueError if ep does not divide E.
    """

    def __init__(
        self, moe: MoE, group: Group = None, all_to_all: Collective = collectives.all_to_all_at_once
    ) -> None:
        here = own_experts(len(moe.experts), group)
        super().__init__(
            moe.router.in_features, moe.experts, copy.deepcopy(moe.gate), moe.factor,
            moe.assign_slots,
            moe.dispatch, moe.combine,
        )  # fmt: skip
        self.group, self.all_to_all = group, all_to_all
        self.router = copy.deepcopy(moe.router)
        self.experts = nn.ModuleDict({str(e): copy.deepcopy(moe.experts[e]) for e in here})
        mark_sharded(self.experts.parameters(), group)

    def run(self, routed_tokens: Tensor) -> Tensor:
        """Run the routed tokens through their experts, whichever ranks these are on: (m, D), sorted
        by expert, -> (m, D)."""
        load = self.last.load  # (E,)
        # (ep, E/ep)  by sender and expert
        received = exchange_counts(load, self.group, self.all_to_all)
        send_counts = load.view_as(received).sum(1).tolist()
        receive_counts = received.sum(1).tolist()
        # (sum(receive_counts), D)  sorted by sender
        routed_tokens = self.exchange(routed_tokens, send_counts, receive_counts)
        routed_tokens = transpose_blocks(routed_tokens, received)  # sorted by expert
        routed_tokens = run_experts(self.experts.values(), routed_tokens, received.sum(0))
        routed_tokens = transpose_blocks(routed_tokens, received.t())  # sorted by sender
        return self.exchange(routed_tokens, receive_counts, send_counts)  # (m, D)

    def exchange(
        self, routed_tokens: Tensor, send_counts: Sequence[int], receive_counts: Sequence[int]
    ) -> Tensor:
        """`exchange_tokens` over this layer's group."""
        return exchange_tokens(
            routed_tokens, send_counts, receive_counts, self.group, self.all_to_all
        )


def own_experts(n_experts: int, group: Group = None) -> range:
    """The indices of this rank's experts, a range of E/ep. Raises ValueError if ep does not divide
    E."""
    rank, ep = dist.get_rank(group), dist.get_world_size(group)
    if n_experts % ep:
        fits = [n_experts - n_experts % ep, n_experts - n_experts % ep + ep][n_experts < ep :]
        raise ValueError(
            f"{n_experts} experts over ep={ep} ranks is not whole: use "
            f"{' or '.join(map(str, fits))} experts"
        )
    each = n_experts // ep
    return range(rank * each, (rank + 1) * each)


def transpose_blocks(rows: Tensor, counts: Tensor) -> Tensor:
    """Reorder blocks of rows from row-major to column-major order, where block (i, j) has counts[i,
    j] rows: all blocks with j = 0 come first, then those with j = 1, and so on.

    rows: (sum(counts), D), such as routed tokens. counts: (a, b) int64. Calling it again with
    counts.t() restores the order. Megatron Core: `sort_chunks_by_idxs`.
    """
    a, b = counts.shape
    blocks = rows.split(counts.flatten().tolist())
    return torch.cat([blocks[i * b + j] for j in range(b) for i in range(a)])
