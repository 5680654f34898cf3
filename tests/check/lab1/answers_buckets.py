"""Answers to Lab 1's buckets, function by function: wrong ones, each with the hint that it must
get, and right ones."""

import torch
import torch.distributed as dist

from lib import collectives
from lib.data_parallel import bucketed
from lib.training import buckets
from lib.training.buckets import flatten, unflatten


def nbytes(p):
    return p.numel() * p.element_size()


def kind(p):
    return p.dtype, p.device


# plan_buckets: wrong where dtypes differ


def closes_at_a_new_dtype(parameters, capacity):
    plan = []
    for p in reversed(list(parameters)):
        fits = (
            plan
            and kind(plan[-1][0]) == kind(p)
            and sum(map(nbytes, plan[-1])) + nbytes(p) <= capacity
        )
        if fits:
            plan[-1].append(p)
        else:
            plan.append([p])
    return plan


def with_one_open_bucket(parameters, capacity):
    plan, current, size = [], [], 0
    for p in list(parameters)[::-1]:
        if current and (size + nbytes(p) > capacity or p.dtype != current[0].dtype):
            plan.append(tuple(current))
            current, size = [], 0
        current.append(p)
        size += nbytes(p)
    return [*plan, tuple(current)]


# plan_buckets: right


def the_bucket_of_its_dtype_if_it_fits(parameters, capacity):
    """Each bucket is noted with the place of its last parameter, by which they are sorted."""
    plan, open_ones = [], {}
    for place, p in enumerate(reversed(list(parameters))):
        bucket = open_ones.get(p.dtype)
        if not bucket or sum(map(nbytes, bucket["holds"])) + nbytes(p) > capacity:
            bucket = open_ones[p.dtype] = {"holds": []}
            plan.append(bucket)
        bucket["holds"].append(p)
        bucket["ready"] = place
    return tuple(bucket["holds"] for bucket in sorted(plan, key=lambda b: b["ready"]))


def an_open_bucket_per_dtype(parameters, capacity):
    parameters = list(parameters)
    plan, current = [], {}
    for place in range(len(parameters) - 1, -1, -1):
        p = parameters[place]
        bucket = current.get(kind(p))
        if bucket is None or sum(nbytes(q) for q, _ in bucket) + nbytes(p) > capacity:
            bucket = current[kind(p)] = []
            plan.append(bucket)
        bucket.append((p, place))
    plan.sort(key=lambda bucket: -bucket[-1][1])
    return [[p for p, _ in bucket] for bucket in plan]


# plan_buckets: wrong


def forgets_to_return(parameters, capacity):
    closes_at_a_new_dtype(parameters, capacity)


def one_flat_list(parameters, capacity):
    return list(parameters)[::-1]


def sizes_for_parameters(parameters, capacity):
    return [[p.numel() for p in bucket] for bucket in closes_at_a_new_dtype(parameters, capacity)]


def forgets_the_last_bucket(parameters, capacity):
    return with_one_open_bucket(parameters, capacity)[:-1]


def drops_what_does_not_fit(parameters, capacity):
    plan, current = [], []
    for p in reversed(list(parameters)):
        if sum(map(nbytes, current)) + nbytes(p) > capacity:
            plan.append(current)
            current = []
        else:
            current.append(p)
    return [*plan, current]


def keeps_it_in_both(parameters, capacity):
    plan = [[]]
    for p in reversed(list(parameters)):
        plan[-1].append(p)
        if sum(map(nbytes, plan[-1])) > capacity:
            plan.append([p])
    return plan


def fills_up_earlier_ones(parameters, capacity):
    """Each goes into the first bucket that has room for it."""
    plan = []
    for p in reversed(list(parameters)):
        fits = [
            b for b in plan if kind(b[0]) == kind(p) and sum(map(nbytes, b)) + nbytes(p) <= capacity
        ]
        if fits:
            fits[0].append(p)
        else:
            plan.append([p])
    return plan


