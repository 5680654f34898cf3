"""Answers to Lab 1's buckets, function by function: wrong ones, each with the hint that it must get, and right ones."""

import torch
import torch.distributed as dist

from lib import buckets, collectives
from lib.buckets import flatten, unflatten
from lib.data_parallel import bucketed


def nbytes(p):
    return p.numel() * p.element_size()


def kind(p):
    return p.dtype, p.device


# plan_buckets: right


def closes_at_a_new_dtype(parameters, capacity):
    plan = []
    for p in reversed(list(parameters)):
        fits = plan and kind(plan[-1][0]) == kind(p) and sum(map(nbytes, plan[-1])) + nbytes(p) <= capacity
        if fits:
            plan[-1].append(p)
        else:
            plan.append([p])
    return plan


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


def with_one_open_bucket(parameters, capacity):
    plan, current, size = [], [], 0
    for p in list(parameters)[::-1]:
        if current and (size + nbytes(p) > capacity or p.dtype != current[0].dtype):
            plan.append(tuple(current))
            current, size = [], 0
        current.append(p)
        size += nbytes(p)
    return [*plan, tuple(current)]


# plan_buckets: wrong


def forgets_to_return(parameters, capacity):
    closes_at_a_new_dtype(parameters, capacity)


def one_flat_list(parameters, capacity):
    return list(reversed(parameters))


def sizes_for_parameters(parameters, capacity):
    return [[p.numel() for p in bucket] for bucket in closes_at_a_new_dtype(parameters, capacity)]


def leaves_out_large_ones(parameters, capacity):
    return closes_at_a_new_dtype([p for p in parameters if nbytes(p) <= capacity], capacity)


def forgets_the_last_bucket(parameters, capacity):
    return with_one_open_bucket(parameters, capacity)[:-1]


def drops_what_does_not_fit(parameters, capacity):
    plan, current = [], []
    for p in reversed(parameters):
        if sum(map(nbytes, current)) + nbytes(p) > capacity:
            plan.append(current)
            current = []
        else:
            current.append(p)
    return [*plan, current]


def keeps_it_in_both(parameters, capacity):
    plan = [[]]
    for p in reversed(parameters):
        plan[-1].append(p)
        if sum(map(nbytes, plan[-1])) > capacity:
            plan.append([p])
    return plan


def begins_with_an_empty_one(parameters, capacity):
    plan, current, size = [], [], 0
    for p in reversed(parameters):
        if size + nbytes(p) > capacity:
            plan.append(current)
            current, size = [], 0
        current.append(p)
        size += nbytes(p)
    return [*plan, current]


def in_forward_order(parameters, capacity):
    return closes_at_a_new_dtype(list(reversed(parameters)), capacity)


def reverses_the_buckets(parameters, capacity):
    return in_forward_order(parameters, capacity)[::-1]


def reverses_inside(parameters, capacity):
    return [bucket[::-1] for bucket in in_forward_order(parameters, capacity)]


def in_the_order_of_opening(parameters, capacity):
    plan, current = [], {}
    for p in reversed(parameters):
        if p.dtype not in current or sum(map(nbytes, current[p.dtype])) + nbytes(p) > capacity:
            current[p.dtype] = []
            plan.append(current[p.dtype])
        current[p.dtype].append(p)
    return plan


def counts_elements(parameters, capacity):
    plan = []
    for p in reversed(parameters):
        if plan and sum(q.numel() for q in plan[-1]) + p.numel() <= capacity and plan[-1][0].dtype == p.dtype:
            plan[-1].append(p)
        else:
            plan.append([p])
    return plan


def four_bytes_each(parameters, capacity):
    plan = []
    for p in reversed(parameters):
        if plan and sum(4 * q.numel() for q in plan[-1]) + 4 * p.numel() <= capacity and plan[-1][0].dtype == p.dtype:
            plan[-1].append(p)
        else:
            plan.append([p])
    return plan


def looks_afterwards(parameters, capacity):
    plan = [[]]
    for p in reversed(parameters):
        if plan[-1] and (sum(map(nbytes, plan[-1])) >= capacity or plan[-1][0].dtype != p.dtype):
            plan.append([])
        plan[-1].append(p)
    return plan


def everything_in_one(parameters, capacity):
    return [list(reversed(parameters))]


def mixes_dtypes(parameters, capacity):
    plan = []
    for p in reversed(parameters):
        if plan and sum(map(nbytes, plan[-1])) + nbytes(p) <= capacity:
            plan[-1].append(p)
        else:
            plan.append([p])
    return plan


def one_for_each(parameters, capacity):
    return [[p] for p in reversed(parameters)]


def never_quite_full(parameters, capacity):
    plan = []
    for p in reversed(parameters):
        if plan and plan[-1][0].dtype == p.dtype and sum(map(nbytes, plan[-1])) + nbytes(p) < capacity:
            plan[-1].append(p)
        else:
            plan.append([p])
    return plan


def turns_the_list_round(parameters, capacity):
    parameters.reverse()
    return closes_at_a_new_dtype(parameters[::-1], capacity)


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


def forgets_to_divide(parameters, group, all_reduce):
    flat = flatten([grad(p) for p in parameters])
    all_reduce(flat, group)
    unflatten(flat, [p.grad for p in parameters])


def before_and_after(parameters, group, all_reduce):
    unflatten(averaged(parameters, group, all_reduce), [p.grad for p in parameters])
    for p in parameters:
        p.grad /= dist.get_world_size(group)


def size_of_the_world(parameters, group, all_reduce):
    flat = flatten([grad(p) for p in parameters])
    all_reduce(flat, group)
    unflatten(flat / dist.get_world_size(), [p.grad for p in parameters])


