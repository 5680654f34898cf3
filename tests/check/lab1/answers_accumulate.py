"""Answers to Lab 1's accumulate: wrong ones, each with the hint that it must get,
and right ones."""

import contextlib

import torch
import torch.distributed as dist
from as_an_answer import as_an_answer

from lib.data_parallel import accumulate


def _loop(model, microbatches, counts, loss_fn):
    """A right answer, but that it does not average."""
    k, tokens, total = len(microbatches), sum(counts), 0.0
    for i, microbatch in enumerate(microbatches):
        with model.no_sync() if i < k - 1 else contextlib.nullcontext():
            loss = loss_fn(model, microbatch)
            (loss / tokens).backward()
        total += loss.detach() / tokens
    return total


def _right(model, microbatches, counts, loss_fn):
    loss = _loop(model, microbatches, counts, loss_fn)
    model.average_gradients()
    return loss


# wrong


def calls_lib(model, microbatches, counts, loss_fn):
    return accumulate(model, microbatches, counts, loss_fn)


def leaves_the_last_out(model, microbatches, counts, loss_fn):
    k, tokens = len(microbatches), sum(counts)
    for microbatch in microbatches[: k - 1] or microbatches:
        with model.no_sync():
            (loss_fn(model, microbatch) / tokens).backward()
    model.average_gradients()


def averages_before_the_last(model, microbatches, counts, loss_fn):
    k, tokens, total = len(microbatches), sum(counts), 0.0
    for i, microbatch in enumerate(microbatches):
        if i == k - 1 and k > 1:
            model.average_gradients()
        loss = loss_fn(model, microbatch) / tokens
        loss.backward()
        total += loss.detach()
    if k == 1:
        model.average_gradients()
    return total


def returns_the_last(model, microbatches, counts, loss_fn):
    k, tokens = len(microbatches), sum(counts)
    for i, microbatch in enumerate(microbatches):
        with model.no_sync() if i < k - 1 else contextlib.nullcontext():
            loss = loss_fn(model, microbatch)
            (loss / tokens).backward()
    model.average_gradients()
    return loss.detach() / counts[-1]


def averages_the_loss_too(model, microbatches, counts, loss_fn):
    loss = _right(model, microbatches, counts, loss_fn)
    dist.all_reduce(loss)
    return loss / dist.get_world_size()


def one_backward(model, microbatches, counts, loss_fn):
    loss = sum(loss_fn(model, microbatch) for microbatch in microbatches) / sum(counts)
    loss.backward()
    model.average_gradients()
    return loss.detach()


def computes_the_loss_again(model, microbatches, counts, loss_fn):
    _right(model, microbatches, counts, loss_fn)
    with torch.no_grad():
        return sum(loss_fn(model, microbatch) for microbatch in microbatches) / sum(counts)


def averages_by_itself(model, microbatches, counts, loss_fn):
    loss = _loop(model, microbatches, counts, loss_fn)
    for p in model.parameters():
        if p.requires_grad:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
    return loss


TOTAL = torch.zeros((), dtype=torch.float64)


def one_total_for_ever(model, microbatches, counts, loss_fn):
    return TOTAL.copy_(_right(model, microbatches, counts, loss_fn))


def not_written(model, microbatches, counts, loss_fn):
    raise NotImplementedError


def weighs_micro_batches_alike(model, microbatches, counts, loss_fn):
    """The mistake that a widely used trainer made until 2024: the mean of the means."""
    k, total = len(microbatches), 0.0
    for i, microbatch in enumerate(microbatches):
        with model.no_sync() if i < k - 1 else contextlib.nullcontext():
            loss = loss_fn(model, microbatch) / counts[i] / k
            loss.backward()
        total += loss.detach()
    model.average_gradients()
    return total


def returns_the_mean_of_means(model, microbatches, counts, loss_fn):
    losses = []

    def noted(model, microbatch):
        losses.append(loss_fn(model, microbatch))
        return losses[-1]

    _right(model, microbatches, counts, noted)
    return sum(loss.detach() / c for loss, c in zip(losses, counts, strict=True)) / len(losses)


