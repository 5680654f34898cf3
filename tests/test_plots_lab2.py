"""Lab 2's figures: what is drawn lies where the data say, and the claim in words is the one
in the numbers."""

import matplotlib.collections
import matplotlib.text
import numpy as np
import pytest
from figures import behind, check_page
from matplotlib.colors import to_hex

from lib import plots
from lib.pipeline import (
    Bar,
    balance,
    gpipe,
    interleaved,
    one_f_one_b,
    relay,
    simulate,
    versions,
    zb_h1,
)
from lib.plots.boxes import box_color
from lib.plots.kept import live_steps
from lib.plots.versions import held_spans, most_at_once

P, M = 4, 8
LIMITS = {"GPipe": [M] * P, "1F1B": [min(M, P - i) for i in range(P)]}
READS = {"with stashing": versions(P, 9, stashing=True), "without": versions(P, 9, stashing=False)}
COSTS = [6, 1, 1, 2, 2, 3, 3, 1, 1, 1, 1, 7]
CUTS = {"equal counts": [range(i, i + 3) for i in range(0, 12, 3)], "balanced": balance(COSTS, 4)}
RECOMPUTE = {"keep all": (41e6, 0.62), "recompute": (5.2e6, 0.83)}
FORMULAS = {
    "1F1B": lambda p, m: (p - 1) / (m + p - 1),
    "ZB-H1": lambda p, m: (p - 1) / (3 * m + p - 1),
}
BUBBLES = {
    name: {
        p: {m: simulate(schedule(p, m)).bubble for m in (1, 2, 4, 8, 16) if m >= p}
        for p in (2, 4, 8)
    }
    for name, schedule in (("1F1B", one_f_one_b), ("ZB-H1", zb_h1))
}
IN_SECONDS = simulate(one_f_one_b(P, M), {"F": 0.01, "B": 0.02})


def measured(stretch=1.1, zero=1000.0):
    """IN_SECONDS as ranks might have recorded it: on another clock, slower, and in the order in
    which they ended."""
    bars = [Bar(r, a, zero + stretch * s, zero + stretch * e) for r, a, s, e in IN_SECONDS.bars]
    return sorted(bars, key=lambda bar: bar.end)


FIGURES = {
    "gantt": lambda: plots.gantt(simulate(one_f_one_b(P, M)), unit="forwards", note="1F1B."),
    "gantts": lambda: plots.gantts({
        "relay": simulate(relay(P, M)), "1F1B": simulate(one_f_one_b(P, M)),
        "ZB-H1": simulate(zb_h1(P, M))
    }),
    "overlay": lambda: plots.simulated_and_measured(IN_SECONDS, measured()),
    "bubbles": lambda: plots.bubble_curve(BUBBLES, FORMULAS, {"1F1B": {4: {8: 0.33}}}),
    "kept": lambda: plots.kept_over_time(
        {"GPipe": simulate(gpipe(P, M)), "1F1B": simulate(one_f_one_b(P, M))}, LIMITS
    ),
    "versions": lambda: plots.stage_versions(READS),
    "loads": lambda: plots.stage_loads(COSTS, CUTS, unit="ms"),
    "recompute": lambda: plots.recompute(RECOMPUTE, {"recompute": (5e6, 0.8)}),
}  # fmt: skip
VARIANTS = {
    "gantt interleaved": lambda: plots.gantt(simulate(interleaved(4, 8, 2))),
    "gantt measured": lambda: plots.gantt(measured()),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FIGURES)
def test_the_same_data_give_the_same_bytes_on_a_page_with_words(name):
    check_page(FIGURES[name](), FIGURES[name]())


@pytest.fixture
def drawn(monkeypatch):
    """drawn(name) -> (figure, title, alt): the figure itself in place of its PNG."""

    def draw(name):
        figure, title, _, alt = behind((FIGURES | VARIANTS)[name], monkeypatch)
        return figure, title, alt

    return draw


def boxes(axes):
    """[(x0, x1, y0, y1, its colour, its edge's), ...] of the boxes that draw_boxes
    has put there."""
    out = []
    for found in (
        c for c in axes.collections if isinstance(c, matplotlib.collections.PolyCollection)
    ):
        for path, face, edge in zip(
            found.get_paths(), found.get_facecolor(), found.get_edgecolor(), strict=True
        ):
            (x0, y0), (x1, y1) = path.vertices.min(0), path.vertices.max(0)
            out.append((x0, x1, y0, y1, face, edge))
    return out


def inside(axes):
    """The numbers in the boxes: texts, where the labels beside the axes are annotations."""
    return [text for text in axes.texts if not isinstance(text, matplotlib.text.Annotation)]


