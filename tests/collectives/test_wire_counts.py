"""What the ledger counted is what the formulas of cost.py say: messages in a chain, elements by the
busiest, in all."""

import pytest
import torch
import torch.distributed as dist

from lib import backend, collectives, ledger
from lib.collectives import cost
from lib.collectives.auto import ALL_REDUCE

SIZES = [0, 1, 3, 5, 7, 24, 101]


def tensor(n):
    return torch.ones(n, device=backend.device())


def scatter(n):
    parts = list(tensor(n).tensor_split(dist.get_world_size()))
    collectives.scatter(parts[dist.get_rank()].clone(), parts if dist.get_rank() == 0 else None)


def gather(n):
    parts = list(tensor(n).tensor_split(dist.get_world_size()))
    collectives.gather(parts[dist.get_rank()].clone(), parts if dist.get_rank() == 0 else None)


def all_gather(n):
    whole = tensor(n)
    collectives.all_gather(
        whole.tensor_split(dist.get_world_size())[dist.get_rank()].clone(), out=whole
    )


CALLS = {
    "broadcast": lambda n: collectives.broadcast(tensor(n), 0),
    "reduce": lambda n: collectives.reduce(tensor(n), 0),
    "scatter": scatter,
    "gather": gather,
    "all_gather": all_gather,
    "reduce_scatter": lambda n: collectives.reduce_scatter(tensor(n)),
    "all_to_all": lambda n: collectives.all_to_all(tensor(n)),
    "barrier": lambda n: collectives.barrier(),
} | {name: lambda n, fn=fn: fn(tensor(n)) for name, fn in ALL_REDUCE.items()}


def sizes(name, nproc):
    return [n for n in SIZES if name != "all_to_all" or n % nproc == 0]


def call_each():
    for name, call in CALLS.items():
        for n in sizes(name, dist.get_world_size()):
            ledger.mark(f"{name} {n}")
            call(n)
    ledger.mark("end")


@pytest.mark.parametrize("nproc", [1, 2, 3, 4, 5, pytest.param(8, marks=pytest.mark.slow)])
def test_the_ledger_counts_exactly_what_the_formulas_say(on_ranks, nproc):
    logs = on_ranks(call_each, nproc=nproc).ledger
    assert CALLS.keys() == cost.COST.keys()
    for name, formula in cost.COST.items():
        for n in sizes(name, nproc):
            log = logs.section(f"{name} {n}")
            sent = log.matrix("elements").sum(axis=1)
            assert sent.max() == formula.sent(n, nproc), f"{name}, n={n}, N={nproc}: {sent}"
            assert sent.sum() == formula.total(n, nproc), f"{name}, n={n}, N={nproc}: {sent}"
            assert longest_chain(log) == formula.rounds(nproc), f"{name}, n={n}, N={nproc}"


def longest_chain(log):
    """Rounds: when the last message is in, if each takes one tick and a rank sends one and receives
    one at a time.

    A rank may begin a message when those have ended that it waited for before it posted this one.
    """
    end, queues = {}, {}  # (rank, seq) -> tick;  (from, to) -> its sends not yet matched
    sending, receiving = [0] * log.world_size, [0] * log.world_size
    waiting = [list(log.of(rank)) for rank in range(log.world_size)]
    while any(waiting):
        before = sum(map(len, waiting))
        for rank, mine in enumerate(waiting):
            for entry in list(mine):
                earlier = [
                    e for e in log.of(rank) if e.wait_to is not None and e.wait_to <= entry.posted
                ]
                if any((rank, e.seq) not in end for e in earlier):
                    break
                ready = max((end[rank, e.seq] for e in earlier), default=0)
                if entry.op == "send":
                    sending[rank] = end[rank, entry.seq] = max(ready, sending[rank]) + 1
                    queues.setdefault((rank, entry.peer), []).append(end[rank, entry.seq])
                elif queues.get((entry.peer, rank)):
                    arrival = queues[entry.peer, rank].pop(0)
                    receiving[rank] = end[rank, entry.seq] = max(
                        ready, arrival, receiving[rank] + 1
                    )
                else:
                    continue
                mine.remove(entry)
        assert sum(map(len, waiting)) < before, "a receive without a send"
    return max(end.values(), default=0)