# right


def first_the_others_then_the_last(model, microbatches, counts, loss_fn):
    *others, last = microbatches
    losses = []
    with model.no_sync():
        for microbatch in others:
            losses.append(loss_fn(model, microbatch))
            losses[-1].div(sum(counts)).backward()
    losses.append(loss_fn(model, last))
    losses[-1].div(sum(counts)).backward()
    model.average_gradients()
    return torch.stack(losses).detach().sum() / sum(counts)


def divides_the_gradient(model, microbatches, counts, loss_fn):
    """The sum of the gradients, divided once at the end."""
    k, tokens, total = len(microbatches), sum(counts), 0.0
    for i in range(k):
        with contextlib.ExitStack() as stack:
            if i + 1 < k:
                stack.enter_context(model.no_sync())
            loss = loss_fn(model, microbatches[i])
            loss.backward()
            total += loss.item()
    model.average_gradients()
    for p in model.parameters():
        if p.grad is not None:
            p.grad /= tokens
    return torch.tensor(total / tokens)


def only_backward_inside(model, microbatches, counts, loss_fn):
    total, losses = sum(counts), []
    for microbatch in microbatches[:-1]:
        loss = loss_fn(model, microbatch) / total
        with model.no_sync():
            loss.backward()
        losses.append(loss.detach())
    loss = loss_fn(model, microbatches[-1]) / total
    loss.backward()
    model.average_gradients()
    return sum(losses) + loss.detach()


def the_last_forward_inside(model, microbatches, counts, loss_fn):
    total, losses = sum(counts), []
    with model.no_sync():
        for microbatch in microbatches[:-1]:
            losses.append(loss_fn(model, microbatch) / total)
            losses[-1].backward()
        losses.append(loss_fn(model, microbatches[-1]) / total)
    losses[-1].backward()
    model.average_gradients()
    return sum(loss.detach() for loss in losses)


def only_the_first_sends(model, microbatches, counts, loss_fn):
    total, losses = sum(counts), []
    for i, microbatch in enumerate(microbatches):
        with model.no_sync() if i else contextlib.nullcontext():
            losses.append(loss_fn(model, microbatch) / total)
            losses[-1].backward()
    model.average_gradients()
    return sum(loss.detach() for loss in losses)


def all_forwards_first(model, microbatches, counts, loss_fn):
    total = sum(counts)
    with model.no_sync():
        losses = [loss_fn(model, microbatch) / total for microbatch in microbatches[:-1]]
        for loss in losses:
            loss.backward()
    losses.append(loss_fn(model, microbatches[-1]) / total)
    losses[-1].backward()
    model.average_gradients()
    return sum(loss.detach() for loss in losses)


def the_last_by_identity(model, microbatches, counts, loss_fn):
    tokens, total = sum(counts), 0.0
    for microbatch in microbatches:
        last = microbatch is microbatches[-1]
        with contextlib.nullcontext() if last else model.no_sync():
            loss = loss_fn(model, microbatch) / tokens
            loss.backward()
        total += loss.detach()
    model.average_gradients()
    return total


WRONG = {
    the_last_by_identity: "another order",
    only_the_first_sends: "no_sync for the last instead of the first",
    all_forwards_first: "forwards before backwards",
    only_backward_inside: "a forward outside no_sync",
    the_last_forward_inside: "the last forward inside no_sync",
    calls_lib: "called what it builds",
    leaves_the_last_out: "a micro-batch is missing",
    averages_before_the_last: "unequal shares",
    returns_the_last: "the last loss only",
    averages_the_loss_too: "another loss",
    one_backward: "one backward at the end",
    computes_the_loss_again: "computed twice",
    averages_by_itself: "its own average",
    one_total_for_ever: "used again by a later call",
    weighs_micro_batches_alike: "a mean of means",
    returns_the_mean_of_means: "a mean of means",
    not_written: "not written",
}

RIGHT = [first_the_others_then_the_last, divides_the_gradient, as_an_answer(accumulate)]
