"""Messages between nodes are as slow as the link says, those inside are not, and the
hierarchy then pays off."""

import time

import pytest
import torch
import torch.distributed as dist

from lib import backend, launch
from lib.collectives import hierarchical_all_reduce, node_groups, p2p, ring_all_reduce, start
from lib.collectives.cost import COST, hierarchical_time
from lib.collectives.slow_link import slow_link

ALPHA, BANDWIDTH, N_BYTES = 0.2, 10e6, 400_000  # 200 ms, and 40 ms for the whole tensor


def flat_and_hierarchical():
    inside, across = node_groups(2)
    ones = lambda: torch.ones(N_BYTES // 4, device=backend.device())
    seconds, sums = [], []
    with slow_link(2, ALPHA, BANDWIDTH):
        for run in (ring_all_reduce, lambda x: hierarchical_all_reduce(x, inside, across)):
            x = ones()
            dist.barrier()
            began = time.monotonic()
            run(x)
            dist.barrier()
            seconds.append(time.monotonic() - began)
            sums.append(x.min().item() == x.max().item() == 4)
    return seconds, all(sums)


def test_over_a_slow_link_hierarchical_beats_the_flat_ring_as_the_formula_says(on_ranks):
    flat_formula = COST["ring"].time(N_BYTES, 4, ALPHA, 1 / BANDWIDTH)
    hierarchical_formula = hierarchical_time(N_BYTES, 2, 2, (0, 0), (ALPHA, 1 / BANDWIDTH))
    assert hierarchical_formula == pytest.approx(0.44) and flat_formula == pytest.approx(1.26)
    results = on_ranks(flat_and_hierarchical, ledger=False)
    assert all(right for _, right in results)
    flat, hierarchical = (max(seconds[i] for seconds, _ in results) for i in (0, 1))
    # a ring's rounds wait for each other, so it cannot be faster than the link
    assert flat > 0.95 * flat_formula
    assert flat > hierarchical


def one_message_each(alpha, bandwidth, n):
    """Every rank of node 0 sends n bytes to its like in node 1, at once: when has
    all of it arrived?"""
    rank = dist.get_rank()
    x = torch.zeros(n, dtype=torch.uint8, device=backend.device())
    with slow_link(2, alpha, bandwidth):
        dist.barrier()
        began = time.monotonic()
        p2p.send(x, rank + 2) if rank < 2 else p2p.recv(x, rank - 2)
        dist.barrier()
        return began, time.monotonic()


def seconds(ranks):
    """From the first rank's begin to the first's end: they share a clock, but do not leave the
    barrier together."""
    return min(ended for _, ended in ranks) - min(began for began, _ in ranks)


def test_the_ranks_of_a_node_share_its_card_but_not_its_latency(on_ranks):
    shared = seconds(on_ranks(one_message_each, 0.0, 1e6, 50_000))
    assert shared >= 0.1  # two messages of 50 ms, one after the other
    latency = seconds(on_ranks(one_message_each, 2.0, 1e9, 1000))
    assert 2.0 <= latency < 4.0  # both wait their two seconds together


def inside_only():
    rank = dist.get_rank()
    with slow_link(2, 30.0, 1.0):  # one message between nodes would take 30 seconds and more
        p2p.send_recv(torch.ones(10, device=backend.device()), rank ^ 1, rank ^ 1)


def test_messages_inside_a_node_are_not_held_back(on_ranks):
    on_ranks(inside_only, timeout=20)


def in_a_subgroup_and_in_the_background():
    group = dist.new_group([1, 2])  # ranks 0 and 1 of the group are on different nodes
    if dist.get_rank() not in (1, 2):
        with slow_link(2, 1.0, 1e9):
            return None
    x = torch.ones(4, device=backend.device())
    with slow_link(2, 1.0, 1e9):
        began = time.monotonic()
        work = start(ring_all_reduce, x, group)
        posted = time.monotonic() - began
        work.wait()
        return posted, time.monotonic() - began, x.tolist()


def test_group_ranks_are_placed_by_their_global_ranks_and_start_does_not_wait_for_the_link(
    on_ranks,
):
    for posted, done, x in on_ranks(in_a_subgroup_and_in_the_background)[1:3]:
        assert done >= 2 * 1.0  # two rounds
        assert posted < 1.0
        assert x == [2.0] * 4


def after_the_block():
    with pytest.raises(KeyError), slow_link(1, 0.0, 1e9):
        assert p2p.posting_takes_time()
        raise KeyError("the link is mended after an error too")
    return not p2p.posting_takes_time()


def test_after_the_block_the_link_is_as_fast_as_before(on_ranks):
    assert on_ranks(after_the_block, nproc=2) == [True, True]


def nested():
    with slow_link(1, 0.0, 1e9), slow_link(1, 0.0, 1e9):
        pass


@pytest.mark.parametrize(
    ("fn", "says"),
    [
        (lambda: slow_link(3, 0.0, 1e9).__enter__(), "4 ranks cannot form nodes of 3"),
        (lambda: slow_link(2, -1.0, 1e9).__enter__(), "seconds_per_message=-1.0"),
        (lambda: slow_link(2, 0.0, 0).__enter__(), "bytes_per_second=0"),
        (nested, "there is a slow link already"),
    ],
)
def test_misuse_is_refused_with_its_numbers(on_ranks, fn, says):
    with pytest.raises(launch.RankError, match=says):
        on_ranks(fn)