def words(axes):
    return {text.get_text(): text for text in axes.texts}


def rectangles(axes, height):
    """[(x0, x1, middle), ...] of the rectangles as high as that."""
    patches = [p for p in axes.patches if p.get_height() == pytest.approx(height)]
    return [(p.get_x(), p.get_x() + p.get_width(), p.get_y() + height / 2) for p in patches]


def test_a_box_lies_from_start_to_end_on_the_lane_of_its_rank(drawn):
    figure, title, _ = drawn("gantt")
    bars = simulate(one_f_one_b(P, M)).bars
    (axes,) = figure.axes
    for bar, (x0, x1, y0, y1, face, _) in zip(bars, boxes(axes), strict=True):
        assert (x0, x1) == (bar.start, bar.end) and (y0 + y1) / 2 == pytest.approx(bar.rank)
        assert to_hex(face) == plots.OP_COLOR[bar.action.kind]
    places = {
        (t.get_position()[0], round(t.get_position()[1], 9)): t.get_text() for t in inside(axes)
    }
    assert places == {((b.start + b.end) / 2, b.rank): str(b.action.microbatch) for b in bars}
    outside = [t.get_text() for t in axes.texts if t not in inside(axes)]
    assert outside == ["idle"] + ["27%"] * 4 + ["keeps", "4", "3", "2", "1", "27%", "of all"]
    assert (
        axes.get_xlabel() == "time (forwards)"
        and title == "27% of all ranks' time is idle, in 33 forwards"
    )
    assert rectangles(axes, 0.8) == [(0, 33, rank) for rank in range(P)]  # idle, where no box is
    assert [label.get_text() for label in axes.get_legend().get_texts()] == [
        "forward",
        "backward",
        "idle",
    ]


