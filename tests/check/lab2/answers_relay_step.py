"""Answers to Lab 2's relay_step: wrong ones, most of them edits of lib's, each with its
hint, and right ones."""

import torch
import torch.distributed as dist
from as_an_answer import as_an_answer
from mistakes import edit

from lib import collectives, pipeline
from lib.collectives import p2p
from lib.pipeline import links, relay_step
from lib.pipeline import stage as libs_stage

relay = as_an_answer(relay_step.relay_step)


# wrong


def calls_libs(stage, x, target, loss_fn, group=None):
    return relay_step.relay_step(stage, x, target, loss_fn, group)


def all_reduces_gradients(stage, x, target, loss_fn, group=None):
    loss = relay(stage, x, target, loss_fn, group)
    for p in stage.parameters():
        collectives.all_reduce(p.grad, group)
    return loss


def libs_pipeline(stage, x, target, loss_fn, group=None):
    ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
    stages = [
        stage if i == dist.get_rank(group) else torch.nn.Identity() for i in range(len(ranks))
    ]
    p = libs_stage.Pipeline(stages, links.connect([ranks]), [x])
    return p.run(pipeline.relay(len(ranks), 1), [x], [target], loss_fn)


def only_messages(stage, x, target, loss_fn, group=None):
    return None


def backward_of_the_signs(stage, x, target, loss_fn, group=None):
    """It keeps only which way each number of the gradient goes."""
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    taken = x if rank == 0 else p2p.recv(torch.zeros_like(x), rank - 1, group).requires_grad_()
    given = stage(taken)
    if rank + 1 < p:
        p2p.send(given.detach(), rank + 1, group)
        given = given * p2p.recv(torch.zeros_like(given), rank + 1, group).sign()
    out = given.sum() if rank + 1 < p else loss_fn(given, target)
    out.backward()
    if rank:
        p2p.send(taken.grad, rank - 1, group)
    return out.detach() if rank + 1 == p else None


def the_first_rank_sends_back(stage, x, target, loss_fn, group=None):
    """Also rank 0 sends its x.grad, where it has a rank before it or not."""
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    if rank > 0:
        x = p2p.recv(torch.empty_like(x), rank - 1, group).requires_grad_()
    y = stage(x)
    if rank < p - 1:
        p2p.send(y, rank + 1, group)
        y.backward(p2p.recv(torch.empty_like(y), rank + 1, group))
    else:
        loss = loss_fn(y, target)
        loss.backward()
    p2p.send(x.grad, rank - 1, group)
    return loss.detach() if rank == p - 1 else None


def one_buffer_for_all_steps(stage, x, target, loss_fn, group=None, room={}):  # noqa: B006
    """One buffer for all steps, by its shape; its gradient adds up from step to step."""
    rank, p = dist.get_rank(group), dist.get_world_size(group)
    if rank > 0:
        room.setdefault((group, x.shape), torch.zeros_like(x).requires_grad_())
        p2p.recv(room[group, x.shape].data, rank - 1, group)
        x = room[group, x.shape]
    y = stage(x)
    if rank < p - 1:
        p2p.send(y, rank + 1, group)
        y.backward(p2p.recv(torch.empty_like(y), rank + 1, group))
    else:
        loss = loss_fn(y, target)
        loss.backward()
    if rank > 0:
        p2p.send(x.grad, rank - 1, group)
    return loss.detach() if rank == p - 1 else None


def not_written(stage, x, target, loss_fn, group=None):
    raise NotImplementedError


RECV, SEND = "p2p.recv(torch.empty_like(x), rank - 1, group)", "p2p.send(y, rank + 1, group)"
GRAD_Y = "p2p.recv(torch.empty_like(y), rank + 1, group)"
BACKWARD, GRAD_X = f"y.backward({GRAD_Y})", "p2p.send(x.grad, rank - 1, group)"
MARK, LOSS = "x.requires_grad_()", "loss = loss_fn(y, target)"
RETURN, LAST = "return loss.detach() if rank == last else None", f"if rank > 0:\n        {GRAD_X}"

