"""Lab 6, section 1: coordinates(rank, sizes), rank_at(where, sizes) and groups_along(axes, sizes), a mesh by hand."""

from lib import mesh
from lib.check.framework import Bundle, Claim, Exercise, Problem
from lib.check.lab2.asking import each
from lib.check.lab6 import mesh_asked as cases
from lib.check.lab6 import mesh_hints as hints
from lib.check.lab6 import mesh_known as known

# coordinates


def _read_place(out, rank, sizes):
    want = f"expected {known.place(rank, dict(sizes))}"
    if not isinstance(out, dict):
        return Problem("nothing" if out is None else "no dict", f"got {out!r:.60}, {want}")
    if {*out} != {*dict(sizes)}:
        return Problem("axes", f"got {out!r:.80}, {want}")
    if axis := next((axis for axis, i in out.items() if not cases.is_whole(i)), None):
        return Problem("form", f"{axis} is {out[axis]!r:.40}, a {type(out[axis]).__name__}, {want}")
    return out


def _right_place(got, rank, sizes):
    want = known.place(rank, dict(sizes))
    if got == want:
        return None
    return Problem("place", f"expected {cases.line(want)}, got {cases.line({axis: got[axis] for axis in want})}")


def _in_order(got, rank, sizes):
    want = [axis for axis, _ in sizes]
    return None if [*got] == want else Problem("order", f"expected the axes as {', '.join(want)}, got {', '.join(got)}")


COORDINATES = Exercise(
    name="coordinates",
    reference=mesh.coordinates,
    measure=lambda fn: cases.answers(
        fn, mesh.coordinates, cases.RANKS, lambda rank, sizes: (rank, dict(sizes)), _read_place, cases.of_rank
    ),
    worlds=(),
    claims=(
        Claim("every rank's coordinates", 3, cases.SAYS, each(cases.RANKS, _right_place, cases.of_rank)),
        Claim("in the order of `sizes`", 1, "", each(cases.RANKS, _in_order, cases.of_rank)),
        Claim("`sizes` left alone", 1, "", cases.left_alone),
    ),
    hints=hints.COORDINATES,
)


# rank_at


def _read_rank(out, where, sizes):
    if cases.is_whole(out):
        return int(out)
    want = f"expected {known.number(dict(where), dict(sizes))}"
    return Problem("nothing" if out is None else "form", f"got {out!r:.60}, a {type(out).__name__}, {want}")


def _right_rank(kind):
    def judge(got, where, sizes):
        want = known.number(dict(where), dict(sizes))
        return None if got == want else Problem(kind, f"expected rank {want}, got {got}")

    return judge


RANK_AT = Exercise(
    name="rank_at",
    reference=mesh.rank_at,
    measure=lambda fn: cases.answers(
        fn,
        mesh.rank_at,
        cases.WHERE + cases.TURNED,
        lambda where, sizes: (dict(where), dict(sizes)),
        _read_rank,
        cases.at,
    ),
    worlds=(),
    claims=(
        Claim("the rank at all coordinates", 3, cases.SAYS, each(cases.WHERE, _right_rank("number"), cases.at)),
        Claim("by name, in any order", 1, "", each(cases.TURNED, _right_rank("by place"), cases.at)),
        Claim("arguments left alone", 1, "", cases.left_alone),
    ),
    hints=hints.RANK_AT,
)


# groups_along


def _read_groups(out, axes, sizes):
    lists = isinstance(out, (list, tuple)) and all(isinstance(group, (list, tuple, range)) for group in out)
    if lists and all(cases.is_whole(rank) for group in out for rank in group):
        return [[*map(int, group)] for group in out]
    got = f"got {out!r:.60}" if len(repr(out)) <= 60 else f"got {repr(out)[:57]}..."
    return Problem("nothing" if out is None else "form", f"{got}, expected a list of lists of ranks")


def _who(got, axes, sizes):
    """Are the right ranks together, in whatever order?"""
    want = known.groups(axes, dict(sizes))
    if hints.as_sets(got) == hints.as_sets(want):
        return None
    inside = [rank for group in got for rank in group]
    of = lambda rank, groups: sorted(next((group for group in groups if rank in group), []))
    facts = {"missing": {*known.ranks(dict(sizes))} - {*inside}, "twice": len(inside) > len({*inside})}
    for rank in known.ranks(dict(sizes)):
        if of(rank, got) != of(rank, want):
            mine = f"is with ranks {_few(of(rank, got))}" if rank in inside else "is in no group"
            return Problem("groups", f"rank {rank} {mine}; expected {_few(of(rank, want))}", facts)
    twice = [rank for rank in known.ranks(dict(sizes)) if inside.count(rank) > 1]
    if twice:
        return Problem("groups", f"rank {twice[0]} is in {inside.count(twice[0])} groups; expected one", facts)
    return Problem("groups", f"got {len(got)} groups, expected {len(want)}: {_few(got[-1])} is not one", facts)


def _few(ranks):
    shown = " ".join(map(str, ranks[:8]))
    return f"{shown} ..." if len(ranks) > 8 else shown


def _ascending(got, axes, sizes):
    want = sorted(known.groups(axes, dict(sizes)))
    for i, (mine, right) in enumerate(zip(got, want, strict=True)):
        if mine != right:
            return Problem("order", f"group {i} is {_few(mine)}, expected {_few(right)}")
    return None


GROUPS_ALONG = Exercise(
    name="groups_along",
    reference=mesh.groups_along,
    measure=lambda fn: cases.answers(
        fn,
        mesh.groups_along,
        cases.AXES,
        lambda axes, sizes: (list(axes) if len(axes) % 2 else axes, dict(sizes)),
        _read_groups,
        cases.along,
    ),
    worlds=(),
    claims=(
        Claim("who is with whom", 4, cases.SAYS, each(cases.AXES, _who, cases.along)),
        Claim("in ascending order", 1, "", each(cases.AXES, _ascending, cases.along)),
        Claim("arguments left alone", 1, "", cases.left_alone),
    ),
    hints=hints.GROUPS_ALONG,
)
EXERCISE = Bundle("mesh", (COORDINATES, RANK_AT, GROUPS_ALONG))
