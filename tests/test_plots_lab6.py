"""Lab 6's figures: what is drawn lies where the data say, and the claim is the one
in the numbers."""

import functools
from typing import NamedTuple

import pytest
from figures import behind, check_page
from matplotlib.collections import PatchCollection
from matplotlib.patches import FancyBboxPatch, Rectangle

from lib import plots
from lib.cost.hardware import GIB
from lib.hybrid.automatic import Cluster, choose, cut_into_stages, named, trace
from lib.hybrid.automatic.layouts import both_ways
from lib.hybrid.mesh import groups_along
from lib.hybrid.unequal import stages_by_speed
from lib.training.model import Block, Shape

SIZES = {"pp": 2, "dp": 2, "tp": 2}
TAKES = {"matmul": 6.0, "attention": 1.0, "elementwise": 0.5, "tensor": 2.0, "context": 0.0,
         "expert": 0.0,
         "launch": 0.0, "message": 0.1, "bubble": 1.0, "sharding": 0.3,
         "optimizer": 0.1}  # fmt: skip
NEEDS = {"weights": 10 * GIB, "gradients": 20 * GIB, "optimizer": 6 * GIB, "activations": 30 * GIB,
         "logits": 0.0,
         "working": 2 * GIB, "reserve": 0.0}  # fmt: skip
INSIDE = {"computes": 0.3, "messages": 0.1}
ACROSS = {"computes": 0.3, "messages": 0.5}
RANKED = [("tp8 pp8 dp2", TAKES, 60 * GIB), ("tp8 pp4 dp4", TAKES | {"bubble": 3.2}, 50 * GIB),
          ("tp4 pp4 dp8", TAKES | {"tensor": 0.5}, 90 * GIB)]  # fmt: skip
COSTS = {1: [4.0, 2.0, 2.0, 6.0], 2: [2.2, 1.2, 1.2, 3.2]}
FOUND = cut_into_stages(COSTS, 4, 8)
SPEEDS, LAYERS = (2.0, 1.0), [1.0] * 6
PLACED = stages_by_speed(LAYERS, SPEEDS)


class Halves(NamedTuple):
    layers: list
    devices: list


EQUAL = Halves([range(1), range(1, 2), range(2, 3), range(3, 4)], [1, 1, 1, 1])
MEGATRON = {"attention_q": "column", "attention_k": "column", "attention_v": "column",
            "split_heads": "dim 2",
            "split_heads_1": "dim 2", "split_heads_2": "dim 2", "causal_attention": "dim 1",
            "merge_heads": "dim 1",
            "attention_out": "row", "mlp_up": "column", "gelu": "dim 2",
            "mlp_down": "row"}  # fmt: skip


@functools.cache
def traced():
    """The operators of a block, Megatron's plan for it, and the one that is found."""
    operators = trace(Block(Shape(12, 8, 1, 8, 4)), (4, 8, 8)).operators
    on = Cluster(2, 1e6, 1e4, 1e-6, 1e-8, 8)
    return operators, {
        "Megatron's": named(operators, MEGATRON, on),
        "the search's": choose(operators, on),
    }


