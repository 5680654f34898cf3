"""Lab 5's figures and explorer: what is drawn lies where the data say, and the claim is the
one in the numbers."""

import functools
import itertools

import numpy as np
import pytest
from figures import behind, check_page
from matplotlib.patches import PathPatch

from lib import plots
from lib.explore.lab5 import dropped_and_empty, expected_excess, popularity

COLLAPSE = np.linspace([25, 25, 25, 25], [70, 20, 10, 0], 11)  # tokens: (steps, E)
EVEN = np.full((11, 4), 0.25)
ASKED = [[0, 1], [0, 2], [0, -1], [2, 1]]
KEPT = [(0, 0, 0), (1, 0, 1), (0, 1, 0), (3, 1, 1), (3, 2, 0), (1, 2, 1)]  # token 2 finds no slot
POINTS = {
    "dense": {"D 512": (4e6, 2e6), "D 1024": (16e6, 8e6)},
    "mixture of experts": {"8 experts": (4e6, 16e6), "64 experts": (4e6, 128e6)},
}
ROWS = [[4, 2, 2], [3, 4, 1], [5, 2, 1]]
SHARES = {"per rank": [[0.5, 0.5], [0.5, 0.5]], "over all ranks": [[1.0, 0.0], [0.1, 0.9]]}
CURVES = {
    "tokens dropped": ([0.5, 1, 2], [0.5, 0.25, 0.0]),
    "slots empty": ([0.5, 1, 2], [0.0, 0.25, 0.5]),
}
IN_A_ROW = [
    ("compute", 0.0, 0.1, "shared A"),
    ("wire", 0.1, 0.2, "dispatch A"),
    ("compute", 0.2, 0.3, "experts A"),
]
BESIDE = [
    ("compute", 0.0, 0.1, "shared A"),
    ("wire", 0.0, 0.1, "dispatch A"),
    ("wire", 0.1, 0.2, "combine B"),
]
SEEDS = {  # (seeds, steps)
    "dense": [[3.0, 2.0, 1.5], [3.1, 2.2, 1.7]],
    "8 experts": [[3.1, 1.9, 1.4], [3.0, 2.1, 1.4]],
    "32 experts": [[3.2, 1.9, 1.2], [3.2, 2.1, 1.4]],
}
HERE = {"8 experts": ([50, 100], [0.2, -0.05])}
TWO = {"dense": [[3, 2.5, 1], [3, 2.5, 2]], "8 experts": [[3, 2.5, 2], [2.5, 2, 2]]}

FIGURES = {
    "load": lambda: plots.expert_load(
        [COLLAPSE, EVEN], ["without balancing", "with a loss"], note="4 experts."
    ),
    "load and capacity": lambda: plots.expert_load([COLLAPSE], ["no balancing"], capacity=1.2),
    "routing": lambda: plots.routing(
        ASKED, KEPT, 3, 2, ["the", "cat", "sat", "on"], note="GShard."
    ),
    "routing rerouted": lambda: plots.routing([[0], [0]], [(0, 0, 0), (1, 1, 0)], 2, 1),
    "sparse": lambda: plots.sparse_layer(POINTS, note="One layer."),
    "rank shares": lambda: plots.rank_shares(SHARES),
    "exchange": lambda: plots.exchange_matrix(ROWS),
    "capacity": lambda: plots.capacity_trade(CURVES, at=1.5, note="8 experts."),
    "exchange beside": lambda: plots.prefetch_timeline(
        {"in a row": IN_A_ROW, "beside": BESIDE}, note="Two ranks."
    ),
    "slots": lambda: plots.expert_slots(
        [1, 2, 6, 3], {"factor 1": 3, "dropless": None}, note="12 rows."
    ),
    "seeds": lambda: plots.seed_differences(
        [50, 100, 150], SEEDS, "dense", HERE, note="Two seeds."
    ),
    "seed losses": lambda: plots.seed_losses(
        [50, 100, 150],
        TWO,
        {"dense": 0.2, "8 experts": 0.1},
        {"dense": ([50], [3])},
        note="Two seeds.",
    ),
    "capacity alone": lambda: plots.capacity_trade(CURVES),
}


@functools.cache
def drawing(name):
    """Each once, for all tests that look at it."""
    return FIGURES[name]()


