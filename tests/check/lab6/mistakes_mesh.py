"""Known mistakes of mesh.

Meshes made by mistake: a rank's digits if an axis counted for another number of ranks, and other
groups.

    rank = sum over the axes of  weight * coordinate         coordinate = rank // weight % size

                                pp = 3  dp = 2  tp = 4
    right                            8       4       1       the sizes of all later axes, multiplied
    the first axis fastest           1       3       6       those of all earlier ones
    the next axis alone              2       4       1
    its own size                     3       2       4
    its own and the later ones      24       8       4       multiplied after adding, not before

All functions take the mesh as {axis: size}.
"""

from itertools import product
from math import prod

from mistakes import Mistake


def _power(base):
    """An axis counts base**k, k the number of later axes: right where all sizes are `base`."""
    return lambda own, before, after: base([*before, own, *after]) ** len(after)


BASES = (lambda sizes: 2, lambda sizes: 10, lambda sizes: sizes[0], lambda sizes: sizes[-1], max)
ONE_SIZE = "one size for all axes"
FIRST_FASTEST = "the first axis fastest"
COUNTS_ONE, ANOTHERS = "every axis counts 1", "another axis' size"
# (hint, what an axis counts for: function of its own size, those before it, those after it)
WEIGHTS = [
    (COUNTS_ONE, lambda own, before, after: 1),
    *((ONE_SIZE, _power(base)) for base in BASES),
    (FIRST_FASTEST, lambda own, before, after: prod(before)),
    (ANOTHERS, lambda own, before, after: after[0] if after else 1),
    (ANOTHERS, lambda own, before, after: own),
    (ANOTHERS, lambda own, before, after: before[-1] if before else 1),
    (ANOTHERS, lambda own, before, after: own * prod(after)),
    (ANOTHERS, lambda own, before, after: prod([own, *after][:-1]) if after else 1),
    (
        "powers of two only",
        lambda own, before, after: 2 ** sum((size - 1).bit_length() for size in after),
    ),
    (
        "powers of two only",
        lambda own, before, after: 2 ** sum(size.bit_length() for size in after),
    ),
]


def weights(sizes, weight=lambda own, before, after: prod(after)):
    """{axis: ranks that a step along it counts for}, by one of WEIGHTS."""
    numbers = [*sizes.values()]
    return {axis: weight(numbers[i], numbers[:i], numbers[i + 1 :]) for i, axis in enumerate(sizes)}


def place(rank, sizes, weight=None):
    """{axis: coordinate} of the rank, if its axes weigh so; None: rightly."""
    each = weights(sizes, weight) if weight else weights(sizes)
    return {axis: rank // each[axis] % size for axis, size in sizes.items()}


def number(where, sizes, weight=None):
    """The rank at these coordinates, if the axes weigh so; None: rightly."""
    each = weights(sizes, weight) if weight else weights(sizes)
    return sum(each[axis] * where[axis] for axis in sizes)


def groups(axes, sizes):
    """The right groups along these axes: corner by corner, the ranks of each."""
    along = {axis: range(size) if axis in axes else (0,) for axis, size in sizes.items()}
    corners = {axis: (0,) if axis in axes else range(size) for axis, size in sizes.items()}
    at = lambda ways: [
        number(dict(zip(sizes, steps, strict=True)), sizes) for steps in product(*ways.values())
    ]
    return [[corner + step for step in at(along)] for corner in at(corners)]


def _swapped(rank, sizes, order):
    """divmod's quotient taken for the coordinate, and its remainder carried on."""
    found = {}
    for axis in order(sizes):
        found[axis], rank = divmod(rank, sizes[axis])
    return found


def _digits(rank, sizes, base):
    """The digits of the rank as of a number to one base."""
    return {axis: rank // base ** (len(sizes) - 1 - i) % base for i, axis in enumerate(sizes)}


def _without_remainder(rank, sizes, last):
    """rank // weight, and no % size; of the last axis perhaps."""
    each, axes = weights(sizes), [*sizes]
    return {
        axis: rank // each[axis] % (sizes[axis] if last and axis != axes[-1] else rank + 1)
        for axis in sizes
    }


PLACES = [  # (hint, mistake(rank, sizes))
    *((hint, lambda rank, sizes, w=w: place(rank, sizes, w)) for hint, w in WEIGHTS),
    *(
        (ONE_SIZE, lambda rank, sizes, base=base: _digits(rank, sizes, base([*sizes.values()])))
        for base in BASES
    ),
    ("quotient and remainder swapped", lambda rank, sizes: _swapped(rank, sizes, list)),
    ("quotient and remainder swapped", lambda rank, sizes: _swapped(rank, sizes, reversed)),
    ("no remainder", lambda rank, sizes: _without_remainder(rank, sizes, last=False)),
    ("no remainder", lambda rank, sizes: _without_remainder(rank, sizes, last=True)),
    (
        "counted from one",
        lambda rank, sizes: {axis: i + 1 for axis, i in place(rank, sizes).items()},
    ),
    ("counted from one", lambda rank, sizes: place(rank - 1, sizes)),
]
NUMBERS = [  # (hint, mistake(where, sizes))
    *((hint, lambda where, sizes, w=w: number(where, sizes, w)) for hint, w in WEIGHTS),
    ("counted from one", lambda where, sizes: number(where, sizes) + 1),
]


def _other(axes, sizes):
    return [axis for axis in sizes if axis not in axes]


def _neighbours(axes, sizes, apart):
    """As many ranks in a group as the axes have, numbered on end, or as far apart
    as there are groups."""
    size, n = prod(sizes[axis] for axis in axes), prod(sizes.values())
    return [
        [*range(i, n, n // size)] if apart else [*range(i * size, i * size + size)]
        for i in range(n // size)
    ]


GROUPS = [  # (hint, mistake(axes, sizes))
    ("the other axes", lambda axes, sizes: groups(_other(axes, sizes), sizes)),
    ("neighbours in number", lambda axes, sizes: _neighbours(axes, sizes, apart=False)),
    ("neighbours in number", lambda axes, sizes: _neighbours(axes, sizes, apart=True)),
    ("one of the axes only", lambda axes, sizes: groups(axes[:1], sizes)),
    ("one of the axes only", lambda axes, sizes: groups(axes[-1:], sizes)),
    (FIRST_FASTEST, lambda axes, sizes: groups(axes, dict(reversed(sizes.items())))),
    (
        "parts of names",
        lambda axes, sizes: groups([axis for axis in sizes if axis in " ".join(axes)], sizes),
    ),
]

# For these two weights, each function has a hint of its own.
OF_PLACES = {COUNTS_ONE: "the rank is not divided", ANOTHERS: "divided by another size"}
OF_NUMBERS = {COUNTS_ONE: "added, not multiplied", ANOTHERS: "multiplied by another size"}


def _named(mistakes, own):
    return tuple(Mistake(own.get(hint, hint), answer) for hint, answer in mistakes)


MISTAKES = {
    "coordinates": _named(PLACES, OF_PLACES),
    "rank_at": _named(NUMBERS, OF_NUMBERS),
    "groups_along": _named(GROUPS, {}),
}
