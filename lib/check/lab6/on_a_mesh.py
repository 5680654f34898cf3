"""The meshes of 8 ranks on which average_over_mesh and norm_over_mesh are checked, and the
parameters that they are given.

    pp dp tp              which mistakes it finds
    2  4  1               most of them, because 2 ends differ from 4 data ranks; dividing by 2
    1  4  2               needing a pipeline: here nothing is tied, and ends is None
    2  2  2               mistakes that need all three axes
    4  1  2               letting inner stages take part in the sum over the ends; one of them has
                          no parameters at all
    2  2  2, tp slowest   computing the groups from the rank instead of asking the mesh; a sum in a
                          copy of another dtype, because average_over_mesh is given float32 there
    2  2  2, a real step  the gradients are those of a GPT, computed by lib's Hybrid

No two stages have equally large lists of sharded or of replicated parameters, so an answer that
sums these along pp by mistake cannot pass.
"""

from collections import Counter
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import nn

from lib import backend
from lib.check.cases import Case, draw
from lib.check.causes import hints
from lib.check.comm import MAY_CALL
from lib.check.side_by_side import SideBySide
from lib.hybrid import SETS, Hybrid, Sets, local_batch
from lib.hybrid.mesh import Mesh, axes_of, coordinates, groups_along
from lib.tensor_parallel import sequence_parallel_gpt
from lib.training.model import GPT, Shape

WORLD = 8
REAL, TURNED = "a real step", "tp slowest"
NAMES = ("sharded", "replicated", "tied")
LEAVES_OUT = {
    "alone": "a mesh is of all 8 ranks; each axis has one rank in some mesh",
    "generators": "the sets are lists",
    "under way": "nothing of a call is under way when it returns",
}
EXCUSED = dict.fromkeys(("strided", "float32", "bfloat16"), "gradients are in parameters") | {
    "two at once": "nothing is under way when a call returns"
}
# The shapes of each stage's parameters. Each has ten elements or more, because otherwise the shares
# of 8 ranks could not be distinguished.
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
        """A rank and its coordinates in words."""
        here = coordinates(number, self.sizes)
        return f"rank {number} ({', '.join(f'{axis} {here[axis]}' for axis in ('pp', 'dp', 'tp'))})"

    def ends(self) -> list[tuple[int, ...]]:
        """[(rank of the first stage, rank of the last), ...] of the pipelines with several
        stages."""
        along = groups_along(["pp"], self.sizes)
        return [(ranks[0], ranks[-1]) for ranks in along if len(ranks) > 1]

    def told(self, ranks) -> str:
        """A group in words: its ranks, and the axes along which they differ."""
        at_ends = tuple(ranks) in self.ends()
        along = "pp, the ends" if at_ends else ", ".join(axes_of(ranks, self.sizes))
        return f"ranks {', '.join(map(str, ranks))} ({along if len(ranks) < WORLD else 'all'})"

    def listed(self, sums) -> str:
        """{ranks: elements} in words."""
        elements = lambda n: f"{n} element{'s' * (n != 1)}"
        said = (f"{elements(n)} over {self.told(ranks)}" for ranks, n in sorted(sums.items()))
        return "; ".join(said) or "nothing"


def measure(script, reference, cases, excused=None):
    """The measure of a script that receives (mesh, ends), as `places_of` makes them."""
    return SideBySide(
        script, reference, cases, groups=places_of, excused=EXCUSED | (excused or {}),
        together=(cases[0], replace(cases[0], again=1)),
    )  # fmt: skip


def exercise(measure, *rows, leaves_out):
    return measure.exercise(
        *rows, hints=hints("lab6", measure.reference.__name__), worlds=(WORLD,), may_call=MAY_CALL,
        leaves_out=LEAVES_OUT | leaves_out,
    )  # fmt: skip


def mesh_case(pp, dp, tp, what=""):
    axes = (("pp", pp), ("dp", dp), ("ep", 1), ("cp", 1), ("tp", tp))
    axes = axes[::-1] if what == TURNED else axes
    return MeshCase(tuple(range(pp * dp * tp)), what=what, axes=axes)


def cases(first=(2, 4, 1)):
    """All cases, in order. first: (pp, dp, tp) of the first one."""
    sizes = [(2, 4, 1), (1, 4, 2), (2, 2, 2), (4, 1, 2)]
    by_hand = (mesh_case(*one) for one in sorted(sizes, key=lambda one: one != first))
    return (*by_hand, mesh_case(2, 2, 2, TURNED), mesh_case(2, 2, 2, REAL))


