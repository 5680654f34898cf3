"""The puzzle's check tells of lists that are too slow which move helps, and which chain ends last:
both are true."""

from itertools import pairwise

import pytest
from lab2 import answers_fastest as answers

from lib.check.lab2.fastest import EXERCISE, chain, next_move
from lib.pipeline import ScheduleError, validate
from lib.pipeline.puzzle import LEVELS


def exchanges(level):
    """The fastest lists with two neighbours the other way round: all that run and are slower."""
    for rank in range(level.p):
        for place in range(3 * level.m - 1):
            lists = answers.exchanged("", level.p, rank, place)(level)
            try:
                validate(lists, level.m)
            except ScheduleError:
                continue
            if level.time(lists) > level.best:
                yield lists


@pytest.mark.parametrize("level", LEVELS.values(), ids=LEVELS)
def test_the_chain_takes_all_the_time_and_a_move_what_it_promises(level):
    slower, helped = list(exchanges(level)), 0
    for lists in slower:
        links = chain(lists, level)
        messages = sum(a.stage != b.stage for a, b in pairwise(links))
        assert sum(
            level.times[a.kind][a.stage] for a in links
        ) + messages * level.message == level.time(lists)
        if (move := next_move(lists, level)) and move.time < level.time(lists):
            actions = [a for a in lists[move.rank] if a != move.filler]
            actions.insert(actions.index(move.before), move.filler)
            assert (
                level.time(
                    [actions if i == move.rank else others for i, others in enumerate(lists)]
                )
                == move.time
            )
            helped += 1
    assert len(slower) >= 5
    assert helped >= len(slower) / 3


def test_points_come_in_steps():
    assert EXERCISE.points == 8
    assert [claim.points for claim in EXERCISE.claims] == [1, 1, 1, 1, 1, 1, 2]
