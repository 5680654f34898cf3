"""Answers to Lab 6's mesh: wrong ones, each with the hint that it must get, and right ones."""

import itertools
import math

import numpy
from as_an_answer import as_an_answer

from lib.hybrid import mesh


def not_written(*_):
    raise NotImplementedError


# coordinates, right


def coordinates(rank, sizes):
    """As in the notebook."""
    found = {}
    for axis, size in reversed(sizes.items()):
        rank, found[axis] = divmod(rank, size)
    return {axis: found[axis] for axis in sizes}


def from_the_front(rank, sizes):
    found, apart = {}, math.prod(sizes.values())
    for axis, size in sizes.items():
        apart //= size
        found[axis], rank = divmod(rank, apart)
    return found


def listed(rank, sizes):
    places = itertools.product(*map(range, sizes.values()))
    return dict(zip(sizes, next(itertools.islice(places, rank, None)), strict=True))


# coordinates, wrong


def calls_libs_coordinates(rank, sizes):
    return mesh.coordinates(rank, sizes)


def no_coordinates(rank, sizes):
    coordinates(rank, sizes)


def coordinates_as_a_tuple(rank, sizes):
    return tuple(coordinates(rank, sizes).values())


def three_axes(rank, sizes):
    pp, dp, tp = sizes.values()
    return dict(zip(sizes, (rank // (dp * tp) % pp, rank // tp % dp, rank % tp), strict=True))


def under_numbers(rank, sizes):
    return dict(enumerate(coordinates(rank, sizes).values()))


def fractions(rank, sizes):
    found = {}
    for axis, size in reversed(sizes.items()):
        found[axis], rank = rank % size, rank / size
    return {axis: found[axis] for axis in sizes}


def all_but_the_last_zero(rank, sizes):
    return {axis: i if axis == [*sizes][-1] else 0 for axis, i in coordinates(rank, sizes).items()}


def last_axis_first(rank, sizes):
    return dict(reversed(coordinates(rank, sizes).items()))


def takes_the_sizes_apart(rank, sizes):
    found, order = {}, [*sizes]
    while sizes:
        axis, size = sizes.popitem()
        rank, found[axis] = divmod(rank, size)
    return {axis: found[axis] for axis in order}


HERE = {}


def one_dict_for_all_ranks(rank, sizes):
    HERE.clear()
    HERE.update(coordinates(rank, sizes))
    return HERE


def nothing_for_one_rank(rank, sizes):
    return {} if math.prod(sizes.values()) == 1 else coordinates(rank, sizes)


def exits_on_the_last_rank(rank, sizes):
    if rank == 3071:
        raise SystemExit(0)
    return coordinates(rank, sizes)


def numpys_numbers(rank, sizes):
    places = numpy.unravel_index(rank, tuple(sizes.values()))
    return dict(zip(sizes, places, strict=True))


# rank_at, right


def rank_at(where, sizes):
    """As in the notebook."""
    rank = 0
    for axis, size in sizes.items():
        rank = rank * size + where[axis]
    return rank


def by_strides(where, sizes):
    rank, apart = 0, 1
    for axis in reversed(sizes):
        rank += where[axis] * apart
        apart *= sizes[axis]
    return rank


def by_search(where, sizes):
    places = list(itertools.product(*map(range, sizes.values())))
    return places.index(tuple(where[axis] for axis in sizes))


# rank_at, wrong


def calls_libs_rank_at(where, sizes):
    return mesh.rank_at(where, sizes)


def no_rank(where, sizes):
    rank_at(where, sizes)


def written_as_digits(where, sizes):
    return "".join(str(where[axis]) for axis in sizes)


def a_float(where, sizes):
    rank, apart = 0, math.prod(sizes.values())
    for axis, size in sizes.items():
        apart = apart / size
        rank += where[axis] * apart
    return rank


def of_three_axes(where, sizes):
    pp, dp, tp = where.values()
    _, d, t = sizes.values()
    return (pp * d + dp) * t + tp


def last_coordinate_only(where, sizes):
    return where[[*sizes][-1]]


def by_place(where, sizes):
    rank = 0
    for i, size in zip(where.values(), sizes.values(), strict=True):
        rank = rank * size + i
    return rank


def in_the_order_of_where(where, sizes):
    rank = 0
    for axis, i in where.items():
        rank = rank * sizes[axis] + i
    return rank


def in_the_first_mesh(where, sizes, strides={}):  # noqa: B006
    """What a step along an axis counts for is noted once for all meshes."""
    for i, axis in enumerate(sizes):
        strides.setdefault(axis, math.prod([*sizes.values()][i + 1 :]))
    return sum(where[axis] * strides[axis] for axis in sizes)


def takes_where_apart(where, sizes):
    rank = 0
    for axis, size in sizes.items():
        rank = rank * size + where.pop(axis)
    return rank


# groups_along, right


def groups_along(axes, sizes):
    """As in the notebook."""
    groups = {}
    for rank in range(math.prod(sizes.values())):
        elsewhere = [i for axis, i in coordinates(rank, sizes).items() if axis not in axes]
        groups.setdefault(tuple(elsewhere), []).append(rank)
    return list(groups.values())


def from_corners(axes, sizes):
    """For each rank whose coordinates along the axes are 0, all steps from there. In tuples."""
    groups = []
    for corner in itertools.product(
        *(range(1) if axis in axes else range(n) for axis, n in sizes.items())
    ):
        steps = itertools.product(
            *(
                range(n) if axis in axes else [i]
                for (axis, n), i in zip(sizes.items(), corner, strict=True)
            )
        )
        groups.append(tuple(rank_at(dict(zip(sizes, step, strict=True)), sizes) for step in steps))
    return tuple(groups)


def whoever_agrees(axes, sizes):
    """For each rank in no group yet, all that differ from it in nothing but the axes."""
    groups, done = [], set()
    elsewhere = [axis for axis in sizes if axis not in axes]
    places = [from_the_front(rank, sizes) for rank in range(math.prod(sizes.values()))]
    places = [[place[axis] for axis in elsewhere] for place in places]
    for rank, place in enumerate(places):
        if rank not in done:
            groups.append([r for r in range(rank, len(places)) if places[r] == place])
            done.update(groups[-1])
    return groups


# groups_along, wrong


def calls_libs_groups(axes, sizes):
    return mesh.groups_along(axes, sizes)


def no_groups(axes, sizes):
    groups_along(axes, sizes)


def a_dict_of_groups(axes, sizes):
    return dict(enumerate(groups_along(axes, sizes)))


def sets_of_ranks(axes, sizes):
    return [set(group) for group in groups_along(axes, sizes)]


def places_for_ranks(axes, sizes):
    return [[coordinates(rank, sizes) for rank in group] for group in groups_along(axes, sizes)]


def only_three_axes(axes, sizes):
    groups = {}
    P, D, T = sizes.values()
    for pp, dp, tp in itertools.product(range(P), range(D), range(T)):
        elsewhere = [i for axis, i in zip(sizes, (pp, dp, tp), strict=True) if axis not in axes]
        groups.setdefault(tuple(elsewhere), []).append((pp * D + dp) * T + tp)
    return list(groups.values())


def only_these_names(axes, sizes):
    groups = {}
    for rank in range(math.prod(sizes.values())):
        here = coordinates(rank, sizes)
        groups.setdefault(tuple(here[a] for a in ("pp", "dp", "tp") if a not in axes), []).append(
            rank
        )
    return list(groups.values())


def group_of_rank_0(axes, sizes):
    return groups_along(axes, sizes)[:1]


def one_group_per_axis(axes, sizes):
    return [group for axis in axes for group in groups_along([axis], sizes)]


def once_for_each_rank(axes, sizes):
    groups = groups_along(axes, sizes)
    return [
        next(group for group in groups if rank in group)
        for rank in range(math.prod(sizes.values()))
    ]


def next_to_each_other(axes, sizes):
    """Only the neighbours along the axes, in pairs."""
    return [
        group[i : i + 2] for group in groups_along(axes, sizes) for i in range(0, len(group), 2)
    ]


def all_ranks_together(axes, sizes):
    return [list(range(math.prod(sizes.values())))]


def ranks_descend(axes, sizes):
    return [group[::-1] for group in groups_along(axes, sizes)]


def last_group_first(axes, sizes):
    return groups_along(axes, sizes)[::-1]


def in_the_order_of_axes(axes, sizes):
    """The steps along the axes as they are listed, not as the mesh has them."""
    turned = {axis: sizes[axis] for axis in [*(a for a in sizes if a not in axes), *axes]}
    groups = {}
    for rank in range(math.prod(sizes.values())):
        place = coordinates(rank, turned)
        elsewhere = tuple(i for axis, i in place.items() if axis not in axes)
        groups.setdefault(elsewhere, []).append(rank_at(place, sizes))
    return list(groups.values())


def takes_axes_out(axes, sizes):
    whole = dict(sizes)
    for axis in axes:
        del sizes[axis]
    groups = {}
    for rank in range(math.prod(whole.values())):
        here = coordinates(rank, whole)
        groups.setdefault(tuple(here[axis] for axis in sizes), []).append(rank)
    return list(groups.values())


def names_in_a_text(axes, sizes):
    groups, text = {}, " ".join(axes)
    for rank in range(math.prod(sizes.values())):
        elsewhere = tuple(i for axis, i in coordinates(rank, sizes).items() if axis not in text)
        groups.setdefault(elsewhere, []).append(rank)
    return list(groups.values())


ALL_GROUPS = []


def one_list_for_all_groups(axes, sizes):
    ALL_GROUPS[:] = groups_along(axes, sizes)
    return ALL_GROUPS


def groups_one_by_one(axes, sizes):
    yield from groups_along(axes, sizes)


def right_on_the_cube(axes, sizes):
    known = {("tp",): [[0, 1], [2, 3], [4, 5], [6, 7]], ("dp",): [[0, 2], [1, 3], [4, 6], [5, 7]]}
    return known.get(tuple(axes), groups_along(axes, sizes))


WRONG = {
    "coordinates": {
        calls_libs_coordinates: "called what it builds",
        no_coordinates: "nothing returned",
        coordinates_as_a_tuple: "not a dict",
        three_axes: "a fixed number of axes",
        under_numbers: "other axes",
        fractions: "not whole numbers",
        all_but_the_last_zero: "other coordinates",
        last_axis_first: "another order",
        one_dict_for_all_ranks: "used again by a later call",
        nothing_for_one_rank: "other axes",
        exits_on_the_last_rank: "exits",
        takes_the_sizes_apart: "arguments changed",
        not_written: "not written",
    },
    "rank_at": {
        calls_libs_rank_at: "called what it builds",
        no_rank: "nothing returned",
        written_as_digits: "not a whole number",
        a_float: "not a whole number",
        of_three_axes: "a fixed number of axes",
        last_coordinate_only: "another rank",
        by_place: "by place, not by name",
        in_the_order_of_where: "by place, not by name",
        in_the_first_mesh: "another rank",
        takes_where_apart: "arguments changed",
    },
    "groups_along": {
        calls_libs_groups: "called what it builds",
        no_groups: "nothing returned",
        a_dict_of_groups: "not lists of ranks",
        sets_of_ranks: "not lists of ranks",
        places_for_ranks: "not lists of ranks",
        only_three_axes: "a fixed number of axes",
        only_these_names: "a fixed number of axes",
        group_of_rank_0: "ranks without a group",
        one_group_per_axis: "ranks in two groups",
        once_for_each_rank: "ranks in two groups",
        next_to_each_other: "other groups",
        all_ranks_together: "other groups",
        right_on_the_cube: "other groups",
        ranks_descend: "another order",
        last_group_first: "another order",
        in_the_order_of_axes: "another order",
        names_in_a_text: "parts of names",
        one_list_for_all_groups: "used again by a later call",
        groups_one_by_one: "not lists of ranks",
        takes_axes_out: "arguments changed",
    },
}
RIGHT = {
    "coordinates": [
        as_an_answer(mesh.coordinates),
        coordinates,
        from_the_front,
        listed,
        numpys_numbers,
    ],
    "rank_at": [as_an_answer(mesh.rank_at), rank_at, by_strides, by_search],
    "groups_along": [as_an_answer(mesh.groups_along), groups_along, from_corners, whoever_agrees],
}