@pytest.mark.slow
@pytest.mark.parametrize("name", FIGURES)
def test_the_same_data_give_the_same_bytes_on_a_page_with_words(name):
    check_page(drawing(name), FIGURES[name]())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("load",
         ["with 70% of the choices without balancing and 25% with a loss"]),
        ("load",
         ["Even would be 25.0% each", "at first 25%, 25%, 25%, 25%; at last 70%, 20%, 10%, 0%"]),
        ("load and capacity", ["over capacity 18.0% of all steps' tokens"]),
        ("routing",
         ["1 of 7 choices find no slot, and 0 of 6 slots are empty",
          "Expert 0 gets the, cat.",
          "GShard."]),
        ("routing", ["Expert 2 gets on, cat.", "Without a slot: sat at expert 0."]),
        ("routing rerouted", ["1 of 2 tokens find no slot, and 0 of 2", "Expert 1 gets 1."]),
        ("sparse",
         ["64 experts has 64 times as many parameters as it uses for a token",
          "D 512: 4 million FLOPs, 2 million"]),
        ("rank shares",
         ["A rank's busiest expert gets 50% of its choices (per rank), or 95% (over all ranks)",
          "over all ranks: the busiest expert has 55% of all choices, a rank's busiest one 95%"]),
        ("exchange",
         ["Rank 0's experts get 12 of 24 routed tokens, 1.5 times their share", "0 to 1 2"]),
        ("capacity",
         ["Capacity factor 1.5: 12.5% of tokens dropped, 37.5% of slots empty", "50.0% at 0.5"]),
        ("slots",
         ["factor 1, 25% dropped, 25% empty; dropless, 0% dropped, 0% empty",
          "12 rows.",
          "for: 1, 2, 6, 3."]),
        ("slots", ["The hottest expert is asked for 2.0 times the mean"]),
        ("exchange beside", ["Beside: 200 ms instead of 300, 50% of communication hidden"]),
        ("seeds",
         ["After 150 steps, against dense: 8 experts -0.300 to -0.100; "
          "32 experts -0.300 to -0.300"]),
        ("seeds", ["Two seeds.", "32 experts: +0.150 (+0.100 to +0.200) at 50"]),
        ("seeds", ["8 experts: +0.000 (-0.100 to +0.100) at 50, -0.100 (-0.100 to -0.100) at 100"]),
        ("seed losses",
         ["After 150 steps dense is 0.50 lower; after 15 seconds 8 experts is 0.75 lower"]),
        ("seed losses",
         ["Two seeds.", "100 ms a step: 2.750 (2.500 to 3.000) at 50, 2.250 (2.000 to 2.500) at"]),
        ("capacity alone",
         ["tokens dropped: 50.0% at 0.5, 0.0% at 2", "slots empty, predicted: 0.0% at 0.5"]),
    ],
)  # fmt: skip
def test_the_alt_text_holds_the_claim_and_the_numbers(name, words):
    for word in words:
        assert word in drawing(name).alt


@pytest.fixture
def drawn(monkeypatch):
    """drawn(name) -> (figure, title): the figure itself in place of its PNG."""
    return lambda name: behind(FIGURES[name], monkeypatch)[:2]


def words(axes):
    return [text.get_text() for text in axes.texts]


def test_bands_are_shares_and_dashes_are_even_parts(drawn):
    figure, _ = drawn("load")
    for axes, shares in zip(figure.axes, (COLLAPSE / 100, EVEN), strict=True):
        edges = [line.get_ydata() for line in axes.lines[:4]]
        assert np.allclose(edges, shares.cumsum(1).T)
        dashed = axes.lines[4:]
        assert [line.get_ydata()[0] for line in dashed] == [0.25, 0.5, 0.75] and all(
            d.is_dashed() for d in dashed
        )
        assert words(axes) == [str(e) for e in range(4) if shares[-1, e] > 0.05]
    assert figure.axes[0].get_title(loc="left") == "without balancing: busiest 70%"


def test_what_is_over_capacity_is_hatched(drawn):
    figure, _ = drawn("load and capacity")
    (axes,) = figure.axes
    hatched = [c for c in axes.collections if c.get_hatch()]
    tops = [
        max(path.vertices[:, 1].max() for path in c.get_paths()) for c in hatched if c.get_paths()
    ]
    bottoms = [
        min(path.vertices[-1, 1] for path in c.get_paths()) for c in hatched if c.get_paths()
    ]
    # of expert 0 alone, from capacity up
    assert tops == pytest.approx([0.7]) and bottoms[0] >= 0.3 - 1e-9
    assert axes.get_title(loc="left") == "no balancing: 40% over capacity"


