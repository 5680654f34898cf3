"""The exchange: an uneven all-to-all of routed tokens that gradients flow through (GShard, Lepikhin
et al. 2020, section 3.2).

            sorted by destination              sorted by source
    rank 0  [ 2 to 0 | 3 to 1 ]     -->        [ 2 from 0 | 1 from 1 ]
    rank 1  [ 1 to 0 | 4 to 1 ]     -->        [ 3 from 0 | 4 from 1 ]

How many tokens a rank receives depends on what the routers of all ranks chose, so the counts are
exchanged first: `exchange_counts` sends E/ep of them to each rank.

Over all ranks together, the exchange only reorders tokens, and the transpose of a permutation is
its inverse:

    forward   y  = P x     token i of rank r is sent to the rank that has its expert
    backward  dx = P^T dy  its gradient is sent back: the same exchange with the counts swapped

In Megatron Core this is `all_to_all` of tensor_parallel/mappings.py, which its
MoEAlltoAllTokenDispatcher calls with `input_splits` and `output_splits`: our send_counts and
receive_counts.

m routed tokens on a rank, of D elements each; a token counts once per kept pair (token, expert). E
experts over ep ranks, E/ep consecutive ones on each.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from lib import collectives
from lib.backend import Collective, Group


def exchange_counts(
    counts: Tensor, group: Group = None, all_to_all: Collective = collectives.all_to_all_at_once
) -> Tensor:
    """How many tokens each rank is about to send to each of this rank's experts: (E,) int64 -> (ep,
    E/ep) int64.

    counts: how many tokens this rank has for each of the E experts. Element [i, e] of the result
    says how many rank i has for the e-th expert of this rank. Sends: E/ep numbers of 8 bytes to
    every other rank; ep has to divide E.
    """
    return all_to_all(counts, group).view(dist.get_world_size(group), -1)  # (ep, E/ep)


# exercise: lab5.exchange_tokens
def exchange_tokens(
    routed_tokens: Tensor,
    send_counts: Sequence[int],
    receive_counts: Sequence[int],
    group: Group = None,
    all_to_all: Collective = collectives.all_to_all_at_once,
) -> Tensor:
    """Send routed tokens to the ranks that have their experts: (sum(send_counts), D) ->
    (sum(receive_counts), D). Tokens from rank 0 come first, and those of each rank stay in order.

    routed_tokens: sorted by destination rank. send_counts, receive_counts: how many tokens are sent
    to and received from each of the ep ranks; rank i's send_counts[j] equals rank j's
    receive_counts[i]. Sends: D elements for every token whose destination is another rank; backward
    sends as many in the other direction. Backward is an exchange as well, so if one rank of the
    group runs it, all have to, in the same order. all_to_all: called as all_to_all(tensor, group,
    send_counts, recv_counts); returns what was received.
    """
    return _Exchange.apply(routed_tokens, send_counts, receive_counts, group, all_to_all)


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, routed_tokens, send_counts, receive_counts, *how):
        ctx.counts, ctx.how = (send_counts, receive_counts), how
        group, all_to_all = how
        # (sum(receive_counts), D)
        return all_to_all(routed_tokens, group, send_counts, receive_counts)

    @staticmethod
    def backward(ctx, dy):
        # dx = P^T dy
        send_counts, receive_counts = ctx.counts
        return exchange_tokens(dy, receive_counts, send_counts, *ctx.how), None, None, None, None
