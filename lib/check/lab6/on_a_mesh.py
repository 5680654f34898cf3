"""On which meshes of 8 ranks average_over_mesh and norm_over_mesh are checked, and the parameters
that they are given.

    pp dp tp              which mistakes it finds
    2  4  1               most: 2 ends and 4 data ranks are told apart; dividing by 2
    1  4  2               needing a pipeline: here nothing is tied, and ends is None
    2  2  2               all at once
    4  1  2               letting inner stages take part in the sum over the ends; one of them has
                          nothing at all
    2  2  2, tp slowest   counting ranks instead of asking the mesh
    2  2  2, a real step  a GPT's gradients, next to a single-process baseline

No two stages have lists of equal sizes: to sum along pp by mistake cannot pass.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from lib import backend
from lib.check.cases import Case, draw
from lib.check.exercise import Problem
from lib.hybrid import SETS, Hybrid, Sets, local_batch
from lib.hybrid.mesh import Mesh, axes_of, coordinates, groups_along
from lib.tensor_parallel import sequence_parallel_gpt, split_state_dict
from lib.training.model import GPT, Shape

WORLD = 8
REAL = "a real step"
NAMES = ("sharded", "replicated", "tied")
LEAVES_OUT = {
    "alone": "a mesh is of all 8 ranks; each axis has one rank in some mesh",
    "generators": "the sets are lists",
}
# The shapes of each stage's parameters: ten elements or more each, or the shares of 8 ranks could
# not be told apart.
SHARDED = ([(3, 4), (10,)], [(11,), (2, 5), (13,)], [], [(3, 5), (14,)])
REPLICATED = ([(16,)], [(17,), (2, 9)], [], [(19,), (4, 5)])
TIED = [(3, 7)]
SHAPE, ROWS = Shape(vocab_size=8, seq_len=4, n_layers=2, hidden=8, n_heads=2, mlp_hidden=8), 2


@dataclass(frozen=True)
class MeshCase(Case):
    """One call on all ranks of a mesh. axes: (axis, size) of each, the slowest first."""

    axes: tuple[tuple[str, int], ...] = ()

    @property
    def sizes(self) -> dict[str, int]:
        return dict(self.axes)

    @property
    def name(self) -> str:
        sizes = " ".join(f"{axis}={self.sizes[axis]}" for axis in ("pp", "dp", "tp"))
        return ", ".join(filter(None, [sizes, self.what]))

    def rank(self, number) -> str:
        """A rank and its place in words."""
        place = coordinates(number, self.sizes)
        return (
            f"rank {number} ({', '.join(f'{axis} {place[axis]}' for axis in ('pp', 'dp', 'tp'))})"
        )

    def ends(self) -> list[tuple[int, ...]]:
        """The ranks of the first and the last stage of each pipeline; none where
        that is one rank."""
        return [
            (ranks[0], ranks[-1]) for ranks in groups_along(["pp"], self.sizes) if len(ranks) > 1
        ]

    def told(self, ranks) -> str:
        """A group in words: its ranks, and the axes along which it lies."""
        along = (
            "pp, the ends" if tuple(ranks) in self.ends() else ", ".join(axes_of(ranks, self.sizes))
        )
        return f"ranks {', '.join(map(str, ranks))} ({along if len(ranks) < WORLD else 'all'})"

    def listed(self, sums) -> str:
        """{ranks: elements} in words."""
        said = (
            f"{n} element{'s' * (n != 1)} over {self.told(ranks)}"
            for ranks, n in sorted(sums.items())
        )
        return "; ".join(said) or "nothing"


def cases(*first):
    """In order; first: (pp, dp, tp) of those that come first."""

    def case(*sizes, what=""):
        pp, dp, tp = sizes
        return MeshCase(
            tuple(range(WORLD)),
            what=what,
            axes=(("pp", pp), ("dp", dp), ("ep", 1), ("cp", 1), ("tp", tp)),
        )

    by_hand = [
        case(*sizes)
        for sizes in dict.fromkeys([*first, (2, 4, 1), (1, 4, 2), (2, 2, 2), (4, 1, 2)])
    ]
    turned = case(2, 2, 2, what="tp slowest")
    return (*by_hand, replace(turned, axes=turned.axes[::-1]), case(2, 2, 2, what=REAL))


class Place(NamedTuple):
    """What one rank has of a case."""

    mesh: Mesh
    ends: Any  # the group of the first and the last stage of its pipeline; None on others
    control: Any  # a group of all ranks that no answer knows


class _Mesh(Mesh):
    """A Mesh that takes groups from those made before, {ranks: group}, and adds
    what it has to make."""

    def __init__(self, sizes, made):
        rank = dist.get_rank()
        self.sizes, self.here, self.groups = sizes, coordinates(rank, sizes), {}
        for axes in [*((axis,) for axis in sizes), *SETS]:
            for ranks in groups_along(axes, sizes):
                group = _made(tuple(ranks), made)
                if rank in ranks:
                    self.groups[frozenset(axes)] = group


def new_mesh(sizes, made):
    """A Mesh of these axes. made: {ranks: group} of those that were made before; it grows."""
    return _Mesh(sizes, made)


def places_of(cases):
    """{case: Place}. All ranks call it."""
    made, control, places = {}, dist.new_group(), {}
    for case in cases:
        mesh, ends = _Mesh(case.sizes, made), None
        for ranks in case.ends():
            group = _made(ranks, made)
            ends = group if dist.get_rank() in ranks else ends
        places[case] = Place(mesh, ends, control)
    return places


def _made(ranks, made):
    if ranks not in made:
        made[ranks] = dist.new_group(ranks)
    return made[ranks]


def shapes_of(stage, stages):
    """{set: [shape, ...]} of what a rank of this stage has."""
    at_an_end = stages > 1 and stage in (0, stages - 1)
    return {
        "sharded": SHARDED[stage],
        "replicated": REPLICATED[stage],
        "tied": TIED if at_an_end else [],
    }


def sets_by_hand(mesh, gradient):
    """This rank's Sets, with gradient(set, its number in the list, shape) in .grad."""
    lists = {name: [] for name in NAMES}
    for name, shapes in shapes_of(mesh.here["pp"], mesh.size("pp")).items():
        for i, shape in enumerate(shapes):
            # Another value on every rank: or nobody would see that the parameters are summed
            # instead.
            value = torch.full(
                shape, 1000.0 + dist.get_rank(), dtype=torch.float64, device=backend.device()
            )
            lists[name].append(nn.Parameter(value))
            lists[name][-1].grad = gradient(name, i, shape)
    return Sets(**lists, experts=[])