def test_a_line_ends_at_its_expert_and_what_finds_no_slot_in_a_cross(drawn):
    figure, _ = drawn("routing")
    (axes,) = figure.axes
    lines = [p for p in axes.patches if isinstance(p, PathPatch)]
    ends = [(p.get_path().vertices[0][1], p.get_path().vertices[-1][1]) for p in lines]
    assert np.allclose(ends, [((t + 0.5) / 4, (e + 0.5) / 3) for t, e, _ in KEPT])
    first = [ASKED[t][0] == e for t, e, _ in KEPT]
    assert [p.get_linestyle() in ("-", "solid") for p in lines] == first
    crosses = [line for line in axes.lines if line.get_marker() == "x"]
    assert len(crosses) == 1 and 2 / 4 < crosses[0].get_ydata()[0] < 3 / 4  # in the row of token 2
    boxes = [p for p in axes.patches if not isinstance(p, PathPatch)]
    assert len(boxes) == 6 and {text for text in words(axes) if "expert" in text} == {
        f"expert {e}" for e in range(3)
    }
    assert [text for text in words(axes) if text == "sat"] == ["sat"]  # on the left alone


def test_points_lie_where_they_are_and_dense_ones_on_the_line(drawn):
    figure, _ = drawn("sparse")
    (axes,) = figure.axes
    line, *series = axes.lines
    assert line.is_dashed() and np.allclose(np.divide(line.get_xdata(), line.get_ydata()), 2)
    for found, of_kind in zip(series, POINTS.values(), strict=True):
        assert list(zip(found.get_xdata(), found.get_ydata(), strict=True)) == list(
            of_kind.values()
        )


def test_a_label_keeps_clear_of_the_next_point(monkeypatch):
    near = {"a": {"left": (4e6, 16e6), "right": (5e6, 10e6), "far": (64e6, 9e6)}}
    figure, *_ = behind(lambda: plots.sparse_layer(near), monkeypatch)
    assert {text.get_text(): text.get_ha() for text in figure.axes[0].texts} == {
        "left": "right", "right": "left", "far": "left",
    }  # fmt: skip


def test_an_exchange_is_the_traffic_matrix_with_another_claim():
    assert (
        plots.exchange_matrix(ROWS, title="x").png
        == plots.traffic_matrix(ROWS, "tokens", title="x").png
    )
    assert plots.exchange_matrix([[1, 1], [1, 1]]).alt.startswith(
        "Even: every rank's experts get 2 routed tokens."
    )


def test_predicted_shares_are_dashed_and_in_percent(drawn):
    figure, title = drawn("capacity alone")
    assert title == "Tokens dropped: 50.0% at 0.5, 0.0% at 2"
    lines = figure.axes[0].lines
    assert [line.is_dashed() for line in lines] == [True, True]
    assert list(lines[1].get_ydata()) == pytest.approx([0, 25, 50])


def test_bars_are_rows_computed_dropped_and_empty_slots(drawn):
    figure, _ = drawn("slots")
    slots, dropless = figure.axes
    bars = lambda axes: [
        [(round(b.get_x() + 0.41), b.get_y(), b.get_height()) for b in bars]
        for bars in axes.containers
    ]
    computed, empty, dropped = bars(slots)
    assert computed == [(0, 0, 1), (1, 0, 2), (2, 0, 3), (3, 0, 3)]
    assert empty == [(0, 1, 2), (1, 2, 1)] and dropped == [(2, 3, 3)]
    assert [height for _, _, height in bars(dropless)[0]] == [1, 2, 6, 3] and bars(dropless)[
        1:
    ] == [[], []]
    assert [line.get_ydata()[0] for line in slots.lines] == [3] and not dropless.lines


def test_differences_are_taken_seed_by_seed(drawn):
    figure, title = drawn("seeds")
    (axes,) = figure.axes
    bands = [c.get_paths()[0].vertices for c in axes.collections]
    of_8, dots, of_32, none, zero = axes.lines
    assert list(of_8.get_ydata()) == pytest.approx([0, -0.1, -0.2]) and list(zero.get_ydata()) == [
        0,
        0,
    ]
    assert (
        list(of_32.get_ydata()) == pytest.approx([0.15, -0.1, -0.3]) and len(none.get_xdata()) == 0
    )
    assert [list(dots.get_xdata()), list(dots.get_ydata())] == [[50, 100], [0.2, -0.05]]
    assert {(x, round(y, 6)) for x, y in bands[0]} >= {
        (50, 0.1),
        (50, -0.1),
        (150, -0.1),
        (150, -0.3),
    }
    low, high = axes.get_ylim()
    assert low < -0.3 and high > 0.2 and "dense" in title


