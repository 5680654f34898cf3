"""The mistakes that are made in coordinates, rank_at and groups_along, told by what comes of them, and their hints."""

from lib.check.framework import Hint
from lib.check.lab2.hints import all_seen, is_kind
from lib.check.lab6 import mesh_known as known


def as_sets(groups):
    """Groups, whatever the order of them and of their ranks."""
    return sorted(map(sorted, groups))


def _as_if(kind, mistakes, words, alike=lambda got, mistaken: got == mistaken):
    """Fits if, in all cases, the answer is what one of the mistakes of these words gives."""
    named = [mistake for name, mistake in mistakes if name == words]
    fits = [all_seen(lambda got, given, sizes, of=of: alike(got, of(_plain(given), dict(sizes)))) for of in named]
    return lambda p: p.kind == kind and any(fit(p) for fit in fits)


def _plain(given):
    """A case's first argument: a rank, names of axes, or coordinates, which stand there as pairs."""
    return dict(given) if isinstance(given, tuple) and isinstance(given[0], tuple) else given


def _place(words):
    return _as_if("place", known.PLACES, words)


def _number(words):
    return _as_if("number", known.NUMBERS, words)


def _groups(words):
    return _as_if("groups", known.GROUPS, words, lambda got, mistaken: as_sets(got) == as_sets(mistaken))


LAST_IS_FASTEST = "the last axis runs fastest: along it the next rank is rank + 1. You let the first one do that."
ONE_SIZE = "you take one size for all axes. That is right for 2 x 2 x 2; use sizes[axis], each axis' own."
TWOS = "you count in bits, which is right where all sizes are powers of two. A data axis of 3 or 6 is common."

FIXED = Hint(
    "a fixed number of axes",
    lambda p: p.kind == "raised" and ("unpack" in p.text or "KeyError" in p.text),
    "a mesh has any number of axes under any names: loop over `sizes`, and write no name into the function.",
)
NOTHING = Hint("nothing returned", is_kind("nothing"), "the function must end with `return ...`.")
CHANGED = Hint(
    "arguments changed",
    is_kind("changed"),
    "these arguments are the caller's, who needs them again: change a dict or list of your own.",
)

COORDINATES = (
    Hint("called lib's", is_kind("built-in"), "a loop over the axes with divmod(rank, size) is enough."),
    NOTHING,
    FIXED,
    Hint("not a dict", is_kind("no dict"), "return {axis: coordinate}: later cells ask for here['tp'], by name."),
    Hint("other axes", is_kind("axes"), "one coordinate for each axis of `sizes`, under its name."),
    Hint("not whole numbers", is_kind("form"), "a coordinate is a whole number: // and %, not /."),
    Hint("one size for all axes", _place(known.ONE_SIZE), ONE_SIZE),
    Hint("powers of two only", _place("powers of two"), TWOS),
    Hint("the first axis fastest", _place(known.FIRST_FASTEST), f"{LAST_IS_FASTEST} Go through the axes backwards."),
    Hint(
        "the rank is not divided",
        _place("every axis counts 1"),
        "rank % size is the last digit only. Divide by that size before the next one: rank, digit = divmod(rank, "
        "size).",
    ),
    Hint(
        "quotient and remainder swapped",
        _place("quotient and remainder swapped"),
        "divmod(rank, size) gives the quotient first. From the last axis on, the remainder is the coordinate and the "
        "quotient goes on to the next axis.",
    ),
    Hint(
        "no remainder",
        _place("no remainder"),
        "a coordinate is less than its axis' size: take % size of what you divided.",
    ),
    Hint(
        "divided by another size",
        _place("another axis' size"),
        "an axis' coordinate changes every so many ranks as all later axes have together: divide by the product of "
        "their sizes, or by one after the other.",
    ),
    Hint("counted from one", _place("counted from 1"), "ranks and coordinates count from 0."),
    Hint(
        "other coordinates",
        is_kind("place"),
        "write rank 5 of 2 x 2 x 2 as a number of three digits, 1 0 1, each in the base of its axis' size.",
    ),
    Hint(
        "another order", is_kind("order"), "found backwards, returned forwards: {axis: found[axis] for axis in sizes}."
    ),
    CHANGED,
)
RANK_AT = (
    Hint("called lib's", is_kind("built-in"), "one line in a loop over the axes is enough."),
    NOTHING,
    FIXED,
    Hint("not a whole number", is_kind("form"), "a rank is an int: a sum of products of ints."),
    Hint("one size for all axes", _number(known.ONE_SIZE), ONE_SIZE),
    Hint("powers of two only", _number("powers of two"), TWOS),
    Hint("the first axis fastest", _number(known.FIRST_FASTEST), f"{LAST_IS_FASTEST} Go through them in order."),
    Hint(
        "added, not multiplied",
        _number("every axis counts 1"),
        "a step along an axis is as many ranks as all later axes have together: multiply before you add the next.",
    ),
    Hint(
        "multiplied by another size",
        _number("another axis' size"),
        "rank = rank * size + where[axis], with this axis' own size: first make room for its digit, then add it.",
    ),
    Hint("counted from one", _number("counted from 1"), "ranks and coordinates count from 0."),
    Hint(
        "another rank",
        is_kind("number"),
        "as digits are read: 1 0 1 is ((1) * 2 + 0) * 2 + 1. It must undo what `coordinates` does.",
    ),
    Hint(
        "by place, not by name",
        is_kind("by place"),
        "`where` may list the axes in any order. The mesh's is that of `sizes`: loop over these, look up where[axis].",
    ),
    CHANGED,
)
GROUPS_ALONG = (
    Hint("called lib's", is_kind("built-in"), "collect the ranks in a dict by their other coordinates."),
    NOTHING,
    Hint(
        "not lists of ranks",
        is_kind("form"),
        "return [[0, 1], [2, 3], ...]. Of a dict that is list(groups.values()); a set has no order.",
    ),
    FIXED,
    Hint(
        "the other axes",
        _groups("the other axes"),
        "you group the ranks that have the same coordinates in `axes`. It is the other way round: these differ, all "
        "others are the same.",
    ),
    Hint(
        "neighbours in number",
        _groups("neighbours in number"),
        "you cut the ranks into groups by their numbers alone. Which ranks are together depends on which axes they "
        "are, not only on how many: ask `coordinates`.",
    ),
    Hint(
        "one of the axes only",
        _groups("one of the axes"),
        "`axes` may be several: `axis not in axes` for each coordinate.",
    ),
    Hint("the first axis fastest", _groups(known.FIRST_FASTEST), LAST_IS_FASTEST),
    Hint(
        "ranks without a group",
        lambda p: p.kind == "groups" and p.facts["missing"],
        "all groups are asked for, not only that of rank 0: every rank is in one.",
    ),
    Hint(
        "ranks in two groups",
        lambda p: p.kind == "groups" and p.facts["twice"],
        "along several axes together a rank is in one group, not in one for each axis; and a group is listed once, not "
        "once for each of its ranks.",
    ),
    Hint(
        "other groups",
        is_kind("groups"),
        "two ranks are together if all coordinates that are not in `axes` are equal. Print coordinates(r, sizes) of "
        "both.",
    ),
    Hint(
        "another order",
        is_kind("order"),
        "ranks ascend in a group, groups ascend by their first ranks: go through the ranks from 0 on, and a dict keeps "
        "that order.",
    ),
    CHANGED,
)
