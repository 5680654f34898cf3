"""Device-limited routing: a token's experts are on at most M ranks, and the token is sent to each
of them once.

    E = 8, ep = 4      rank 0    rank 1    rank 2    rank 3
    experts            e0   e1   e2   e3   e4   e5   e6   e7
    p of a token       .30  .14  .20  .01  .05  .12  .17  .01
    top 3              .30       .20                 .17       three ranks: it is sent three times
    best of each rank  .30       .20       .12       .17       M = 2: ranks 0 and 1
    top 3 of those     .30  .14  .20                           two ranks: twice

                       how many times a token with k experts is sent at most
    ExpertParallelMoE  k          once for each pair (token, expert)
    DeduplicatedMoE    min(k, M)  once for each pair (token, rank): all its experts there read the
                                  same row, and their weighted sum is sent back

The gate by itself saves nothing if every pair is sent separately. Sending a token only once per
rank saves little by itself if there are many ranks, because its k experts are then on nearly k of
them. The two together bound the traffic, however large k and ep are.

The price is small: each kept pair sends the index of its token's row and its weight, which are two
numbers instead of D.

With nodes in place of ranks it is node-limited routing (DeepSeek-V3); DeepEP sends a token once to
each node, and forwards it there over NVLink. Megatron Core: `--moe-router-num-groups` and
`--moe-router-group-topk`.

n tokens of this rank, D hidden, E experts over ep ranks, k choices a token, m kept pairs (token,
expert), u rows to send, one for each pair (token, rank).

Source: DeepSeek-V2 (DeepSeek-AI 2024, section 2.2.2): 160 experts, k = 6; M = 3 did about as well
as no limit.
"""

import math

import torch
from torch import Tensor

from lib.moe.choice import Choice, top_k_indices
from lib.moe.exchange import exchange_counts
from lib.moe.expert_parallel import ExpertParallelMoE, transpose_blocks
from lib.moe.gates import top_k_gate
from lib.moe.layer import run_experts


def device_limited_gate(logits: Tensor, k: int, ep: int, M: int) -> Choice:
    """Choose the M ranks whose best experts are the best, and then the k best experts on these
    ranks, with weights renormalised to 1. logits (n, E) -> Choice.

    Expert e is on rank e // (E/ep). With M = ep the gate is `top_k_gate`. Raises ValueError if ep
    does not divide E, or if M ranks have fewer than k experts.
    """
    n, n_experts = logits.shape
    if n_experts % ep or not 1 <= M <= ep or M * n_experts // ep < k:
        raise ValueError(
            f"k={k} of {n_experts} experts, on at most M={M} of ep={ep} ranks: ep has to divide "
            f"the experts, and M ranks need k of them"
        )
    by_rank = logits.view(n, ep, n_experts // ep)  # (n, ep, E/ep)
    chosen = top_k_indices(by_rank.amax(-1), M)  # (n, M)  ranks
    elsewhere = torch.ones(n, ep, dtype=torch.bool, device=logits.device).scatter(1, chosen, False)
    limited = by_rank.masked_fill(elsewhere.unsqueeze(-1), -math.inf).view(n, n_experts)
    experts, weights, _ = top_k_gate(limited, k)
    # the probabilities of all experts, because the auxiliary loss balances all
    return Choice(experts, weights, logits.softmax(-1))


class DeduplicatedMoE(ExpertParallelMoE):
    """An ExpertParallelMoE that sends a token once to every rank that has one or more of its
    experts: (..., D) -> (..., D).

    Sends over all ranks, in forward: (ep-1) (E + ep) counts of 8 bytes; 2 D elements for every
    token and other rank that has one or more of its kept pairs; and, for each of these kept pairs,
    a weight and an index of 8 bytes. Backward sends the same, without counts and indices.
    """

    def forward(self, x: Tensor, uniform: Tensor | None = None) -> Tensor:
        tokens = x.flatten(0, -2)  # (n, D)
        routing, n = self.route(tokens, uniform), len(tokens)
        received = exchange_counts(self.last.load, self.group, self.all_to_all)  # (ep, E/ep)  pairs
        ep, each = received.shape
        send_pairs, receive_pairs = self.last.load.view(ep, each).sum(1), received.sum(1)  # (ep,)

        # The rows to send: each (rank, token) once, rank by rank. Pair i uses row of_pair[i].
        rank = routing.expert // each  # (m,)
        rows, of_pair = torch.unique(rank * n + routing.token, return_inverse=True)  # (u,), (m,)
        # (u,), (ep,)
        token, send = rows % max(n, 1), torch.bincount(rows // max(n, 1), minlength=ep)
        receive = exchange_counts(send, self.group, self.all_to_all).squeeze(1)  # (ep,)

        # (m,)  the row's index among those for that rank
        there = of_pair - (send.cumsum(0) - send)[rank]
        there = self.exchange(there, send_pairs.tolist(), receive_pairs.tolist())
        weight = self.exchange(routing.weight, send_pairs.tolist(), receive_pairs.tolist())
        begins = (receive.cumsum(0) - receive).repeat_interleave(receive_pairs)
        here = transpose_blocks(there + begins, received)  # the row of each pair, expert by expert
        weight = transpose_blocks(weight, received)

        rows = self.exchange(tokens[token], send.tolist(), receive.tolist())  # (sum(receive), D)
        outputs = run_experts(self.experts.values(), rows[here], received.sum(0))
        # sum over the pairs of a row: weight_i * outputs[i]
        # (sum(receive), D)
        sums = torch.zeros_like(rows).index_add(0, here, weight.unsqueeze(1) * outputs)
        sums = self.exchange(sums, receive.tolist(), send.tolist())  # (u, D)
        return torch.zeros_like(tokens).index_add(0, token, sums).view_as(x)
