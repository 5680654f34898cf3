"""Answers to Lab 6's shares: wrong ones, each with the hint that it must get, and right ones."""

from itertools import product
from math import ceil, floor

from as_an_answer import as_an_answer, told

from lib.hybrid import unequal
from lib.hybrid.unequal import shares as libs_shares


def room(B, speeds, most):
    """`most`, whole and large enough."""
    most = [B] * len(speeds) if most is None else most
    if sum(most) < B:
        raise ValueError(f"{B} rows, but memory for {sum(most)}")
    return most


def dealt(
    B,
    speeds,
    most=None,
    cost=lambda b, v: (b + 1) / v,
    start=0,
    fits=lambda b, most: b < most,
    last=False,
):
    """The right shares, but for what is given."""
    most = room(B, speeds, most)
    b = [start] * len(speeds)
    for _ in range(B - sum(b)):
        _, _, r = min(
            (cost(b[r], v), -r if last else r, r)
            for r, v in enumerate(speeds)
            if fits(b[r], most[r])
        )
        b[r] += 1
    return b


def slowest(rows, speeds):
    return max(b / v for b, v in zip(rows, speeds, strict=True))


# right


def as_in_the_notebook(B, speeds, most=None):
    most = [B] * len(speeds) if most is None else most
    if sum(most) < B:
        raise ValueError(f"{B} rows, but memory for {sum(most)}")
    b = [0] * len(speeds)
    for _ in range(B):
        _, r = min(((b[r] + 1) / speeds[r], r) for r in range(len(speeds)) if b[r] < most[r])
        b[r] += 1
    return b


def by_the_pace(B, speeds, most=None):
    """The least time in which B rows can be done; within it the first ranks get all they can do."""
    most = room(B, speeds, most)
    times = sorted({i / v for v in speeds for i in range(B + 1)})
    can = lambda T: [min(m, floor(T * v + 1e-9)) for v, m in zip(speeds, most, strict=True)]
    within, b = next(can(T) for T in times if sum(can(T)) >= B), []
    for rows in within:
        b.append(min(rows, B - sum(b)))
    return tuple(b)


def every_split(B, speeds, most=None):
    """The first ranks as many as can be, of the fastest splits."""
    most = room(B, speeds, most)
    splits = [rows for rows in product(*(range(min(B, m) + 1) for m in most)) if sum(rows) == B]
    fastest = min(slowest(rows, speeds) for rows in splits)
    return list(max(rows for rows in splits if slowest(rows, speeds) <= fastest))


def mended(B, speeds, most=None):
    """In proportion, rounded down; what is left row by row."""
    most, N = room(B, speeds, most), range(len(speeds))
    b = [min(most[r], floor(B * speeds[r] / sum(speeds))) for r in N]
    after = lambda r: ((b[r] + 1) / speeds[r], r)
    while sum(b) < B:
        b[min((r for r in N if b[r] < most[r]), key=after)] += 1
    return b


# wrong: the form


def calls_libs(B, speeds, most=None):
    return unequal.shares(B, speeds, most)


def returns_nothing(B, speeds, most=None):
    dealt(B, speeds, most)


def in_proportion(B, speeds, most=None):
    return [B * v / sum(speeds) for v in speeds]


def by_rank(B, speeds, most=None):
    return dict(enumerate(dealt(B, speeds, most)))


# wrong: the shares


def seconds_per_row(B, speeds, most=None):
    return dealt(B, [1 / v for v in speeds], most)


def seconds_per_row_rounded(B, speeds, most=None):
    slow = [1 / v for v in speeds]
    return [round(B * s / sum(slow)) for s in slow]


def one_row_each(B, speeds, most=None):
    return dealt(B, speeds, most, start=1)


def at_least_one(B, speeds, most=None):
    return [max(1, b) for b in dealt(B, speeds, most)]


def rounded_down(B, speeds, most=None):
    return [int(B * v / sum(speeds)) for v in speeds]


def rounded_up(B, speeds, most=None):
    return [ceil(B * v / sum(speeds)) for v in speeds]


def rest_in_turn(B, speeds, most=None):
    """Rounded down; the rest one each from the first on."""
    b = rounded_down(B, speeds)
    for r in range(B - sum(b)):
        b[r] += 1
    return b


def rows_made_up(B, speeds, most=None):
    b = dealt(B, speeds, most)
    return [*b[:-1], b[-1] + 1]


def rows_taken_from_the_first(B, speeds, most=None):
    b = rounded_up(B, speeds)
    b = [rows + 1 for rows in b]
    b[0] -= sum(b) - B
    return b


# wrong: most


def most_exceeded_by_one(B, speeds, most=None):
    return dealt(B, speeds, most, fits=lambda b, most: b <= most)


