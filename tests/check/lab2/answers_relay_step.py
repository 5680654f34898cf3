"""Answers to Lab 2's relay_step: wrong ones, each with the hint that it must get, and right ones.

Most of the wrong ones differ from `relay`, a right one, in one of its parts.
"""

import torch
import torch.distributed as dist
from as_an_answer import as_an_answer

from lib import collectives, pipeline
from lib.collectives import p2p
from lib.pipeline import links, relay_step
from lib.pipeline import stage as libs_stage


def with_grad(x):
    return x.requires_grad_()


def answer(
    name,
    who=lambda group: (dist.get_rank(group), dist.get_world_size(group)),
    received=with_grad,  # of what was received
    first=lambda x: x,  # of the batch
    on=lambda x, y: y,  # what is sent to the next rank
    room=torch.empty_like,  # for the gradient of y
    start=lambda y, grad: y.backward(grad),
    back=lambda x, y, loss: x.grad,  # what is sent to the previous rank
    loss_of=lambda loss_fn, y, target, p: loss_fn(y, target),
    end=lambda stage, group: None,
    returned=lambda loss: None if loss is None else loss.detach(),
):
    """relay_step with one of its parts made in another way."""

    def relay(stage, x, target, loss_fn, group=None):
        rank, p = who(group)
        x = received(p2p.recv(torch.empty_like(x), rank - 1, group)) if rank > 0 else first(x)
        y, loss = stage(x), None
        if rank < p - 1:
            p2p.send(on(x, y), rank + 1, group)
            start(y, p2p.recv(room(y), rank + 1, group))
        else:
            loss = loss_of(loss_fn, y, target, p)
            loss.backward()
        if rank > 0:
            p2p.send(back(x, y, loss), rank - 1, group)
        end(stage, group)
        return returned(loss)

    relay.__name__ = name
    return relay


relay = answer("relay")


# wrong


def calls_libs(stage, x, target, loss_fn, group=None):
    return relay_step.relay_step(stage, x, target, loss_fn, group)


def all_reduces_gradients(stage, group):
    for p in stage.parameters():
        collectives.all_reduce(p.grad, group)


def libs_pipeline(stage, x, target, loss_fn, group=None):
    ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
    stages = [stage if i == dist.get_rank(group) else torch.nn.Identity() for i in range(len(ranks))]
    p = libs_stage.Pipeline(stages, links.connect([ranks]), [x])
    return p.run(pipeline.relay(len(ranks), 1), [x], [target], loss_fn)


def loss_everywhere(stage, x, target, loss_fn, group=None):
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    if rank > 0:
        x = p2p.recv(torch.empty_like(x), rank - 1, group).requires_grad_()
    y = stage(x)
    if rank < p - 1:
        p2p.send(y, rank + 1, group)
    loss = loss_fn(y, target)
    loss.backward()
    return loss.detach() if rank == p - 1 else None


def ends_do_not_differ(stage, x, target, loss_fn, group=None):
    rank = dist.get_rank(group)
    x = p2p.recv(torch.empty_like(x), rank - 1, group).requires_grad_()
    y = stage(x)
    p2p.send(y, rank + 1, group)
    y.backward(p2p.recv(torch.empty_like(y), rank + 1, group))
    p2p.send(x.grad, rank - 1, group)


def first_or_last(stage, x, target, loss_fn, group=None):
    """Not both."""
    if dist.get_rank(group) > 0:
        return relay(stage, x, target, loss_fn, group)
    y = stage(x)
    p2p.send(y, 1, group)
    return y.backward(p2p.recv(torch.empty_like(y), 1, group))


def forgets_the_group(stage, x, target, loss_fn, group=None):
    return relay(stage, x, target, loss_fn)


def for_two_ranks(stage, x, target, loss_fn, group=None):
    """A first and a last rank; who is neither takes itself for the last."""
    rank = dist.get_rank(group)
    if rank == 0 and dist.get_world_size(group) > 1:
        y = stage(x)
        p2p.send(y, 1, group)
        return y.backward(p2p.recv(torch.empty_like(y), 1, group))
    if rank > 0:
        x = p2p.recv(torch.empty_like(x), rank - 1, group).requires_grad_()
    loss = loss_fn(stage(x), target) if target is not None else stage(x).sum()
    loss.backward()
    if rank > 0:
        p2p.send(x.grad, rank - 1, group)
    return loss.detach()


def middle_keeps_its_gradient(stage, x, target, loss_fn, group=None):
    """Right on two ranks: only the last one sends back."""
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    if rank > 0:
        x = p2p.recv(torch.empty_like(x), rank - 1, group).requires_grad_()
    y = stage(x)
    if rank < p - 1:
        p2p.send(y, rank + 1, group)
        return y.backward(p2p.recv(torch.empty_like(y), rank + 1, group))
    loss = loss_fn(y, target)
    loss.backward()
    if rank > 0:
        p2p.send(x.grad, rank - 1, group)
    return loss.detach()


