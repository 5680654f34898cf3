"""Four ways to share one product: equal to x w on one process, each with its share of the work and
no more messages."""

import pytest
import torch
import torch.distributed as dist

from lib import launch, ledger
from lib.tensor_parallel import splits

SIZES = [(4, 5, 8), (8, 7, 16), (8, 1, 8)]


def data(rows, inner, columns, dtype):
    """Whole numbers, so that the order of additions does not matter: results are
    compared with ==."""
    generator = torch.Generator().manual_seed(rows + inner + columns)
    draw = lambda *shape: torch.randint(-9, 10, shape, generator=generator).to(dtype)
    return draw(rows, inner), draw(inner, columns), [draw(inner, inner) for _ in range(4)]


def on_each_rank(members):
    """All four, among `members` of the world; returns what differs from the plain product,
    and this rank's ops."""
    group = dist.new_group(members)
    if dist.get_rank() not in members:
        return []
    rank, world_size, wrong = dist.get_rank(group), dist.get_world_size(group), []
    for size in SIZES:
        for dtype in (torch.float32, torch.float64, torch.int64):
            x, w, layers = data(*size, dtype)
            here = x
            for layer in layers[: len(layers) // world_size * (rank + 1)]:
                here = here @ layer
            results = {
                "rows": (splits.split_rows(x, w, group), (x @ w).tensor_split(world_size)[rank]),
                "columns": (splits.split_columns(x, w, group), x @ w),
                "inner": (splits.split_inner(x, w, group), x @ w),
                "pipeline": (splits.pipeline(x, layers, group), here),
            }
            wrong += [
                (how, size, dtype)
                for how, (got, expected) in results.items()
                if not torch.equal(got, expected)
            ]
    return wrong


@pytest.mark.parametrize(
    ("nproc", "members"),
    [(1, [0]), (2, [0, 1]), (4, [0, 1, 2, 3]), (3, [0, 2]), (3, [1, 2])],
    ids=lambda value: str(value).replace(" ", ""),
)
def test_each_way_is_the_whole_product(nproc, members):
    results = launch.capture(on_each_rank, members, nproc=nproc)
    assert list(results) == [[]] * nproc


def one_each(size):
    x, w, layers = data(*size, torch.float32)
    for fn, factor in ((splits.split_rows, w), (splits.split_columns, w), (splits.split_inner, w)):
        ledger.mark(fn.__name__)
        fn(x, factor)
    ledger.mark("pipeline")
    splits.pipeline(x, layers)


@pytest.mark.parametrize("nproc", [2, 4])
def test_what_is_sent(nproc):
    log = launch.capture(one_each, (4, 5, 8), nproc=nproc).ledger
    for rank in range(nproc):
        given = lambda name, rank=rank: [(e.op, e.numel) for e in log.section(name).of(rank)]
        assert given("split_rows") == []
        assert given("split_columns") == [("all_gather", 4 * 8 // nproc)]
        assert given("split_inner") == [("all_reduce", 4 * 8)]
        received = [("recv", 4 * 5)] if rank > 0 else []
        assert given("pipeline") == received + ([("send", 4 * 5)] if rank < nproc - 1 else [])


def uneven_inner():
    x, w, _ = data(3, 7, 5, torch.float64)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    rows = splits.split_rows(x, w)
    return torch.equal(splits.split_inner(x, w), x @ w), torch.equal(
        rows, (x @ w).tensor_split(world_size)[rank]
    )


def test_rows_and_inner_need_not_divide():
    assert list(launch.capture(uneven_inner, nproc=4)) == [(True, True)] * 4


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (
            lambda: splits.split_columns(torch.ones(4, 5), torch.ones(5, 7)),
            "7 columns over 2 ranks",
        ),
        (lambda: splits.pipeline(torch.ones(4, 5), [torch.eye(5)] * 3), "3 layers over 2 ranks"),
    ],
)
def test_sizes_that_cannot_be_shared_are_named(fn, message):
    with pytest.raises(launch.RankError, match=message):
        launch.capture(fn, nproc=2)
