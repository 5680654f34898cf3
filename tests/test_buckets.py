"""The bucket planner by hand and by random sizes; a bucket made flat and put back."""

import itertools
import random

import pytest
import torch
from torch import nn

from lib.training.buckets import (
    CAPACITY,
    SMALLEST,
    flatten,
    plan_buckets,
    plan_tapered_buckets,
    unflatten,
)


def parameters(*sizes, dtype=torch.float32):
    return [nn.Parameter(torch.empty(size, dtype=dtype)) for size in sizes]


def numbers(given, buckets):
    """[[place in `given`, ...], ...]: parameters are told apart by identity, not by value."""
    place = {id(parameter): i for i, parameter in enumerate(given)}
    return [[place[id(parameter)] for parameter in bucket] for bucket in buckets]


@pytest.mark.parametrize(
    ("sizes", "capacity", "plan"),
    [
        # float32: 4 bytes each
        ([1, 1, 1], 12, [[2, 1, 0]]),  # just full
        ([1, 1, 1], 11, [[2, 1], [0]]),  # a byte short
        ([3, 1, 2], 12, [[2, 1], [0]]),  # in reverse: the last one is ready first
        ([2, 9, 1], 16, [[2], [1], [0]]),  # larger than a bucket: one of its own
        ([9, 1, 1], 16, [[2, 1], [0]]),
        ([1, 1, 9], 16, [[2], [1, 0]]),
        # the 2 of the first would fit in nobody's gap: order before fullness
        ([2, 3, 1, 3], 16, [[3, 2], [1], [0]]),
        ([1, 1], 1, [[1], [0]]),  # every one is larger
        ([0, 4, 0], 16, [[2, 1, 0]]),  # an empty one takes no room
        ([], 16, []),
    ],
)
def test_plans_worked_by_hand(sizes, capacity, plan):
    given = parameters(*sizes)
    assert numbers(given, plan_buckets(given, capacity)) == plan


def test_a_bucket_holds_one_dtype_and_stands_where_its_last_gradient_is_ready():
    f, d = torch.float32, torch.float64
    given = [nn.Parameter(torch.empty(1, dtype=dtype)) for dtype in (d, f, f, d, f)]
    # Ready in the order 4 3 2 1 0. float32: 4 2 1, ready with 1. float64: 3 0, ready with 0.
    assert numbers(given, plan_buckets(given, 100)) == [[4, 2, 1], [3, 0]]
    # Two float64 do not fit: the bucket of 3 is ready before that of 4 2 1.
    assert numbers(given, plan_buckets(given, 12)) == [[3], [4, 2, 1], [0]]


def test_parameters_of_two_devices_do_not_share_a_bucket():
    given = [nn.Parameter(torch.empty(1)), nn.Parameter(torch.empty(1, device="meta"))] * 2
    given = [nn.Parameter(p.detach().clone()) for p in given]
    assert numbers(given, plan_buckets(given, 100)) == [[3, 1], [2, 0]]


@pytest.mark.parametrize("seed", range(40))
def test_any_sizes_each_parameter_once_within_capacity_one_dtype_in_the_order_of_becoming_ready(
    seed,
):
    draw = random.Random(seed)
    dtypes = draw.sample([torch.float32, torch.float64, torch.bfloat16], draw.randint(1, 3))
    given = [
        nn.Parameter(torch.empty(draw.choice([0, 1, 2, 3, 10, 30, 200]), dtype=draw.choice(dtypes)))
        for _ in range(draw.randint(1, 40))
    ]
    capacity = draw.choice([1, 8, 100, 500, 10_000])
    buckets = plan_buckets(given, capacity)
    plan = numbers(given, buckets)
    assert sorted(i for bucket in plan for i in bucket) == list(range(len(given)))
    assert all(plan), "no bucket is empty"
    for bucket in buckets:
        assert len({p.dtype for p in bucket}) == 1
        holds_numbers = [p for p in bucket if p.numel()]
        assert sum(p.nbytes for p in bucket) <= capacity or len(holds_numbers) == 1
    # Parameter i's gradient is ready before that of i-1: within a bucket, and from bucket to bucket
    # by the last one.
    assert all(bucket == sorted(bucket, reverse=True) for bucket in plan)
    assert [bucket[-1] for bucket in plan] == sorted((bucket[-1] for bucket in plan), reverse=True)
    # As few as can be in this order: the first of a bucket did not fit into the one before of its
    # dtype.
    for dtype in dtypes:
        of_dtype = [bucket for bucket in buckets if bucket[0].dtype == dtype]
        for before, after in itertools.pairwise(of_dtype):
            assert sum(p.nbytes for p in before) + after[0].nbytes > capacity


MB = 2**20


@pytest.mark.parametrize(
    ("layers", "capacity", "plan"),
    [
        (20, 8 * MB, [8, 8, 4]),  # 4 are still to come: two thirds are less than SMALLEST
        (20, 12 * MB, [12, 5, 3]),  # 8 to come: two thirds are 5.3
        (7, 12 * MB, [4, 3]),
        (6, 2 * MB, [2, 2, 2]),  # a capacity below SMALLEST does not taper
    ],
)
def test_tapered_buckets_hold_two_thirds_of_what_is_to_come_and_no_less_than_the_smallest(
    layers, capacity, plan
):
    assert SMALLEST == 4 * MB
    # a MB each, of no memory
    given = [nn.Parameter(torch.empty(MB // 4, device="meta")) for _ in range(layers)]
    assert [
        sum(p.nbytes for p in bucket) // MB for bucket in plan_tapered_buckets(given, capacity)
    ] == plan


def test_the_plan_reads_sizes_only_and_takes_any_iterable():
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    before = [p.detach().clone() for p in net.parameters()]
    plan = plan_buckets(net.parameters())
    assert numbers(net.parameters(), plan) == [[3, 2, 1, 0]] and CAPACITY > 100
    assert all(torch.equal(p, b) for p, b in zip(net.parameters(), before, strict=True))
    assert all(p.grad is None for p in net.parameters())


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_capacity_below_one_byte_is_refused(capacity):
    with pytest.raises(
        ValueError,
        match=f"capacity is {capacity} bytes: a bucket holds at least one, use 1 or more",
    ):
        plan_buckets(parameters(1), capacity)


def test_flat_and_back_any_shape_and_layout():
    counted = torch.arange(30.0, dtype=torch.float64)
    tensors = [
        counted[:6].view(2, 3),
        counted[6].clone(),
        counted[:0],
        counted[7:19].view(3, 4).t(),
        counted[::5],
    ]
    flat = flatten(tensors)
    assert flat.shape == (6 + 1 + 0 + 12 + 6,) and flat.dtype == torch.float64
    assert flat[:7].tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert flat[7:10].tolist() == [7, 11, 15], "row by row, however it lies in memory"
    copies = [torch.empty_like(t) for t in tensors]
    unflatten(flat, copies)
    assert all(torch.equal(c, t) for c, t in zip(copies, tensors, strict=True))


def test_flat_is_a_copy_and_carries_no_graph():
    (parameter,) = leaves = [nn.Parameter(torch.ones(2))]
    flat = flatten(leaves)
    flat += 1
    assert parameter.tolist() == [1, 1] and not flat.requires_grad
    unflatten(flat, leaves)  # also into leaves that require grad
    assert parameter.tolist() == [2, 2] and parameter.requires_grad and parameter.is_leaf


def test_a_flat_tensor_of_another_length_is_refused():
    with pytest.raises(RuntimeError, match="split_with_sizes"):
        unflatten(torch.zeros(3), [torch.zeros(2)])
