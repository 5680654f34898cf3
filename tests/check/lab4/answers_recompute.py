"""Answers to Lab 4's recompute: wrong ones, each with the hint that it must get, and right ones.

Those that differ from lib's by an edit are in mistakes_recompute.py.
"""

import torch
import torch.utils.checkpoint
from as_an_answer import as_an_answer

from lib.training import recompute as libs


def anchor():
    return torch.empty(0, requires_grad=True)


# wrong


def calls_torchs(f, x):
    return torch.utils.checkpoint.checkpoint(f, x, use_reentrant=False)


def calls_libs(f, x):
    return libs.recompute(f, x)


class Newest:
    """The newest call's f and x: of several, one that is under way finds another's."""

    f = x = state = None


class OfTheNewest(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, anchor):
        Newest.x, Newest.state = x, torch.get_rng_state()
        return Newest.f(x)

    @staticmethod
    def backward(ctx, dy):
        x = Newest.x.detach().requires_grad_(ctx.needs_input_grad[0])
        with torch.enable_grad(), torch.random.fork_rng():
            torch.set_rng_state(Newest.state)
            Newest.f(x).backward(dy)
        return x.grad, None


def in_a_global(f, x):
    Newest.f = f
    return OfTheNewest.apply(x, anchor())


class Plain(torch.autograd.Function):
    """The second call draws what comes next; `weights` says whether f's get their gradients."""

    @staticmethod
    def forward(ctx, f, weights, x, anchor):
        ctx.f, ctx.weights, ctx.x = f, weights, x
        return f(x)

    @staticmethod
    def backward(ctx, dy):
        x = ctx.x.detach().requires_grad_(ctx.needs_input_grad[2])
        with torch.enable_grad():
            y = ctx.f(x)
        if not ctx.weights:
            dx = torch.autograd.grad(y, x, dy)[0] if x.requires_grad else None
            return None, None, dx, None
        y.backward(dy)
        return None, None, x.grad, None


def draws_on(f, x):
    return Plain.apply(f, True, x, anchor())


def asks_for_x_alone(f, x):
    return Plain.apply(f, False, x, anchor())


def needs_a_row(f, x):
    """Where there is none, nothing is recomputed, and nothing learns."""
    return libs_as_an_answer(f, x) if len(x) else f(x).detach()


def not_written(f, x):
    raise NotImplementedError


# right

libs_as_an_answer = as_an_answer(libs.recompute)


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
    in_a_global: "what the calls share",
    needs_a_row: "cut off",
    draws_on: "other random numbers",
    asks_for_x_alone: "the weights have no gradient",
    not_written: "not written",
}

RIGHT = [with_grad_of_all, libs_as_an_answer]
SLOW = [calls_torchs]