def test_a_later_stage_of_a_rank_is_lighter(drawn):
    figure, _, alt = drawn("gantt interleaved")
    bars = simulate(interleaved(4, 8, 2)).bars
    for bar, (*_, face, _) in zip(bars, boxes(figure.axes[0]), strict=True):
        assert to_hex(face) == box_color(bar.action.kind, bar.action.stage // 4, 2)
    assert len({box_color(kind, chunk, 3) for kind in "FB" for chunk in range(3)}) == 6
    assert "rank 0 15.8% idle and keeps at most 11" in alt


def test_measured_seconds_are_drawn_in_ms_from_the_first_action_on(drawn):
    figure, title, _ = drawn("gantt measured")
    found = sorted((round(b[2] + 0.4), b[0], b[1]) for b in boxes(figure.axes[0]))
    assert np.allclose(found, [(b.rank, 1100 * b.start, 1100 * b.end) for b in IN_SECONDS.bars])
    assert figure.axes[0].get_xlabel() == "time (ms)" and title.endswith("in 363 ms")


def test_boxes_too_narrow_for_their_number_have_none(monkeypatch):
    of = lambda m: behind(lambda: plots.gantt(simulate(one_f_one_b(4, m))), monkeypatch)[0]
    many, few = ([text.get_text() for text in inside(of(m).axes[0])] for m in (64, 16))
    assert many == [] and few.count("9") == 4 * 2  # F and B on each rank


def test_schedules_share_one_time_axis(drawn):
    figure, title, _ = drawn("gantts")
    titles = [
        "relay: 96 units, bubble 75%",
        "1F1B: 33 units, bubble 27%",
        "ZB-H1: 27 units, bubble 11%",
    ]
    assert [axes.get_title(loc="left") for axes in figure.axes] == titles
    assert title == "From 96 units with relay to 27 with ZB-H1"
    for axes, schedule in zip(figure.axes, (relay, one_f_one_b, zb_h1), strict=True):
        simulation = simulate(schedule(P, M))
        assert [b[:2] for b in boxes(axes)] == [(bar.start, bar.end) for bar in simulation.bars]
        assert axes.get_xlim() == figure.axes[0].get_xlim()
        assert axes.lines[0].get_xdata()[0] == simulation.makespan
    key = [text.get_text() for text in figure.axes[-1].get_legend().get_texts()]
    assert key == ["forward", "backward, or its input gradient", "weight gradient", "idle"]


def test_simulated_above_measured_below_and_the_deviation_in_percent(drawn):
    figure, title, _ = drawn("overlay")
    (axes,) = figure.axes
    dashed, filled = (boxes(axes)[i * 2 * P * M : (i + 1) * 2 * P * M] for i in range(2))
    for bar, (x0, x1, _, y1, *_) in zip(IN_SECONDS.bars, dashed, strict=True):
        assert x0 == pytest.approx(1e3 * bar.start, abs=2) and x1 == pytest.approx(
            1e3 * bar.end, abs=2
        )
        assert bar.rank - 0.4 < y1 < bar.rank
    for bar, (x0, x1, y0, _, *_) in zip(IN_SECONDS.bars, filled, strict=True):
        assert (x0, x1, y0) == pytest.approx((1100 * bar.start, 1100 * bar.end, bar.rank), abs=1e-6)
    outlines = axes.collections[0]
    assert not outlines.get_facecolor()[:, 3].any() and outlines.get_linestyles()[0][1] is not None
    assert [line.get_xdata()[0] for line in axes.lines] == pytest.approx([330, 363])
    assert {"simulated 330 ms", "measured 363 ms, +10.0%"} <= set(words(axes))
    assert title == "Measured 363 ms, simulated 330 ms: 10.0% longer"


def test_bubbles_are_points_and_formulas_dashed(drawn):
    figure, title, alt = drawn("bubbles")
    for axes, (name, curves) in zip(figure.axes, BUBBLES.items(), strict=True):
        for i, (p, curve) in enumerate(curves.items()):
            formula, simulated, found = axes.lines[3 * i : 3 * i + 3]
            assert simulated.get_ydata() == pytest.approx([100 * b for b in curve.values()])
            assert list(simulated.get_xdata()) == list(curve) and simulated.get_linewidth() == 0
            assert formula.is_dashed() and formula.get_xdata()[-1] == pytest.approx(max(curve))
            line = np.interp(list(curve), formula.get_xdata(), formula.get_ydata())
            # the points lie on the formula
            assert simulated.get_ydata() == pytest.approx(line, rel=0.01)
            at = [(8, 33.0)] if (name, p) == ("1F1B", 4) else []
            assert list(zip(found.get_xdata(), found.get_ydata(), strict=True)) == at
    assert title == "1F1B, p = 8: from 47% with m = 8 to 30% with 16; ZB-H1: 13%"
    assert "1F1B, p = 4, measured: 33.0% at 8." in alt


def test_what_is_kept_rises_to_the_limit_and_no_further(drawn):
    figure, title, _ = drawn("kept")
    panels = np.array(figure.axes).reshape(P, 2)
    for column, (name, schedule) in enumerate((("GPipe", gpipe), ("1F1B", one_f_one_b))):
        simulation = simulate(schedule(P, M))
        for rank, axes in enumerate(panels[:, column]):
            steps, limit = axes.lines
            times, live = zip(*live_steps(simulation.bars, rank), strict=True)
            assert list(steps.get_ydata())[:-1] == list(live) and list(steps.get_xdata())[
                :-1
            ] == list(times)
            assert (
                max(live)
                == simulation.peak_live[rank]
                == limit.get_ydata()[0]
                == LIMITS[name][rank]
            )
            assert limit.is_dashed() and str(max(live)) in words(axes)
    assert title == "GPipe: at most 8 micro-batches; 1F1B: at most 4 micro-batches"


def test_live_rises_when_f_ends_and_falls_when_b_or_i_does():
    bars = simulate(zb_h1(2, 2)).bars  # rank 1: F0 I0 F1 I1 W0 W1, from 1 on
    assert live_steps(bars, 1) == [(0, 0), (2, 1), (3, 0), (4, 1), (5, 0), (6, 0), (7, 0)]


def test_a_box_lies_on_the_version_it_reads_and_a_red_line_counts_the_updates(drawn):
    figure, _, alt = drawn("versions")
    bars = [bar for bar in simulate(one_f_one_b(P, 9)).bars if bar.rank == 0]
    for axes, reads in zip(figure.axes, READS.values(), strict=True):
        found = rectangles(axes, 0.72)
        assert np.allclose(found, [(bar.start, bar.end, reads[bar.action]) for bar in bars])
        red = [line.get_ydata() for line in axes.lines if line.get_color() == plots.ALARM]
        off = [
            reads[b.action] - reads[b.action._replace(kind="F")]
            for b in bars
            if b.action.kind == "B"
        ]
        assert [y[1] + 0.36 - y[0] for y in red] == pytest.approx([n for n in off if n])
        spans = held_spans(bars, reads)
        assert rectangles(axes, 0.84) == [
            (*span, pytest.approx(version)) for version, span in spans.items()
        ]
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "with stashing: 4 versions at once", "without: 1 version at once"
    ]  # fmt: skip
    assert (
        "without: backward reads weights up to 3 updates newer" in alt
        and "8 forward 5 backward 8." in alt
    )


@pytest.mark.parametrize("p", [1, 2, 3, 4, 6])
def test_the_versions_drawn_are_as_many_as_are_kept(p):
    for n in (10, 14):
        bars, reads = simulate(one_f_one_b(p, n)).bars, versions(p, n, stashing=True)
        spans = [
            held_spans([bar for bar in bars if bar.rank == stage], reads) for stage in range(p)
        ]
        assert [most_at_once(held) for held in spans] == [p - i for i in range(p)]


