"""The collectives beside all-reduce equal torch's: every root, uneven parts, rows, subgroups."""

import time

import pytest
import torch
import torch.distributed as dist

from lib import backend, collectives

SIZES = [0, 1, 3, 7, 16]
DTYPES = [torch.float32, torch.bfloat16, torch.int64]
ALL_TO_ALL = (collectives.all_to_all, collectives.all_to_all_at_once)


def mine(shape, rank, dtype=torch.float32):
    """Values that name their rank and their place."""
    n = torch.Size(shape).numel()
    return (torch.arange(n) % 8 + 8 * rank).view(shape).to(dtype).to(backend.device())


def rooted():
    rank, world_size, failures = dist.get_rank(), dist.get_world_size(), []
    for root in range(world_size):
        for dtype in DTYPES:
            for n in SIZES:
                where = f"root {root} {dtype} n={n} rank {rank}"
                x = collectives.broadcast(mine((n,), rank, dtype), root)
                if not torch.equal(x, mine((n,), root, dtype)):
                    failures.append(f"broadcast {where}: {x.tolist()}")

                x, total = mine((n,), rank, dtype), mine((n,), rank, dtype)
                dist.all_reduce(total)
                collectives.reduce(x, root)
                if not torch.equal(x, total if rank == root else mine((n,), rank, dtype)):
                    failures.append(f"reduce {where}: {x.tolist()}")

                whole = mine((n, 2), root, dtype)
                parts = [part.contiguous() for part in whole.tensor_split(world_size)]
                got = collectives.scatter(
                    torch.empty_like(parts[rank]), parts if rank == root else None, root
                )
                if not torch.equal(got, parts[rank]):
                    failures.append(f"scatter {where}: {got.tolist()}")

                landing = torch.zeros_like(whole)
                collectives.gather(
                    got, list(landing.tensor_split(world_size)) if rank == root else None, root
                )
                if rank == root and not torch.equal(landing, whole):
                    failures.append(f"gather {where}: {landing.tolist()}")
    return failures


@pytest.mark.parametrize("nproc", [1, 2, 3, 4, 5, pytest.param(8, marks=pytest.mark.slow)])
def test_broadcast_reduce_scatter_and_gather_from_every_root(on_ranks, nproc):
    for failures in on_ranks(rooted, nproc=nproc, ledger=False):
        assert failures == []


def unrooted():
    rank, world_size, failures = dist.get_rank(), dist.get_world_size(), []
    for dtype in DTYPES:
        for n in SIZES:
            for shape in [(n,), (n, 3)]:
                x, total = mine(shape, rank, dtype), mine(shape, rank, dtype)
                dist.all_reduce(total)
                chunk = collectives.reduce_scatter(x)
                if not torch.equal(chunk, total.tensor_split(world_size)[rank]):
                    failures.append(f"reduce_scatter {shape} {dtype} rank {rank}: {chunk.tolist()}")
                if not torch.equal(x, mine(shape, rank, dtype)):
                    failures.append(f"reduce_scatter {shape} {dtype} rank {rank} changed its input")
                whole = collectives.all_gather(chunk, out=torch.empty_like(total))
                if not torch.equal(whole, total):
                    failures.append(f"all_gather {shape} {dtype} rank {rank}: {whole.tolist()}")

                shape = (n * world_size, *shape[1:])  # blocks of one size: torch's own can be asked
                x, ours = mine(shape, rank, dtype), None
                theirs = [torch.empty_like(x) for _ in range(world_size)]
                dist.all_gather(theirs, x)
                ours = collectives.all_gather(x)
                if not torch.equal(ours, torch.cat(theirs)):
                    failures.append(f"all_gather {shape} {dtype} rank {rank}: {ours.tolist()}")
                theirs = torch.empty_like(x)
                dist.all_to_all_single(theirs, x)
                for fn in ALL_TO_ALL:
                    ours = fn(x)
                    if not torch.equal(ours, theirs):
                        failures.append(
                            f"{fn.__name__} {shape} {dtype} rank {rank}: {ours.tolist()}"
                        )

    # rows from i to j, some none
    counts = [[(3 * i + j) % 4 for j in range(world_size)] for i in range(world_size)]
    send_counts, recv_counts = counts[rank], [row[rank] for row in counts]
    x = mine((sum(send_counts), 2), rank)
    theirs = x.new_empty(sum(recv_counts), 2)
    dist.all_to_all_single(theirs, x, recv_counts, send_counts)
    for fn in ALL_TO_ALL:
        ours = fn(x, None, send_counts, recv_counts)
        if not torch.equal(ours, theirs):
            failures.append(
                f"uneven {fn.__name__} rank {rank}: {ours.tolist()} != {theirs.tolist()}"
            )
    return failures


