"""What recompute(f, x) is checked on: a function as it is, and recomputed, from the same random state.

    forward    f        torch.rand(3)        backward            someone else draws numbers between the two
    note       y                             gradients, random state, how often f was called

layers      a leaf x goes through two layers              tokens    an embedding: x is int64, and needs no gradient
features    x needs no gradient, the layers do            dropout   random numbers; x is computed from a leaf
twice       f(f(x)): its weights get two gradients        nested    f recomputes a part of itself
"""

import sys
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.utils.checkpoint as torchs
from torch import nn

from lib import recompute as libs

NAMES = ("layers", "tokens", "features", "dropout", "twice", "nested")
THEIRS = {libs.__file__: "lib's recompute", torchs.__file__: "torch.utils.checkpoint"}


@dataclass
class Seen:
    """What came of one case."""

    y: torch.Tensor = None
    needs_gradient: bool = False
    gradients: dict = field(default_factory=dict)  # {name: gradient or None}; "x" is the leaf's
    calls: list = field(default_factory=lambda: [0, 0])  # of f: in forward, in backward
    states: dict = field(default_factory=dict)  # {"forward" or "backward": the random state after it}
    raised: tuple = None  # ("forward" or "backward", the error)


def run(name, through):
    """The case `name`, with through(f, x) -> y. An error of the answer's is noted; NotImplementedError is not."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(NAMES.index(name))
        net, leaf = _net(name), _leaf(name)
        seen, calls = Seen(), [0]

        def f(x):
            calls[0] += 1
            return _inside(name, net, through)(x)

        x = 2 * leaf if name == "dropout" else leaf
        way = "forward"
        try:
            y = through(f, through(f, x)) if name == "twice" else through(f, x)
            if not torch.is_tensor(y):
                seen.y = y
                return seen
            seen.y, seen.needs_gradient, seen.calls[0] = y.detach().clone(), y.requires_grad, calls[0]
            seen.states["forward"] = torch.get_rng_state()
            torch.rand(3)
            if y.requires_grad:
                way = "backward"
                (y * torch.arange(1.0, y.numel() + 1, dtype=y.dtype).view(y.shape)).sum().backward()
        except Exception as error:
            if type(error) is NotImplementedError:
                raise
            seen.raised = way, error
            return seen
        seen.states["backward"], seen.calls[1] = torch.get_rng_state(), calls[0] - seen.calls[0]
        seen.gradients = {n: p.grad for n, p in net.named_parameters()} | ({"x": leaf.grad} if _needs(name) else {})
    return seen


def kept(through):
    """(bytes that the graph of through(f, x) has saved before backward, bytes of x), in the case "layers"."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net, x = _net("layers"), _leaf("layers")
        with libs.SavedBytes(besides=net.parameters()) as saved:
            y = through(net, x)  # noqa: F841  alive, and its graph with it
            return saved.nbytes(), x.nbytes


def _needs(name):
    return name not in ("tokens", "features")


def _leaf(name):
    if name == "tokens":
        return torch.tensor([[1, 1, 4], [0, 2, 1]])
    return torch.randn(3, 4, dtype=torch.float64).requires_grad_(_needs(name))


def _net(name):
    if name == "tokens":
        return nn.Embedding(5, 4, dtype=torch.float64)
    between = nn.Dropout(0.5) if name == "dropout" else nn.Tanh()
    return nn.Sequential(nn.Linear(4, 6), between, nn.Linear(6, 4), nn.Tanh()).double()


def _inside(name, net, through):
    """What f calls: the net, or the net with its first part recomputed too."""
    return (lambda x: net[2:](through(net[:2], x))) if name == "nested" else net


@contextmanager
def noting_theirs():
    """`with noting_theirs() as calls:` afterwards `calls` names what was called of lib's and torch's recomputation."""
    calls, before = [], sys.getprofile()

    def note(frame, event, arg):
        if event == "call" and frame.f_code.co_filename in THEIRS:
            calls.append(THEIRS[frame.f_code.co_filename])

    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(before)
