"""Answers to Lab 2's gpipe: wrong ones, each with the hint that it must get, and right ones."""

from as_an_answer import as_an_answer
from lab2.slips import in_halves, slips

from lib import pipeline
from lib.pipeline import Action, parse, schedules

gpipe = as_an_answer(schedules.gpipe)


def calls_libs(p, m):
    return pipeline.gpipe(p, m)


def one_rank_for_all(p, m):
    return [[Action(stage, kind, j) for stage in range(p) for kind in "FB" for j in range(m)]] + [
        []
    ] * (p - 1)


def drops_the_last(p, m):
    return [[Action(rank, kind, j) for kind in "FB" for j in range(m - 1)] for rank in range(p)]


def drops_the_last_backward(p, m):
    return [actions[:-1] for actions in gpipe(p, m)]


def first_rank_has_no_backward(p, m):
    """It has no earlier stage that waits for a gradient."""
    return [actions[: m if rank == 0 else 2 * m] for rank, actions in enumerate(gpipe(p, m))]


def last_rank_forward_only_once(p, m):
    """p forwards instead of m: right where p = m."""
    return [[Action(rank, kind, j) for kind in "FB" for j in range(p)] for rank in range(p)]


def backward_before_the_forward(p, m):
    return [[Action(rank, kind, j) for j in range(m) for kind in "BF"] for rank in range(p)]


def relay(p, m):
    return [[Action(rank, kind, j) for j in range(m) for kind in "FB"] for rank in range(p)]


def relay_on_the_first_rank(p, m):
    return [relay(p, m)[0], *gpipe(p, m)[1:]]


def one_f_one_b(p, m):
    return pipeline.one_f_one_b(p, m)


def two_at_a_time(p, m):
    """Two forwards, two backwards, the next two ..."""
    pairs = [range(first, min(first + 2, m)) for first in range(0, m, 2)]
    return [
        [Action(rank, kind, j) for pair in pairs for kind in "FB" for j in pair]
        for rank in range(p)
    ]


def backwards_turned_on_odd_ranks(p, m):
    return [actions[:m] + actions[m:][:: (-1) ** rank] for rank, actions in enumerate(gpipe(p, m))]


def forwards_turned_on_the_last_rank(p, m):
    *others, last = gpipe(p, m)
    return [*others, last[:m][::-1] + last[m:]]


WRONG = {
    **slips(gpipe),
    calls_libs: "called what it builds",
    one_rank_for_all: "another rank's stage",
    in_halves(gpipe): "halves of a backward",
    drops_the_last: "a micro-batch dropped",
    drops_the_last_backward: "a micro-batch dropped",
    first_rank_has_no_backward: "a micro-batch dropped",
    last_rank_forward_only_once: "a micro-batch dropped",
    backward_before_the_forward: "backward first",
    relay_on_the_first_rank: "a gradient waited for too early",
    relay: "one micro-batch at a time",
    one_f_one_b: "1F1B",
    two_at_a_time: "backwards between",
    backwards_turned_on_odd_ranks: "orders that differ",
    forwards_turned_on_the_last_rank: "orders that differ",
}


def last_microbatch_back_first(p, m):
    """As the paper draws it; in tuples."""
    backwards = range(m - 1, -1, -1)
    return tuple(
        (*(Action(rank, "F", j) for j in range(m)), *(Action(rank, "B", j) for j in backwards))
        for rank in range(p)
    )


def in_two_loops(p, m):
    schedule = []
    for rank in range(p):
        actions = []
        for j in range(m):
            actions.append(parse(f"{rank}F{j}"))
        for j in range(m):
            actions.append(parse(f"{rank}B{j}"))
        schedule.append(actions)
    return schedule


RIGHT = [gpipe, last_microbatch_back_first, in_two_loops]