LOST = {
    "16,384 GPUs": ([60, 1200, 7200], [0.5, 0.15, 0.4]),
    "100,000 GPUs": ([60, 300, 7200], [0.7, 0.45, 0.9]),
}
FIGURES = {
    "mesh": lambda: plots.mesh(SIZES),
    "mesh in groups": lambda: plots.mesh(SIZES, groups_along(("dp",), SIZES), per_node=4,
    note="By rank."),
    "mesh of nodes": lambda: plots.mesh({"dp": 2, "tp": 4},
    groups_along(("tp",), {"dp": 2, "tp": 4}), per_node=2),
    "big mesh": lambda: plots.big_mesh(),
    "placement": lambda: plots.step_times(
        {"inside": INSIDE, "across": ACROSS}, {"across": ACROSS | {"messages": 0.6},
                                               "inside": INSIDE}, note="8 ranks."
    ),
    "own runs": lambda: plots.step_times({"a": 1.1, "b": 3.0}, {"a": 1.0, "b": 2.0}, within=0.15),
    "predicted in parts": lambda: plots.step_times(
        {"a": 0.4, "b": 0.9}, {"a": {"pipeline": 0.3, "tensor": 0.1, "tied": 0.0,
                                     "gradients": 0.05}, "b": INSIDE}
    ),
    "volume": lambda: plots.axis_volume(
        {"3-D": {"tp": 24e9, "pp": 33e6, "dp": 1.2e9}, "data alone": {"tp": 0.0, "dp": 14e9}},
        {"3-D": ("pp", "dp")}
    ),
    "ranking": lambda: plots.plan_ranking(RANKED, 66 * GIB, note="GPT-3."),
    "ranking within an error": lambda: plots.plan_ranking(RANKED, 66 * GIB, error=0.08),
    "cost": lambda: plots.plan_cost({"yours": (NEEDS, TAKES), "best": (NEEDS, TAKES)}, 80 * GIB,
    66 * GIB),
    "shardings": lambda: plots.shardings(*traced(), both_ways),
    "unequal": lambda: plots.unequal_steps(
        {"equal": [4, 3, 3], "in proportion": [6, 3, 1]}, [3, 2, 1],
        {"equal": 3.1, "in proportion": 2.05}
    ),
    "stages": lambda: plots.stage_cut({"one each": EQUAL, "found": FOUND}, COSTS, microbatches=8,
    unit="ms"),
    "lost": lambda: plots.lost_share(LOST, note="Restarts of 10 minutes."),
    "lost, measured": lambda: plots.lost_share(
        {"2 ranks": ([0.1, 0.3, 1.0], [0.6, 0.4, 0.7])}, {"2 ranks": ([0.1, 1.0], [0.61, 0.69])},
        {"2 ranks": [(0.3, 0.3, 0.42, 0.55)]},
    ),
    "stages by speed": lambda: plots.stage_cut(
        {"by speed": PLACED}, {k: [c / v for c in LAYERS] for k, v in enumerate(SPEEDS)},
        on={0: "fast", 1: "slow"}
    ),
}  # fmt: skip


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
        ("mesh", ["8 ranks as pp=2 x dp=2 x tp=2: rank 5 is pp 1, dp 0, tp 1"]),
        ("mesh in groups",
         ["Along dp: 4 groups of 2 ranks, each inside a node",
          "0 2 | 1 3 | 4 6 | 5 7",
          "By rank."]),
        ("mesh of nodes", ["Along tp: 2 groups of 4 ranks, across 2 nodes", "0 1 2 3 | 4 5 6 7"]),
        ("big mesh",
         ["3,072 GPUs: 64 stages x 6 copies = 384 nodes, each with 8", "ranks 976 to 983"]),
        ("placement",
         ["across takes 2 times as long as inside, predicted 2.25",
          "inside: 400 (computes 300, mess"]),
        ("own runs",
         ["1 of 2 within 15% of the prediction; furthest off: b, +50%",
          "b: 3 s measured, 2 predicted."]),
        ("predicted in parts",
         ["a: 400 ms measured, 450 (pipeline 300, tensor 100, tied 0, gradients 50) predicted."]),
        ("volume",
         ["A GPU sends across nodes: 1.23 GB with 3-D; nothing with data alone",
          "pp 33 MB across"]),
        ("ranking",
         ["Fastest that fits: tp8 pp8 dp2, 11 s; 1 would be faster", "90 GiB, does not fit"]),
        ("cost",
         ["Yours does not fit: 68 of 66 GiB; 11 s a step",
          "comes and goes 2",
          "other kernels 1.5"]),
        ("shardings",
         ["the search's plan takes", "of Megatron's", "attention_q, k, v column", "/ all-reduce"]),
        ("unequal", ["in proportion: 2.05 s instead of 3.1, 1.51 times as fast (predicted 1.50)"]),
        ("unequal",
         ["equal: rank 0 4 rows in 1.33, rank 1 3 rows in 1.5, rank 2 3 rows in 3; a step 3 s"]),
        ("lost",
         ["15% with a save every 20 min (16,384 GPUs); 45% with a save every 5 min",
          "Restarts of 10"]),
        ("lost, measured",
         ["Lost, measured: 42% with a save every 300 ms (formula 40%)", "interval 30.0% to 55.0%"]),
        ("stages by speed",
         ["a pace of 2 units", "stage 0 on fast layers 0 to 3 take 2, stage 1 on slow layers 4"]),
    ],
)  # fmt: skip
def test_the_alt_text_holds_the_claim_and_the_numbers(name, words):
    for word in words:
        assert word.lower() in drawing(name).alt.lower()


