"""Known mistakes in recompute: edits of lib's code."""

from mistakes import Mistake, edit

CALL = "return Recompute.apply(f, anchor, *inputs)"
FORWARD = "return f(*inputs)\n\n    @staticmethod"
AGAIN = "with torch.enable_grad(), as_then(ctx.random_state), with_autocast(ctx.autocast):"
COPY = "kept.detach().requires_grad_(ctx.needs_input_grad[2 + i])"
BACK = "torch.autograd.backward(*zip(*ends, strict=True))"
RETURNED = "return None, None, *(x.grad if torch.is_tensor(x) else None for x in inputs)"


def _edit(old, new):
    """Of the whole module: the function itself only calls what is beside it."""
    return edit("# exercise: lab4.recompute\n", "").then(old, new)


def _first(*lines):
    """Forward's last lines are these."""
    return _edit(FORWARD, "\n        ".join(lines) + "\n\n    @staticmethod")


NO_GUARD = (" and y.requires_grad", "")
MISTAKES = (
    Mistake("the graph is kept", _edit(CALL, "return f(*inputs)")),
    Mistake("the graph is kept", _first(
        "with torch.enable_grad(), torch.random.fork_rng():",
        "    ctx.graph = f(*(x.detach().requires_grad_(x.is_floating_point()) for x in inputs))",
        "return f(*inputs)",
    )),
    Mistake("the graph is kept", _first("ctx.y = f(*inputs)", "return ctx.y")),
    Mistake("without a graph again", _edit(AGAIN, AGAIN.replace("torch.enable_grad(), ",
        "")).then(*NO_GUARD)),
    Mistake("tokens have no gradient", _edit(COPY, "kept.detach().requires_grad_()")),
    Mistake("tokens have no gradient", _edit(CALL,
            CALL.replace("*inputs", "*(x.requires_grad_(x.is_floating_point()) for x in inputs)"))),
    Mistake("not a gradient for each input", _edit(RETURNED, "return inputs[0].grad")),
    Mistake("the first graph", _edit(BACK, f"{BACK}, {BACK}")),
    Mistake("an error in one case", _edit("torch.set_rng_state(on_cpu)",
        "torch.zeros(2) + torch.zeros(3)")),
    Mistake("no backward without a gradient of x",
            _edit("anchor = torch.empty(0, requires_grad=True)", "anchor = 0")),
    Mistake("cut off", _edit(CALL, f"{CALL}.detach()")),
    Mistake("cut off", _edit(CALL, "with torch.no_grad():\n        return f(*inputs)")),
    Mistake("another output", _first("return 2 * f(*inputs)")),
    Mistake("doubled", _edit(BACK, BACK.replace("*ends", "*((y, 2 * g) for y, g in ends)"))),
    Mistake("doubled", _edit(COPY,
        "kept\n            kept.retain_grad() if kept.requires_grad else None")),
    Mistake("x has no gradient", _edit(RETURNED, "return None, None, *(None for _ in inputs)")),
    Mistake("x has no gradient", _edit(COPY, "kept.detach()")),
    Mistake("the weights have no gradient",
            _edit(BACK, "(x, *_), (y, g) = inputs, ends[0]\n"
                  "            x.grad = torch.autograd.grad(y, x, g)[0] if x.requires_grad "
                  "else y.backward(g)")),
    Mistake("other random numbers", _edit("torch.set_rng_state(on_cpu)", "pass")),
    Mistake("another gradient", _edit(BACK, "y.backward(torch.ones_like(y))")),
    Mistake("the generator was moved by backward",
            _edit("with torch.random.fork_rng(devices=list(on_gpus)):", "if True:")),
    Mistake("the generator was not moved by forward",
            _first("with torch.random.fork_rng():", "    return f(*inputs)")),
    Mistake("f runs too often",
            _first("state = torch.get_rng_state()", "f(*inputs)", "torch.set_rng_state(state)",
                   "return f(*inputs)")),
    Mistake("what the calls share", _edit("ctx.f, ctx.inputs = f,", "Recompute.f, ctx.inputs = f,")
            .then("y = ctx.f(*inputs)", "y = Recompute.f(*inputs)")),
    Mistake("what the calls share", _edit("ctx.random_state, ctx", "Recompute.state, ctx")
            .then("as_then(ctx.random_state)", "as_then(Recompute.state)")),
    Mistake("what the calls share", _edit("ctx.random_state, ctx", "f.state, ctx")
            .then("as_then(ctx.random_state)", "as_then(ctx.f.state)")),
)  # fmt: skip
