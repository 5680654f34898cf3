"""Answers to Lab 1's accumulate: wrong ones, each with the hint that it must get, and right ones."""

import contextlib

import torch
import torch.distributed as dist
from as_an_answer import as_an_answer

from lib.data_parallel import accumulate


def _loop(model, microbatches, loss_fn, divide=None, before=lambda: None, alone=None, average=True):
    """A right answer, unless told otherwise. alone(i): is backward i inside no_sync?"""
    k = len(microbatches)
    alone = alone or (lambda i: i < k - 1)
    total = 0.0
    for i, microbatch in enumerate(microbatches):
        before()
        with model.no_sync() if alone(i) else contextlib.nullcontext():
            loss = loss_fn(model, microbatch)
            (loss / (divide or k)).backward()
        total += loss.detach() / k
    if average:
        model.average_gradients()
    return total


# wrong


def calls_lib(model, microbatches, loss_fn):
    return accumulate(model, microbatches, loss_fn)


def never_averages(model, microbatches, loss_fn):
    return _loop(model, microbatches, loss_fn, average=False)


def not_divided(model, microbatches, loss_fn):
    return _loop(model, microbatches, loss_fn, divide=1)


def divided_twice(model, microbatches, loss_fn):
    return _loop(model, microbatches, loss_fn, divide=len(microbatches) ** 2)


def divided_by_the_ranks_too(model, microbatches, loss_fn):
    return _loop(model, microbatches, loss_fn, divide=len(microbatches) * dist.get_world_size())


def zero_grad_between(model, microbatches, loss_fn):
    return _loop(model, microbatches, loss_fn, before=model.zero_grad)


def leaves_the_last_out(model, microbatches, loss_fn):
    k = len(microbatches)
    for microbatch in microbatches[: k - 1] or microbatches:
        with model.no_sync():
            (loss_fn(model, microbatch) / k).backward()
    model.average_gradients()


def averages_before_the_last(model, microbatches, loss_fn):
    k, total = len(microbatches), 0.0
    for i, microbatch in enumerate(microbatches):
        if i == k - 1 and k > 1:
            model.average_gradients()
        loss = loss_fn(model, microbatch) / k
        loss.backward()
        total += loss.detach()
    if k == 1:
        model.average_gradients()
    return total


def forgets_to_return(model, microbatches, loss_fn):
    _loop(model, microbatches, loss_fn)


def returns_the_sum(model, microbatches, loss_fn):
    return _loop(model, microbatches, loss_fn) * len(microbatches)


def returns_the_last(model, microbatches, loss_fn):
    k = len(microbatches)
    for i, microbatch in enumerate(microbatches):
        with model.no_sync() if i < k - 1 else contextlib.nullcontext():
            loss = loss_fn(model, microbatch)
            (loss / k).backward()
    model.average_gradients()
    return loss.detach()


def averages_the_loss_too(model, microbatches, loss_fn):
    loss = _loop(model, microbatches, loss_fn)
    dist.all_reduce(loss)
    return loss / dist.get_world_size()


def keeps_the_graph(model, microbatches, loss_fn):
    k, losses = len(microbatches), []
    for i, microbatch in enumerate(microbatches):
        with model.no_sync() if i < k - 1 else contextlib.nullcontext():
            losses.append(loss_fn(model, microbatch) / k)
            losses[-1].backward()
    model.average_gradients()
    return sum(losses)


def one_backward(model, microbatches, loss_fn):
    loss = sum(loss_fn(model, microbatch) for microbatch in microbatches) / len(microbatches)
    loss.backward()
    model.average_gradients()
    return loss.detach()


def averages_every_time(model, microbatches, loss_fn):
    k, total = len(microbatches), 0.0
    for microbatch in microbatches:
        loss = loss_fn(model, microbatch) / k
        loss.backward()
        model.average_gradients()
        total += loss.detach()
    return total


def without_no_sync(model, microbatches, loss_fn):
    return _loop(model, microbatches, loss_fn, alone=lambda i: False)


def no_sync_for_all(model, microbatches, loss_fn):
    return _loop(model, microbatches, loss_fn, alone=lambda i: True)


def computes_the_loss_again(model, microbatches, loss_fn):
    _loop(model, microbatches, loss_fn)
    with torch.no_grad():
        return sum(loss_fn(model, microbatch) for microbatch in microbatches) / len(microbatches)


def not_written(model, microbatches, loss_fn):
    raise NotImplementedError


# right


def first_the_others_then_the_last(model, microbatches, loss_fn):
    *others, last = microbatches
    losses = []
    with model.no_sync():
        for microbatch in others:
            losses.append(loss_fn(model, microbatch))
            losses[-1].div(len(microbatches)).backward()
    losses.append(loss_fn(model, last))
    losses[-1].div(len(microbatches)).backward()
    model.average_gradients()
    return torch.stack(losses).detach().mean()


def divides_the_gradient(model, microbatches, loss_fn):
    """The sum of the gradients, divided once at the end; and the loss as a float."""
    k, total = len(microbatches), 0.0
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
            p.grad /= k
    return total / k


WRONG = {
    calls_lib: "called what it builds",
    never_averages: "not averaged over ranks",
    not_divided: "not divided by k",
    divided_twice: "divided twice",
    divided_by_the_ranks_too: "divided by the number of ranks too",
    zero_grad_between: "gradients thrown away",
    leaves_the_last_out: "a micro-batch is missing",
    averages_before_the_last: "unequal shares",
    forgets_to_return: "nothing returned",
    returns_the_sum: "the sum of the losses",
    returns_the_last: "the last loss only",
    averages_the_loss_too: "another loss",
    keeps_the_graph: "a loss with its graph",
    one_backward: "one backward at the end",
    averages_every_time: "an average in every micro-batch",
    without_no_sync: "every micro-batch sends",
    no_sync_for_all: "no_sync for the last one too",
    computes_the_loss_again: "computed twice",
    not_written: "not written",
}

RIGHT = [first_the_others_then_the_last, divides_the_gradient, as_an_answer(accumulate)]
