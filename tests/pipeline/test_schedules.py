"""Schedules are those of the papers' figures, can be run by their ranks, and a broken one is
refused by name."""

import subprocess
import sys
from textwrap import dedent

import pytest

from lib.pipeline import (
    Action,
    gpipe,
    grid,
    interleaved,
    kept,
    messages,
    one_f_one_b,
    parse,
    pipedream,
    relay,
    simulate,
    validate,
    versions,
    zb_h1,
    zb_v,
)
from lib.pipeline.actions import count_stages

SIZES = [(p, m) for p in range(1, 7) for m in range(1, 13)]


def is_drawn(schedule, picture, **how):
    assert grid(schedule, **how) == dedent(picture).strip("\n")


# The papers' figures, drawn by hand.


def test_relay_as_drawn():
    is_drawn(
        relay(3),
        """
        rank 0 0F0  .   .   .   .   .   .  0B0 ---
        rank 1  .  1F0  .   .   .  1B0 ---  .   .
        rank 2  .   .  2F0 2B0 ---  .   .   .   .
        """,
    )


def test_gpipe_as_drawn():
    is_drawn(
        gpipe(3, 3),
        """
        rank 0 0F0 0F1 0F2  .   .   .   .   .   .  0B0 --- 0B1 --- 0B2 ---
        rank 1  .  1F0 1F1 1F2  .   .   .  1B0 --- 1B1 --- 1B2 ---  .   .
        rank 2  .   .  2F0 2F1 2F2 2B0 --- 2B1 --- 2B2 ---  .   .   .   .
        """,
    )


def test_1f1b_as_drawn():
    is_drawn(
        one_f_one_b(4, 5),
        """
        rank 0 \
0F0 0F1 0F2 0F3  .   .   .   .   .   .  0B0 --- 0F4 0B1 ---  .  0B2 ---  .  0B3 ---  .  0B4 ---
        rank 1 \
 .  1F0 1F1 1F2  .   .   .   .  1B0 --- 1F3 1B1 --- 1F4 1B2 ---  .  1B3 ---  .  1B4 ---  .   .
        rank 2 \
 .   .  2F0 2F1  .   .  2B0 --- 2F2 2B1 --- 2F3 2B2 --- 2F4 2B3 ---  .  2B4 ---  .   .   .   .
        rank 3 \
 .   .   .  3F0 3B0 --- 3F1 3B1 --- 3F2 3B2 --- 3F3 3B3 --- 3F4 3B4 ---  .   .   .   .   .   .
        """,
        line_length=102,
    )


def test_interleaved_as_drawn():
    is_drawn(
        interleaved(2, 4, 2),
        """
        rank 0 0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1  .  2B2  .  2B3 0B2 0B3
        rank 1  .  1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3  .
        """,
        times={"F": 1, "B": 1},
    )


def test_zb_h1_as_drawn():
    is_drawn(
        zb_h1(4, 5),
        """
        rank 0 0F0 0F1 0F2 0F3  .   .   .  0I0 0W0 0F4 0I1 0W1 0I2 0W2 0I3 0W3 0I4 0W4
        rank 1  .  1F0 1F1 1F2  .   .  1I0 1F3 1I1 1W0 1F4 1I2 1W1 1I3 1W2 1I4 1W3 1W4
        rank 2  .   .  2F0 2F1  .  2I0 2F2 2I1 2F3 2I2 2W0 2F4 2I3 2W1 2I4 2W2 2W3 2W4
        rank 3  .   .   .  3F0 3I0 3F1 3I1 3F2 3I2 3F3 3I3 3W0 3F4 3I4 3W1 3W2 3W3 3W4
        """,
    )


def test_equal_times_take_a_column_each_and_a_message_takes_columns_too():
    is_drawn(
        gpipe(2, 2),
        """
        rank 0 0F0 0F1  .   .   .   .  0B0 0B1
        rank 1  .   .  1F0 1F1 1B0 1B1  .   .
        """,
        times={"F": 1, "B": 1},
        message=1,
    )


def test_a_grid_that_is_wider_than_a_page_goes_on_below():
    is_drawn(
        gpipe(2, 8),
        """
        rank 0 0F0 0F1 0F2 0F3 0F4 0F5 0F6 0F7  .   .   .  0B0 --- 0B1
        rank 1  .  1F0 1F1 1F2 1F3 1F4 1F5 1F6 1F7 1B0 --- 1B1 --- 1B2
        from 14 on
        rank 0 --- 0B2 --- 0B3 --- 0B4 --- 0B5 --- 0B6 --- 0B7 ---
        rank 1 --- 1B3 --- 1B4 --- 1B5 --- 1B6 --- 1B7 ---  .   .
        """,
    )
    assert max(map(len, grid(one_f_one_b(8, 16)).splitlines())) <= 100


