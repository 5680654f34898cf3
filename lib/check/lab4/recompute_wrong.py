"""Mistakes that are made in recompute: edits of lib's. Like every *_wrong.py, no release has this file."""

from lib.check.mistakes import Mistake, edit

CALL = "return Recompute.apply(f, x, anchor)"
FORWARD = "return f(x)\n\n    @staticmethod"
AGAIN = "with torch.enable_grad(), as_then(ctx.random_state):"
COPY = "kept.detach().requires_grad_(ctx.needs_input_grad[1])"
BACK = "torch.autograd.backward([y], [grad_y])"
RETURNED = "return None, x.grad, None"


def _edit(old, new):
    """Of the whole module: the function itself only calls what is beside it."""
    return edit("# exercise: lab4.recompute\n", "").then(old, new)


def _first(*lines):
    """Forward's last lines are these."""
    return _edit(FORWARD, "\n        ".join(lines) + "\n\n    @staticmethod")


NO_GUARD = ("if y.requires_grad:", "if True:")
MISTAKES = (
    Mistake("the graph is kept", _edit(CALL, "return f(x)")),
    Mistake("the graph is kept", _first(
        "with torch.enable_grad(), torch.random.fork_rng():",
        "    ctx.graph = f(x.detach().requires_grad_(x.is_floating_point()))",
        "return f(x)",
    )),
    Mistake("the graph is kept", _first("ctx.y = f(x)", "return ctx.y"),
            "y is kept until backward, too, where nobody reads it: f makes it anew. Save x alone."),
    Mistake("without a graph again", _edit(AGAIN, "with as_then(ctx.random_state):").then(*NO_GUARD)),
    Mistake("tokens have no gradient", _edit(COPY, "kept.detach().requires_grad_()")),
    Mistake("tokens have no gradient", _edit(CALL, CALL.replace("x", "x.requires_grad_(x.is_floating_point())"))),
    Mistake("not a gradient for each input", _edit(RETURNED, "return x.grad")),
    Mistake("the first graph", _edit(BACK, f"{BACK}, {BACK}")),
    Mistake("something raised", _edit("torch.set_rng_state(on_cpu)", "torch.zeros(2) + torch.zeros(3)")),
    Mistake("no backward without a gradient of x", _edit("anchor = torch.empty(0, requires_grad=True)", "anchor = 0")),
    Mistake("cut off", _edit(CALL, f"{CALL}.detach()")),
    Mistake("cut off", _edit(CALL, "with torch.no_grad():\n        return f(x)")),
    Mistake("another output", _first("return 2 * f(x)")),
    Mistake("doubled", _edit(BACK, BACK.replace("grad_y", "2 * grad_y"))),
    Mistake("doubled", _edit(COPY, "kept\n        x.retain_grad() if x.requires_grad else None")),
    Mistake("x has no gradient", _edit(RETURNED, "return None, None, None")),
    Mistake("x has no gradient", _edit(COPY, "kept.detach()")),
    Mistake("the weights have no gradient",
            _edit(BACK, "x.grad = torch.autograd.grad(y, x, grad_y)[0] if x.requires_grad else y.backward(grad_y)")),
    Mistake("other random numbers", _edit("torch.set_rng_state(on_cpu)", "pass")),
    Mistake("another gradient", _edit(BACK, "y.backward(torch.ones_like(y))")),
    Mistake("the generator was moved by backward",
            _edit("with torch.random.fork_rng(devices=list(on_gpu)):", "if True:")),
    Mistake("the generator was not moved by forward", _first("with torch.random.fork_rng():", "    return f(x)")),
    Mistake("f runs too often",
            _first("state = torch.get_rng_state()", "f(x)", "torch.set_rng_state(state)", "return f(x)")),
    Mistake("what the calls share", _edit("ctx.f = f", "Recompute.f = f").then("y = ctx.f(x)", "y = Recompute.f(x)")),
    Mistake("what the calls share", _edit("ctx.random_state = random_state(x)", "Recompute.state = random_state(x)")
            .then("as_then(ctx.random_state)", "as_then(Recompute.state)")),
)  # fmt: skip