def last_keeps_its_gradient(stage, x, target, loss_fn, group=None):
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    if rank > 0:
        x = p2p.recv(torch.empty_like(x), rank - 1, group).requires_grad_()
    y = stage(x)
    if rank == p - 1:
        loss = loss_fn(y, target)
        loss.backward()
        return loss.detach()
    p2p.send(y, rank + 1, group)
    y.backward(p2p.recv(torch.empty_like(y), rank + 1, group))
    if rank > 0:
        p2p.send(x.grad, rank - 1, group)
    return None


def gradient_first(stage, x, target, loss_fn, group=None):
    """Everybody receives all it gets before it sends anything."""
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    if rank > 0:
        x = p2p.recv(torch.empty_like(x), rank - 1, group).requires_grad_()
    y = stage(x)
    grad_y = p2p.recv(torch.empty_like(y), rank + 1, group) if rank < p - 1 else None
    if rank < p - 1:
        p2p.send(y, rank + 1, group)
        return y.backward(grad_y)
    loss = loss_fn(y, target)
    loss.backward()
    if rank > 0:
        p2p.send(x.grad, rank - 1, group)
    return loss.detach()


def round_the_ring(stage, x, target, loss_fn, group=None):
    """The last rank sends on to the first."""
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    if rank > 0:
        x = p2p.recv(torch.empty_like(x), rank - 1, group).requires_grad_()
    y = stage(x)
    p2p.send(y, (rank + 1) % p, group)
    y.backward(p2p.recv(torch.empty_like(y), (rank + 1) % p, group))
    p2p.send(x.grad, (rank - 1) % p, group)


def does_not_receive(stage, x, target, loss_fn, group=None):
    """It receives, but computes with the x that it was given."""
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    if rank > 0:
        p2p.recv(torch.empty_like(x), rank - 1, group)
        x.requires_grad_()
    y, loss = stage(x), None
    if rank < p - 1:
        p2p.send(y, rank + 1, group)
        y.backward(p2p.recv(torch.empty_like(y), rank + 1, group))
    else:
        loss = loss_fn(y, target)
        loss.backward()
    if rank > 0:
        p2p.send(x.grad, rank - 1, group)
    return None if loss is None else loss.detach()


def only_forward(stage, x, target, loss_fn, group=None):
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    if rank > 0:
        x = p2p.recv(torch.empty_like(x), rank - 1, group)
    y = stage(x)
    if rank < p - 1:
        p2p.send(y, rank + 1, group)
    return loss_fn(y, target).detach() if rank == p - 1 else None


def only_messages(stage, x, target, loss_fn, group=None):
    return None


def clears_first(stage, x, target, loss_fn, group=None):
    stage.zero_grad()
    return relay(stage, x, target, loss_fn, group)


def sends_the_shape_first(stage, x, target, loss_fn, group=None):
    """As if nobody knew it."""
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    if rank > 0:
        shape = p2p.recv(torch.empty(3, dtype=torch.int64), rank - 1, group)
        x = p2p.recv(torch.empty(shape.tolist(), dtype=x.dtype), rank - 1, group).requires_grad_()
    y, loss = stage(x), None
    if rank < p - 1:
        p2p.send(torch.tensor(y.shape), rank + 1, group)
        p2p.send(y, rank + 1, group)
        y.backward(p2p.recv(torch.empty_like(y), rank + 1, group))
    else:
        loss = loss_fn(y, target)
        loss.backward()
    if rank > 0:
        p2p.send(x.grad, rank - 1, group)
    return None if loss is None else loss.detach()


def back_of_y(x, y, loss):
    return torch.autograd.grad(loss, y)[0] if loss is not None else torch.ones_like(y)


def keeps_y_gradient(y, grad):
    y.retain_grad()
    y.backward(grad)


def twice(y, grad):
    y.backward(grad, retain_graph=True)
    y.backward(grad)


def world_rank(group):
    return dist.get_rank(), dist.get_world_size(group)


def receives_into_x(stage, x, target, loss_fn, group=None):
    """And marks the caller's tensor: right as long as the caller makes a new x for every step."""
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    if rank > 0:
        p2p.recv(x.detach(), rank - 1, group)
        x.requires_grad_()
    y, loss = stage(x), None
    if rank < p - 1:
        p2p.send(y, rank + 1, group)
        y.backward(p2p.recv(torch.empty_like(y), rank + 1, group))
    else:
        loss = loss_fn(y, target)
        loss.backward()
    if rank > 0:
        p2p.send(x.grad, rank - 1, group)
    return None if loss is None else loss.detach()


def through_float32(stage, x, target, loss_fn, group=None):
    """Half the bytes on the way forward."""
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    if rank > 0:
        x = p2p.recv(torch.empty_like(x, dtype=torch.float32), rank - 1, group).double().requires_grad_()
    y, loss = stage(x), None
    if rank < p - 1:
        p2p.send(y.float(), rank + 1, group)
        y.backward(p2p.recv(torch.empty_like(y), rank + 1, group))
    else:
        loss = loss_fn(y, target)
        loss.backward()
    if rank > 0:
        p2p.send(x.grad, rank - 1, group)
    return None if loss is None else loss.detach()


def mean_square(loss_fn, y, target, p):
    return torch.nn.functional.mse_loss(y, target)


