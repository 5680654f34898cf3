"""Answers to Lab 4's recompute: wrong ones, each with the hint that it must get, and right ones.

Most are the right one, `answer()`, with one of its parts replaced.
"""

import contextlib

import torch
import torch.utils.checkpoint
from as_an_answer import as_an_answer

from lib import recompute as libs


def answer(
    name="right", first=lambda f, x: f(x), detached=lambda x, needs: x.detach().requires_grad_(needs),
    graph=torch.enable_grad, fork=torch.random.fork_rng, restore=torch.set_rng_state,
    back=lambda y, x, dy: torch.autograd.backward([y], [dy]), returned=lambda x: (x.grad, None),
    anchor=lambda: torch.empty(0, requires_grad=True), keep=lambda ctx, f, x: None, end=lambda y: y,
):  # fmt: skip
    """recompute, made of these parts."""

    def recompute(f, x):
        class Recompute(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, anchor):
                ctx.random_state = torch.get_rng_state()
                ctx.save_for_backward(x)
                keep(ctx, f, x)
                return first(f, x)

            @staticmethod
            def backward(ctx, dy):
                x = detached(ctx.saved_tensors[0], ctx.needs_input_grad[0])
                with graph(), fork():
                    restore(ctx.random_state)
                    y = f(x)
                back(y, x, dy)
                return returned(x)

        return end(Recompute.apply(x, anchor()))

    recompute.__name__ = name
    return recompute


# wrong


def calls_torchs(f, x):
    return torch.utils.checkpoint.checkpoint(f, x, use_reentrant=False)


def calls_libs(f, x):
    return libs.recompute(f, x)


def only_f(f, x):
    return f(x)


def keeps_the_graph(f, x):
    """Called with a graph in forward; backward goes through that one."""

    class Keeping(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, anchor):
            with torch.enable_grad():
                ctx.x = x.detach().requires_grad_(ctx.needs_input_grad[0])
                ctx.y = f(ctx.x)
            return ctx.y.detach()

        @staticmethod
        def backward(ctx, dy):
            torch.autograd.backward([ctx.y], [dy])
            return ctx.x.grad, None

    return Keeping.apply(x, torch.empty(0, requires_grad=True))


def for_x_only(y, x, dy):
    if x.requires_grad:
        (x.grad,) = torch.autograd.grad(y, x, dy)
    else:
        y.backward(dy)


def twice_through(y, x, dy):
    y.backward(dy, retain_graph=True)
    y.backward(dy)


def not_detached(x, needs):
    return x


def same_leaf(x, needs):
    """Not detached; where x is no leaf, its gradient is kept."""
    if x.requires_grad:
        x.retain_grad()
    return x


def detached_always(x, needs):
    return x.detach().requires_grad_()


def detached_never_requires(x, needs):
    return x.detach()


def without_f(f, x):
    """The output of the first call is changed."""
    return f(x) * 2


def called_twice_in_forward(f, x):
    state = torch.get_rng_state()
    f(x)
    torch.set_rng_state(state)
    return f(x)


def forks_in_forward(f, x):
    with torch.random.fork_rng():
        return f(x)


def in_no_grad(f, x):
    with torch.no_grad():
        return f(x)


def also_keeps_what_f_computes(ctx, f, x):
    with torch.enable_grad(), torch.random.fork_rng():
        ctx.kept = f(x.detach().requires_grad_(x.is_floating_point()))


def not_written(f, x):
    raise NotImplementedError


def ones(y, x, dy):
    y.backward(torch.ones_like(y))


def nothing(*_):
    pass


# right


def with_grad_of_all(f, x):
    """Gradients asked for, and added by hand; random state put back by hand."""

    class Recompute(torch.autograd.Function):
        @staticmethod
        def forward(ctx, f, anchor, x):
            ctx.f, ctx.x, ctx.before = f, x.detach(), torch.get_rng_state()
            return f(x)

        @staticmethod
        def backward(ctx, dy):
            now = torch.get_rng_state()
            torch.set_rng_state(ctx.before)
            x = ctx.x.clone()
            if ctx.needs_input_grad[2]:
                x.requires_grad_()
            with torch.enable_grad():
                (ctx.f(x) * dy).sum().backward()
            torch.set_rng_state(now)
            return None, None, x.grad

    return Recompute.apply(f, torch.zeros(1, requires_grad=True), x)


WRONG = {
    calls_torchs: "called what it builds",
    calls_libs: "called what it builds",
    only_f: "the graph is kept",
    keeps_the_graph: "the graph is kept",
    answer("no_graph_in_backward", graph=contextlib.nullcontext): "without a graph again",
    answer("gradients_of_tokens", detached=detached_always): "tokens have no gradient",
    answer("one_gradient_for_two", returned=lambda x: x.grad): "not a gradient for each input",
    answer("through_it_twice", back=lambda y, x, dy: (y.backward(dy), y.backward(dy))): "the first graph",
    answer("another_shape", restore=lambda state: torch.zeros(2) + torch.zeros(3)): "something raised",
    answer("no_anchor", anchor=lambda: None): "no backward without a gradient of x",
    answer("without_its_graph", end=lambda y: y.detach()): "cut off",
    in_no_grad: "cut off",
    answer("other_output", first=without_f): "another output",
    answer("doubled", back=twice_through): "doubled",
    answer("not_detached", detached=same_leaf): "doubled",
    answer("no_gradient_of_x", returned=lambda x: (None, None)): "x has no gradient",
    answer("x_needs_none", detached=detached_never_requires): "x has no gradient",
    answer("for_x_only", back=for_x_only): "the weights have no gradient",
    answer("nothing_restored", restore=nothing): "other random numbers",
    answer("from_ones", back=ones): "another gradient",
    answer("left_there", fork=contextlib.nullcontext): "the generator was moved by backward",
    answer("forks_in_forward", first=forks_in_forward): "the generator was not moved by forward",
    answer("keeps_a_graph_too", keep=also_keeps_what_f_computes): "the graph is kept",
    answer("twice_in_forward", first=called_twice_in_forward): "f runs too often",
    not_written: "not written",
}

RIGHT = [answer(), with_grad_of_all, as_an_answer(libs.recompute)]
