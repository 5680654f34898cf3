"""The exchange: an uneven all-to-all of rows that gradients flow through (GShard, Lepikhin et al.
2020, section 3.2).

            rows, by where they go             rows, by where they came from
    rank 0  [ 2 to 0 | 3 to 1 ]     -->        [ 2 from 0 | 1 from 1 ]
    rank 1  [ 1 to 0 | 4 to 1 ]     -->        [ 3 from 0 | 4 from 1 ]

How many rows a rank gets is the routers' doing, so it is asked first: `exchange_counts`, E/ep
numbers to each rank.

Seen over all ranks together, the exchange only reorders rows, and a permutation's transpose is its
inverse:

    forward   y  = P x     row i of rank r goes where it is wanted
    backward  dx = P^T dy  its gradient goes back: the same exchange, the two lists of counts
                           swapped

m rows on a rank, of D numbers; E experts over ep ranks, E/ep consecutive ones on each.
"""

import torch
import torch.distributed as dist

from lib import collectives


def exchange_counts(counts, group=None, all_to_all=collectives.all_to_all_at_once):
    """How many rows each rank is about to send to each of this rank's experts: (E,) int64 -> (ep,
    E/ep) int64.

    counts: this rank's rows for each of the E experts, wherever they are. Returned [i, e]: rank i's
    rows for the e-th expert here. Sends: E/ep numbers of 8 bytes to every other rank; ep has to
    divide E.
    """
    return all_to_all(counts, group).view(dist.get_world_size(group), -1)  # (ep, E/ep)


# exercise: lab5.exchange_rows
def exchange_rows(
    rows, send_counts, receive_counts, group=None, all_to_all=collectives.all_to_all_at_once
):
    """Rows to the ranks they are for: (sum(send_counts), D) -> (sum(receive_counts), D), by sender,
    each's in order.

    send_counts, receive_counts: rows to and from each of the ep ranks; rank i's send_counts[j] is
    j's receive_counts[i]. Sends: every row that is not for this rank once, D numbers; as much in
    backward, the other way. Backward is an exchange too: all ranks of the group have to call it, in
    the same order, if one does. all_to_all: all_to_all(tensor, group, send_counts, recv_counts) ->
    what was received.
    """
    return _Exchange.apply(rows, send_counts, receive_counts, group, all_to_all)


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, send_counts, receive_counts, *how):
        ctx.counts, ctx.how = (send_counts, receive_counts), how
        group, all_to_all = how
        return all_to_all(rows, group, send_counts, receive_counts)  # (sum(receive_counts), D)

    @staticmethod
    def backward(ctx, dy):
        # dx = P^T dy
        send_counts, receive_counts = ctx.counts
        return exchange_rows(dy, receive_counts, send_counts, *ctx.how), None, None, None, None
