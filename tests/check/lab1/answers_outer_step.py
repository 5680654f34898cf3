"""Answers to Lab 1's outer_step: wrong ones, each with the hint that it must get,
and right ones."""

import torch
import torch.distributed as dist

from lib import collectives


def by_data(parameters, start, velocity, lr, momentum, group, all_reduce):
    """Right: on .data, the mean of the parameters first."""
    for p, w, v in zip(parameters, start, velocity, strict=True):
        mean = p.data.clone()
        all_reduce(mean, group)
        mean /= dist.get_world_size(group)
        outer = w - mean
        v.copy_(momentum * v + outer)
        w.copy_(w - lr * outer - lr * momentum * v)
        p.data.copy_(w)


def by_torchs_sgd(parameters, start, velocity, lr, momentum, group, all_reduce):
    """Right: torch's own SGD with Nesterov's momentum takes the outer step."""
    parameters, N = list(parameters), dist.get_world_size(group)
    for p, w, v in zip(parameters, start, velocity, strict=True):
        outer = (w - p).detach()
        all_reduce(outer, group)
        leaf = torch.nn.Parameter(w.clone())
        leaf.grad = outer / N
        sgd = torch.optim.SGD([leaf], lr=lr, momentum=momentum, nesterov=momentum > 0)
        sgd.state[leaf]["momentum_buffer"] = v
        sgd.step()
        if momentum == 0:
            v.copy_(leaf.grad)
        w.copy_(leaf.data)
        p.data.copy_(w)


@torch.no_grad()
def all_differences_first(parameters, start, velocity, lr, momentum, group, all_reduce):
    """Right: first all are summed, then all step."""
    parameters = list(parameters)
    outer = [(w - p) / dist.get_world_size(group) for p, w in zip(parameters, start, strict=True)]
    for one in outer:
        all_reduce(one, group)
    for p, w, v, d in zip(parameters, start, velocity, outer, strict=True):
        v.mul_(momentum).add_(d)
        w.add_(d + momentum * v, alpha=-lr)
        p.copy_(w)


def with_gradients(parameters, start, velocity, lr, momentum, group, all_reduce):
    for p, w, v in zip(parameters, start, velocity, strict=True):
        outer = (w - p).detach()
        all_reduce(outer, group)
        v.mul_(momentum).add_(outer / dist.get_world_size(group))
        p.copy_(w)


def asks_for_a_mean(parameters, start, velocity, lr, momentum, group, all_reduce):
    for p, w in zip(parameters, start, strict=True):
        all_reduce((w - p).detach(), group, dist.ReduceOp.AVG, True)


def own_all_reduce(parameters, start, velocity, lr, momentum, group, all_reduce):
    by_data(parameters, start, velocity, lr, momentum, group, collectives.all_reduce)


def sums_the_velocity_too(parameters, start, velocity, lr, momentum, group, all_reduce):
    by_data(parameters, start, velocity, lr, momentum, group, all_reduce)
    for v in velocity:
        all_reduce(v, group)
        v /= dist.get_world_size(group)


def in_float32(parameters, start, velocity, lr, momentum, group, all_reduce):
    def narrow(tensor, group):
        short = tensor.float()
        all_reduce(short, group)
        tensor.copy_(short)

    by_data(parameters, start, velocity, lr, momentum, group, narrow)


def of_the_world(parameters, start, velocity, lr, momentum, group, all_reduce):
    by_data(
        parameters, start, velocity, lr, momentum, None, lambda tensor, group: all_reduce(tensor)
    )


def a_velocity_of_its_own(parameters, start, velocity, lr, momentum, group, all_reduce):
    by_data(parameters, start, velocity, lr, momentum, group, all_reduce)
    for v in velocity:
        v += 1


def the_mean_alone(parameters, start, velocity, lr, momentum, group, all_reduce):
    for p, w, v in zip(parameters, start, velocity, strict=True):
        before = w.clone()
        by_data([p], [w], [v], 1.0, 0.0, group, all_reduce)
        w.copy_(before + 0.5 * (w - before))
        p.data.copy_(w)


def calls_lib(parameters, start, velocity, lr, momentum, group, all_reduce):
    from lib.data_parallel import diloco

    diloco.outer_step(parameters, start, velocity, lr, momentum, group, all_reduce)


RIGHT = [by_data, by_torchs_sgd, all_differences_first]
WRONG = {
    with_gradients: "a parameter that learns",
    asks_for_a_mean: "an op for it",
    own_all_reduce: "not what it was given",
    sums_the_velocity_too: "not each parameter once",
    in_float32: "rounded on the way",
    of_the_world: "the group is not passed on",
    a_velocity_of_its_own: "the velocity",
    the_mean_alone: "not the outer step",
    calls_lib: "called what it builds",
}
