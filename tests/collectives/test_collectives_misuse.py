"""Wrong calls are refused on the rank that makes them, before anything is sent, with the numbers
and the next move."""

from itertools import pairwise

import pytest
import torch
import torch.distributed as dist

from lib import backend, collectives, launch
from lib.collectives.auto import ALL_REDUCE, THRESHOLDS, choose


def x(*shape, dtype=torch.float32):
    return torch.ones(*shape, dtype=dtype, device=backend.device())


MISTAKES = {
    "a root that is not there": lambda: collectives.broadcast(x(2), 3),
    "a negative root": lambda: collectives.reduce(x(2), -1),
    "no list at the root": lambda: collectives.scatter(x(2), None, src=dist.get_rank()),
    "a list of two for three": lambda: collectives.scatter(x(2), [x(2), x(2)], src=dist.get_rank()),
    "a part of another shape": lambda: collectives.gather(
        x(2), [x(3), x(3), x(3)], dst=dist.get_rank()
    ),
    "rows that do not divide": lambda: collectives.all_to_all(x(7)),
    "counts for two of three": lambda: collectives.all_to_all(x(4), None, [2, 2], [2, 2]),
    "counts of another sum": lambda: collectives.all_to_all(x(4), None, [2, 2, 2], [2, 2, 2]),
    "counts for one side only": lambda: collectives.all_to_all(x(3), None, [1, 1, 1]),
    "counts for one side only, at once": lambda: collectives.all_to_all_at_once(
        x(3), None, [1, 1, 1]
    ),
    "a negative count": lambda: collectives.all_to_all(x(3), None, [-1, 2, 2], [1, 1, 1]),
    "a chunk that does not fit": lambda: collectives.all_gather(x(2), out=x(9)),
    "an op that nobody has": lambda: collectives.all_reduce(x(2), op=dist.ReduceOp.BXOR),
} | {
    f"{name} of the average of integers": lambda fn=fn: fn(
        x(2, dtype=torch.int64), op=dist.ReduceOp.AVG
    )
    for name, fn in ALL_REDUCE.items()
}

SAID = {
    "a root that is not there": "the root is rank 3: the group has 3 ranks, 0 to 2 (group ranks)",
    "a negative root": "the root is rank -1: the group has 3 ranks, 0 to 2 (group ranks)",
    "no list at the root": "needs one tensor for each of 3 ranks, got nothing",
    "a list of two for three": "needs one tensor for each of 3 ranks, got 2 tensors",
    "a part of another shape": "has shape (3,), but rank",
    "rows that do not divide": "7 rows do not divide over 3 ranks: pass send_counts and "
    "recv_counts",
    "counts for two of three": "send_counts=[2, 2]: one count, 0 or more, for each of 3 ranks",
    "counts of another sum": "send_counts=[2, 2, 2] sum to 6, but tensor has 4 rows",
    "counts for one side only": "pass both send_counts and recv_counts",
    "counts for one side only, at once": "pass both send_counts and recv_counts",
    "a negative count": "send_counts=[-1, 2, 2]: one count, 0 or more, for each of 3 ranks",
    "a chunk that does not fit": "chunk has shape (2,), its place in out (3,): out has 9 rows over "
    "3 ranks",
    "an op that nobody has": "use SUM, PRODUCT, MAX, MIN or AVG",
}


def make_every_mistake():
    said = {}
    for name, mistake in MISTAKES.items():
        try:
            mistake()
        except ValueError as error:
            said[name] = str(error)
    return said


def test_every_mistake_is_refused_before_anything_is_sent(on_ranks):
    results = on_ranks(make_every_mistake, nproc=3)
    assert results.ledger.sent("messages") == 0
    for rank, said in enumerate(results):
        for name in MISTAKES:
            expected = SAID.get(name, "the average of torch.int64 is no integer: use op=SUM")
            assert expected in said.get(name, "accepted"), (
                f"rank {rank}, {name}: {said.get(name, 'accepted')}"
            )


def on_another_device():
    collectives.all_reduce(torch.ones(3, device="meta"))


def test_a_tensor_where_the_group_cannot_reach_it_is_refused(on_ranks):
    with pytest.raises(
        launch.RankError, match="the tensor is on meta, but this group reaches only"
    ):
        on_ranks(on_another_device, nproc=2)


def front_door_at_every_row():
    rank, world_size, wrong = dist.get_rank(), dist.get_world_size(), []
    sizes = {0, 1} | {
        up_to // 8 + more
        for row in THRESHOLDS.values()
        for up_to, _ in row
        if up_to
        for more in (0, 1)
    }
    for n in sorted(sizes):
        mine = torch.arange(n, dtype=torch.float64).add(4**rank).to(backend.device())
        expected = world_size * torch.arange(n, dtype=torch.float64) + sum(
            4**r for r in range(world_size)
        )
        if not torch.equal(collectives.all_reduce(mine).cpu(), expected.cpu()):
            wrong.append((n, choose(8 * n, world_size)))
    return wrong


@pytest.mark.parametrize("nproc", [3, 4])
def test_the_front_door_sums_on_both_sides_of_every_threshold(on_ranks, nproc):
    assert on_ranks(front_door_at_every_row, nproc=nproc, ledger=False) == [[]] * nproc


def test_the_thresholds_name_algorithms_in_rising_order_and_cover_every_size():
    for world_size, rows in THRESHOLDS.items():
        limits = [up_to for up_to, _ in rows]
        assert limits[-1] is None and limits[:-1] == sorted(set(limits[:-1])), (
            f"world size {world_size}"
        )
        assert {name for _, name in rows} <= ALL_REDUCE.keys()
        for (up_to, name), (_, after) in pairwise(rows):
            assert (
                choose(up_to, int(world_size)) == name
                and choose(up_to + 1, int(world_size)) == after
            )
    for world_size in (1, 2, 3, 4, 5, 7, 8, 100):
        assert choose(1, world_size) in ALL_REDUCE and choose(1 << 40, world_size) in ALL_REDUCE