@pytest.mark.parametrize("nproc", [1, 2, 3, 4, 5, pytest.param(8, marks=pytest.mark.slow)])
def test_all_gather_reduce_scatter_and_all_to_all_equal_torchs(on_ranks, nproc):
    for failures in on_ranks(unrooted, nproc=nproc, ledger=False):
        assert failures == []


def in_a_subgroup():
    """In the group of global ranks 1, 3, 4 the ranks are 0, 1, 2."""
    group = dist.new_group([1, 3, 4])
    if dist.get_rank() not in (1, 3, 4):
        return None
    rank = dist.get_rank(group)
    wide = torch.zeros(4, 6, device=backend.device())
    strided = wide[:, ::3]  # (4, 2)
    strided.copy_(mine((4, 2), rank))
    collectives.broadcast(strided, 2, group)
    x = mine((6,), rank)
    collectives.reduce(x, 1, group, dist.ReduceOp.MAX)
    parts = list(mine((6,), 5).tensor_split(3)) if rank == 2 else None
    return {
        "broadcast": strided.cpu(),
        "beside": wide[:, 1::3].cpu(),
        "reduce": x.cpu(),
        "scatter": collectives.scatter(
            torch.empty(2, device=backend.device()), parts, 2, group
        ).cpu(),
        "reduce_scatter": collectives.reduce_scatter(mine((7,), rank), group).cpu(),
        "all_gather": collectives.all_gather(
            mine((2,), rank).expand(3, 2).t(), group
        ).cpu(),  # (2, 3), strides (1, 0)
        "all_to_all": collectives.all_to_all(mine((3,), rank), group).cpu(),
        "all_to_all_at_once": collectives.all_to_all_at_once(mine((3,), rank), group).cpu(),
    }


def test_roots_and_chunks_are_counted_within_the_group(on_ranks):
    results = on_ranks(in_a_subgroup, nproc=5)
    total = sum(mine((7,), r) for r in range(3)).cpu().tensor_split(3)
    for rank, got in enumerate([results[1], results[3], results[4]]):
        assert torch.equal(got["broadcast"], mine((4, 2), 2).cpu())
        assert not got["beside"].any()
        assert torch.equal(got["reduce"], mine((6,), 2 if rank == 1 else rank).cpu())
        assert got["scatter"].tolist() == [40 + 2 * rank, 41 + 2 * rank]
        assert torch.equal(got["reduce_scatter"], total[rank])
        assert torch.equal(
            got["all_gather"], torch.cat([mine((2,), r).cpu().expand(3, 2).t() for r in range(3)])
        )
        assert got["all_to_all"].tolist() == [rank + 8 * r for r in range(3)]
        assert got["all_to_all_at_once"].tolist() == got["all_to_all"].tolist()


def nobody_leaves_early():
    rank, world_size = dist.get_rank(), dist.get_world_size()
    store = dist.distributed_c10d._get_default_store()
    seen = []
    for late in range(world_size):
        store.add(f"entered {late}", 1)
        if rank == late:
            while store.add(f"entered {late}", 0) < world_size:
                time.sleep(0.001)
            time.sleep(0.02)  # all others are in the barrier now: would it let them through?
            store.add(f"late one {late}", 1)
        collectives.barrier()
        seen.append(store.add(f"late one {late}", 0))
    return seen


@pytest.mark.parametrize("nproc", [1, 3, 4, pytest.param(8, marks=pytest.mark.slow)])
def test_no_rank_leaves_the_barrier_before_the_last_has_entered(on_ranks, nproc):
    for seen in on_ranks(nobody_leaves_early, nproc=nproc, ledger=False):
        assert seen == [1] * nproc
