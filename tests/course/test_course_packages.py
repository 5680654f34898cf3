"""lib/packages.png shows what lib imports today, and every arrow of it goes down."""

import itertools
from pathlib import Path

import pytest

from lib.course import __main__ as command
from lib.course import packages
from lib.course.layers import Layers, reduced, rows_of

LIB = Path(__file__).parents[2] / "lib"
DIAMOND = {
    "top": {"left", "right", "low"},
    "left": {"low"},
    "right": {"low"},
    "low": set(),
    "far": {"low"},
}


def test_what_is_not_drawn_is_reached_by_a_longer_way():
    assert reduced(DIAMOND) == DIAMOND | {"top": {"left", "right"}}
    assert reduced(graph := {"a": {"b"}, "b": set()}) == graph


def test_a_package_stands_above_what_it_imports_and_as_near_to_who_imports_it():
    assert rows_of(DIAMOND) == {"low": 0, "left": 1, "right": 1, "far": 1, "top": 2}
    assert rows_of({"a": {"b", "e"}, "b": {"c"}, "c": set(), "e": set()}) == {
        "c": 0,
        "b": 1,
        "e": 1,
        "a": 2,
    }


@pytest.fixture(scope="module")
def libs():
    return packages.imports(LIB)


def test_the_picture_shows_todays_imports(libs):
    """Else: `python -m lib.course packages`."""
    assert packages.description(LIB / packages.NAME) == packages.in_words(libs)


@pytest.mark.parametrize("which", ["diamond", "lib"])
def test_arrows_go_down_and_boxes_stand_apart(which, libs):
    graph = DIAMOND if which == "diamond" else libs
    drawn = reduced(graph)
    layers = Layers(drawn, {package: 0.1 * len(package) for package in graph}, 0.1)
    assert {(line[0], line[-1]) for line in layers.lines} == {
        (a, b) for a in drawn for b in drawn[a]
    }
    row = {node: i for i, nodes in enumerate(layers.rows) for node in nodes}
    for line in layers.lines:
        assert [row[node] for node in line] == [*range(row[line[0]], row[line[-1]] - 1, -1)]
    for nodes in layers.rows:
        for a, b in itertools.pairwise(nodes):
            assert layers.x[b] - layers.x[a] > (layers.width[a] + layers.width[b]) / 2 + 0.0999


def test_crossings_are_counted_and_taken_away():
    layers = Layers(
        {"a": {"z"}, "b": {"y"}, "c": {"x"}, "x": set(), "y": set(), "z": set()}, {}, 1.0
    )
    assert layers.crossings() == 0
    layers.rows[0].sort(key=lambda node: -layers.x[node])
    assert layers.crossings() == 3
    layers.exchange()
    assert layers.crossings() == 0


def test_the_command_draws_a_stale_picture_anew_and_leaves_a_true_one(tmp_path, capsys):
    (tmp_path / "lib" / "upper").mkdir(parents=True)
    (tmp_path / "lib" / "lower.py").touch()
    upper = tmp_path / "lib" / "upper" / "x.py"
    upper.write_text("def f():\n    from lib import lower\n")
    assert command.main(["--root", str(tmp_path), "packages"]) == 0
    assert packages.description(tmp_path / "lib" / "packages.png").endswith(
        "lower.py imports nothing; upper imports lower.py."
    )
    assert command.main(["--root", str(tmp_path), "packages"]) == 0
    upper.write_text("")
    assert command.main(["--root", str(tmp_path), "packages"]) == 0
    assert "upper imports nothing" in packages.description(tmp_path / "lib" / "packages.png")
    said = "lib/packages.png written\nlib/packages.png unchanged\nlib/packages.png written\n"
    assert capsys.readouterr().out == said
