"""The mistakes that are made in relay_step, told by what came of them, and the hint for each."""

from lib.check.framework import Hint
from lib.check.lab0.mistakes import failed
from lib.check.lab2.relay_astray import another_group, back, counted_in_the_world, gives, left, wrong_size


def _raised(*words):
    return lambda p: p.kind == "raised" and any(word in p.text for word in words)


def _gradient(fits):
    return lambda p: p.kind == "gradient" and fits(p.facts)


def _shares(fits):
    """Fits if the gradient is a sum of the steps' gradients with such coefficients."""
    return _gradient(lambda f: bool(f["shares"]) and fits(f["shares"], f["p"]))


def _power_of_two(share):
    return share in (2, 4, 8, 16)


HINTS = (
    Hint(
        "gradients all-reduced",
        lambda p: p.kind == "built-in" and "all_reduce" in p.text,
        "an all-reduce adds gradients of the same parameter. Here every rank has other parameters: nothing is to be "
        "added.",
    ),
    Hint(
        "called what it builds",
        lambda p: p.kind == "built-in",
        "build it from p2p.send and p2p.recv.",
    ),
    Hint(
        "the group is not used",
        lambda p: another_group(p) or counted_in_the_world(p),
        "every send and recv takes `group`, and so do dist.get_rank(group) and dist.get_world_size(group): the first "
        "stage is on the group's rank 0, whichever rank of the world that is.",
    ),
    Hint(
        "no gradient of the input",
        _raised("NoneType"),
        "x.grad is None: autograd keeps the gradient of a leaf only if it was told so before forward. What you "
        "received needs x.requires_grad_().",
    ),
    Hint(
        "tokens have no gradient",
        _raised("floating point", "floating-point"),
        "the first rank's x are tokens. Nobody waits for their gradient: only what was received requires grad.",
    ),
    Hint(
        "a loss on every rank",
        _raised("target None"),
        "only the last rank has a target. The others begin their backward with the gradient that they receive: "
        "y.backward(grad_y).",
    ),
    Hint(
        "y is no number",
        _raised("only for scalar outputs"),
        "y.backward() alone is for a loss. Where y has many elements, say what dL/dy is: y.backward(grad_y).",
    ),
    Hint(
        "no neighbour there",
        _raised("the group has"),
        "the first rank has no previous one, the last has no next; a single rank is both, the first and the last. Ask "
        "for rank and world size of the group: dist.get_rank(group), dist.get_world_size(group).",
    ),
    Hint(
        "the loss sent back",
        wrong_size(True, lambda got, want, rank: got == 1),
        "what the previous rank needs is not the loss but dL/dx, the gradient of what it gave you: x.grad.",
    ),
    Hint(
        "the gradient of y sent back",
        wrong_size(True, gives),
        "the previous rank gave you x, so it needs the gradient of x. That of y is what you received.",
    ),
    Hint(
        "the input sent on",
        wrong_size(False),
        "the next rank needs what your stage gives: y = stage(x).",
    ),
    Hint(
        "a buffer of another form",
        lambda p: p.kind == "mismatch" and failed(p).mismatch in ("size", "dtype"),
        "who receives must make room for just what is sent: an activation is like x, torch.empty_like(x); its gradient "
        "like the activation, torch.empty_like(y).",
    ),
    Hint(
        "waits too early",
        left(lambda a: a.did == ("recv", a.rank + 1) and a.should == ("send", a.rank + 1)),
        "it waits for a gradient before it has sent the activation that this is the gradient of.",
    ),
    Hint(
        "right on two ranks only",
        left(lambda a: 0 < a.rank < a.p - 1),
        "a rank in the middle does all four: it receives x and sends y on, then receives the gradient of y and sends "
        "back that of x.",
    ),
    Hint(
        "no gradient sent back",
        left(lambda a: back(a) and a.did is None),
        "after its backward every rank but the first sends x.grad to the previous one, which waits for it.",
    ),
    Hint(
        "the wrong neighbour",
        left(lambda a: a.did is not None),
        "activations go to rank + 1, gradients to rank - 1. A pipeline is no ring: the last rank is not the first "
        "one's neighbour.",
    ),
    Hint(
        "no forward",
        lambda p: p.kind == "no forward",
        "every rank computes y = stage(x), with the batch or with what it received.",
    ),
    Hint(
        "computed on the empty room",
        lambda p: p.kind == "taken" and p.facts["nan"],
        "on all ranks but the first, x says only which shape and dtype come. Use what p2p.recv has filled.",
    ),
    Hint(
        "another input",
        lambda p: p.kind == "taken",
        "what the previous rank sends is what its stage gave, and what you receive is what your stage takes, as it is.",
    ),
    Hint(
        "backward with ones",
        _gradient(lambda f: f["ones"]),
        "start the backward from the gradient that you received, y.backward(grad_y), not from y.sum() or ones.",
    ),
    Hint(
        "no backward",
        _gradient(lambda f: f["absent"]),
        "every rank must run its backward: that is what fills .grad.",
    ),
    Hint(
        "overwritten",
        _shares(lambda shares, p: shares == [0, 1]),
        "backward adds to .grad, as it does in one process: p.grad is not to be set, and not to be cleared here.",
    ),
    Hint(
        "scaled by p",
        _shares(lambda shares, p: shares[0] in (p, round(1 / p, 9))),
        "the loss is one batch's, and p ranks share one backward: nothing is to be multiplied or divided by p.",
    ),
    Hint(
        "added twice",
        _shares(lambda shares, p: _power_of_two(shares[0])),
        "one backward per rank: it adds the gradients by itself.",
    ),
    Hint(
        "another gradient",
        _gradient(lambda f: True),
        "what you receive is dL/dy, for y.backward(grad_y) as it is; what you send is x.grad, after backward.",
    ),
    Hint(
        "the loss is not returned",
        lambda p: p.kind == "loss" and p.facts["got"] is None,
        "the last rank returns the loss.",
    ),
    Hint(
        "another loss",
        lambda p: p.kind == "loss",
        "the loss is loss_fn(y, target), a tensor of shape (), unscaled.",
    ),
    Hint(
        "something returned elsewhere",
        lambda p: p.kind == "elsewhere",
        "ranks before the last have no loss: they return None.",
    ),
    Hint(
        "the loss keeps its graph",
        lambda p: p.kind == "attached",
        "return loss.detach(): whoever adds up losses would keep every step's graph.",
    ),
    Hint(
        "more messages than two",
        lambda p: p.kind == "messages" and p.facts["more"],
        "between two neighbours go one activation and one gradient. The shape need not be sent: it is x's, and y's.",
    ),
)