class Before:
    """Sets as they were: what a function must not change."""

    def __init__(self, sets):
        self.sets, self.lists = sets, {name: list(getattr(sets, name)) for name in NAMES}
        self.was = {p: (p.detach().clone(), p.grad.clone()) for _, _, p in self.all()}

    def all(self):
        """(set, number, parameter) of each, whatever became of the lists."""
        return [
            (name, i, p)
            for name, parameters in self.lists.items()
            for i, p in enumerate(parameters)
        ]

    def changed(self, where, gradients):
        """A Problem if lists or parameters are others now, or the gradients, if these are
        to stay as they were."""
        for name, parameters in self.lists.items():
            now = getattr(self.sets, name)
            if len(now) != len(parameters) or any(
                a is not b for a, b in zip(now, parameters, strict=True)
            ):
                text = (
                    f"{where}: the list sets.{name} had {len(parameters)} parameters, now it has "
                    f"{len(now)}"
                )
                return Problem("touched", text, {"what": "list"})
        for name, i, p in self.all():
            value, gradient = self.was[p]
            if not torch.equal(p.detach(), value):
                text = f"{where}: sets.{name}[{i}] itself has changed, not its gradient"
                return Problem("touched", text, {"what": "parameter"})
            if gradients and not (torch.is_tensor(p.grad) and torch.equal(p.grad, gradient)):
                text = (
                    f"{where}: sets.{name}[{i}].grad has changed, and the optimizer is still to "
                    f"step by it"
                )
                return Problem("touched", text, {"what": "gradient"})
        return None


def sums(calls):
    """{ranks: elements} over each group of more than one rank. calls: a Recorder's."""
    found = {}
    for call in calls:
        if len(call.ranks) > 1 and call.elements:
            found[call.ranks] = found.get(call.ranks, 0) + call.elements
    return found


class PlainSGD:
    """w <- w - lr grad w, with the methods of torch's optimizers; one of theirs imports
    torch._dynamo on each rank."""

    def __init__(self, parameters, lr):
        self.param_groups = [{"params": list(parameters), "lr": lr}]

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter -= group["lr"] * parameter.grad

    def zero_grad(self, set_to_none=True):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = (
                    None
                    if set_to_none or parameter.grad is None
                    else torch.zeros_like(parameter.grad)
                )


def real_step(mesh, average):
    """A Hybrid in sequence parallel after the backward of one step, gradients summed by
    average(sets, mesh, ends)."""
    tokens, targets = (local_batch(rows, mesh) for rows in _batch())
    make_optimizer = lambda groups: PlainSGD(
        (p for group in groups for p in group["params"]), lr=0.1
    )
    hybrid = Hybrid(small_gpt(), mesh, tokens, 1, make_optimizer, split=sequence_parallel_gpt)
    hybrid.pipeline.tied = []  # it would sum them
    hybrid.complete_gradients = lambda: average(hybrid.sets, mesh, hybrid.pipeline.links.ends)
    hybrid.backward(tokens, targets)
    return hybrid


def one_process(hybrid):
    """({parameter of this rank: (its name, its gradient in one process)}, |g| in
    one process, ())."""
    model, mesh = small_gpt(), hybrid.mesh
    model.loss(*_batch()).backward()
    full = {name: p.grad for name, p in model.named_parameters()}
    norm = torch.stack([gradient.square().sum() for gradient in full.values()]).sum().sqrt()
    mine = split_state_dict(full, mesh.here["tp"], mesh.size("tp"))
    mine["head.weight"] = mine["embedding.token.weight"]  # one parameter, under two names
    return {p: (name, mine[name]) for name, p in hybrid.part.named_parameters()}, norm


def small_gpt():
    """Alike wherever it is made."""
    model = GPT(SHAPE).to(backend.device(), torch.float64)
    for i, parameter in enumerate(model.parameters()):
        parameter.data = 0.25 * draw(i, *parameter.shape)
    return model


def _batch():
    """tokens, targets of the whole batch: (ROWS, T) int64."""
    generator = torch.Generator("cpu").manual_seed(0)
    return torch.randint(
        SHAPE.vocab_size, (2, ROWS, SHAPE.seq_len), generator=generator, device="cpu"
    ).to(backend.device())
