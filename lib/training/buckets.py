"""Buckets: many small gradients are sent as a few flat buffers (Li et al. 2020, "PyTorch
Distributed"; Megatron's grad buffers).

    parameters   [ w0 ][b0][     w1     ][b1][  w2  ][b2]       forward goes from left to right
    backward                                        b2 first, w0 last
    buckets      [b2 w2 b1][    w1    ][b0 w0]      0, 1, 2: in the order in which they become ready

A message costs alpha + beta * bytes. With a message for each parameter, a model of hundreds of them
pays alpha hundreds of times; with buckets it pays alpha a few times, for the same bytes. However, a
bucket can be sent only when its last gradient is ready, so buckets that are too large have nothing
to overlap with. The last one to become ready is always exposed, because backward has ended by then.
Therefore large buckets come first, and small ones last.
"""

import weakref
from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lib.backend import Group

# bytes: a fifth of the gradients of a GPT of 10M parameters, so that the first bucket is ready soon
CAPACITY = 8 * 2**20
SMALLEST = 4 * 2**20  # bytes


# exercise: lab1.plan_buckets
def plan_buckets(
    parameters: Iterable[nn.Parameter], capacity: int = CAPACITY
) -> list[list[nn.Parameter]]:
    """[[parameter, ...], ...]: which parameters are sent together, in the order in which buckets
    become ready.

    parameters: in the order of the forward pass, as `module.parameters()` gives them. A pure
    function. capacity: bytes a bucket may hold; a parameter larger than that has a bucket of its
    own.
    A bucket holds one dtype on one device, because it becomes one flat buffer.
    """
    return _plan(parameters, capacity, lambda to_come: capacity)


def plan_tapered_buckets(
    parameters: Iterable[nn.Parameter], capacity: int = CAPACITY
) -> list[list[nn.Parameter]]:
    """Like `plan_buckets`, but a bucket holds at most two thirds of the bytes still to come, down
    to SMALLEST.

    The last bucket is ready when backward ends and no compute is left to hide it, so it should be
    small. On the other hand, every bucket costs a round of messages, so there should be few small
    ones. A GPT of 43 MB gets five buckets of 7.1 MB, one of 4.7 and one of 2.7.
    """
    return _plan(
        parameters, capacity, lambda to_come: min(capacity, max(2 * to_come // 3, SMALLEST))
    )


def _plan(parameters, capacity, capacity_of):
    """capacity_of(bytes still to come, of all dtypes) -> bytes that a bucket opened now may
    hold."""
    if capacity < 1:
        raise ValueError(
            f"capacity is {capacity} bytes: a bucket holds at least one, use 1 or more"
        )
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
    # A bucket is ready with its last parameter. With one dtype they are in this order already.
    return sorted(buckets, key=lambda bucket: last[id(bucket)])


def flatten(tensors: Sequence[Tensor]) -> Tensor:
    """Copy tensors of one dtype and device into a new flat buffer, (n,), where n is their total
    number of elements."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def slots(flat, tensors):
    """Views of the flat buffer `flat` (n,) in the shapes of `tensors`: writing into one
    writes into `flat`."""
    pieces = flat.split([tensor.numel() for tensor in tensors])
    return [piece.view(tensor.shape) for piece, tensor in zip(pieces, tensors, strict=True)]


@torch.no_grad()
def unflatten(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    """Copy the flat buffer `flat` (n,) back into `tensors`, the inverse of `flatten`."""
    for tensor, slot in zip(tensors, slots(flat, tensors), strict=True):
        tensor.copy_(slot)


def dense_gradient(parameter):
    """`parameter.grad`, or None. Raises ValueError for a sparse one, which has no
    slot in a flat buffer."""
    if parameter.grad is not None and parameter.grad.is_sparse:
        raise ValueError(
            f"the gradient of a {tuple(parameter.grad.shape)} parameter is sparse, and a flat "
            f"buffer holds dense gradients: make the layer without sparse=True (nn.Embedding and "
            "nn.EmbeddingBag have it)"
        )
    return parameter.grad


def gradient(parameter):
    """The gradient of `parameter`, contiguous, as NCCL requires. If this rank has none, `.grad` is
    set to zeros first.

    The mean has to reach every rank, whether it used the parameter or not, because otherwise the
    ranks' models would diverge.
    """
    if dense_gradient(parameter) is None:
        parameter.grad = torch.zeros_like(parameter)
    if not parameter.grad.is_contiguous():
        parameter.grad = parameter.grad.contiguous()
    return parameter.grad


def when_gradient_is_ready(parameters, method):
    """Call method(parameter) each time that backward has completed the gradient of one of
    `parameters`.

    The hooks do not keep method's object alive. Python's garbage collector does not see torch's
    hooks on parameters, so if they referenced an object that has these parameters, it would never
    be freed.
    """
    weak = weakref.WeakMethod(method)

    def hook(parameter):
        if ready := weak():
            ready(parameter)

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(hook)


def gradient_came_twice(parameter, call, instead):
    """The error for a gradient that is completed a second time in one step. It names two possible
    causes, and a remedy for each.

    call: what to do after each backward. instead: the name of the class that reads gradients only
    after backward has ended.
    """
    return RuntimeError(
        f"a second backward before average_gradients() completed the gradient of a "
        f"{tuple(parameter.shape)} parameter again, which has been sent. {call}. If you called "
        f"backward once, the layer is used several times inside of recomputed blocks, and each of "
        f"these runs a backward of its own: use {instead}, which waits for all of them"
    )


def mark_sharded(parameters: Iterable[nn.Parameter], group: Group = None) -> None:
    """Note in `parameter.sharded_over` that the group's ranks have different values of these
    parameters.

    Code that copies rank 0's values to all ranks of a group reads it through `check_replicated`.
    """
    ranks = tuple(dist.get_process_group_ranks(group))
    for parameter in parameters:
        parameter.sharded_over = ranks  # type: ignore[attr-defined]


def check_replicated(parameters: Iterable[nn.Parameter], group: Group = None) -> None:
    """Raise ValueError if two ranks of `group` have different shards or experts in one of these
    parameters."""
    ranks = dist.get_process_group_ranks(group)
    for parameter in parameters:
        sharers = sorted(set(ranks) & set(getattr(parameter, "sharded_over", ())))
        if len(sharers) > 1:
            raise ValueError(
                f"a {tuple(parameter.shape)} parameter is sharded over ranks {sharers}: each of "
                f"them has other values, and data parallelism over ranks {ranks} would overwrite "
                f"them with rank {ranks[0]}'s. Give it a group of ranks that have the same shard, "
                "such as the second of collectives.node_groups(size); a model with "
                "ExpertParallelMoE layers stays without a wrapper, and moe.reduce_gradients "
                "averages its gradients"
            )
