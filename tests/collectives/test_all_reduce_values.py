"""Every all-reduce gives torch's values, the same bits on every rank, for any size, dtype, op,
layout and group."""

import pytest
import torch
import torch.distributed as dist

from lib import backend, collectives
from lib.collectives.auto import ALL_REDUCE

R = dist.ReduceOp
SUM, PRODUCT, MAX, MIN, AVG = R.SUM, R.PRODUCT, R.MAX, R.MIN, R.AVG
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTS = [torch.int32, torch.int64]
PRIMES = [2, 3, 5, 7, 11, 13, 17, 19]
SIZES = [0, 1, 3, 7, 64, 129]  # none, fewer than ranks, not divisible, divisible


def values(n, dtype, op, rank):
    """Inputs whose every partial result is exact and different, so that a wrong total tells whose
    part is missing."""
    small = torch.arange(n) % 3 + 1
    if dtype in (torch.float16, torch.bfloat16):
        x = torch.full((n,), 2**rank)  # bfloat16 holds integers up to 256
    elif op is PRODUCT:
        x = torch.full((n,), PRIMES[rank])
    elif op in (MAX, MIN):
        x = (torch.arange(n) * 7 + rank * 3) % 11 - 5
    else:
        x = small * 4**rank
    return x.to(dtype).to(backend.device())


def bits_agree(x, group=None):
    """Does every rank of the group hold the same bits?"""
    line = x.detach().reshape(-1).contiguous()
    everyones = [torch.empty_like(line) for _ in range(dist.get_world_size(group))]
    dist.all_gather(everyones, line, group=group)
    return all(torch.equal(line.view(torch.uint8), other.view(torch.uint8)) for other in everyones)


def every_case():
    rank, failures = dist.get_rank(), []
    cases = [(dtype, SUM) for dtype in FLOATS + INTS]
    cases += [(dtype, op) for dtype in (torch.float64, torch.int64) for op in (PRODUCT, MAX, MIN)]
    cases += [(dtype, AVG) for dtype in (torch.float32, torch.float64)]
    for dtype, op in cases:
        for n in SIZES if op is SUM else [3, 7]:
            expected = values(n, dtype, op, rank)
            dist.all_reduce(expected, SUM if op is AVG else op)
            if op is AVG:
                expected /= dist.get_world_size()
            for name, fn in [*ALL_REDUCE.items(), ("front door", collectives.all_reduce)]:
                x = values(n, dtype, op, rank)
                returned = fn(x, op=op)
                if returned is not x or not torch.equal(x, expected):
                    failures.append(
                        f"{name} {dtype} {op} n={n} rank {rank}: {x.tolist()} != "
                        f"{expected.tolist()}"
                    )
    return failures


@pytest.mark.parametrize("nproc", [1, 2, 3, 4, 5, pytest.param(8, marks=pytest.mark.slow)])
def test_all_reduce_equals_torchs_bit_for_bit_where_order_cannot_matter(on_ranks, nproc):
    for failures in on_ranks(every_case, nproc=nproc, ledger=False):
        assert failures == []


def rounding_cases():
    rank, world_size, failures = dist.get_rank(), dist.get_world_size(), []
    for dtype, unit in [(torch.float16, 2**-11), (torch.bfloat16, 2**-8), (torch.float32, 2**-24)]:
        inputs = torch.randn(
            world_size, 999, generator=torch.Generator().manual_seed(7), device="cpu"
        ).to(dtype)
        # zeros of both signs
        inputs[:, 0] = torch.tensor([(-0.0) ** (r % 2 + 1) for r in range(world_size)])
        exact, bound = inputs.double().sum(0), world_size * unit * inputs.double().abs().sum(0)
        for name, fn in ALL_REDUCE.items():
            x = fn(inputs[rank].clone().to(backend.device()))
            error = (x.cpu().double() - exact).abs()
            if (error > bound).any():
                failures.append(f"{name} {dtype}: error {(error / bound).max()} of the bound")
            if not bits_agree(x):
                failures.append(f"{name} {dtype} sum: the ranks' bits differ")
        for name, fn in ALL_REDUCE.items():
            for op in (MAX, AVG) if dtype is torch.float32 else ():
                if not bits_agree(fn(inputs[rank].clone().to(backend.device()), op=op)):
                    failures.append(f"{name} {dtype} {op}: the ranks' bits differ")
    return failures


