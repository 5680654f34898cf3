"""The mistakes that are made in recompute, told by what came of them, and the hint for each."""

from lib.check.framework import Hint
from lib.check.lab3.compare import it_is


def _raised(*words):
    return lambda p: p.kind == "raised" and any(word in p.text for word in words)


HINTS = (
    Hint(
        "called what it builds",
        lambda p: p.kind == "built-in",
        "write the torch.autograd.Function yourself: forward calls f and saves x, backward calls f again.",
    ),
    Hint(
        "tokens have no gradient",
        _raised("floating point", "leaf variable"),
        "x may be of integers, or need no gradient: x.detach().requires_grad_(ctx.needs_input_grad[i]), with i the "
        "place of x among the inputs.",
    ),
    Hint(
        "without a graph again",
        _raised("does not require grad"),
        "backward runs without a graph, as forward does. Call f inside `with torch.enable_grad():`.",
    ),
    Hint(
        "not a gradient for each input",
        _raised("number of gradients"),
        "backward returns as many values as forward has inputs after ctx; None for those without a gradient.",
    ),
    Hint(
        "the first graph",
        _raised("second time", "already been freed"),
        "a graph can be gone through once. Let each backward make its own: call f in it.",
    ),
    Hint("something raised", lambda p: p.kind == "raised", "do it by hand for one layer: what is x, what is dy?"),
    Hint(
        "no backward without a gradient of x",
        lambda p: p.kind == "cut off" and p.facts["case"] in ("tokens", "features"),
        "autograd leaves a Function out if no tensor among its inputs needs a gradient, though f's weights need one. "
        "Give apply a second input that does: torch.empty(0, requires_grad=True).",
    ),
    Hint(
        "cut off",
        lambda p: p.kind == "cut off",
        "y has lost its graph: return what apply() returns, without detach or no_grad around it.",
    ),
    Hint(
        "another output",
        lambda p: p.kind in ("value", "form"),
        "forward returns f(x), and changes nothing of it.",
    ),
    Hint(
        "doubled",
        it_is("2 x expected"),
        "a gradient arrives twice. The second call must run on x.detach(), or backward goes through the first x too; "
        "and torch.autograd.backward adds to the weights' .grad already.",
    ),
    Hint(
        "x has no gradient",
        lambda p: p.kind == "no gradient" and p.facts["of x"],
        "backward returns the gradient of x: x.grad of the detached copy, which must require one.",
    ),
    Hint(
        "the weights have no gradient",
        lambda p: p.kind == "no gradient",
        "f's weights are no inputs of the Function: their gradients come from torch.autograd.backward([y], [dy]), "
        "which adds to their .grad. torch.autograd.grad(y, x, dy) gives that of x alone.",
    ),
    Hint(
        "other random numbers",
        lambda p: p.kind == "gradient" and p.facts["case"] == "dropout",
        "the second call drops other elements than the first. Note torch.get_rng_state() before the first call, and "
        "set it before the second.",
    ),
    Hint(
        "another gradient",
        lambda p: p.kind == "gradient",
        "backward starts from dy, what the loss sends back to y: torch.autograd.backward([y], [dy]); and what "
        "micro-batches left in .grad stays.",
    ),
    Hint(
        "the generator was moved by backward",
        lambda p: p.kind == "state" and p.facts["way"] == "backward",
        "after the second call put the generator back to where backward found it: "
        "`with torch.random.fork_rng(devices=[]):` around it.",
    ),
    Hint(
        "the generator was not moved by forward",
        lambda p: p.kind == "state",
        "the first call draws as f alone would, or the next layer draws the same numbers again: no fork_rng there.",
    ),
    Hint(
        "the graph is kept",
        lambda p: p.kind == "kept",
        "all that f computed is kept until backward: call f without a graph in forward, and save x alone.",
    ),
    Hint(
        "f runs too often", lambda p: p.kind == "calls", "each call costs a forward: one in forward, one in backward."
    ),
)
