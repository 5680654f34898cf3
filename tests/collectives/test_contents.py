"""Traced values tell which element a message holds and whose values are summed in it,
whatever sends it."""

import pytest
import torch
import torch.distributed as dist

from lib import collectives, launch
from lib.collectives.contents import marked, read, traced


def test_sums_of_marked_values_are_read_back():
    x = [marked(rank, 4) for rank in range(4)]
    assert read(x[0] + x[2], 4, "") == dict.fromkeys(range(4), (1, 0, 1, 0))
    assert read((x[3] + x[1] + x[1])[2:3], 4, "") == {2: (0, 2, 0, 1)}
    assert read(torch.zeros(3), 4, "") == {}
    eight = sum(marked(rank, 8) for rank in range(8))
    assert read(eight, 8, "") == dict.fromkeys(range(8), (1,) * 8)


@pytest.mark.parametrize(
    "value", [marked(1, 4)[2] / 2, torch.tensor(-16.0), torch.tensor(float("nan")), marked(0, 8)[7]]
)
def test_what_is_no_sum_is_refused(value):
    with pytest.raises(ValueError, match=r"rank 1 sends .* no sum of the ranks' marked values"):
        read(value.reshape(1), 4, "rank 1 sends")


def by_hand(tensor):
    """A ring that passes whole tensors, on torch's own calls."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    own, out = tensor.clone(), torch.empty_like(tensor)
    for _ in range(world_size - 1):
        work = dist.isend(own, (rank + 1) % world_size)
        dist.recv(out, (rank - 1) % world_size)
        work.wait()
        tensor += out
        own.copy_(out)


def test_torchs_own_sends_are_traced_too_and_what_the_rank_held_by_then():
    results = launch.capture(traced, by_hand, nproc=3)
    assert [m[0] for m in results[0]["sent"]] == [(1, 0, 0), (0, 0, 1)]
    assert [m[0] for m in results[0]["held"]] == [(1, 0, 0), (1, 0, 1)]
    assert results[0]["final"] == dict.fromkeys(range(3), (1, 1, 1))


def test_every_send_of_the_ledger_is_traced(on_ranks):
    for name in ("ring", "star", "tree", "halving_doubling"):
        results = on_ranks(traced, getattr(collectives, f"{name}_all_reduce"))
        for rank, result in enumerate(results):
            sends = [e for e in results.ledger.of(rank) if e.op == "send"]
            assert [len(m) for m in result["sent"]] == [e.numel for e in sends]
            assert result["final"] == dict.fromkeys(range(4), (1, 1, 1, 1))