@pytest.fixture
def drawn(monkeypatch):
    """drawn(name) -> (figure, title): the figure itself in place of its PNG."""
    return lambda name: behind(FIGURES[name], monkeypatch)[:2]


def words(axes):
    return [text.get_text() for text in axes.texts]


def boxes(axes, color=None):
    """(left, bottom, width) of the rectangles, of one colour if it is given."""
    found = [
        p for p in axes.patches if isinstance(p, Rectangle) and p.get_width() and not p.get_hatch()
    ]
    return [p for p in found if color is None or plots.style.to_rgb(color) == p.get_facecolor()[:3]]


def test_ranks_lie_by_their_coordinates_and_a_group_has_one_colour(drawn):
    figure, _ = drawn("mesh in groups")
    (axes,) = figure.axes
    ranks = [p for p in axes.patches if isinstance(p, Rectangle)]
    places = [(p.get_x(), p.get_y()) for p in ranks]
    assert [places.index(place) for place in sorted(places, key=lambda at: at[::-1])] == list(
        range(8)
    )
    # tp side by side, dp a block further
    assert places[1][0] - places[0][0] < places[2][0] - places[1][0]
    colors = [p.get_facecolor() for p in ranks]
    assert [
        [r for r in range(8) if colors[r] == colors[first]] for first in (0, 1, 4, 5)
    ] == groups_along(("dp",), SIZES)
    assert len([p for p in axes.patches if isinstance(p, FancyBboxPatch)]) == 2
    assert {"pp 0", "pp 1", "dp 0", "dp 1", "tp 0", "tp 1", "node 0", "node 1"} <= set(words(axes))


def test_a_pipeline_a_data_group_and_a_tensor_group_cross(drawn):
    figure, _ = drawn("big mesh")
    grid, below = figure.axes
    (nodes,) = [c for c in grid.collections if isinstance(c, PatchCollection)]
    colors = [tuple(color) for color in nodes.get_facecolor()]
    assert len(nodes.get_paths()) == 384 and sorted(map(colors.count, set(colors))) == [
        1,
        5,
        63,
        315,
    ]
    assert [text for text in words(below) if text.isdigit()] == [str(976 + i) for i in range(8)]


def test_measured_is_filled_and_predicted_dashed(drawn):
    figure, _ = drawn("placement")
    (axes,) = figure.axes
    assert [p.get_width() for p in boxes(axes)] == pytest.approx([300, 100, 300, 500])
    assert [line.get_xdata()[1] for line in axes.lines] == pytest.approx([300, 400, 300, 900])
    assert all(line.is_dashed() for line in axes.lines) and "800 ms (-11%)" in words(axes)
    figure, _ = drawn("predicted in parts")
    widths = [p.get_width() for p in boxes(figure.axes[0])]
    # predicted in parts, then measured, twice
    assert widths == pytest.approx([300, 100, 50, 400, 300, 100, 900])
    figure, _ = drawn("own runs")
    (axes,) = figure.axes
    assert (0.85, 1.15) in [
        (round(p.get_x(), 6), round(p.get_x() + p.get_width(), 6)) for p in axes.patches
    ]
    late = [text.get_color() for text in axes.texts if text.get_text() == "3 s (+50%)"]
    assert late == [plots.ALARM]


