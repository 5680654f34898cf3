"""The clock gives the papers' formulas exactly where they hold, and hand-computed times
where they do not."""

import itertools

import pytest

from lib.pipeline import (
    Bar,
    ScheduleError,
    gpipe,
    interleaved,
    kept,
    messages,
    one_f_one_b,
    parse,
    relay,
    simulate,
    zb_h1,
)

SIZES = [(p, m) for p in range(1, 7) for m in range(1, 13)]
WHOLE = [{"F": 1, "B": 1}, {"F": 1, "B": 2}, {"F": 3, "B": 7}, {"F": 3, "B": 1}]
HALVES = [(1, 1, 1), (2, 2, 1), (3, 5, 2), (1, 3, 0), (3, 5, 4), (4, 2, 3), (1, 1, 3)]  # F, I, W


def lists(*rows):
    return [[parse(text) for text in row.split()] for row in rows]


# Formulas. Times are whole numbers, so == is meant.


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_relay_one_rank_works_at_a_time(p, m):
    for times in WHOLE:
        assert simulate(relay(p), times).bubble == (p - 1) / p
        # more micro-batches do not help
        assert simulate(relay(p, m), times).bubbles == [(p - 1) / p] * p


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_gpipe_and_1f1b_have_the_same_bubble_on_every_rank(p, m):
    for times in WHOLE:
        for schedule in (gpipe, one_f_one_b):
            run = simulate(schedule(p, m), times)
            assert run.bubble == (p - 1) / (m + p - 1)
            assert run.bubbles == [(p - 1) / (m + p - 1)] * p
            assert run.makespan == (m + p - 1) * (times["F"] + times["B"])


@pytest.mark.parametrize(
    ("p", "rounds"), [(p, rounds) for p in range(1, 7) for rounds in (1, 2, 3)]
)
@pytest.mark.parametrize("v", [1, 2, 3])
def test_interleaving_divides_bubble_time_by_v(p, rounds, v):
    m = p * rounds
    for times in WHOLE:
        # each stage takes 1/v of what it took: scale by v instead
        run = simulate(interleaved(p, m, v), times)
        assert run.bubble == (p - 1) / (v * m + p - 1)
        assert run.bubbles == [(p - 1) / (v * m + p - 1)] * p


@pytest.mark.parametrize(("p", "m"), [(p, m) for p, m in SIZES if m >= p])
def test_zb_h1_idles_for_f_plus_i_minus_w_per_other_rank(p, m):
    for F, I, W in HALVES:
        run = simulate(zb_h1(p, m), {"F": F, "I": I, "W": W})
        idle = F + I - W if min(F, I) >= W else max(F, I)
        assert run.makespan == m * (F + I + W) + (p - 1) * idle


@pytest.mark.parametrize(("p", "m"), [(p, m) for p, m in SIZES if m >= p])
def test_zb_h1_has_a_third_of_1f1bs_bubble(p, m):
    ideal = 3 * m
    whole, split = (
        simulate(schedule(p, m), {"F": 1, "B": 2, "I": 1, "W": 1})
        for schedule in (one_f_one_b, zb_h1)
    )
    assert whole.makespan - ideal == 3 * (split.makespan - ideal)


# What is kept.


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_micro_batches_kept(p, m):
    peak = lambda schedule: simulate(schedule).peak_live
    assert peak(relay(p, m)) == [1] * p
    assert peak(gpipe(p, m)) == [m] * p
    assert peak(one_f_one_b(p, m)) == [min(m, p - i) for i in range(p)]
    assert peak(zb_h1(p, m)) == [min(m, p - i) for i in range(p)]


@pytest.mark.parametrize("p", range(1, 7))
def test_stages_kept_when_interleaved(p):
    for v in (2, 3):
        for m in (p, 2 * p, 3 * p):
            expected = [min(v * m, (v - 1) * p + 2 * (p - 1 - i) + 1) for i in range(p)]
            assert simulate(interleaved(p, m, v)).peak_live == expected


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_zb_h1_needs_no_more_memory_than_1f1b(p, m):
    """Counted until W, and in bytes: 34h + 5as before I, 32h between I and W (Qi et al.
    2024, table 1)."""
    whole, split = simulate(one_f_one_b(p, m)), simulate(zb_h1(p, m))
    assert split.peak_kept == [min(m, p)] * p
    assert max(split.peak_kept) == max(whole.peak_kept) == min(m, p)
    assert whole.peak_kept == whole.peak_live
    h, a, s = 2304, 24, 1024
    peak = lambda schedule: max(
        live * (34 * h + 5 * a * s) + waiting * 32 * h
        for actions in schedule
        for live, waiting in kept(actions)
    )
    assert peak(zb_h1(p, m)) == peak(one_f_one_b(p, m))


