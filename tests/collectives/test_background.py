"""Works in the background: results, order, groups that overlap, exceptions, and who may use
a group meanwhile."""

import threading
import time

import pytest
import torch
import torch.distributed as dist

from lib import backend, collectives
from lib.collectives import start


def ones(n, value=1.0):
    return torch.full((n,), float(value), device=backend.device())


def several():
    rank, world_size = dist.get_rank(), dist.get_world_size()
    tensors = [ones(5, rank + k) for k in range(6)]
    works = [start(collectives.all_reduce, x) for x in tensors]
    chunk = start(collectives.reduce_scatter, ones(world_size, rank))
    whole = start(collectives.all_gather, ones(1, rank))
    sent = start(collectives.broadcast, ones(2, rank), src=1)
    threads = [t.name for t in threading.enumerate()].count("lib.collectives.background")
    # waited for in another order
    for work, x in zip(reversed(works), reversed(tensors), strict=True):
        assert work.wait() is x
        backend.synchronize()  # on a GPU `wait` orders streams: the work may still be under way
        assert work.is_completed()
    return {
        "all_reduce": [x[0].item() for x in tensors],
        "reduce_scatter": chunk.wait().tolist(),
        "all_gather": whole.wait().tolist(),
        "broadcast": sent.wait().tolist(),
        "threads": threads,
    }


@pytest.mark.parametrize("nproc", [2, 3])
def test_works_give_what_the_plain_calls_give(on_ranks, nproc):
    total = sum(range(nproc))
    for got in on_ranks(several, nproc=nproc):
        assert got["all_reduce"] == [total + nproc * k for k in range(6)]
        assert got["reduce_scatter"] == [total]
        assert got["all_gather"] == list(range(nproc))
        assert got["broadcast"] == [1, 1]
        assert got["threads"] == 1


def ordered():
    log = []

    def noted(label, tensor):
        log.append(label)
        return collectives.ring_all_reduce(tensor)

    works = [
        start(noted, label, ones(n))
        for label, n in [("long", 200_000), ("short", 1), ("middle", 100)]
    ]
    works[1].wait()
    backend.synchronize()
    first_two_done = works[0].is_completed()
    works[2].wait()
    works[0].wait()
    return log, first_two_done


def test_the_order_of_start_is_the_order_on_the_wire(on_ranks):
    results = on_ranks(ordered, nproc=2)
    for log, first_two_done in results:
        assert log == ["long", "short", "middle"]
        assert first_two_done
    sizes = [entry.numel for entry in results.ledger.of(0) if entry.op == "send"]
    assert sizes == [100_000, 100_000, 1, 0, 50, 50] or sizes == [100_000, 100_000, 0, 1, 50, 50]


def at_the_same_time():
    """Rank 0 starts, computes for a while, and only then waits: the others' works need not
    wait for its wait."""
    x = ones(1000)
    work = start(collectives.all_reduce, x)
    if dist.get_rank() == 0:
        deadline = time.monotonic() + 100
        while not work.is_completed() and time.monotonic() < deadline:
            time.sleep(0.001)
        done_before_wait = work.is_completed()
        work.wait()
        return done_before_wait
    work.wait()


def test_a_work_ends_without_being_waited_for(on_ranks):
    assert on_ranks(at_the_same_time, nproc=3)[0] is True


def overlapping_groups():
    """Three groups round a triangle, all in flight: each rank starts its two in the
    same global order."""
    rank = dist.get_rank()
    groups = [dist.new_group(pair) for pair in ([0, 1], [1, 2], [0, 2])]
    pairs = [(0, 1), (1, 2), (0, 2)]
    works = {}
    for _ in range(5):
        for pair, group in zip(pairs, groups, strict=True):
            if rank in pair:
                works.setdefault(pair, []).append(
                    start(collectives.all_reduce, ones(3, 4**rank), group)
                )
    world = start(collectives.all_reduce, ones(3, 4**rank))
    return {pair: [w.wait()[0].item() for w in mine] for pair, mine in works.items()}, world.wait()[
        0
    ].item()


def test_works_on_groups_that_overlap_do_not_deadlock(on_ranks):
    for rank, (of_pairs, world) in enumerate(on_ranks(overlapping_groups, nproc=3)):
        assert of_pairs == {pair: [4.0 ** pair[0] + 4.0 ** pair[1]] * 5 for pair in of_pairs}
        assert len(of_pairs) == 2 and all(rank in pair for pair in of_pairs)
        assert world == 21


def use_while_in_flight():
    other = dist.new_group([0, 1])
    x = ones(4)
    first, second = start(collectives.all_reduce, x), start(collectives.all_reduce, ones(4))
    collectives.all_reduce(ones(1), other)  # another group: free
    first.wait()
    said = ""
    try:
        collectives.all_reduce(x)  # `second` was started on it and not waited for
    except RuntimeError as error:
        said = str(error)
    start(collectives.all_reduce, x).wait()  # in its turn
    second.wait()
    return said, collectives.all_reduce(x)[0].item()  # free again


def test_a_group_in_use_in_the_background_refuses_other_messages(on_ranks):
    for said, value in on_ranks(use_while_in_flight, nproc=2):
        assert "in use in the background: all_reduce, started at test_background.py" in said
        assert "wait()" in said
        assert value == 8


def failing():
    def broken(tensor):
        raise ZeroDivisionError("the third bucket is broken")

    fine = start(collectives.all_reduce, ones(1))
    bad, after = start(broken, ones(1)), start(collectives.all_reduce, ones(1))
    said = [fine.wait().item()]
    for work in (bad, after):
        try:
            work.wait()
        except (ZeroDivisionError, RuntimeError) as error:
            said.append((type(error).__name__, str(error), getattr(error, "__notes__", [])))
    return said, bad.is_completed(), after.is_completed()


def test_wait_raises_what_the_operation_raised_and_nothing_runs_after_it(on_ranks):
    for (value, first, second), *ended in on_ranks(failing, nproc=2):
        assert value == 2
        assert first[:2] == ("ZeroDivisionError", "the third bucket is broken")
        assert first[2][0].startswith("in the background: broken, started at test_background.py")
        assert second[0] == "RuntimeError" and second[1].startswith(
            "not run: all_reduce, started at"
        )
        assert "broken" in second[1]
        assert ended == [True, True]


def attributed():
    x = ones(8)
    work = start(collectives.ring_all_reduce, x)  # the line
    work.wait()


def test_the_ledger_names_the_line_that_called_start(on_ranks):
    entries = on_ranks(attributed, nproc=2).ledger.entries
    line = attributed.__code__.co_firstlineno + 2
    assert {(e.line, e.function) for e in entries} == {(line, "attributed")}
    assert len(entries) == 8
