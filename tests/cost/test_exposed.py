"""Exposed seconds: by hand, and against a count of small pieces of time."""

import random

import pytest

from lib.cost.exposed import exposed_seconds


@pytest.mark.parametrize(
    ("compute", "messages", "seconds"),
    [
        ([], [], 0), ([(0, 3)], [], 0), ([], [(0, 3)], 3), ([(0, 3)], [(3, 4)], 1),
        ([(0, 3)], [(1, 2)], 0), ([(2, 3)], [(0, 6)], 5), ([(0, 2), (1, 3)], [(0.5, 3.5)], 0.5),
        ([], [(0, 5), (1, 2)], 5), ([(4, 5), (0, 1)], [(3, 4.5), (0, 2)], 2),
        ([(1, 1)], [(0, 2), (3, 3)], 2),
    ],
)  # fmt: skip
def test_by_hand(compute, messages, seconds):
    assert exposed_seconds(compute, messages) == seconds


def test_it_is_the_time_in_which_a_message_is_under_way_and_nothing_computes():
    draw = random.Random(0)
    for _ in range(20):
        compute, messages = (
            [(a := draw.randrange(50), a + draw.randrange(9)) for _ in range(8)] for _ in range(2)
        )
        inside = lambda t, intervals: any(start <= t < end for start, end in intervals)
        counted = sum(inside(t, messages) and not inside(t, compute) for t in range(60))
        assert exposed_seconds(compute, messages) == counted