def test_the_expected_share_is_that_of_all_ways_to_choose():
    """Every assignment of 5 tokens to 3 experts, weighed with its probability."""
    p = popularity(3, 1.0)
    assert p == pytest.approx([6 / 11, 3 / 11, 2 / 11])
    for factor, C in ((0.6, 1), (1.2, 2), (1.3, 3), (3.0, 5)):
        counted = sum(
            np.prod(p[list(chosen)]) * np.maximum(np.bincount(chosen, minlength=3) - C, 0).sum() / 5
            for chosen in itertools.product(range(3), repeat=5)
        )
        (dropped,), (empty,) = dropped_and_empty([factor], 3, 1.0, 5)
        assert dropped == pytest.approx(counted) and empty == pytest.approx(
            1 - 5 * (1 - counted) / (3 * C)
        )
    assert expected_excess(4, 0.5)[[0, 4]] == pytest.approx([2, 0])


def test_more_slots_drop_less_and_skew_drops_more():
    (few, more, all_of_them), empty = dropped_and_empty([1, 2, 8], 8, 0.5, 1024)
    assert few > more > all_of_them == pytest.approx(0, abs=1e-9) and list(empty) == sorted(empty)
    assert (
        dropped_and_empty([1], 8, 1.0, 1024)[0][0]
        > few
        > dropped_and_empty([1], 8, 0.0, 1024)[0][0]
        > 0
    )


@pytest.mark.parametrize(
    ("draw", "says"),
    [
        (lambda: plots.expert_load([], []),
         r"loads \[\], titles : give 1 or 2 of \(steps, experts\)"),
        (lambda: plots.expert_load([EVEN], ["a", "b"]), r"loads \[\(11, 4\)\], titles a, b"),
        (lambda: plots.expert_load([EVEN - 0.3], ["a"]), "a: from -0.05, in all from -0.2 a step"),
        (lambda: plots.rank_shares({}), r"runs  of shapes \[\]: give 1 to 4 runs"),
        (lambda: plots.rank_shares({"a": [[0.5, 0.5]], "b": [[1.0, 0, 0]]}),
         r"runs a, b of shapes \[\(1, 2\), \(1, 3\)\]"),
        (lambda: plots.rank_shares({"a": [[0.5, 0.4]]}), r"a: rows from 0.4, with sums \[0.9\]"),
        (lambda: plots.routing([], [], 2, 1), "0 tokens, 2 experts of 1 slots"),
        (lambda: plots.routing([[2]], [], 2, 1), r"asked for \[\[2\]\]"),
        (lambda: plots.routing([[0], [0]], [(0, 0, 0), (1, 0, 0)], 2, 1), "no slot twice"),
        (lambda: plots.routing([[0]], [(0, 0, 1)], 2, 1),
         r"kept \[\(0, 0, 1\)\]: give .* 2 experts and 1 slots"),
        (lambda: plots.sparse_layer({}), "0 kinds with 0 points"),
        (lambda: plots.sparse_layer({"a": {"b": (0, 1)}}),
         r"b: \(0, 1\) is not \(FLOPs per token, parameters\)"),
        (lambda: plots.exchange_matrix([[1, 2]]), r"got shape \(1, 2\)"),
        (lambda: plots.exchange_matrix([[-1]]), "none below 0"),
        (lambda: plots.seed_differences([1, 2], SEEDS, "wide"),
         "runs dense, 8 experts, 32 experts against wide"),
        (lambda: plots.seed_differences([1, 2], SEEDS, "dense"), r"losses \{\(2, 3\)\} at 2 steps"),
        (lambda: plots.seed_differences([1, 2, 3], SEEDS, "dense", {"64": ([1], [0])}),
         "dots of 64"),
        (lambda: plots.seed_losses([1, 2, 3], TWO, {"dense": 1}),
         "seconds of dense, dots of : give"),
        (lambda: plots.seed_losses([1, 2], TWO, dict.fromkeys(TWO, 1)),
         r"losses \{\(2, 3\)\} at 2 steps"),
        (lambda: plots.expert_slots([1, 2], {}), r"0 capacities, asked \(2,\): give 1 to 4"),
        (lambda: plots.expert_slots([1, -2], {"a": None}), r"asked \[1, -2\]"),
        (lambda: plots.expert_slots([1, 2], {"a": 0}), "slots are 1 or more"),
        (lambda: plots.capacity_trade({}), "predicted nothing: predict 1 to 8"),
        (lambda: plots.capacity_trade({"a": ([1], [2])}), "a: 1 factors and 1 shares"),
    ],
)  # fmt: skip
def test_wrong_data_is_refused_with_its_numbers(draw, says):
    with pytest.raises(ValueError, match=says):
        draw()
