"""On which meshes coordinates, rank_at and groups_along are asked.

    small  3 axes of 2, unequal sizes, a size of 1, one rank,    every rank, all sets of axes
           names in names, 1 to 5 axes
    large  64 x 6 x 8 = 3,072 ranks, Megatron's                  some ranks, one axis

A case is (rank, mesh), (coordinates, mesh) or (axes, mesh), all as tuples; every call gets dicts
and lists of its own.
"""

from itertools import chain, combinations, product
from math import prod

SMALL = [
    (("pp", 2), ("dp", 2), ("tp", 2)),
    (("pp", 2), ("tp", 4)),
    (("pp", 3), ("dp", 2), ("tp", 4)),
    (("tp", 2), ("pp", 4), ("dp", 3)),
    (("pp", 2), ("cp", 1), ("tp", 5)),
    (("dp", 7),),
    (("pp", 2), ("dp", 3), ("cp", 2), ("tp", 2)),
    (("pp", 2), ("edp", 2), ("ep", 3), ("etp", 1), ("cp", 2)),
    (("edp", 2), ("dp", 3), ("d", 2)),
    (("pp", 1), ("tp", 1)),
]
LARGE = (("pp", 64), ("dp", 6), ("tp", 8))
SAYS = "1 to 5 axes, any sizes; 64 x 6 x 8"


def ranks(sizes):
    """range(number of ranks)"""
    return range(prod(size for _, size in sizes))


def _sets(sizes):
    """All sets of 1, 2, ... axes; every other one of them backwards."""
    axes = [axis for axis, _ in sizes]
    found = chain.from_iterable(combinations(axes, count + 1) for count in range(len(axes)))
    return [axes if i % 2 else axes[::-1] for i, axes in enumerate(found)]


def _where(sizes):
    """Coordinates, as pairs: of all ranks, or of some of the large mesh's."""
    axes, numbers = zip(*sizes, strict=True)
    every = product(*map(range, numbers))
    places = [[i % size for size in numbers] for i in range(0, 192, 5)] if sizes == LARGE else every
    return [tuple(zip(axes, place, strict=True)) for place in places]


RANKS = [(rank, sizes) for sizes in SMALL for rank in ranks(sizes)]
RANKS += [(rank, LARGE) for rank in range(0, 3072, 37)]  # 3071, the last, is one of them
WHERE = [(where, sizes) for sizes in [*SMALL, LARGE] for where in _where(sizes)]
TURNED = [(where[::-1], sizes) for where, sizes in WHERE if len(sizes) > 1]
AXES = [(axes, sizes) for sizes in SMALL for axes in _sets(sizes)] + [(("dp",), LARGE)]


def line(sizes):
    """pp=2 dp=2 tp=2"""
    return " ".join(f"{axis}={size}" for axis, size in dict(sizes).items())


def of_rank(rank, sizes):
    """A case of coordinates, in words."""
    return f"rank {rank} of {line(sizes)}"


def at(where, sizes):
    """A case of rank_at, in words."""
    return f"where = {dict(where)}, sizes = {dict(sizes)}"


def along(axes, sizes):
    """A case of groups_along, in words."""
    return f"along {' and '.join(axes)} in {line(sizes)}"