def test_the_least_lost_is_marked_and_a_measured_share_has_its_bar(drawn):
    figure, _ = drawn("lost")
    (axes,) = figure.axes
    diamonds = [
        (*line.get_xdata(), *line.get_ydata()) for line in axes.lines if line.get_marker() == "D"
    ]
    assert diamonds == [(1200, 0.15), (300, 0.45)] and axes.get_ylim() == (0, 1)
    figure, _ = drawn("lost, measured")
    (axes,) = figure.axes
    looks = {
        (line.get_marker(), line.get_linestyle()): list(line.get_ydata()) for line in axes.lines
    }
    assert (
        looks["o", "None"] == [0.61, 0.69]
        and looks["s", "-"] == [0.42]
        and looks["None", "-"] == [0.3, 0.55]
    )
    with pytest.raises(ValueError, match="measured b"):
        plots.lost_share({"a": ([1, 2], [0.1, 0.2])}, measured={"b": []})
    with pytest.raises(ValueError, match="shares from 0 to 1"):
        plots.lost_share({"a": ([1, 2], [0.1, 1.2])})


def test_what_leaves_a_node_is_thick(drawn):
    figure, _ = drawn("volume")
    (axes,) = figure.axes
    ends = {
        line.get_xdata()[-1]: line.get_linewidth()
        for line in axes.lines
        if line.get_marker() == "None"
    }
    assert {n: ends[n] > 3 for n in (24e9, 33e6, 1.2e9, 14e9)} == {
        24e9: False,
        33e6: True,
        1.2e9: True,
        14e9: False,
    }
    assert (
        axes.get_xscale() == "log"
        and "33 MB, across nodes" in words(axes)
        and "nothing" in words(axes)
    )


def test_a_plan_that_does_not_fit_is_hatched_and_all_parts_add_up(drawn):
    figure, _ = drawn("ranking")
    (axes,) = figure.axes
    least = min(seconds["matmul"] for _, seconds, _ in RANKED)
    for row, (_, seconds, _) in enumerate(RANKED):
        ends = [
            p.get_x() + p.get_width()
            for p in boxes(axes)
            if abs(p.get_y() + p.get_height() / 2 - row) < 0.01
        ]
        assert max(ends) == pytest.approx(sum(seconds.values()) - least)  # beyond matrix products
    hatched = [p.get_y() + p.get_height() / 2 for p in axes.patches if p.get_hatch()]
    assert hatched == pytest.approx([2]) and {"11 s", "60 GiB", "13.2 s", "90 GiB"} <= set(
        words(axes)
    )


def test_plans_within_the_models_error_are_called_equal():
    """Two plans fit; the second takes 20 % longer than the first."""
    alt = lambda error: plots.plan_ranking(RANKED, 66 * GIB, error=error).alt
    assert "2 of the 2 plans that fit are equally fast" in alt(0.25)
    assert "No other plan that fits is within the model's error of 5%" in alt(0.05)


def test_memory_beyond_the_room_is_hatched(drawn):
    figure, _ = drawn("cost")
    upper, lower = figure.axes
    assert [p.get_x() for p in upper.patches if p.get_hatch()] == pytest.approx([66, 66])
    assert max(p.get_x() + p.get_width() for p in boxes(lower)) == pytest.approx(
        sum(TAKES.values())
    )
    assert [line.get_xdata()[0] for line in upper.lines] == pytest.approx([80, 66])


def test_operators_lie_in_order_with_their_strategies(drawn):
    operators, plans = traced()
    figure, _ = drawn("shardings")
    for axes, plan in zip(figure.axes, plans.values(), strict=True):
        assert words(axes)[: len(operators)] == [plan.strategies[op.name].name for op in operators]
        assert len(boxes(axes)) == len(operators)
    # f, g, f, g
    assert words(figure.axes[0])[len(operators) :] == [
        "– / all-reduce",
        "all-reduce / –",
        "– / all-reduce",
        "all-reduce / –",
    ]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()][:4] == [
        "x", "norm1", "attention_q, k, v", "split_heads x 3",
    ]  # fmt: skip