def neighbours_only():
    ledger.mark("ring")
    collectives.ring_all_reduce(tensor(7))
    ledger.mark("pairs")
    collectives.all_to_all(tensor(5))
    ledger.mark("pairs at once")
    collectives.all_to_all_at_once(tensor(5))


def test_a_ring_sends_to_the_right_neighbour_only_and_all_to_all_once_to_each(on_ranks):
    logs = on_ranks(neighbours_only, nproc=5).ledger
    right = torch.roll(torch.eye(5, dtype=torch.int64), 1, dims=1)
    assert logs.section("ring").matrix("messages").tolist() == (8 * right).tolist()
    once_to_each = (1 - torch.eye(5, dtype=torch.int64)).tolist()
    assert logs.section("pairs").matrix("messages").tolist() == once_to_each
    assert logs.section("pairs at once").matrix("messages").tolist() == once_to_each


def two_levels(ranks_per_node):
    inside, across = collectives.node_groups(ranks_per_node)
    for n in SIZES:
        ledger.mark(str(n))
        collectives.hierarchical_all_reduce(tensor(n), inside, across)


@pytest.mark.parametrize(("nproc", "R"), [(4, 2), (6, 3), (6, 2), (3, 1)])
def test_between_nodes_the_hierarchical_all_reduce_sends_only_2_m_minus_1_n(on_ranks, nproc, R):
    logs, M, formula = on_ranks(two_levels, R, nproc=nproc).ledger, nproc // R, cost.hierarchical(R)
    node = torch.arange(nproc) // R
    between = (node[:, None] != node[None, :]).numpy()
    for n in SIZES:
        log = logs.section(str(n))
        elements = log.matrix("elements")
        assert elements[between].sum() == 2 * (M - 1) * n
        assert elements.sum() == formula.total(n, nproc)
        assert elements.sum(axis=1).max() == formula.sent(n, nproc)
        assert longest_chain(log) == formula.rounds(nproc)


def test_times_meet_the_lower_bounds_and_cross_where_they_should():
    alpha, beta, N = 50e-6, 1e-9, 8  # 50 us a message, 1 GB/s
    time = {
        name: lambda b, name=name: cost.COST[name].time(b, N, alpha, beta) for name in ALL_REDUCE
    }
    assert time["ring"](8e6) == pytest.approx(14 * 50e-6 + 2 * 7 / 8 * 8e6 * 1e-9)
    assert time["halving_doubling"](8e6) == pytest.approx(6 * 50e-6 + 2 * 7 / 8 * 8e6 * 1e-9)
    assert time["recursive_doubling"](1e3) == pytest.approx(3 * (50e-6 + 1e-6))
    assert min(time, key=lambda name: time[name](1e3)) == "recursive_doubling"
    assert min(time, key=lambda name: time[name](64e6)) == "halving_doubling"
    for b in (1e6, 64e6):
        assert max(time, key=lambda name: time[name](b)) == "star"
    # Two nodes of four over a slow link: the two levels send half of what the flat ring sends
    # there.
    slow = 8e-9
    assert cost.hierarchical_time(64e6, 2, 4, (0, 0), (0, slow)) == pytest.approx(64e6 * slow)
    assert cost.COST["ring"].time(64e6, 8, 0, slow) == pytest.approx(2 * 7 / 8 * 64e6 * slow)


@pytest.mark.parametrize("name", cost.COST)
def test_alone_nothing_is_sent(name):
    formula = cost.COST[name]
    assert (
        formula.rounds(1)
        == formula.sent(10, 1)
        == formula.total(10, 1)
        == formula.time(40, 1, 1.0, 1.0)
        == 0
    )