def size_of_the_bucket(parameters, group, all_reduce):
    flat = flatten([grad(p) for p in parameters])
    all_reduce(flat, group)
    unflatten(flat / len(parameters), [p.grad for p in parameters])


def never_written_back(parameters, group, all_reduce):
    averaged(parameters, group, all_reduce)


def rebinds_the_name(parameters, group, all_reduce):
    flat, at = averaged(parameters, group, all_reduce), 0
    for p in parameters:
        g = p.grad
        g = flat[at : at + g.numel()].view_as(g)
        at += p.numel()


def flattens_the_parameters(parameters, group, all_reduce):
    for p in parameters:
        grad(p)
    flat = flatten(parameters)
    all_reduce(flat, group)
    unflatten(flat / dist.get_world_size(group), parameters)


def skips_what_has_none(parameters, group, all_reduce):
    used = [p.grad for p in parameters if p.grad is not None]
    flat = flatten(used)
    all_reduce(flat, group)
    unflatten(flat / dist.get_world_size(group), used)


def zeros_that_it_forgets(parameters, group, all_reduce):
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    flat = flatten(gradients)
    all_reduce(flat, group)
    unflatten(flat / dist.get_world_size(group), gradients)


def does_not_expect_none(parameters, group, all_reduce):
    flat = torch.cat([p.grad.reshape(-1) for p in parameters])
    all_reduce(flat, group)
    unflatten(flat / dist.get_world_size(group), [p.grad for p in parameters])


def writes_back_the_other_way(parameters, group, all_reduce):
    flat = averaged(parameters, group, all_reduce)
    unflatten(flat, [p.grad for p in reversed(parameters)])


def stays_at_the_beginning(parameters, group, all_reduce):
    flat = averaged(parameters, group, all_reduce)
    for p in parameters:
        p.grad.copy_(flat[: p.numel()].view_as(p))


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


def takes_what_it_returns(parameters, group, all_reduce):
    flat = all_reduce(flatten([grad(p) for p in parameters]), group) / dist.get_world_size(group)
    unflatten(flat, [p.grad for p in parameters])


def without_group(parameters, group, all_reduce):
    flat = flatten([grad(p) for p in parameters])
    all_reduce(flat)
    unflatten(flat / dist.get_world_size(group), [p.grad for p in parameters])


def asks_for_the_mean(parameters, group, all_reduce):
    flat = flatten([grad(p) for p in parameters])
    all_reduce(flat, group=group, op=dist.ReduceOp.AVG)
    unflatten(flat, [p.grad for p in parameters])


def updates_them_too(parameters, group, all_reduce):
    with_lib_flatten(parameters, group, all_reduce)
    with torch.no_grad():
        for p in parameters:
            p -= 0.1 * p.grad


def an_imported_all_reduce(parameters, group, all_reduce):
    with_lib_flatten(parameters, group, collectives.all_reduce)


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


def calls_libs(parameters, group, all_reduce):
    bucketed.reduce_bucket(parameters, group, all_reduce)


def no_bucket_yet(parameters, group, all_reduce):
    raise NotImplementedError


WRONG = {
    "plan_buckets": {
        forgets_to_return: "not a list of lists",
        one_flat_list: "not a list of lists",
        sizes_for_parameters: "not a list of lists",
        leaves_out_large_ones: "the large ones left out",
        forgets_the_last_bucket: "the last bucket left out",
        drops_what_does_not_fit: "some left out",
        keeps_it_in_both: "twice",
        begins_with_an_empty_one: "an empty bucket",
        in_forward_order: "forward order",
        reverses_the_buckets: "forward inside a bucket",
        reverses_inside: "the order of the buckets",
        in_the_order_of_opening: "the order of the buckets",
        counts_elements: "elements for bytes",
        four_bytes_each: "elements for bytes",
        looks_afterwards: "looked too late",
        everything_in_one: "room not counted anew",
        mixes_dtypes: "dtypes mixed",
        one_for_each: "one each",
        never_quite_full: "closed too early",
        turns_the_list_round: "turned round in place",
        calls_libs_plan: "called lib's",
        no_plan_yet: "not written",
    },
    "reduce_bucket": {
        forgets_to_divide: "not divided",
        before_and_after: "divided twice",
        size_of_the_world: "the world's size, not the group's",
        size_of_the_bucket: "another divisor",
        never_written_back: "never written back",
        rebinds_the_name: "never written back",
        flattens_the_parameters: "the parameter, not its gradient",
        skips_what_has_none: "sizes that differ between ranks",
        zeros_that_it_forgets: "a parameter without gradient",
        does_not_expect_none: "a parameter without gradient",
        writes_back_the_other_way: "pieces in the wrong places",
        stays_at_the_beginning: "pieces in the wrong places",
        loses_its_place: "pieces in the wrong places",
        writes_to_a_reshaped_copy: "a copy of a gradient that is not contiguous",
        views_every_gradient: "a copy of a gradient that is not contiguous",
        takes_what_it_returns: "what all_reduce returns",
        without_group: "the group is not passed on",
        asks_for_the_mean: "an op for all_reduce",
        updates_them_too: "the parameter, not its gradient",
        an_imported_all_reduce: "not the all_reduce it was given",
        one_by_one: "one message per parameter",
        padded: "another flat tensor",
        a_column: "another flat tensor",
        calls_libs: "called lib's",
        no_bucket_yet: "not written",
    },
}
RIGHT = {
    "plan_buckets": [closes_at_a_new_dtype, an_open_bucket_per_dtype, with_one_open_bucket],
    "reduce_bucket": [with_lib_flatten, with_offsets, views_of_the_flat],
}
