"""The parameters that the two functions are given: lists made by hand, unlike on every stage; and a real GPT's.

    stage    cut           whole     tied, of pp stages
    0        6, 2          3         4
    1        5, 1, 3       2, 2      4, if it is the last
    2        4             1, 6      -
    3        3, 7          5, 1      4

The numbers are elements. No two stages have lists of equal sizes: to sum along pp by mistake cannot pass.
"""

import torch
import torch.distributed as dist
from torch import nn

from lib import backend
from lib.check.framework import Problem
from lib.hybrid import HybridByHand, Sets, own_rows
from lib.model import GPT, Shape
from lib.tensor_parallel import split_state_dict

CUT = ([(2, 3), (2,)], [(5,), (1,), (3,)], [(4,)], [(1, 3), (7,)])
WHOLE = ([(3,)], [(2,), (2,)], [(1,), (6,)], [(5,), (1,)])
TIED = [(2, 2)]
NAMES = ("cut", "whole", "tied")
SHAPE, ROWS = Shape(vocab_size=8, seq_len=4, n_layers=2, hidden=8, n_heads=2, mlp_hidden=8), 2


def shapes_of(stage, stages):
    """{set: [shape, ...]} of what a rank of this stage has."""
    at_an_end = stages > 1 and stage in (0, stages - 1)
    return {"cut": CUT[stage], "whole": WHOLE[stage], "tied": TIED if at_an_end else []}


def sets_by_hand(mesh, gradient):
    """This rank's Sets, with gradient(set, its number in the list, shape) in .grad."""
    lists = {}
    for name, shapes in shapes_of(mesh.here["pp"], mesh.size("pp")).items():
        lists[name] = [_parameter(shape, gradient(name, i, shape)) for i, shape in enumerate(shapes)]
    return Sets(**lists, experts=[])


def _parameter(shape, gradient):
    # Another value on every rank: or nobody would see that the parameters are summed instead of their gradients.
    value = torch.full(shape, 1000.0 + dist.get_rank(), dtype=torch.float64, device=backend.device())
    parameter = nn.Parameter(value)
    parameter.grad = gradient
    return parameter


class Before:
    """Sets as they were: what a function must not change."""

    def __init__(self, sets):
        self.sets, self.lists = sets, {name: list(getattr(sets, name)) for name in NAMES}
        self.was = {p: (p.detach().clone(), p.grad.clone()) for _, _, p in self.all()}

    def all(self):
        """(set, number, parameter) of each, whatever became of the lists."""
        return [(name, i, p) for name, parameters in self.lists.items() for i, p in enumerate(parameters)]

    def changed(self, where, gradients):
        """A Problem if lists or parameters are others now, or the gradients, if these are to stay as they were."""
        for name, parameters in self.lists.items():
            now = getattr(self.sets, name)
            if len(now) != len(parameters) or any(a is not b for a, b in zip(now, parameters, strict=True)):
                text = f"{where}: the list sets.{name} had {len(parameters)} parameters, now it has {len(now)}"
                return Problem("touched", text, {"what": "list"})
        for name, i, p in self.all():
            value, gradient = self.was[p]
            if not torch.equal(p.detach(), value):
                text = f"{where}: sets.{name}[{i}] itself has changed, not its gradient"
                return Problem("touched", text, {"what": "parameter"})
            if gradients and not (torch.is_tensor(p.grad) and torch.equal(p.grad, gradient)):
                text = f"{where}: sets.{name}[{i}].grad has changed, and the optimizer is still to step by it"
                return Problem("touched", text, {"what": "gradient"})
        return None


def real_step(mesh, average):
    """A HybridByHand after the backward of one step, its gradients summed by average(sets, mesh, ends)."""
    tokens, targets = (own_rows(rows, mesh) for rows in _batch())
    make_optimizer = lambda groups: torch.optim.SGD(groups, lr=0.1)
    hybrid = HybridByHand(_gpt(), mesh, tokens, 1, make_optimizer, average=average)
    hybrid.backward(tokens, targets)
    return hybrid


def one_process(hybrid):
    """({parameter of this rank: (its name, its gradient in one process)}, |g| in one process, ())."""
    model, mesh = _gpt(), hybrid.mesh
    model.loss(*_batch()).backward()
    whole = {name: p.grad for name, p in model.named_parameters()}
    norm = torch.stack([gradient.square().sum() for gradient in whole.values()]).sum().sqrt()
    mine = split_state_dict(whole, mesh.here["tp"], mesh.size("tp"))
    mine["head.weight"] = mine["embedding.token.weight"]  # one parameter, under two names
    return {p: (name, mine[name]) for name, p in hybrid.part.named_parameters()}, norm


def _gpt():
    """Alike wherever it is made."""
    model = GPT(SHAPE).to(backend.device(), torch.float64)
    for i, parameter in enumerate(model.parameters()):
        draw = torch.Generator("cpu").manual_seed(i)
        numbers = torch.randn(parameter.shape, generator=draw, dtype=torch.float64, device="cpu")
        parameter.data = 0.5 * numbers.to(backend.device())
    return model


def _batch():
    """tokens, targets of the whole batch: (ROWS, T) int64."""
    draw = torch.Generator("cpu").manual_seed(0)
    return torch.randint(SHAPE.vocab_size, (2, ROWS, SHAPE.seq_len), generator=draw, device="cpu").to(backend.device())