def not_written(stage, x, target, loss_fn, group=None):
    raise NotImplementedError


def retained(loss_fn, y, target, p):
    y.retain_grad()
    return loss_fn(y, target)


WRONG = {
    calls_libs: "called what it builds",
    libs_pipeline: "called what it builds",
    answer("all_reduced", end=all_reduces_gradients): "called what it builds",
    answer("no_requires_grad", received=lambda x: x): "no gradient of the input",
    answer("detached_input", received=lambda x: x.requires_grad_().clone()): "no gradient of the input",
    answer("requires_grad_everywhere", first=with_grad): "tokens have no gradient",
    loss_everywhere: "a loss on every rank",
    answer("backward_of_many", start=lambda y, grad: y.backward()): "y is no number",
    ends_do_not_differ: "no neighbour there",
    first_or_last: "no neighbour there",
    forgets_the_group: "the group is not used",
    answer("rank_of_the_world", who=world_rank): "the group is not used",
    for_two_ranks: "right on two ranks only",
    middle_keeps_its_gradient: "right on two ranks only",
    last_keeps_its_gradient: "no gradient sent back",
    gradient_first: "waits too early",
    round_the_ring: "the wrong neighbour",
    answer("loss_back", back=lambda x, y, loss: x.grad if loss is None else loss): "the loss sent back",
    answer("y_gradient_back", loss_of=retained, start=keeps_y_gradient, back=lambda x, y, loss: y.grad):
        "the gradient of y sent back",
    answer("x_sent_on", on=lambda x, y: x): "the input sent on",
    answer("room_in_float32", room=lambda y: torch.empty(y.shape)): "a buffer of another form",
    answer("room_too_small", room=lambda y: torch.empty_like(y[:1])): "a buffer of another form",
    does_not_receive: "computed on the empty room",
    answer("doubled_on_the_way", on=lambda x, y: 2 * y): "another input",
    only_messages: "no forward",
    only_forward: "no backward",
    answer("with_ones", start=lambda y, grad: y.backward(torch.ones_like(y))): "backward with ones",
    answer("of_the_sum", start=lambda y, grad: y.sum().backward()): "backward with ones",
    clears_first: "overwritten",
    answer("times_p", loss_of=lambda loss_fn, y, target, p: loss_fn(y, target) * p): "scaled by p",
    answer("over_p", loss_of=lambda loss_fn, y, target, p: loss_fn(y, target) / p): "scaled by p",
    answer("twice", start=twice): "added twice",
    answer("input_for_gradient", back=lambda x, y, loss: x): "another gradient",
    answer("nothing_returned", returned=lambda loss: None): "the loss is not returned",
    answer("sum_for_mean", returned=lambda loss: None if loss is None else 2 * loss.detach()): "another loss",
    answer("zero_elsewhere", returned=lambda loss: torch.zeros(()) if loss is None else loss.detach()):
        "something returned elsewhere",
    answer("attached", returned=lambda loss: loss): "the loss keeps its graph",
    sends_the_shape_first: "more messages than two",
    receives_into_x: "x keeps its gradient",
    through_float32: "rounded on the way",
    answer("a_loss_of_its_own", loss_of=mean_square): "another loss function",
    answer("a_plain_number", returned=lambda loss: None if loss is None else loss.item()): "another loss",
    not_written: "not written",
}  # fmt: skip


# right


def by_torch(stage, x, target, loss_fn, group=None):
    """torch's own send and recv, with ranks of the world; the gradient's room is made before the activation leaves."""
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    world = dist.get_process_group_ranks(group or dist.group.WORLD)
    if rank > 0:
        with torch.no_grad():
            dist.recv(x, world[rank - 1], group)
        x = x.detach().requires_grad_()
    y = stage(x)
    if rank == p - 1:
        loss = loss_fn(y, target)
        torch.autograd.backward(loss)
    else:
        grad_y = torch.empty_like(y)
        coming = dist.irecv(grad_y, world[rank + 1], group)
        dist.send(y.detach(), world[rank + 1], group)
        coming.wait()
        torch.autograd.backward([y], [grad_y])
    if rank > 0:
        dist.send(x.grad, world[rank - 1], group)
    return loss.detach() if rank == p - 1 else None


def as_a_product(stage, x, target, loss_fn, group=None):
    """The backward from a number: the sum of y * grad y has the same gradient. Into the x that it was given."""
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    leaf = p2p.recv(x, rank - 1, group).detach().requires_grad_() if rank else x
    y = stage.forward(leaf)
    if rank + 1 < p:
        p2p.send(y, rank + 1, group)
        out, loss = (y * p2p.recv(torch.zeros(y.shape, dtype=y.dtype), rank + 1, group)).sum(), None
    else:
        out = loss = loss_fn(y, target)
    out.backward()
    if rank:
        p2p.send(leaf.grad, rank - 1, group)
    return loss.detach() if loss is not None else None


# It makes groups on some of the ranks, and torch wants new groups to be made by all.
ALONE = [libs_pipeline]

RIGHT = [relay, as_an_answer(relay_step.relay_step), by_torch, as_a_product]
