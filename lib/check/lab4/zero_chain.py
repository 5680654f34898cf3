"""A chain of layers whose backward passes a gate behind each, where it is seen what is sent and
what memory is held.

    forward    layer 0 -> gate -> layer 1 -> gate -> ... -> layer 4
    backward   layer 4 -> gate -> layer 3 -> gate -> ... -> layer 0  each layer a flat: 0, 1, ..., 4

    behind flat j     lines j - 1 and j          under way: padded elements each
                      pieces 0 to j - 2          in the shards' .grad: padded/N elements each
                      nothing else               the parameters' .grad are gone

Backward is past a gate when all gradients of the layer behind it are there and have been seen by
their hooks.
"""

import weakref
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn

from lib import backend
from lib.check.cases import Case, draw
from lib.check.exercise import Problem
from lib.check.overlap import Alive

WIDTHS = (3, 4, 5, 6, 7, 8)  # layers of 12, 20, 30, 42 and 56 weights: no two flats are alike
LAYERS = len(WIDTHS) - 1
GATES = LAYERS - 1
EACH = 8  # bytes of a float64
SLACK = 64  # bytes of single numbers, such as the loss's own gradient; the shortest line has 96


class Chain(nn.Module):
    """x (B, 3) -> (B, 8), float64, linear, without biases. registered: the order in which
    it names its layers."""

    def __init__(self, registered):
        super().__init__()
        layers = [nn.Linear(m, n, bias=False, dtype=torch.float64) for m, n in pairwise(WIDTHS)]
        self.in_order = [f"layer {i}" for i in range(LAYERS)]
        self.gate = lambda gradient: None
        for i in registered:
            layers[i].weight.data = draw(i, WIDTHS[i + 1], WIDTHS[i]) / 4
            self.add_module(self.in_order[i], layers[i])
        self.to(backend.device())

    def forward(self, x):
        for i, name in enumerate(self.in_order):
            x = getattr(self, name)(Gate.apply(x, self.gate) if i else x)
        return x


class Gate(torch.autograd.Function):
    """y = x. Backward calls gate(gradient) as it passes."""

    @staticmethod
    def forward(ctx, x, gate):
        ctx.gate = gate
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        ctx.gate(gradient)
        return gradient, None


@dataclass(frozen=True)
class ChainSetup:
    """A chain, trained as `zero_models.Setup` trains its model."""

    words: str
    registered: tuple[int, ...] = tuple(range(LAYERS))
    optimizer: str = "SGD"
    parameters: int = sum(m * n for m, n in pairwise(WIDTHS))
    microbatches: int = 1
    models: int = 1

    def case(self, members):
        return Case(members, self.parameters, what=self.words)

    def model(self):
        return Chain(self.registered)

    def batches(self, rank, step):
        seed = 10 * rank + step
        return [(draw(100 + seed, 2, WIDTHS[0]), draw(500 + seed, 2, WIDTHS[-1]))]

    def loss(self, model, batch):
        x, y = batch
        return (model(x) * y).sum()


class Held(Alive):
    """Memory beside the model's own. problem: the first that is wrong. padded: the
    elements of each flat."""

    def __init__(self, where, padded, N, model):
        super().__init__()
        self.where, self.padded, self.N, self.model, self.problem = where, padded, N, model, None
        self.lines = []  # weak references to all that were made
        self.shards = ()  # those of a Zero1 may be tensors of their own, which do not count

    def look(self, *besides):
        """The parameters are views of an answer's flats, which do not count."""
        return super().look(*self.model.parameters(), *self.shards, *besides)

    def begin_backward(self, step):
        """What is there now stays; it may be SGD's state, what was sent last, and a batch."""
        kept = self.look()
        allowed = sum(self.padded) * (step > 0) // self.N + max(self.padded)
        if kept > EACH * allowed + 4 * SLACK:
            self._note(
                "before backward",
                "the answer",
                kept,
                EACH * allowed,
                "no buffers that wait for gradients",
            )
        self.begin()

    def at_gate(self, flat, gradient):
        """gradient: what flows through the gate; it does not count."""
        held = self.look(gradient)
        in_flight = EACH * sum(self.padded[max(flat - 1, 0) : flat + 1])
        allowed = in_flight + EACH * sum(self.padded[: max(flat - 1, 0)]) // self.N
        # the ledger keeps it alive
        last_sent = EACH * sum(self.padded[max(flat - 2, 0) : max(flat - 1, 0)]) // self.N
        if held > allowed + last_sent + SLACK:
            when = f"after {flat + 1} of {len(self.padded)} flats"
            self._note(when, "gradients", held, allowed, "two buffers, and the shards' gradients")

    def taken(self, take):
        """The line that take() makes. Of those before it one may be there
        still: it is under way."""
        if sum(line() is not None for line in self.lines) > 1:
            text = f"{self.where}: a third buffer is allocated while two are in flight"
            self.problem = self.problem or Problem("memory", text, {"left": [], "before": False})
        line = take()
        self.lines.append(weakref.ref(line))
        return line

    def _note(self, when, who, held, allowed, what):
        left = [name for name, p in self.model.named_parameters() if p.grad is not None]
        verb = "hold" if who.endswith("s") else "holds"
        text = f"{self.where}, {when}: {who} {verb} {held:g} bytes, expected {allowed:g}: {what}"
        text += f"\n.grad is still there of {', '.join(left)}" if left else ""
        facts = {"left": left, "before": when == "before backward"}
        self.problem = self.problem or Problem("memory", text, facts)
