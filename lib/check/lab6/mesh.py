"""Lab 6, section 1: coordinates(rank, sizes), rank_at(where, sizes) and groups_along(axes, sizes),
a mesh by hand."""

from numbers import Integral

from lib.check import symptoms as s
from lib.check.claims import claim
from lib.check.exercise import Bundle, Exercise, Hint, Problem
from lib.check.lab6 import mesh_cases as cases
from lib.check.pure import (
    CHANGED,
    GENERAL,
    LEAVES_OUT,
    NOTHING,
    asked,
    each,
    left_alone,
    new_each_time,
)
from lib.hybrid import mesh


def _is_whole(number):
    """An int, of Python or of numpy?"""
    return isinstance(number, Integral) and not isinstance(number, bool)


def _takes_apart(p):
    """Did it take a fixed number of axes or of ranks, or an axis by a name that this mesh
    does not have?"""
    unpacks = s.raised("ValueError")(p) and "unpack" in str(p.facts["error"])
    return unpacks or s.raised("KeyError", "StopIteration", "IndexError")(p)


FIXED = Hint(
    "a fixed number of axes",
    _takes_apart,
    "a mesh has any number of axes under any names, and of ranks: loop over `sizes`, and write no "
    "name and no number into the function.",
)


# coordinates


def _read_place(out, rank, sizes):
    want = f"expected {mesh.coordinates(rank, dict(sizes))}"
    if not isinstance(out, dict):
        return Problem("nothing" if out is None else "no dict", f"got {out!r:.60}, {want}")
    if {*out} != {*dict(sizes)}:
        return Problem("axes", f"got {out!r:.80}, {want}")
    if axis := next((axis for axis, i in out.items() if not _is_whole(i)), None):
        return Problem("form", f"{axis} is {out[axis]!r:.40}, a {type(out[axis]).__name__}, {want}")
    return dict(out)


def _right_place(got, rank, sizes):
    want = mesh.coordinates(rank, dict(sizes))
    if got == want:
        return None
    return Problem(
        "place",
        f"expected {cases.line(want)}, got {cases.line({axis: got[axis] for axis in want})}",
    )


def _in_order(got, rank, sizes):
    want = [axis for axis, _ in sizes]
    return (
        None
        if [*got] == want
        else Problem("order", f"expected the axes as {', '.join(want)}, got {', '.join(got)}")
    )


COORDINATES = Exercise(
    name="coordinates", reference=mesh.coordinates,
    measure=lambda fn: asked(fn, mesh.coordinates, cases.RANKS, lambda rank,
    sizes: (rank, dict(sizes)), _read_place),
    worlds=(), leaves_out=LEAVES_OUT,
    claims=(
        claim("every rank's coordinates", 2, cases.SAYS,
              each(cases.RANKS, _right_place, cases.of_rank)),
        claim("in the order of `sizes`", 1, "which stays as it is, and a new dict for each call",
              each(cases.RANKS, _in_order, cases.of_rank), left_alone(cases.of_rank),
              new_each_time(cases.of_rank)),
    ),
    hints=(
        s.CALLED_LIB.saying("a loop over the axes with divmod(rank, size) is enough."),
        NOTHING,
        FIXED,
        Hint("not a dict", s.kind("no dict"),
             "return {axis: coordinate}: later cells ask for here['tp'], by name."),
        Hint("other axes", s.kind("axes"),
             "one coordinate for each axis of `sizes`, under its name."),
        Hint("not whole numbers", s.kind("form"),
             "a coordinate is a whole number: // and %, not /."),
        Hint("other coordinates", s.kind("place"),
             "write rank 5 of 2 x 2 x 2 as a number of three digits, 1 0 1, each in the base of "
             "its axis' size."),
        Hint("another order", s.kind("order"),
             "found backwards, returned forwards: {axis: found[axis] for axis in sizes}."),
        CHANGED,
        *GENERAL,
    ),
)  # fmt: skip


# rank_at


def _read_rank(out, where, sizes):
    if _is_whole(out):
        return int(out)
    want = f"expected {mesh.rank_at(dict(where), dict(sizes))}"
    return Problem(
        "nothing" if out is None else "form", f"got {out!r:.60}, a {type(out).__name__}, {want}"
    )


def _right_rank(kind):
    def judge(got, where, sizes):
        want = mesh.rank_at(dict(where), dict(sizes))
        return None if got == want else Problem(kind, f"expected rank {want}, got {got}")

    return judge