def begins_with_an_empty_one(parameters, capacity):
    plan, current, size = [], [], 0
    for p in reversed(list(parameters)):
        if size + nbytes(p) > capacity:
            plan.append(current)
            current, size = [], 0
        current.append(p)
        size += nbytes(p)
    return [*plan, current]


def _forward(parameters, capacity):
    return closes_at_a_new_dtype(list(parameters)[::-1], capacity)


def reverses_the_buckets(parameters, capacity):
    return _forward(parameters, capacity)[::-1]


def reverses_inside(parameters, capacity):
    return [bucket[::-1] for bucket in _forward(parameters, capacity)]


def keeps_its_plan(parameters, capacity, plan=[]):  # noqa: B006
    plan += closes_at_a_new_dtype(parameters, capacity)
    return plan


def reads_it_twice(parameters, capacity):
    size = sum(nbytes(p) for p in parameters)
    if size <= capacity:
        return [list(reversed(list(parameters)))]
    return closes_at_a_new_dtype(parameters, capacity)


def full_from_the_front(parameters, capacity):
    """As few buckets, and none too large; but the first one is not filled up."""
    plan = []
    for p in list(parameters):
        fits = plan and kind(plan[-1][0]) == kind(p)
        if fits and sum(map(nbytes, plan[-1])) + nbytes(p) <= capacity:
            plan[-1].insert(0, p)
        else:
            plan.append([p])
    return plan[::-1]


def everything_in_one(parameters, capacity):
    return [list(parameters)[::-1]]


def calls_libs_plan(parameters, capacity):
    return buckets.plan_buckets(parameters, capacity)


def no_plan_yet(parameters, capacity):
    raise NotImplementedError


# reduce_bucket


def grad(p):
    if p.grad is None:
        p.grad = torch.zeros_like(p)
    return p.grad


def averaged(parameters, group, all_reduce):
    flat = flatten([grad(p) for p in parameters])
    all_reduce(flat, group)
    return flat / dist.get_world_size(group)


# reduce_bucket: right


def with_lib_flatten(parameters, group=None, all_reduce=collectives.all_reduce):
    unflatten(averaged(parameters, group, all_reduce), [p.grad for p in parameters])


def with_offsets(parameters, group, all_reduce):
    n, at = sum(p.numel() for p in parameters), 0
    flat = torch.zeros(n, dtype=parameters[0].dtype, device=parameters[0].device)
    for p in parameters:
        if p.grad is not None:
            flat[at : at + p.numel()] = p.grad.flatten() / dist.get_world_size(group)
        at += p.numel()
    all_reduce(flat, group)
    at = 0
    for p in parameters:
        p.grad = flat[at : at + p.numel()].reshape(p.shape).clone()
        at += p.numel()


def views_of_the_flat(parameters, group, all_reduce):
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    flat = torch.nn.utils.parameters_to_vector(g.contiguous() for g in gradients)
    all_reduce(flat, group)
    flat.div_(dist.get_world_size(group))
    for p, piece in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        p.grad = piece.view(p.shape)


# reduce_bucket: wrong


def zeros_that_it_forgets(parameters, group, all_reduce):
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    flat = flatten(gradients)
    all_reduce(flat, group)
    unflatten(flat / dist.get_world_size(group), gradients)


def does_not_expect_none(parameters, group, all_reduce):
    flat = torch.cat([p.grad.reshape(-1) for p in parameters])
    all_reduce(flat, group)
    unflatten(flat / dist.get_world_size(group), [p.grad for p in parameters])


def loses_its_place(parameters, group, all_reduce):
    flat, at = averaged(parameters, group, all_reduce), 0
    for p in parameters:
        p.grad.copy_(flat[at : at + p.numel()].view_as(p))
        at += len(p)


