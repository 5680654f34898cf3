"""Buckets: many small gradients travel as a few flat tensors (Li et al. 2020, "PyTorch Distributed").

    parameters   [ w0 ][b0][     w1     ][b1][  w2  ][b2]       forward goes from left to right
    backward                                        b2 first, w0 last
    buckets      [b2 w2 b1][    w1    ][b0 w0]      0, 1, 2: in the order in which they become ready

A message costs alpha + beta * bytes. A model of hundreds of parameters pays alpha hundreds of times; in buckets it pays
it a few times, for the same bytes. But a bucket can leave only when its last gradient is there: buckets too large have
nothing to overlap with, and the last one to become ready is always exposed. So large ones first, and small ones last.
"""

import torch

CAPACITY = 8 * 2**20  # bytes: a fifth of a GPT of 10M parameters, for what a link has to wait for to be little
SMALLEST = 4 * 2**20  # bytes


# exercise: lab1.plan_buckets
def plan_buckets(parameters, capacity=CAPACITY):
    """[[parameter, ...], ...]: which parameters travel together, in the order in which buckets become ready.

    parameters: in the order of the forward pass, as `module.parameters()` gives them. A pure function.
    capacity: bytes a bucket may hold; a parameter larger than that has a bucket of its own.
    A bucket holds one dtype on one device, because it becomes one flat tensor.
    """
    return _plan(parameters, capacity, lambda to_come: capacity)


def plan_tapered_buckets(parameters, capacity=CAPACITY):
    """Like `plan_buckets`, but a bucket holds at most two thirds of the bytes still to come, down to SMALLEST.

    The last bucket is ready when backward ends, and nothing is left to hide it behind: it should be small. But each
    bucket more costs a round of messages, so small ones should be few. A GPT of 43 MB: five of 7.1 MB, 4.7, 2.7.
    """
    return _plan(parameters, capacity, lambda to_come: min(capacity, max(2 * to_come // 3, SMALLEST)))


def _plan(parameters, capacity, capacity_of):
    """capacity_of(bytes still to come, of all dtypes) -> bytes that the bucket begun now may hold."""
    if capacity < 1:
        raise ValueError(f"capacity is {capacity} bytes: a bucket holds at least one, use 1 or more")
    # Reverse order: the last layer's gradient is ready first.
    parameters = list(parameters)[::-1]
    sizes = [parameter.numel() * parameter.element_size() for parameter in parameters]
    buckets, open_bucket, room, last, to_come = [], {}, {}, {}, sum(sizes)
    for place, (parameter, nbytes) in enumerate(zip(parameters, sizes, strict=True)):
        kind = (parameter.dtype, parameter.device)
        if kind not in open_bucket or nbytes > room[kind]:
            open_bucket[kind], room[kind] = [], capacity_of(to_come)
            buckets.append(open_bucket[kind])
        open_bucket[kind].append(parameter)
        room[kind] -= nbytes
        to_come -= nbytes
        last[id(open_bucket[kind])] = place
    # A bucket is ready with its last parameter. With one dtype that is the order already.
    return sorted(buckets, key=lambda bucket: last[id(bucket)])


def flatten(tensors):
    """Tensors of one dtype and device, end to end: a new (n,), n the sum of their numbers of elements."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def slots(flat, tensors):
    """The pieces of `flat` (n,) in the shapes of `tensors`: views, so to write into one is to write into `flat`."""
    pieces = flat.split([tensor.numel() for tensor in tensors])
    return [piece.view(tensor.shape) for piece, tensor in zip(pieces, tensors, strict=True)]


@torch.no_grad()
def unflatten(flat, tensors):
    """Copy the pieces of `flat` (n,) back into `tensors`, the inverse of `flatten`."""
    for tensor, slot in zip(tensors, slots(flat, tensors), strict=True):
        tensor.copy_(slot)


def gradient(parameter):
    """The gradient of `parameter`, contiguous as NCCL takes it; zeros, kept in `.grad`, where this rank has none.

    The mean goes to the same place on every rank, used there or not, or the ranks' models would part.
    """
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    if not parameter.grad.is_contiguous():
        parameter.grad = parameter.grad.contiguous()
    return parameter.grad
