"""The puzzle's shortest makespans: those of all lists there are, where these are few; and those
that are stored."""

import itertools
import json

import pytest

from lib.pipeline import Action, ScheduleError, one_f_one_b, puzzle, shortest, simulate, validate
from lib.pipeline import __main__ as command
from lib.pipeline.puzzle import LEVELS, Puzzle

SMALL = {
    "alike": Puzzle(2, 2, {"F": (1, 1), "I": (1, 1), "W": (1, 1)}, 0, (2, 2)),
    "unlike": Puzzle(2, 2, {"F": (3, 1), "I": (2, 4), "W": (1, 3)}, 1, (2, 2)),
    "a long message": Puzzle(2, 2, {"F": (1, 2), "I": (2, 1), "W": (2, 3)}, 4, (2, 2)),
    "one kept": Puzzle(2, 2, {"F": (1, 2), "I": (3, 2), "W": (2, 2)}, 1, (1, 2)),
    "one kept on either": Puzzle(2, 2, {"F": (2, 2), "I": (1, 2), "W": (3, 1)}, 2, (1, 1)),
    "alone": Puzzle(1, 2, {"F": (2,), "I": (3,), "W": (1,)}, 1, (1,)),
}


def orders(i, m):
    """All lists of a rank with each I behind its F and each W behind its I,
    micro-batches in any order."""
    for turns in set(itertools.permutations([j for j in range(m) for _ in "FIW"])):
        kinds = [iter("FIW") for _ in range(m)]
        yield [Action(i, next(kinds[j]), j) for j in turns]


def most_kept(schedule, of):
    return simulate(schedule, of.times, of.message).peak_kept


@pytest.mark.parametrize("of", SMALL.values(), ids=SMALL)
def test_no_list_of_all_is_shorter(of):
    times = []
    for schedule in itertools.product(*(orders(i, of.m) for i in range(of.p))):
        try:
            run = simulate(schedule, of.times, of.message)
        except ScheduleError:
            continue
        times += (
            [run.makespan]
            if all(kept <= cap for kept, cap in zip(run.peak_kept, of.cap, strict=True))
            else []
        )
    found = shortest.fastest(of)
    assert of.time(validate(found, of.m)) == min(times)
    assert all(kept <= cap for kept, cap in zip(most_kept(found, of), of.cap, strict=True))
    assert shortest.schedule_by(of, min(times) - 1)[0] is None


@pytest.mark.parametrize("level", LEVELS)
def test_the_lists_found_are_valid_keep_the_cap_and_take_what_is_stored(level):
    of = LEVELS[level]
    found = shortest.fastest(of)
    validate(found, of.m)
    assert of.time(found) == of.best == puzzle.stored()["levels"][str(level)]["best"]
    assert all(kept <= cap for kept, cap in zip(most_kept(found, of), of.cap, strict=True))


def test_1f1b_is_within_every_cap_and_its_backward_is_both_halves():
    for of in LEVELS.values():
        run = simulate(one_f_one_b(of.p, of.m), of.whole, of.message)
        assert run.makespan == of.of_1f1b > of.best
        assert all(kept <= cap for kept, cap in zip(run.peak_kept, of.cap, strict=True))
    assert [of.of_1f1b for of in LEVELS.values()] == [34, 59, 87]


def test_the_command_finds_what_is_stored(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command, "FILE", tmp_path / "puzzle.json")
    command.store()
    made = json.loads((tmp_path / "puzzle.json").read_text())
    assert made["levels"] == puzzle.stored()["levels"]
    assert made.keys() == puzzle.stored().keys()
    assert "level 3: 1F1B 87, shortest 68" in capsys.readouterr().out