def writes_to_a_reshaped_copy(parameters, group, all_reduce):
    flat, at = averaged(parameters, group, all_reduce), 0
    for p in parameters:
        p.grad.reshape(-1).copy_(flat[at : at + p.numel()])
        at += p.numel()


def views_every_gradient(parameters, group, all_reduce):
    flat = torch.cat([grad(p).view(-1) for p in parameters])
    all_reduce(flat, group)
    unflatten(flat / dist.get_world_size(group), [p.grad for p in parameters])


def one_by_one(parameters, group, all_reduce):
    for p in parameters:
        all_reduce(grad(p), group)
        p.grad /= dist.get_world_size(group)


def padded(parameters, group, all_reduce):
    flat = flatten([grad(p) for p in parameters])
    n = len(flat)
    flat = torch.cat([flat, flat.new_zeros(-n % 16)])
    all_reduce(flat, group)
    unflatten(flat[:n] / dist.get_world_size(group), [p.grad for p in parameters])


def a_column(parameters, group, all_reduce):
    flat = flatten([grad(p) for p in parameters])[:, None]
    all_reduce(flat, group)
    unflatten(flat[:, 0] / dist.get_world_size(group), [p.grad for p in parameters])


def returns_early(parameters, group, all_reduce):
    if any(p.grad is not None for p in parameters):
        with_lib_flatten(parameters, group, all_reduce)


def nothing_to_do_alone(parameters, group, all_reduce):
    if dist.get_world_size(group) > 1:
        with_lib_flatten(parameters, group, all_reduce)


FLAT = {}


def one_flat_tensor_for_ever(parameters, group, all_reduce):
    flat = flatten([grad(p) for p in parameters])
    flat = FLAT.setdefault(len(flat), flat).copy_(flat)
    all_reduce(flat, group)
    flat /= dist.get_world_size(group)
    for p, piece in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        p.grad = piece.view(p.shape)


def calls_libs(parameters, group, all_reduce):
    bucketed.reduce_bucket(parameters, group, all_reduce)


def no_bucket_yet(parameters, group, all_reduce):
    raise NotImplementedError


WRONG = {
    "plan_buckets": {
        forgets_to_return: "not a list of lists",
        one_flat_list: "not a list of lists",
        sizes_for_parameters: "not a list of lists",
        forgets_the_last_bucket: "the last bucket left out",
        drops_what_does_not_fit: "some left out",
        keeps_it_in_both: "twice",
        fills_up_earlier_ones: "filled up later",
        begins_with_an_empty_one: "an empty bucket",
        reverses_the_buckets: "forward inside a bucket",
        reverses_inside: "the order of the buckets",
        keeps_its_plan: "one list for all calls",
        reads_it_twice: "read twice",
        full_from_the_front: "closed too early",
        closes_at_a_new_dtype: "closed by another dtype",
        with_one_open_bucket: "closed by another dtype",
        everything_in_one: "room not counted anew",
        calls_libs_plan: "called what it builds",
        no_plan_yet: "not written",
    },
    "reduce_bucket": {
        zeros_that_it_forgets: "a parameter without gradient",
        does_not_expect_none: "a parameter without gradient",
        loses_its_place: "pieces in the wrong places",
        writes_to_a_reshaped_copy: "a copy of a gradient that is not contiguous",
        views_every_gradient: "a copy of a gradient that is not contiguous",
        returns_early: "a rank that returns early",
        nothing_to_do_alone: "a parameter without gradient",
        one_flat_tensor_for_ever: "one buffer for all calls",
        one_by_one: "one message per parameter",
        padded: "another flat tensor",
        a_column: "another flat tensor",
        calls_libs: "called what it builds",
        no_bucket_yet: "not written",
    },
}
RIGHT = {
    "plan_buckets": [an_open_bucket_per_dtype, the_bucket_of_its_dtype_if_it_fits],
    "reduce_bucket": [with_lib_flatten, with_offsets, views_of_the_flat],
}