def test_blocks_are_as_long_as_layers_cost_and_the_slowest_stages_are_red(drawn):
    figure, title, _ = drawn("loads")
    for axes, cut in zip(figure.axes, CUTS.values(), strict=True):
        blocks = rectangles(axes, 0.72)
        assert [x1 - x0 for x0, x1, _ in blocks] == COSTS
        assert [round(y) for *_, y in blocks] == [s for s, stage in enumerate(cut) for _ in stage]
        loads = [sum(COSTS[layer] for layer in stage) for stage in cut]
        assert [(x1, round(y)) for _, x1, y in rectangles(axes, 0.8)] == [
            (load, s) for s, load in enumerate(loads) if load == max(loads)
        ]
        assert axes.lines[0].get_xdata()[0] == max(loads)
    assert title == "Balanced: a pace of 8 ms instead of 9, 1.12 times as fast"


def test_bars_are_as_long_as_was_measured_and_dashes_where_the_formula_says(drawn):
    figure, title, _ = drawn("recompute")
    memory, time = figure.axes
    assert [x1 for _, x1, _ in rectangles(memory, 0.68)] == pytest.approx([41, 5.2])  # MB
    assert [x1 for _, x1, _ in rectangles(time, 0.68)] == pytest.approx([620, 830])  # ms
    assert [axes.lines[0].get_xdata()[0] for axes in (memory, time)] == pytest.approx([5, 800])
    assert {"41 MB", "5.2 MB (x 0.13)"} <= set(words(memory)) and {
        "620 ms",
        "830 ms (x 1.34)",
    } <= set(words(time))
    assert title == "Recompute: 13% of the memory, 1.34 times as long"


@pytest.mark.usefixtures("words_only")
def test_words_alone_are_a_figure_too():
    drawing = plots.told("interleaved cannot run this", "Use m = 4 or m = 8.")
    assert drawing.alt == "interleaved cannot run this. Use m = 4 or m = 8." and drawing.height < 1


OTHER = [bar._replace(action=bar.action._replace(microbatch=99)) for bar in measured()]


@pytest.mark.parametrize(
    ("draw", "says"),
    [
        (lambda: plots.gantt([]), "no bars: give the Bars of every rank"),
        (
            lambda: plots.gantt([measured()[0]._replace(end=0.0)]),
            "0F0 starts at 1000.0 and ends at 0.0",
        ),
        (lambda: plots.gantts({}), "0 schedules: 1 to 5"),
        (
            lambda: plots.gantts({"a": IN_SECONDS, "b": measured()}),
            "units {'a': 'units', 'b': 'ms'}: .* unit='s'",
        ),
        (
            lambda: plots.simulated_and_measured(IN_SECONDS, OTHER),
            "rank 0 measured 0F99 .* simulated 0F0 0F1",
        ),
        (
            lambda: plots.simulated_and_measured(simulate(relay(2, 1)), measured()),
            "4 ranks measured, 2 simulated",
        ),
        (lambda: plots.bubble_curve({}, {}), "0 schedules: 1 to 3"),
        (
            lambda: plots.bubble_curve({"1F1B": {4: {8: 27}}}, {}),
            "1F1B: {4: {8: 27}}: give .* from 0 to 1",
        ),
        (lambda: plots.kept_over_time({}), "ranks {}: give 1 to 3 schedules"),
        (
            lambda: plots.kept_over_time({"a": simulate(gpipe(7, 1))}),
            "ranks {'a': 7}: .* at most 6 to be read",
        ),
        (
            lambda: plots.kept_over_time({"a": IN_SECONDS}, {"a": [1]}),
            "a: 1 limits, schedules a: .* each of 4 ranks",
        ),
        (lambda: plots.stage_versions({}), "0 ways to run it"),
        (
            lambda: plots.stage_loads([1, 2], {"a": [range(1), range(1, 3)]}),
            r"a: \[\[0\], \[1, 2\]\] is no cut of 2",
        ),
        (lambda: plots.stage_loads([1, 2], {}), "0 cuts: 1 to 3"),
        (
            lambda: plots.recompute({"keep all": (1, 2)}),
            "measured keep all, predicted nothing: measure 2 to 4",
        ),
        (
            lambda: plots.recompute({"keep all": (1, 2), "again": (0, 2)}),
            r"again: \(0, 2\) is not \(bytes, seconds\)",
        ),
    ],
)
def test_wrong_data_is_refused_with_its_numbers(draw, says):
    with pytest.raises(ValueError, match=says):
        draw()