# Times by hand.


def test_unequal_stages_by_hand():
    """Stage 1 is three times as slow: it sets the pace."""
    run = simulate(one_f_one_b(2, 3), {"F": [1, 3], "B": [2, 6]})
    assert run.bars == [
        Bar(rank, parse(text), start, end)
        for rank, text, start, end in [
            (0, "0F0", 0, 1), (0, "0F1", 1, 2), (0, "0B0", 10, 12), (0, "0F2", 12, 13),
            (0, "0B1", 19, 21),
            (0, "0B2", 28, 30),
            (1, "1F0", 1, 4), (1, "1B0", 4, 10), (1, "1F1", 10, 13), (1, "1B1", 13, 19),
            (1, "1F2", 19, 22),
            (1, "1B2", 22, 28),
        ]
    ]  # fmt: skip
    assert run.makespan == 30
    assert run.busy == [9, 27]
    assert run.bubbles == [21 / 30, 3 / 30]
    assert run.bubble == 24 / 60


def test_messages_by_hand_and_each_edge_its_own():
    """0F0 0..1, over edge 0 in 1; 1F0 2..3, over edge 1 in 10; 2F0 13..14, 2B0 14..16, and back."""
    run = simulate(relay(3), {"F": 1, "B": 2}, message=[1, 10])
    assert {str(bar.action): (bar.start, bar.end) for bar in run.bars} == {
        "0F0": (0, 1), "1F0": (2, 3), "2F0": (13, 14), "2B0": (14, 16), "1B0": (26, 28),
        "0B0": (29, 31),
    }  # fmt: skip


def test_a_message_takes_no_compute_time():
    """While 0F0's result is in flight, rank 0 computes 0F1; while 0F1's is, rank 1 computes 1F0."""
    run = simulate(gpipe(2, 2), {"F": 2, "B": 2}, message=1)
    ends = {str(bar.action): bar.end for bar in run.bars}
    assert (ends["0F1"], ends["1F0"], ends["1F1"]) == (4, 5, 7)


def test_1f1b_pays_for_messages_in_the_steady_state_but_gpipe_only_at_the_ends():
    p, m, c = 4, 64, 1
    times = {"F": 10, "B": 20}
    extra = {
        s: simulate(s(p, m), times, c).makespan - simulate(s(p, m), times).makespan
        for s in (gpipe, one_f_one_b)
    }
    assert extra[gpipe] == 2 * (p - 1) * c
    assert extra[one_f_one_b] > 10 * extra[gpipe]


def test_stages_of_one_rank_need_no_message():
    assert simulate(interleaved(1, 2, 3), message=100).makespan == 2 * 3 * 3


def test_every_action_starts_after_what_it_needs_and_no_rank_does_two_things():
    times = {"F": [3, 1, 2, 5, 1, 4], "B": [2, 6, 1, 3, 3, 8]}
    schedule = interleaved(3, 6, 2)
    run = simulate(schedule, times, message=2)
    begin, end = ({bar.action: bar[which] for bar in run.bars} for which in (2, 3))
    for actions in schedule:
        for one, next_one in itertools.pairwise(actions):
            assert end[one] <= begin[next_one]
    for action, to in messages(schedule):
        assert end[action] + 2 <= begin[to]
    assert run.busy == [
        6 * sum(times[kind][stage] for kind in "FB" for stage in (r, r + 3)) for r in range(3)
    ]


# Errors.


def test_what_is_missing_is_named():
    with pytest.raises(ValueError, match=r"0I0 needs a time: times has F, B, add 'I'"):
        simulate(zb_h1(1, 1), {"F": 1, "B": 2})
    with pytest.raises(ValueError, match=r"3 times for F, one per stage: this schedule takes 2"):
        simulate(gpipe(2, 1), {"F": [1, 1, 1], "B": 2})
    with pytest.raises(
        ValueError, match=r"2 message times, one between each two neighbouring stages: .* takes 1"
    ):
        simulate(gpipe(2, 1), message=[1, 1])
    with pytest.raises(
        ScheduleError, match="rank 0 waits at 0B0 for 1B0, which rank 1 runs after 1F1"
    ):
        simulate(lists("0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1"))