EDITS = (
    ("no gradient of the input", edit(MARK, "pass")),
    ("no gradient of the input", edit(MARK, "x = x.requires_grad_().clone()")),
    ("tokens have no gradient", edit("y = stage(x)\n", "y = stage(x.requires_grad_())\n")),
    ("two forwards", edit("y = stage(x)\n", "stage(x)\n    y = stage(x)\n")),
    ("another form", edit("torch.empty_like(y)", "torch.empty_like(x)")),
    ("another form", edit("torch.empty_like(y)", "torch.empty_like(y).flatten()")),
    ("a loss on every rank", edit(BACKWARD, f"{LOSS}\n        loss.backward()")),
    ("y is no number", edit(BACKWARD, f"{GRAD_Y}\n        y.backward()")),
    ("no neighbour there", edit("if rank > 0:\n        x", "if True:\n        x")
            .then("if rank < last", "if True")),
    ("no neighbour there", edit("if rank < last", "if rank == 0 or rank < last")),
    ("the group is not used", edit("    rank, last", "    group = None\n    rank, last")),
    ("the group is not used", edit("dist.get_rank(group),", "dist.get_rank(),")),
    ("another order", edit("if rank < last", "if rank == 0 and last")
            .then(LOSS, "loss = loss_fn(y, target) if rank == last else y.sum()")),
    ("another order", edit(LAST, LAST.replace("rank > 0", "rank == last > 0"))),
    ("another order", edit(BACKWARD, "y.sum().backward()")),
    ("another order", edit(LAST, LAST.replace("rank > 0", "0 < rank < last"))),
    ("another order",
            edit(f"{SEND}\n        {BACKWARD}",
                 f"grad = {GRAD_Y}\n        {SEND}; y.backward(grad)")),
    ("another order", edit("if rank < last", "if True")
            .then(SEND, SEND.replace("rank + 1", "(rank + 1) % (last + 1)"))
            .then(BACKWARD, BACKWARD.replace("rank + 1", "(rank + 1) % (last + 1)"))),
    ("another form", edit(GRAD_X,
        "p2p.send(loss if rank == last else x.grad, rank - 1, group)")),
    ("another form", edit("y = stage(x)\n", "y = stage(x)\n    y.retain_grad()\n")
            .then(GRAD_X, "p2p.send(y.grad, rank - 1, group)")),
    ("another form", edit(SEND, "p2p.send(x, rank + 1, group)")),
    ("another form", edit(SEND, "p2p.send(y[:1], rank + 1, group)")),
    ("another form", edit("torch.empty_like(y)", "torch.empty(y.shape)")),
    ("another form", edit("torch.empty_like(y)", "torch.empty_like(y[:1])")),
    ("computed on the empty room", edit("x = " + RECV, RECV)),
    ("another input", edit(SEND, "p2p.send(2 * y, rank + 1, group)")),
    ("rounded on the way", edit(RECV, RECV.replace("(x)", "(x, dtype=torch.float32)") + ".double()")
            .then(SEND, "p2p.send(y.float(), rank + 1, group)")),
    ("no backward", edit(BACKWARD, "pass").then("loss.backward()", "pass").then(GRAD_X, "pass")),
    ("backward with ones", edit(BACKWARD, f"{GRAD_Y}\n        y.backward(torch.ones_like(y))")),
    ("backward with ones", edit(BACKWARD, f"{GRAD_Y}\n        y.sum().backward()")),
    ("overwritten", edit("    rank, last", "    stage.zero_grad()\n    rank, last")),
    ("scaled by p", edit(LOSS, LOSS + " * (last + 1)")),
    ("scaled by p", edit(LOSS, LOSS + " / (last + 1)")),
    ("added twice",
            edit(BACKWARD,
                f"grad = {GRAD_Y}\n        y.backward(grad, retain_graph=True); y.backward(grad)")),
    ("another gradient", edit(GRAD_X, "p2p.send(x, rank - 1, group)")),
    ("x keeps its gradient", edit("x = " + RECV, "p2p.recv(x.detach(), rank - 1, group)")),
    ("the loss is not returned", edit(RETURN, "return None")),
    ("another loss", edit(RETURN, RETURN.replace("loss.", "2 * loss."))),
    ("another loss", edit(RETURN, RETURN.replace("detach", "item"))),
    ("something returned elsewhere", edit(RETURN, RETURN.replace("None", "torch.zeros(())"))),
    ("the loss keeps its graph", edit(RETURN, RETURN.replace(".detach()", ""))),
    ("another loss function", edit(LOSS, "loss = torch.nn.functional.mse_loss(y, target)")),
    ("another loss", edit(LOSS, "loss = loss_fn(target, y)")),
    ("another form", edit(RETURN,
        f"if rank == last:\n        [p2p.send(loss, r, group) for r in range(last)]\n"
        f"    else:\n        loss = p2p.recv(torch.zeros(()), last, group)\n    {RETURN}")),
    ("the group is not used",
            edit(SEND, SEND.replace("rank + 1",
                "dist.get_global_rank(group or dist.group.WORLD, rank + 1)"))),
    ("more messages than two", edit(SEND,
        f"p2p.send(torch.tensor(y.shape), rank + 1, group)\n        {SEND}")
            .then("x = " + RECV,
                  "shape = p2p.recv(torch.empty(3, dtype=torch.int64), rank - 1, group).tolist()\n"
                  "        x = p2p.recv(torch.empty(shape, dtype=x.dtype), rank - 1, group)")),
)  # fmt: skip

WRONG = {
    calls_libs: "called what it builds",
    libs_pipeline: "called what it builds",
    all_reduces_gradients: "called what it builds",
    only_messages: "no forward",
    backward_of_the_signs: "another gradient",
    one_buffer_for_all_steps: "x keeps its gradient",
    the_first_rank_sends_back: "a gradient of the batch",
    not_written: "not written",
} | {change.of(relay_step.relay_step): hint for hint, change in EDITS}


# right


def by_torch(stage, x, target, loss_fn, group=None):
    """torch's own send and recv, with ranks of the world; the gradient's room is made before the
    activation leaves."""
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
    """The backward from a number: the sum of y * grad y has the same gradient. Into the x
    that it was given."""
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

RIGHT = [relay, by_torch, as_a_product]
