"""Lab 6, section 1: coordinates(rank, sizes), rank_at(where, sizes) and groups_along(axes, sizes),
a mesh by hand.

    small  3 axes of 2, unequal sizes, a size of 1, one rank,    every rank, all sets of axes
           axis names that contain other names, 1 to 5 axes
    large  64 x 6 x 8 = 3,072 ranks, a mesh of Megatron's        some ranks, one axis
"""

from itertools import chain, combinations, islice, product
from math import prod
from numbers import Integral

from lib.check.causes import hints
from lib.check.exercise import Bundle
from lib.check.explain import cut
from lib.check.left_out import LEAVES_OUT
from lib.check.side_by_side import SideBySide, here
from lib.hybrid import mesh

LARGE = {"pp": 64, "dp": 6, "tp": 8}
MESHES = [
    {"pp": 2, "dp": 2, "tp": 2},
    {"pp": 3, "dp": 2, "tp": 4},  # the same axes again: a result cached by rank alone is wrong
    {"pp": 2, "tp": 4},
    {"tp": 2, "pp": 4, "dp": 3},
    {"pp": 2, "cp": 1, "tp": 5},
    {"dp": 7},
    {"pp": 2, "dp": 3, "cp": 2, "tp": 2},
    {"pp": 2, "edp": 2, "ep": 3, "etp": 1, "cp": 2},
    {"edp": 2, "dp": 3, "d": 2},
    {"pp": 1, "tp": 1},
    LARGE,
]
CASES = here(*(" ".join(f"{axis}={n}" for axis, n in one.items()) for one in MESHES))
MESH_OF = dict(zip(CASES, MESHES, strict=True))
SAYS = "1 to 5 axes, any sizes; 64 x 6 x 8"


def _some(ranks, sizes):
    """All ranks of a small mesh; every 37th rank of the large one, including the last."""
    return islice(ranks, 0, None, 37 if sizes == LARGE else 1)


def _sets(sizes):
    """All sets of axes of a small mesh, every other one in reverse order; one of the large mesh."""
    if sizes == LARGE:
        return [["dp"]]
    found = chain.from_iterable(combinations(sizes, count + 1) for count in range(len(sizes)))
    return [list(axes) if i % 2 else axes[::-1] for i, axes in enumerate(found)]


def _is_whole(number):
    """Is it an integer of Python or NumPy, and not a bool?"""
    return isinstance(number, Integral) and not isinstance(number, bool)


def _is(show, name, ok, out):
    """Show whether what was returned has the form that `name` describes. Returns `ok`."""
    show(name, "" if ok else f"got {cut(out, 60)}, expected {name}")
    return ok


def coordinates(make, case, show):
    sizes = MESH_OF[case]
    for rank in _some(range(prod(sizes.values())), sizes):
        with show.during(f"rank {rank}") as run:
            out = run(make, rank, dict(sizes))
            if (
                _is(show, "a dict", isinstance(out, dict), out)
                and _is(show, "one coordinate for each axis", {*out} == {*sizes}, out)
                and _is(show, "whole numbers", all(map(_is_whole, out.values())), out)
            ):
                show("coordinate", {axis: int(out[axis]) for axis in sizes})
                show("the order of the axes", ", ".join(out))


def rank_at(make, case, show):
    sizes = MESH_OF[case]
    for steps in _some(product(*map(range, sizes.values())), sizes):
        where = dict(zip(sizes, steps, strict=True))
        turned = dict(reversed(where.items()))
        for name, one in (("rank", where), ("rank, by names", turned)):
            with show.during(f"where = {one}") as run:
                out = run(make, dict(one), dict(sizes))
                if _is(show, "a whole number", _is_whole(out), out):
                    show(name, int(out))


def groups_along(make, case, show):
    sizes = MESH_OF[case]
    of_ranks = lambda one: isinstance(one, list | tuple | range) and all(map(_is_whole, one))
    lists = lambda out: isinstance(out, list | tuple) and all(map(of_ranks, out))
    for axes in _sets(sizes):
        with show.during(f"along {' and '.join(axes)}") as run:
            out = run(make, axes, dict(sizes))
            if not _is(show, "a list of lists of ranks", lists(out), out):
                continue
            of = {rank: [] for rank in range(prod(sizes.values()))}
            for group in out:
                for rank in group:
                    of.setdefault(int(rank), []).append(" ".join(map(str, sorted(group))))
            show(
                "the group of",
                {f"rank {rank}": "; ".join(of[rank]) or "none" for rank in sorted(of)},
            )
            show("groups", len(out))
            show("in order", {f"group {i}": " ".join(map(str, g)) for i, g in enumerate(out)})


def _exercise(script, reference, *rows):
    """rows: the claims, as `shown.claims` takes them."""
    measure = SideBySide(
        script, reference, CASES, groups=None,
        excused=dict.fromkeys(("strided", "float32", "bfloat16"), "numbers are given")
        | {"two at once": "a call ends before the next begins"},
    )  # fmt: skip
    name = reference.__name__
    return measure.exercise(
        *rows,
        hints=hints("lab6", "mesh", name), leaves_out=LEAVES_OUT,
    )  # fmt: skip


COORDINATES = _exercise(
    coordinates, mesh.coordinates,
    ("every rank's coordinates", 2, SAYS,
     "a dict", "one coordinate for each axis", "whole numbers", "coordinate"),
    ("in the order of `sizes`", 1, "which stays as it is, and a new dict for each call",
     "the order of the axes"),
)  # fmt: skip
RANK_AT = _exercise(
    rank_at, mesh.rank_at,
    ("the rank at all coordinates", 2, SAYS, "a whole number", "rank"),
    ("axes of `where` in any order", 1, "and both arguments stay as they are", "rank, by names"),
)  # fmt: skip
GROUPS_ALONG = _exercise(
    groups_along, mesh.groups_along,
    ("the ranks of each group", 3, SAYS, "a list of lists of ranks", "the group of", "groups"),
    ("in ascending order", 1, "arguments stay as they are; new lists for each call", "in order"),
)  # fmt: skip
EXERCISE = Bundle("mesh", (COORDINATES, RANK_AT, GROUPS_ALONG))