class _Mesh(Mesh):
    """A Mesh that reuses the groups in `made`, {ranks: group}, and adds the groups that are
    missing."""

    def __init__(self, sizes, made):
        rank = dist.get_rank()
        self.sizes, self.here, self.groups = sizes, coordinates(rank, sizes), {}
        for axes in [*((axis,) for axis in sizes), *SETS]:
            for ranks in groups_along(axes, sizes):
                group = _made(tuple(ranks), made)
                if rank in ranks:
                    self.groups[frozenset(axes)] = group


def by_hand(measure):
    """The cases whose gradients are made by hand."""
    return [case for case in measure.runs() if case.what != REAL]


def places_of(cases):
    """{case: (its Mesh, the group of the two ends of this rank's pipeline or None)}. All ranks call
    it."""
    made, places = {}, {}
    for case in cases:
        mesh, ends = _Mesh(case.sizes, made), None
        for ranks in case.ends():
            group = _made(ranks, made)
            ends = group if dist.get_rank() in ranks else ends
        places[case] = mesh, ends
    return places


def _made(ranks, made):
    if ranks not in made:
        made[ranks] = dist.new_group(ranks)
    return made[ranks]


def sets_by_hand(mesh, gradient, dtype=torch.float64):
    """This rank's Sets, with gradient(name of the list, index in it, shape) in each .grad."""
    stage, last = mesh.here["pp"], mesh.size("pp") - 1
    tied = TIED if last and stage in (0, last) else []
    lists = {name: [] for name in NAMES}
    for name, shapes in zip(NAMES, (SHARDED[stage], REPLICATED[stage], tied), strict=True):
        for i, shape in enumerate(shapes):
            # a different value on every rank, so that a sum of parameters is detected
            value = torch.full(shape, 1000.0 + dist.get_rank(), dtype=dtype)
            lists[name].append(nn.Parameter(value.to(backend.device())))
            lists[name][-1].grad = gradient(name, i, shape).to(dtype)
    return Sets(**lists, experts=[])


def sets_of(case, mesh, average, gradient, dtype=torch.float64):
    """This rank's Sets: those of a real step, or made by hand."""
    is_real = case.what == REAL
    return real_step(mesh, average) if is_real else sets_by_hand(mesh, gradient, dtype)


def listed(sets):
    """[(list, index there, parameter), ...] of all parameters, even if the lists change later."""
    return [(name, i, p) for name in NAMES for i, p in enumerate(getattr(sets, name))]


def sums(calls):
    """{ranks: elements that are summed over them}, for groups of more than one rank. calls: a
    Recorder's."""
    found = Counter()
    for call in calls:
        if len(call.ranks) > 1 and call.elements:
            found[call.ranks] += call.elements
    return found


class PlainSGD:
    """w <- w - lr grad w, with the methods of torch's optimizers. One of torch's would import
    torch._dynamo on each rank, which is slow."""

    def __init__(self, parameters, lr):
        self.parameters, self.lr = [*parameters], lr
        self.param_groups = [{"params": self.parameters, "lr": lr}]

    @torch.no_grad()
    def step(self):
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter -= self.lr * parameter.grad

    def zero_grad(self, set_to_none=True):
        for parameter in self.parameters:
            grad = parameter.grad
            parameter.grad = None if set_to_none or grad is None else grad.zero_()


def real_step(mesh, average):
    """The Sets of a GPT with sequence parallelism after the backward of one step. The gradients are
    completed by average(sets, mesh, ends)."""
    tokens, targets = (local_batch(rows, mesh) for rows in batch_of(ROWS))
    optimizer = lambda groups: PlainSGD((p for group in groups for p in group["params"]), lr=0.1)
    hybrid = Hybrid(small_gpt(), mesh, tokens, 1, optimizer, split=sequence_parallel_gpt)
    hybrid.pipeline.tied = []  # otherwise it would sum the tied gradients
    hybrid.complete_gradients = lambda: average(hybrid.sets, mesh, hybrid.pipeline.links.ends)
    hybrid.backward(tokens, targets)
    return hybrid.sets


def small_gpt():
    """A GPT with the same weights on every rank and in every run."""
    model = GPT(SHAPE).to(backend.device(), torch.float64)
    for i, parameter in enumerate(model.parameters()):
        parameter.data = 0.25 * draw(i, *parameter.shape)
    return model


def batch_of(rows, seed=0):
    """tokens, targets of the full batch: (rows, T) int64."""
    numbers = torch.Generator("cpu").manual_seed(seed)
    size = 2, rows, SHAPE.seq_len
    both = torch.randint(SHAPE.vocab_size, size, generator=numbers, device="cpu")
    return both.to(backend.device())