def test_a_grid_has_whole_columns():
    with pytest.raises(ValueError, match=r"0B0 runs from 1 to 2\.5, but a column is a whole unit"):
        grid(gpipe(1, 1), {"F": 1, "B": 1.5})


# Every size can be run, and is what its name says.


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_every_schedule_of_every_size_can_be_run(p, m):
    for schedule in (relay, gpipe, one_f_one_b, pipedream, zb_h1):
        validate(schedule(p, m), m)
    for v in (1, 2, 3):
        if m % max(1, m // p) == 0:
            validate(interleaved(p, m, v), m, v)


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_backwards_run_in_order_so_that_gradients_add_up_in_one_order(p, m):
    for schedule in (
        relay(p, m),
        gpipe(p, m),
        one_f_one_b(p, m),
        zb_h1(p, m),
        zb_v(p, m),
        interleaved(p, m * p, 3),
    ):
        for stage in range(count_stages(schedule)):
            for kind in "FBIW":
                run = [
                    a.microbatch
                    for actions in schedule
                    for a in actions
                    if a.stage == stage and a.kind == kind
                ]
                assert run == sorted(run)


def test_with_one_stage_per_rank_interleaving_is_1f1b():
    for p, m in SIZES:
        assert interleaved(p, m, 1) == one_f_one_b(p, m)


def test_rounds_of_equal_length_are_needed_to_interleave_and_the_error_says_which_m_would_do():
    with pytest.raises(
        ValueError, match=r"m = 9 .*, p = 4 ranks: they make no 2 groups .*; use m = 8 or m = 12"
    ):
        interleaved(4, 9, 2)


def test_longer_rounds_keep_the_bubble_and_keep_more():
    """4 ranks, 10 micro-batches: 2 groups of 5."""
    run = simulate(interleaved(4, 10, 2))
    assert run.bubble == 3 / (2 * 10 + 3)
    assert run.peak_live == [5 + 2 * (3 - i) + 1 for i in range(4)]
    assert simulate(interleaved(4, 3, 2)).bubble > 3 / (2 * 3 + 3)


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_messages_sent(p, m):
    assert (
        len(messages(gpipe(p, m)))
        == len(messages(one_f_one_b(p, m)))
        == len(messages(zb_h1(p, m)))
        == 2 * (p - 1) * m
    )
    for v in (2, 3):
        expected = 2 * (v * p - 1) * p if p > 1 else 0  # on one rank nothing is sent
        assert len(messages(interleaved(p, p, v))) == expected


@pytest.mark.parametrize(
    ("fn", "sizes"),
    [(gpipe, (0, 4)), (one_f_one_b, (2, 0)), (zb_h1, (0, 1)), (interleaved, (2, 2, 0))],
)
def test_a_pipeline_of_nothing_is_refused(fn, sizes):
    with pytest.raises(ValueError, match=r"[pmv] = 0: a pipeline has at least 1"):
        fn(*sizes)


# PipeDream.


def test_mini_batch_5_runs_forward_after_update_1_and_backward_after_updates_2_to_4():
    """In the paper's counting from 1; the first of 4 stages. Version k is what k
    updates have made."""
    reads = versions(4, 12, stashing=False)
    assert reads[parse("0F4")] == 1
    assert reads[parse("0B4")] == 4
    order = pipedream(4, 12)[0]
    assert " ".join(map(str, order[:12])) == "0F0 0F1 0F2 0F3 0B0 0F4 0B1 0F5 0B2 0F6 0B3 0F7"


@pytest.mark.parametrize(("p", "n"), SIZES)
def test_versions_read_with_and_without_stashing(p, n):
    plain, stashed = versions(p, n, stashing=False), versions(p, n, stashing=True)
    for stage in range(p):
        for j in range(n):
            forward, backward = Action(stage, "F", j), Action(stage, "B", j)
            assert plain[forward] == stashed[forward] == max(0, j - (p - 1 - stage))
            assert plain[backward] == j
            assert stashed[backward] == stashed[forward]


def test_the_last_stage_needs_no_stash():
    plain, stashed = versions(4, 9, stashing=False), versions(4, 9, stashing=True)
    differ = {action.stage for action in plain if plain[action] != stashed[action]}
    assert differ == {0, 1, 2}


# Memory, from the lists alone.


def test_what_a_rank_keeps_after_each_action():
    actions = [parse(text) for text in ["0F0", "0F1", "0I0", "0I1", "0W0", "0W1"]]
    assert kept(actions) == [(1, 0), (2, 0), (1, 1), (0, 2), (0, 1), (0, 0)]


def test_deciding_needs_no_torch():
    code = "import sys, lib.pipeline; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
