"""On which meshes of 8 ranks average_over_mesh and norm_over_mesh are checked, and the groups of each.

    pp dp tp                  whom it finds out
    2  4  1                   most: 2 ends and 4 data ranks are told apart; who divides by 2
    1  4  2                   who needs a pipeline: here nothing is tied, and ends is None
    2  2  2                   all at once
    4  1  2                   who has the stages between take part in what is the ends'
    2  2  2, tp slowest       who counts ranks instead of asking the mesh
    2  2  2, a real step      a GPT's gradients, beside one process

Many of these meshes' groups have the same ranks: they are made once.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch.distributed as dist

from lib.hybrid import SETS
from lib.mesh import Mesh, axes_of, coordinates, groups_along

WORLD = 8
REAL = "a real step"


@dataclass(frozen=True)
class MeshCase:
    """One call of `function` on all ranks of a mesh. axes: (axis, size) of each, the slowest first."""

    function: str
    axes: tuple[tuple[str, int], ...]
    what: str = ""

    @property
    def sizes(self) -> dict[str, int]:
        return dict(self.axes)

    @property
    def members(self) -> tuple[int, ...]:
        return tuple(range(WORLD))

    @property
    def where(self) -> str:
        sizes = " ".join(f"{axis}={self.sizes[axis]}" for axis in ("pp", "dp", "tp"))
        return ", ".join(filter(None, [sizes, self.what]))

    @property
    def name(self) -> str:
        """The label of the case's section in the ledger."""
        return f"{self.function}, {self.where}"

    def rank(self, number) -> str:
        """A rank and its place in words."""
        place = coordinates(number, self.sizes)
        return f"rank {number} ({', '.join(f'{axis} {place[axis]}' for axis in ('pp', 'dp', 'tp'))})"

    def ends(self) -> list[tuple[int, ...]]:
        """The ranks of the first and the last stage of each pipeline; none where that is one rank."""
        pipelines = groups_along(["pp"], self.sizes)
        return [(ranks[0], ranks[-1]) for ranks in pipelines if len(ranks) > 1]

    def told(self, ranks) -> str:
        """A group in words: its ranks, and the axes along which it lies."""
        said = f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
        if len(ranks) == 1:
            return said
        along = "pp, the ends" if tuple(ranks) in self.ends() else ", ".join(axes_of(ranks, self.sizes))
        return f"{said} ({along if len(ranks) < WORLD else 'all'})"


def cases(function, first=()):
    """Those of one function, in order; first: (pp, dp, tp) of those that come first."""
    by_hand = dict.fromkeys([*first, (2, 4, 1), (1, 4, 2), (2, 2, 2), (4, 1, 2)])
    made = [MeshCase(function, _axes(*sizes)) for sizes in by_hand]
    made.append(MeshCase(function, _axes(2, 2, 2)[::-1], "tp slowest"))
    return [*made, MeshCase(function, _axes(2, 2, 2), REAL)]


def _axes(pp, dp, tp):
    return ("pp", pp), ("dp", dp), ("ep", 1), ("cp", 1), ("tp", tp)


class Place(NamedTuple):
    """What one rank has of a case."""

    mesh: Mesh
    ends: Any  # the group of the first and the last stage of its pipeline; None on others
    wire: Any  # a group of all ranks that no answer knows


class _Mesh(Mesh):
    """A Mesh that takes groups from those made before, {ranks: group}, and adds what it has to make."""

    def __init__(self, sizes, made):
        rank = dist.get_rank()
        self.sizes, self.here, self.groups = sizes, coordinates(rank, sizes), {}
        for axes in [*((axis,) for axis in sizes), *SETS]:
            for ranks in groups_along(axes, sizes):
                group = _made(tuple(ranks), made)
                if rank in ranks:
                    self.groups[frozenset(axes)] = group


def places_of(cases):
    """{case: Place}. All ranks call it."""
    made, wire, places = {}, dist.new_group(), {}
    for case in cases:
        mesh, ends = _Mesh(case.sizes, made), None
        for ranks in case.ends():
            group = _made(ranks, made)
            ends = group if dist.get_rank() in ranks else ends
        places[case] = Place(mesh, ends, wire)
    return places


def _made(ranks, made):
    if ranks not in made:
        made[ranks] = dist.new_group(ranks)
    return made[ranks]