def clamped(B, speeds, most=None):
    b = dealt(B, speeds)
    return b if most is None else [min(rows, m) for rows, m in zip(b, most, strict=True)]


def clamped_then_in_proportion(B, speeds, most=None):
    """What is over goes in proportion to the others, once."""
    b = clamped(B, speeds, most)
    if sum(b) < B:
        others = [r for r in range(len(b)) if b[r] < most[r]]
        rest = dealt(B - sum(b), [speeds[r] for r in others])
        for r, rows in zip(others, rest, strict=True):
            b[r] += rows
    return b


def waits_for_room(B, speeds, most=None):
    most = [B] * len(speeds) if most is None else most
    b = [0] * len(speeds)
    while sum(b) < B:
        r = min(range(len(b)), key=lambda r: ((b[r] + 1) / speeds[r], r))
        if b[r] < most[r]:
            b[r] += 1
    return b


def looks_for_room_for_ever(B, speeds, most=None):
    """Right, but where the rows fit nowhere."""
    most = [B] * len(speeds) if most is None else most
    b = [0] * len(speeds)
    while sum(b) < B:
        ranks = [r for r in range(len(b)) if b[r] < most[r]]
        if ranks:
            b[min(ranks, key=lambda r: ((b[r] + 1) / speeds[r], r))] += 1
    return b


# wrong: the rest of the contract


def ties_to_the_last(B, speeds, most=None):
    return dealt(B, speeds, most, last=True)


def as_many_as_fit(B, speeds, most=None):
    most = [B] * len(speeds) if most is None else most
    return dealt(min(B, sum(most)), speeds, most)


def gives_none(B, speeds, most=None):
    return None if most is not None and sum(most) < B else dealt(B, speeds, most)


def asserts(B, speeds, most=None):
    assert most is None or sum(most) >= B, "too many rows"
    return dealt(B, speeds, most)


def counts_down(B, speeds, most=None):
    most = room(B, speeds, most)
    b = [0] * len(speeds)
    for _ in range(B):
        _, r = min(((b[r] + 1) / speeds[r], r) for r in range(len(speeds)) if most[r])
        b[r] += 1
        most[r] -= 1
    return b


KEPT = {}


def one_list_for_all_calls(B, speeds, most=None):
    b = KEPT.setdefault(len(speeds), [])
    b[:] = dealt(B, speeds, most)
    return b


def most_itself_where_it_is_full(B, speeds, most=None):
    return most if most is not None and sum(most) == B else dealt(B, speeds, most)


def generates(B, speeds, most=None):
    return (b for b in dealt(B, speeds, most))


def exits_where_nothing_fits(B, speeds, most=None):
    if most is not None and sum(most) < B:
        raise SystemExit("too many rows")
    return dealt(B, speeds, most)


def not_written(B, speeds, most=None):
    raise NotImplementedError


WRONG = {
    calls_libs: "called what it builds",
    returns_nothing: "nothing returned",
    in_proportion: "not whole numbers",
    by_rank: "not whole numbers",
    seconds_per_row: "slow ranks get more",
    seconds_per_row_rounded: "slow ranks get more",
    one_row_each: "a row for everybody",
    at_least_one: "a row for everybody",
    rest_in_turn: "not the fastest",
    rows_made_up: "rows lost",
    rows_taken_from_the_first: "fewer than none",
    most_exceeded_by_one: "one row over",
    clamped_then_in_proportion: "one row over",
    waits_for_room: "it waits for room",
    looks_for_room_for_ever: "it waits for room",
    ties_to_the_last: "ties to the last",
    as_many_as_fit: "no error",
    gives_none: "no error",
    asserts: "not a ValueError",
    counts_down: "arguments changed",
    one_list_for_all_calls: "used again by a later call",
    most_itself_where_it_is_full: "the caller's list",
    generates: "not whole numbers",
    exits_where_nothing_fits: "exits",
    not_written: "not written",
}
RIGHT = [as_an_answer(libs_shares), as_in_the_notebook, by_the_pace, every_split, mended]
WRONG |= told(
    libs_shares,
    ("refused_where_they_just_fit", "refused too soon", ("sum(most) < B", "sum(most) <= B")),
    ("whole_speeds", "whole speeds", ("(b[r] + 1) / speeds[r]", "(b[r] + 1) / int(speeds[r])")),
    (
        "most_is_needed",
        "any number of rows",
        ("[B] * len(speeds) if most is None else most", "most"),
    ),
    (
        "none_is_any_number",
        "room for no row",
        ("    b = [0]", "    most = [m or B for m in most]\n    b = [0]"),
    ),
)
SLOW = [waits_for_room]