def test_a_lane_is_as_long_as_its_rows_take(drawn):
    figure, _ = drawn("unequal")
    for axes, rows, end in zip(figure.axes, ([4, 3, 3], [6, 3, 1]), (3, 2), strict=True):
        found = [p.get_width() for p in boxes(axes, plots.OP_COLOR["F"])]
        assert found == pytest.approx([b / v for b, v in zip(rows, [3, 2, 1], strict=True)])
        dashed, solid = axes.lines
        assert dashed.is_dashed() and dashed.get_xdata()[0] == end and not solid.is_dashed()
    assert "the ranks wait 35% of the time" in figure.axes[0].get_title(
        loc="left"
    ) and "1 row" in words(figure.axes[1])


def test_a_layer_is_as_long_as_on_its_stages_devices(drawn):
    figure, _ = drawn("stages")
    for axes, cut in zip(figure.axes, (EQUAL, FOUND), strict=True):
        found = [p.get_width() for p in boxes(axes) if p.get_height() == 0.72]
        assert found == [
            COSTS[k][i] for stage, k in zip(cut.layers, cut.devices, strict=True) for i in stage
        ]
    assert figure.axes[1].get_title(loc="left") == f"found: step {FOUND.seconds:.3g} ms"
    assert figure.axes[0].get_title(loc="left") == f"one each: step {14 + 7 * 6:g} ms"


@pytest.mark.parametrize(
    ("draw", "says"),
    [
        (lambda: plots.mesh({"dp": 1}), "mesh dp=1 = 1 ranks"),
        (lambda: plots.mesh(SIZES, [[0, 1], [2, 3]]), "every rank from 0 to 7 is in one"),
        (lambda: plots.mesh(SIZES, per_node=3), "nodes of 3 in rows of 4"),
        (lambda: plots.big_mesh({"pp": 2, "tp": 2}), "use pp, dp and tp, in this order"),
        (lambda: plots.big_mesh(at=(64, 0)), "a stage from 0 to 63 and a copy from 0 to 5"),
        (lambda: plots.step_times({"a": 1.0}, {}),
         "measured a, predicted nothing: give 1 to 10 plans, the same ones"),
        (lambda: plots.step_times({"a": {"x": 1}}, {"a": 1}), r"a: \{'x': 1\} is no time above 0"),
        (lambda: plots.axis_volume({}), "0 plans with 0 axes"),
        (lambda: plots.axis_volume({"a": {"x": 1}}), "a: x sends 1 bytes"),
        (lambda: plots.axis_volume({"a": {"tp": 0}}), "a: nothing is sent"),
        (lambda: plots.plan_ranking([], 1), "0 plans: 1 to 9"),
        (lambda: plots.plan_ranking([("a", {"x": 1}, 1)], 1), r"\{'x': 1\} is not 0 or more"),
        (lambda: plots.plan_cost({}, 1, 1), "0 plans: 1 to 3"),
        (lambda: plots.shardings(traced()[0], {}, both_ways), "0 plans of 16 rows"),
        (lambda: plots.shardings(traced()[0][:3], traced()[1], both_ways),
         "Megatron's has strategies for x"),
        (lambda: plots.unequal_steps({"a": [1]}, [0]), r"1 splits over speeds \[0\]"),
        (lambda: plots.unequal_steps({"a": [1, 2]}, [1]), r"a: \[1, 2\] rows on 1 ranks"),
        (lambda: plots.unequal_steps({"a": [1]}, [1], {"b": 1}), "measured b of the splits a"),
        (lambda: plots.stage_cut({}, COSTS), "0 cuts: 1 or 2"),
        (lambda: plots.evidence({}), "0 quantities of steps"),
        (lambda: plots.evidence({("a", "b"): [[]]}), "1 quantities of steps with"),
        (lambda: plots.stage_cut({"a": Halves([range(2)], [1])}, COSTS), "is no cut of 4 layers"),
        (lambda: plots.stage_cut({"a": Halves([range(4)], [3])}, COSTS),
         r"a: devices \[3\] for 1 stages"),
    ],
)  # fmt: skip
def test_wrong_data_is_refused_with_its_numbers(draw, says):
    with pytest.raises(ValueError, match=says):
        draw()