@pytest.mark.parametrize("nproc", [3, 4, pytest.param(8, marks=pytest.mark.slow)])
def test_rounding_stays_within_n_units_and_is_the_same_on_all_ranks(on_ranks, nproc):
    for failures in on_ranks(rounding_cases, nproc=nproc, ledger=False):
        assert failures == []


def layouts():
    rank, failures = dist.get_rank(), []
    for name, fn in [*ALL_REDUCE.items(), ("front door", collectives.all_reduce)]:
        whole = torch.zeros(6, 8, device=backend.device())
        view = whole[1:5, ::2].t()  # (4, 4), neither contiguous nor of stride 1
        view.copy_(values(16, torch.float32, SUM, rank).view(4, 4))
        expected = values(16, torch.float32, SUM, rank).view(4, 4)
        dist.all_reduce(expected)
        fn(view)
        outside = whole.clone()
        outside[1:5, ::2] = 0
        if not torch.equal(view, expected) or outside.any():
            failures.append(f"{name}: a strided view of a larger tensor")

        scalar = torch.tensor(4.0**rank, device=backend.device())
        if fn(scalar).item() != sum(4.0**r for r in range(dist.get_world_size())):
            failures.append(f"{name}: a tensor without dims")

        parameter = torch.nn.Parameter(torch.ones(5, device=backend.device()))
        fn(parameter)
        if parameter.tolist() != [dist.get_world_size()] * 5 or not parameter.requires_grad:
            failures.append(f"{name}: a leaf that requires grad")
    return failures


def test_strided_views_scalars_and_parameters_are_reduced_in_place(on_ranks):
    for failures in on_ranks(layouts, nproc=3, ledger=False):
        assert failures == []


def in_subgroups():
    rank, failures = dist.get_rank(), []
    odd, even = dist.new_group([1, 3, 4]), dist.new_group([0, 2])
    group = even if rank in (0, 2) else odd
    members = dist.get_process_group_ranks(group)
    for name, fn in [*ALL_REDUCE.items(), ("front door", collectives.all_reduce)]:
        x = fn(values(10, torch.float64, SUM, rank), group)
        expected = sum(values(10, torch.float64, SUM, r) for r in members)
        if not torch.equal(x, expected):
            failures.append(f"{name} in {members}: {x.tolist()}")
    return failures


def test_two_disjoint_subgroups_reduce_at_once(on_ranks):
    results = on_ranks(in_subgroups, nproc=5)
    for failures in results:
        assert failures == []
    between = results.ledger.matrix("messages")
    assert between.sum() > 0
    assert between[[0, 2]][:, [1, 3, 4]].sum() == between[[1, 3, 4]][:, [0, 2]].sum() == 0


def hierarchical_cases(ranks_per_node):
    rank, failures = dist.get_rank(), []
    inside, across = collectives.node_groups(ranks_per_node)
    for dtype, op in [
        (torch.float64, SUM),
        (torch.int64, MAX),
        (torch.float64, AVG),
        (torch.float32, SUM),
    ]:
        for n in SIZES:
            expected = values(n, dtype, op, rank)
            dist.all_reduce(expected, SUM if op is AVG else op)
            if op is AVG:
                expected /= dist.get_world_size()
            x = collectives.hierarchical_all_reduce(values(n, dtype, op, rank), inside, across, op)
            if not torch.equal(x, expected):
                failures.append(f"{dtype} {op} n={n}: {x.tolist()} != {expected.tolist()}")
    noise = torch.randn(99, generator=torch.Generator("cpu").manual_seed(rank), device="cpu").to(
        backend.device()
    )
    if not bits_agree(collectives.hierarchical_all_reduce(noise, inside, across)):
        failures.append("the ranks' bits differ")
    return failures


@pytest.mark.parametrize(
    ("nproc", "ranks_per_node"), [(1, 1), (4, 2), (6, 3), (6, 2), (4, 1), (3, 3)]
)
def test_hierarchical_all_reduce_equals_the_flat_one(on_ranks, nproc, ranks_per_node):
    for failures in on_ranks(hierarchical_cases, ranks_per_node, nproc=nproc, ledger=False):
        assert failures == []
