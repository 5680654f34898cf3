"""A mesh: the ranks in a grid of named axes, and the groups along its axes.

    sizes = {"pp": 2, "dp": 2, "tp": 2}  8 ranks; the last axis varies fastest, like the last digit

                 dp = 0     dp = 1            rank 5 = 1 0 1: pp = 1, dp = 0, tp = 1
               tp 0   1   tp 0   1
              +---------+---------+           along tp          0 1 | 2 3 | 4 5 | 6 7
    pp = 0    |  0   1  |  2   3  |           along dp          0 2 | 1 3 | 4 6 | 5 7
    pp = 1    |  4   5  |  6   7  |           along pp          0 4 | 1 5 | 2 6 | 3 7
              +---------+---------+           along dp and tp   0 1 2 3 | 4 5 6 7

    rank = (pp * DP + dp) * TP + tp           DP, TP: the axes' sizes

A group along some axes consists of ranks that differ in these coordinates and in no others.

Any order of axes gives a mesh, and the network decides which one is best: ranks with neighbouring
numbers share a node, so the axis that sends most should vary fastest. Megatron-LM's order, fastest
first, is tp, cp, dp, pp. Its experts have a mesh of their own over the same ranks, with the same
pp: etp, ep, edp, pp (ep in the position of cp).

Source: Narayanan et al. 2021, "Efficient large-scale language model training on GPU clusters using
Megatron-LM". Their model of 10^12 parameters ran on 3,072 GPUs as {"pp": 64, "dp": 6, "tp": 8}, a
tensor group in each DGX of 8 GPUs.

Everything here except `Mesh` is plain Python, so you can lay out 3,072 ranks without starting any.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch.distributed as dist


def check_sizes(sizes: Mapping[str, int], world_size: int) -> None:
    """Raise ValueError unless the axes' sizes multiply to `world_size` and none is below 1. If
    changing one axis is enough, the message names it and its new size."""
    n, said = (
        math.prod(sizes.values()),
        " * ".join(f"{axis}={size}" for axis, size in sizes.items()),
    )
    for axis, size in sizes.items():
        if size < 1:
            raise ValueError(
                f"mesh {said}: axis {axis} has {size} ranks; leave it at 1 where you do not use it"
            )
    if n != world_size:
        fits = [
            f"{axis}={world_size * size // n}"
            for axis, size in sizes.items()
            if world_size * size % n == 0
        ]
        use = " or ".join(fits) if fits else f"sizes whose product is {world_size}"
        raise ValueError(f"mesh {said} = {n}, but world_size is {world_size}: use {use}")


# exercise: lab6.coordinates
def coordinates(rank: int, sizes: Mapping[str, int]) -> dict[str, int]:
    """The coordinates of `rank` in the mesh: {axis: coordinate}, in the order of `sizes`. Raises
    ValueError for a rank outside the mesh."""
    if not 0 <= rank < (n := math.prod(sizes.values())):
        raise ValueError(f"rank {rank} in a mesh of {n} ranks, 0 to {n - 1}: {sizes}")
    found = {}
    for axis, size in reversed([*sizes.items()]):  # the last digit first
        rank, found[axis] = divmod(rank, size)
    return {axis: found[axis] for axis in sizes}


# exercise: lab6.rank_at
def rank_at(where: Mapping[str, int], sizes: Mapping[str, int]) -> int:
    """The rank at {axis: coordinate}, the inverse of `coordinates`. Raises ValueError if an axis is
    missing or unknown, or if a coordinate is outside its axis."""
    if where.keys() != sizes.keys():
        raise ValueError(f"coordinates {where} for the axes {', '.join(sizes)}: give one of each")
    rank = 0
    for axis, size in sizes.items():
        if not 0 <= where[axis] < size:
            raise ValueError(f"{axis}={where[axis]}: the axis has coordinates 0 to {size - 1}")
        rank = rank * size + where[axis]
    return rank


# exercise: lab6.groups_along
def groups_along(axes: str | Sequence[str], sizes: Mapping[str, int]) -> list[list[int]]:
    """[[rank, ...], ...]: all groups along these axes. Each rank is in one of them. Ranks are
    ascending in each group, and groups are in the order of their first ranks.

    Raises ValueError for an axis that the mesh does not have.
    """
    _check_axes(axes, sizes)
    groups = {}
    for rank in range(math.prod(sizes.values())):
        elsewhere = tuple(i for axis, i in coordinates(rank, sizes).items() if axis not in axes)
        groups.setdefault(elsewhere, []).append(rank)
    return list(groups.values())


def _check_axes(axes, sizes):
    if unknown := [axis for axis in axes if axis not in sizes]:
        here = ", ".join(f"{axis}={size}" for axis, size in sizes.items())
        raise ValueError(
            f"no axis {', '.join(unknown)} in the mesh {here}: add {unknown[0]}=1 where you do not "
            f"use it"
        )


def axes_of(ranks: Iterable[int], sizes: Mapping[str, int]) -> tuple[str, ...]:
    """The axes along which these ranks differ, in the order of `sizes`. For the members of a group
    these are the axes along which it communicates."""
    places = [coordinates(rank, sizes) for rank in ranks]
    return tuple(axis for axis in sizes if len({place[axis] for place in places}) > 1)


def sent_along(entries: Iterable[Any], sizes: Mapping[str, int]) -> dict:
    """{axes: elements}: how many elements all ranks sent, by the axes of the group in which they
    were sent.

    entries: of a ledger. A message counts for its group, whichever member received it.
    """
    sent = {}
    for entry in entries:
        if entry.op == "send":
            axes = axes_of(entry.members, sizes)
            sent[axes] = sent.get(axes, 0) + entry.numel
    return sent


class Mesh:
    """A mesh over all ranks of the world, with this rank's groups. Every rank has to create it,
    with the same arguments.

        mesh = Mesh({"pp": 2, "dp": 2, "tp": 2}, sets=[("dp", "tp")])
        mesh.here  # {"pp": 1, "dp": 0, "tp": 1} on rank 5
        mesh.group("tp")  # of ranks 4 and 5, for any function of this course that takes a group
        mesh.group("dp", "tp")  # of ranks 4 to 7

    sizes: {axis: size}, the slowest axis first. sets: the sets of several axes that need groups;
    groups along each single axis are always created. Sends nothing itself. Raises ValueError if the
    sizes do not multiply to the world size.
    """

    def __init__(self, sizes: Mapping[str, int], sets: Iterable[Sequence[str]] = ()) -> None:
        rank = dist.get_rank()
        check_sizes(sizes, dist.get_world_size())
        self.sizes, self.here, self.groups, made = dict(sizes), coordinates(rank, sizes), {}, {}
        # torch requires every rank to create all groups in the same order, even those that it is
        # not in.
        for axes in [*((axis,) for axis in sizes), *sets]:
            for ranks in map(tuple, groups_along(axes, sizes)):
                if ranks not in made:  # axes of size 1 give the same groups again
                    made[ranks] = dist.new_group(ranks)
                if rank in ranks:
                    self.groups[frozenset(axes)] = made[ranks]

    def group(self, *axes: str) -> dist.ProcessGroup:
        """This rank's group along these axes. Raises ValueError for an unknown axis, or a set that
        has no groups."""
        _check_axes(axes, self.sizes)
        if frozenset(axes) not in self.groups:
            there = "; ".join(
                ", ".join(axis for axis in self.sizes if axis in axes) for axes in self.groups
            )
            raise ValueError(
                f"no group along {', '.join(axes)}, only along {there}: Mesh(sizes, sets=[{axes}])"
            )
        return self.groups[frozenset(axes)]

    def size(self, *axes: str) -> int:
        """How many ranks are in the group along these axes."""
        return math.prod(self.sizes[axis] for axis in axes)

    def local_rank(self, *axes: str) -> int:
        """This rank's index in the group along these axes, 0 to size - 1. Along the axes that split
        the batch, for example, it is the index of the rank's local batch. It is like
        DeviceMesh.get_local_rank, but also takes several axes."""
        along = {axis: size for axis, size in self.sizes.items() if axis in axes}
        return rank_at({axis: self.here[axis] for axis in along}, along)
