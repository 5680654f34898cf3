"""The exchange brings every row to its rank, its gradient back, and nothing else travels."""

import pytest
import torch
import torch.distributed as dist
from moe_cases import GROUPS, D, my_groups

from lib import launch, ledger
from lib.moe import exchange_counts, exchange_tokens

# rows from rank i to rank j, where the group has so many ranks
COUNTS = {
    "uneven": [[2, 0, 3, 1], [1, 4, 0, 2], [0, 0, 0, 0], [5, 1, 1, 0]],
    "all to rank 0": [[3, 0, 0, 0], [2, 0, 0, 0], [1, 0, 0, 0], [4, 0, 0, 0]],
    "only to oneself": [[2, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 3]],
    "nothing": [[0] * 4] * 4,
}


def label(name, i, j):
    """What rank i sends rank j: (rows, D), every number says from whom, to whom,
    and which it is."""
    rows = COUNTS[name][i][j]
    return 100.0 * i + 10.0 * j + torch.arange(rows * D, dtype=torch.float64).view(rows, D) / 64


def torchs_all_to_all(tensor, group, send_counts, recv_counts):
    out = tensor.new_empty(sum(recv_counts), *tensor.shape[1:])
    dist.all_to_all_single(out, tensor.contiguous(), recv_counts, send_counts, group=group)
    return out


def forth_and_back(name, members, group, **how):
    """What arrives here, and the gradient of what was sent when dy = 2 y + 1."""
    rank, ep = dist.get_rank(group), len(members)
    send = [COUNTS[name][rank][j] for j in range(ep)]
    receive = [COUNTS[name][i][rank] for i in range(ep)]
    x = torch.cat([label(name, rank, j) for j in range(ep)]).requires_grad_()
    ledger.mark(f"{name} {members} forward")
    y = exchange_tokens(x, send, receive, group, **how)
    ledger.mark(f"{name} {members} backward")
    # so it can be differentiated once more
    (dx,) = torch.autograd.grad(y, x, 2 * y + 1, create_graph=True)
    ledger.mark("")
    (d2x,) = torch.autograd.grad(dx.sum(), x)
    return y.detach(), dx.detach(), d2x


def counts_of(rank, ep):
    """A rank's rows for each of E = 3 ep experts."""
    return 10 * rank + torch.arange(3 * ep)


def everything():
    results = {}
    for members, group in my_groups().items():
        rank, ep = dist.get_rank(group), len(members)
        for name in COUNTS:
            results[name, members] = forth_and_back(name, members, group)
        ledger.mark(f"counts {members}")
        results["counts", members] = exchange_counts(counts_of(rank, ep), group)
        ledger.mark("")
    results["torch's"] = forth_and_back("uneven", (0, 1, 2, 3), None, all_to_all=torchs_all_to_all)
    with pytest.raises(ValueError, match="6 rows do not divide over 4 ranks"):
        exchange_counts(torch.arange(6))
    return results


@pytest.fixture(scope="module")
def results():
    return launch.capture(everything, backend="gloo", nproc=4, timeout=120)


@pytest.mark.parametrize("name", COUNTS)
def test_rows_arrive_by_sender_and_gradients_go_back_to_the_row_that_was_sent(results, name):
    for members in GROUPS:
        ranks = range(len(members))
        for place, member in enumerate(members):
            y, dx, d2x = results[member][name, members]
            assert torch.equal(y, torch.cat([label(name, i, place) for i in ranks]))
            assert torch.equal(dx, 2 * torch.cat([label(name, place, j) for j in ranks]) + 1)
            assert torch.equal(d2x, torch.full_like(dx, 2.0))


@pytest.mark.parametrize("name", COUNTS)
def test_forward_and_backward_send_each_row_for_another_rank_once(results, name):
    for members in GROUPS:
        for way in ("forward", "backward"):
            matrix = results.ledger.section(f"{name} {members} {way}").matrix("bytes")
            for i, sender in enumerate(members):
                for j, receiver in enumerate(members):
                    rows = (
                        0
                        if i == j
                        else COUNTS[name][i][j]
                        if way == "forward"
                        else COUNTS[name][j][i]
                    )
                    assert matrix[sender, receiver] == rows * D * 8, (members, way, i, j)


def test_counts_arrive_by_sender_and_expert(results):
    for members in GROUPS:
        ep = len(members)
        for place, member in enumerate(members):
            want = torch.stack([counts_of(i, ep)[3 * place : 3 * place + 3] for i in range(ep)])
            assert torch.equal(results[member]["counts", members], want)
        sent = results.ledger.section(f"counts {members}").sent("bytes")
        assert sent == (ep - 1) * 3 * ep * 8  # (ep-1) E numbers of 8 bytes over all ranks


def test_any_all_to_all_drives_it(results):
    for seen in results:
        assert all(map(torch.equal, seen["torch's"], seen["uneven", (0, 1, 2, 3)]))
