"""On which meshes coordinates, rank_at and groups_along are asked, and what is seen of an answer.

    3 axes of 2, unequal sizes, a size of 1, other orders, 1 to 5 axes      every rank, all sets of axes
    64 x 6 x 8 = 3,072 ranks                                                Megatron's: some ranks, one axis

A case is (rank, mesh), (coordinates, mesh) or (axes, mesh), all as tuples; every call gets dicts and lists of its own.
"""

from itertools import chain, combinations
from numbers import Integral

from lib.check.framework import Problem
from lib.check.lab2.asking import asked
from lib.check.lab6 import mesh_known as known

SMALL = [
    (("pp", 2), ("dp", 2), ("tp", 2)),
    (("pp", 2), ("tp", 4)),
    (("pp", 3), ("dp", 2), ("tp", 4)),
    (("tp", 2), ("pp", 4), ("dp", 3)),
    (("pp", 2), ("cp", 1), ("tp", 5)),
    (("dp", 7),),
    (("pp", 2), ("dp", 3), ("cp", 2), ("tp", 2)),
    (("pp", 2), ("edp", 2), ("ep", 3), ("etp", 1), ("cp", 2)),
]
LARGE = (("pp", 64), ("dp", 6), ("tp", 8))
SAYS = "1 to 5 axes, any sizes; 64 x 6 x 8"


def _sets(sizes):
    """All sets of 1, 2, ... axes; every other one of them backwards."""
    axes = [axis for axis, _ in sizes]
    found = chain.from_iterable(combinations(axes, count + 1) for count in range(len(axes)))
    return [axes if i % 2 else axes[::-1] for i, axes in enumerate(found)]


RANKS = [(rank, sizes) for sizes in SMALL for rank in known.ranks(dict(sizes))]
RANKS += [(rank, LARGE) for rank in range(0, 3072, 37)]  # 3071, the last, is one of them
WHERE = [(tuple(known.place(rank, dict(sizes)).items()), sizes) for rank, sizes in RANKS]
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


def answers(fn, function, cases, given, read, words):
    """{case: what fn gave, or the Problem}, and under "changed" a Problem with the first argument that it changed.

    function: lib's own; given(*case): the arguments, made anew; read(out, *case): `out` in plain form, or a Problem.
    """
    arguments = {case: given(*case) for case in cases}
    seen = asked(fn, function, arguments, lambda out, *_: out)
    seen = {case: out if isinstance(out, Problem) else read(out, *case) for case, out in seen.items()}
    changed = [case for case in cases if repr(arguments[case]) != repr(given(*case))]
    seen["changed"] = None
    for case in changed[:1]:
        now, before = next((a, b) for a, b in zip(arguments[case], given(*case), strict=True) if repr(a) != repr(b))
        seen["changed"] = Problem("changed", f"{words(*case)}: {before} that was given is {now} afterwards")
    return seen


def left_alone(runs):
    """A claim's judge: the function has changed none of its arguments."""
    ((seen,),) = (run.results for run in runs)
    return seen["changed"]


def is_whole(number):
    """An int, of Python or of numpy?"""
    return isinstance(number, Integral) and not isinstance(number, bool)