RANK_AT = Exercise(
    name="rank_at", reference=mesh.rank_at,
    measure=lambda fn: asked(
        fn,
        mesh.rank_at,
        cases.WHERE + cases.TURNED,
        lambda where, sizes: (dict(where), dict(sizes)),
        _read_rank,
    ),
    worlds=(), leaves_out=LEAVES_OUT,
    claims=(
        claim("the rank at all coordinates", 2, cases.SAYS,
              each(cases.WHERE, _right_rank("number"), cases.at)),
        claim("axes of `where` in any order", 1, "and both arguments stay as they are",
              each(cases.TURNED, _right_rank("by place"), cases.at), left_alone(cases.at)),
    ),
    hints=(
        s.CALLED_LIB.saying("one line in a loop over the axes is enough."),
        NOTHING,
        FIXED,
        Hint("not a whole number", s.kind("form"), "a rank is an int: a sum of products of ints."),
        Hint("another rank", s.kind("number"),
             "as digits are read: 1 0 1 is ((1) * 2 + 0) * 2 + 1. It must undo what `coordinates` "
             "does."),
        Hint("by place, not by name", s.kind("by place"),
             "`where` may list the axes in any order. The mesh's is that of `sizes`: loop over "
             "these, look up where[axis]."),
        CHANGED,
        *s.ANYWHERE,
    ),
)  # fmt: skip


# groups_along


def _read_groups(out, axes, sizes):
    lists = isinstance(out, (list, tuple)) and all(
        isinstance(group, (list, tuple, range)) for group in out
    )
    if lists and all(_is_whole(rank) for group in out for rank in group):
        return [[*map(int, group)] for group in out]
    got = f"got {out!r:.60}" if len(repr(out)) <= 60 else f"got {repr(out)[:57]}..."
    return Problem(
        "nothing" if out is None else "form", f"{got}, expected a list of lists of ranks"
    )


def _as_sets(groups):
    """Groups, whatever the order of them and of their ranks."""
    return sorted(map(sorted, groups))


def _who(got, axes, sizes):
    """Are the right ranks together, in whatever order?"""
    want = mesh.groups_along(axes, dict(sizes))
    if _as_sets(got) == _as_sets(want):
        return None
    inside = [rank for group in got for rank in group]
    of = lambda rank, groups: sorted(next((group for group in groups if rank in group), []))
    facts = {"missing": {*cases.ranks(sizes)} - {*inside}, "twice": len(inside) > len({*inside})}
    for rank in cases.ranks(sizes):
        if of(rank, got) != of(rank, want):
            mine = f"is with ranks {_few(of(rank, got))}" if rank in inside else "is in no group"
            return Problem("groups", f"rank {rank} {mine}; expected {_few(of(rank, want))}", facts)
    twice = [rank for rank in cases.ranks(sizes) if inside.count(rank) > 1]
    if twice:
        return Problem(
            "groups", f"rank {twice[0]} is in {inside.count(twice[0])} groups; expected one", facts
        )
    return Problem(
        "groups", f"got {len(got)} groups, expected {len(want)}: {_few(got[-1])} is not one", facts
    )


def _few(ranks):
    shown = " ".join(map(str, ranks[:8]))
    return f"{shown} ..." if len(ranks) > 8 else shown


def _ascending(got, axes, sizes):
    want = sorted(mesh.groups_along(axes, dict(sizes)))
    for i, (mine, right) in enumerate(zip(got, want, strict=True)):
        if mine != right:
            return Problem("order", f"group {i} is {_few(mine)}, expected {_few(right)}")
    return None


GROUPS_ALONG = Exercise(
    name="groups_along", reference=mesh.groups_along,
    measure=lambda fn: asked(
        fn,
        mesh.groups_along,
        cases.AXES,
        lambda axes, sizes: (list(axes) if len(axes) % 2 else axes, dict(sizes)),
        _read_groups,
    ),
    worlds=(), leaves_out=LEAVES_OUT,
    claims=(
        claim("the ranks of each group", 3, cases.SAYS, each(cases.AXES, _who, cases.along,
            trace=_as_sets)),
        claim("in ascending order", 1, "arguments stay as they are; new lists for each call",
              each(cases.AXES, _ascending, cases.along), left_alone(cases.along),
              new_each_time(cases.along)),
    ),
    hints=(
        s.CALLED_LIB.saying("collect the ranks in a dict by their other coordinates."),
        NOTHING,
        Hint("not lists of ranks", s.kind("form"),
             "return [[0, 1], [2, 3], ...]. Of a dict that is list(groups.values()); a set has no "
             "order."),
        FIXED,
        Hint("ranks without a group", lambda p: p.kind == "groups" and p.fact("missing"),
             "all groups are asked for, not only that of rank 0: every rank is in one."),
        Hint("ranks in two groups", lambda p: p.kind == "groups" and p.fact("twice"),
             "along several axes together a rank is in one group, not in one for each axis; and a "
             "group is listed once, not once for each of its ranks."),
        Hint("other groups", s.kind("groups"),
             "two ranks are together if all coordinates that are not in `axes` are equal. Print "
             "coordinates(r, sizes) of both."),
        Hint("another order", s.kind("order"),
             "ranks ascend in a group, groups ascend by their first ranks: go through the ranks "
             "from 0 on, and a dict keeps that order."),
        CHANGED,
        *GENERAL,
    ),
)  # fmt: skip
EXERCISE = Bundle("mesh", (COORDINATES, RANK_AT, GROUPS_ALONG))
