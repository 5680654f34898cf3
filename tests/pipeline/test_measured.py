"""Times read from bars are those that they were made with; on paced ranks every bar lasts as long
as it was told."""

import contextlib
import itertools
from fractions import Fraction

import pytest

from lib import launch
from lib.collectives.slow_link import slow_link
from lib.pipeline import (
    Bar,
    gpipe,
    interleaved,
    one_f_one_b,
    parse,
    recorded,
    relay,
    simulate,
    source,
    times_of,
    zb_h1,
)
from lib.pipeline.links import connect
from lib.pipeline.paced_run import run_paced

HALVES = {"F": 3, "I": 4, "W": 2}
SCHEDULES = {
    "relay": (relay(3, 2), {"F": 3, "B": 7}),
    "GPipe": (gpipe(4, 6), {"F": 3, "B": 7}),
    "1F1B": (one_f_one_b(4, 8), {"F": 3, "B": 7}),
    "1F1B, unequal": (one_f_one_b(3, 5), {"F": [1, 5, 2], "B": [4, 7, 9]}),
    "interleaved": (interleaved(2, 4, 3), {"F": 3, "B": 7}),
    "ZB-H1": (zb_h1(4, 8), HALVES),
    "one rank": (one_f_one_b(1, 3), {"F": 3, "B": 7}),
}


def bars(*said):
    """[Bar] of "rank action start end" each."""
    parts = [text.split() for text in said]
    return [
        Bar(int(rank), parse(action), float(start), float(end))
        for rank, action, start, end in parts
    ]


# Pure.


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("message", [0, 2, 20])
def test_a_simulations_bars_give_its_times_and_these_the_same_bars(name, message):
    schedule, times = SCHEDULES[name]
    run = simulate(schedule, times, message)
    got, messages = times_of(run.bars)
    n_stages = len(got["F"])
    assert got == {
        kind: time if isinstance(time, list) else [time] * n_stages for kind, time in times.items()
    }
    assert simulate(schedule, got, messages).bars == run.bars
    # somebody waits for a message between any two stages
    if name in ("relay", "GPipe", "1F1B", "ZB-H1"):
        assert messages == [message] * (n_stages - 1)


@pytest.mark.parametrize("name", SCHEDULES)
def test_each_pair_of_stages_has_its_own_message_time(name):
    schedule, times = SCHEDULES[name]
    n_stages = 1 + max(action.stage for actions in schedule for action in actions)
    run = simulate(schedule, times, list(range(n_stages - 1)))
    got, messages = times_of(run.bars)
    assert all(at_most >= said for at_most, said in zip(messages, range(n_stages - 1), strict=True))
    assert simulate(schedule, got, messages).bars == run.bars


def test_a_recorded_run_is_a_simulation_that_begins_at_0_whatever_the_order_of_its_bars():
    schedule, times = SCHEDULES["1F1B"]
    run = simulate(schedule, times, 2)
    late = [bar._replace(start=bar.start + 1000, end=bar.end + 1000) for bar in reversed(run.bars)]
    again = recorded(late)
    assert again == run
    assert (again.makespan, again.bubbles, again.peak_live) == (
        run.makespan,
        run.bubbles,
        run.peak_live,
    )


def test_lengths_are_means_and_only_messages_that_were_waited_for_count():
    got, (message,) = times_of(
        bars(
            "0 0F0 0 2", "0 0F1 2 6", "0 0B0 20 24", "0 0B1 24 26",
            "1 1F0 3 10",   # has waited longest: 1 after the end of 0F0
            "1 1F1 10 13",  # was at work until 10, when 0F1 was long done: says nothing
            "1 1B0 13 17",  # 0B0 waited since 6: 3
            "1 1B1 17 20",  # 0B1 did not
        )
    )  # fmt: skip
    assert got == {"F": [3, 5], "B": [3, 3.5]}
    assert message == (1 + 3) / 2


def test_a_message_that_nobody_waited_for_took_at_most_the_shortest_time_to_its_use():
    (_, messages) = times_of(
        bars("0 0F0 0 2", "1 1F0 4 6", "1 3F9 6 9", "0 2F0 9 10", "0 0F1 2 9", "1 3F0 11 12")
    )
    assert messages == [2, 3, 1]


# On ranks.

F, I, W, LATENCY = 3e-3, 2e-3, 4e-3, 5e-3
RUNS = {
    "1F1B, unequal stages": (
        one_f_one_b(4, 5),
        {"F": [F, 2 * F, F, F], "B": [W, W, 2 * W, W]},
        False,
    ),
    "interleaved": (interleaved(4, 4, 2), {"F": F, "B": W}, False),
    "ZB-H1": (zb_h1(4, 5), {"F": F, "I": I, "W": W}, False),
    "ZB-H1 over a link": (zb_h1(4, 5), {"F": F, "I": I, "W": W}, True),
}


def run_each():
    links, got = connect(), {}
    for name, (schedule, times, slow) in RUNS.items():
        with slow_link(1, LATENCY, 1e9) if slow else contextlib.nullcontext():
            got[name] = run_paced(schedule, times, links, rows=10)
    return got


@pytest.fixture(scope="module")
def results():
    ranks = launch.capture(run_each, backend="gloo", nproc=4, ledger=False)
    return {name: [bar for rank_bars in ranks for bar in rank_bars[name]] for name in RUNS}


@pytest.mark.parametrize("name", RUNS)
def test_paced_ranks_run_the_list_and_every_bar_lasts_as_long_as_told(results, name):
    schedule, times, slow = RUNS[name]
    run, n_stages = recorded(results[name]), 1 + max(bar.action.stage for bar in results[name])
    assert run.schedule == schedule
    for one, next_ in itertools.pairwise(run.bars):
        assert one.rank != next_.rank or one.end <= next_.start
    by_action = {bar.action: bar for bar in run.bars}
    for bar in run.bars:
        told = times[bar.action.kind]
        assert bar.end - bar.start >= (told[bar.action.stage] if isinstance(told, list) else told)
        sent = by_action.get(source(bar.action, n_stages))
        assert sent is None or bar.start - sent.end >= (LATENCY if slow else 0), (
            f"{bar.action} had its message sooner"
        )


@pytest.mark.parametrize("name", RUNS)
def test_what_was_measured_can_be_simulated_and_a_slow_link_is_seen_in_both(results, name):
    schedule, told, slow = RUNS[name]
    times, messages = times_of(results[name])
    foretold = simulate(schedule, times, messages)
    assert foretold.makespan >= simulate(schedule, told, LATENCY * slow).makespan
    assert len(messages) == len(times["F"]) - 1 and all(
        message > LATENCY * slow for message in messages
    )


def test_sums_are_exact():
    """No time is lost to rounding: a simulation in fractions gives fractions back."""
    schedule, third = one_f_one_b(3, 4), Fraction(1, 3)
    run = simulate(schedule, {"F": third, "B": 2 * third}, Fraction(1, 7))
    assert times_of(run.bars) == ({"F": [third] * 3, "B": [2 * third] * 3}, [Fraction(1, 7)] * 2)
