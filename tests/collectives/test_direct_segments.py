"""The direct all-reduce with chunks of many segments: the same sums, the same
bytes, more messages."""

import pytest
import torch
import torch.distributed as dist

from lib import ledger
from lib.collectives import direct, direct_all_reduce

SEGMENT = 64  # bytes, so that short tensors have many


def many_segments(sizes):
    direct.SEGMENT = SEGMENT
    rank, world_size = dist.get_rank(), dist.get_world_size()
    wrong = []
    for n in sizes:
        base = torch.arange(n, dtype=torch.float64) % 13 + 1
        x = base * 4**rank
        ledger.mark(f"n={n}")
        direct_all_reduce(x)
        ledger.mark("")
        if not torch.equal(x, base * sum(4**r for r in range(world_size))):
            wrong.append(n)
    return wrong


@pytest.mark.parametrize("nproc", [1, 2, 3, 4, 5])
def test_sums_and_bytes_with_many_segments(on_ranks, nproc):
    sizes = [7, 64, 101, 500, 1003]
    results = on_ranks(many_segments, sizes, nproc=nproc)
    assert list(results) == [[]] * nproc
    for n in sizes:
        log = results.ledger.section(f"n={n}")
        assert log.sent("elements") == 2 * (nproc - 1) * n
        largest = max((e.numel for e in log.entries if e.op == "send"), default=0)
        assert largest <= -(-n // nproc)
    if nproc > 1:
        sends = [e for e in results.ledger.section("n=1003").of(0) if e.op == "send"]
        assert len(sends) > 3 * (nproc - 1), "a chunk was not cut into segments"
