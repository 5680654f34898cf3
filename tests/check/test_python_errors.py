"""What Python refuses in an answer is told in words that lead on: the nearest name, the cell that
was not run, the signature."""

# ruff: noqa: F821, F841 (names that do not exist are what these tests are about)

import json

import pytest
import torch.distributed as dist
from sweeps import first_quick

from lib import here
from lib.check import own_cells
from lib.check.exercises import EXERCISES
from lib.check.framework import evaluate


def misspells(f, x):
    first_output = f(x)
    return first_ouput


def names_nothing(f, x):
    return qqzzy(x)


def without_a_value(f, x):
    if x is None:
        y = f(x)
    return y


def no_such_attribute(f, x):
    return x.shap


def no_such_index(f, x):
    return [f(x)][3]


def no_such_key(f, x):
    return {}["y"]


def takes_one(f):
    return f


ON_ITS_OWN = [
    (misspells, "a name that does not exist", "The most similar name that exists is first_output"),
    (names_nothing, "a name that does not exist", "nor a cell that has been run defines qqzzy"),
    (without_a_value, "a variable without a value", "UnboundLocalError"),
    (takes_one, "another signature", "Yours is takes_one(f)"),
    (no_such_attribute, "an attribute that does not exist", "AttributeError"),
    (no_such_index, "an index that does not exist", "IndexError"),
    (no_such_key, "a key that does not exist", "KeyError"),
]


@pytest.mark.parametrize(
    ("answer", "hint", "words"), ON_ITS_OWN, ids=lambda one: getattr(one, "__name__", "")
)
def test_python_refuses_an_answer_without_ranks(answer, hint, words):
    outcome = evaluate(EXERCISES["recompute"], answer)
    told = "\n".join(outcome.lines)
    assert (outcome.points, outcome.hint) == (0, hint), told
    assert words in told
    assert "lib/check" not in told and "_measure" not in told


def test_a_built_in_function_is_near_only_when_it_is_very_near():
    outcome = evaluate(EXERCISES["recompute"], lambda f, x: enumrate([f(x)]))
    assert any("The most similar name that exists is enumerate" in line for line in outcome.lines)
    outcome = evaluate(EXERCISES["recompute"], lambda f, x: helper(x))
    assert not any("help" in line.split() for line in outcome.lines)


def misspells_on_ranks(tensor, group=None):
    world_size = dist.get_world_size(group)
    return tensor.chunk(wrld_size)[0]


def indexes_beyond(tensor, group=None):
    return tensor.chunk(2)[dist.get_world_size(group)]


def takes_no_group(tensor):
    return tensor


@pytest.mark.parametrize(
    ("answer", "hint", "words"),
    first_quick(
        [
            (misspells_on_ranks, "a name that does not exist", "exists is world_size"),
            (indexes_beyond, "an index that does not exist", "IndexError"),
            (takes_no_group, "another signature", "Yours is takes_no_group(tensor)"),
        ]
    ),
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_python_refuses_an_answer_on_ranks(answer, hint, words):
    outcome = evaluate(EXERCISES["ring_reduce_scatter"], answer)
    told = " ".join(" ".join(outcome.lines).split())
    assert (outcome.points, outcome.hint) == (0, hint), told
    assert words in told


def test_the_cell_that_was_not_run_is_named(tmp_path, monkeypatch):
    source = ["import torch\n", "def keep_the_state(x):\n", "    return x"]
    cells = [{"cell_type": "code", "source": source}]
    path = tmp_path / "lab.ipynb"
    path.write_text(json.dumps({"cells": cells}), encoding="utf-8")
    monkeypatch.setattr(here, "opened", lambda: path)
    outcome = evaluate(EXERCISES["recompute"], lambda f, x: keep_the_state(f(x)))
    told = " ".join(" ".join(outcome.lines).split())
    assert "defines keep_the_state and has not been run: `def keep_the_state(x):`" in told


OWN = "def both(a, b):\n    return a, b"


@pytest.mark.parametrize("in_helpers", [False, True])
def test_a_name_from_a_cell_that_is_not_graded_is_told(tmp_path, monkeypatch, in_helpers):
    graded = {"nbgrader": {"grade_id": "x"}}
    answer = "def answer(f, x):\n    both = 1\n    return f(x)"
    cells = [(OWN, graded if in_helpers else {}), (answer, graded)]
    path = tmp_path / "mine.ipynb"
    path.write_text(
        json.dumps({"cells": [{"cell_type": "code", "source": s, "metadata": m} for s, m in cells]})
    )
    monkeypatch.setattr(here, "opened", lambda: path)
    scope = {}
    exec(f"{OWN}\ndef answer(f, x):\n    return [both(f, y) for y in x]", scope)
    note = own_cells.note([scope["answer"]])
    assert own_cells.note([takes_one]) == ""
    if in_helpers:
        assert note == ""
    else:
        assert note.startswith("both is defined in a cell of your own (`def both(a, b):`)")
