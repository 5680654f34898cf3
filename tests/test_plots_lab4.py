"""Lab 4's figures: what is drawn lies where the data say, and the claim in words is the one
in the numbers."""

import functools

import pytest
from figures import behind, check_page
from matplotlib.colors import to_hex

from lib import plots
from lib.cost.clinic import PATIENTS, Remedy, memory_over_a_step
from lib.cost.zero import SHARDED, rank_state, sent_elements
from lib.plots import prefetch, stage_memory, units
from lib.plots.product import EVERYWHERE

MB = 1e6
FORMULA = {
    "stage 0": {"weight": 2 * MB, "gradient": 2 * MB, "optimizer": 12 * MB},
    "ZeRO-1": {"weight": 2 * MB, "gradient": 2 * MB, "optimizer": 3 * MB},
    "FSDP": {"weight": 0.5 * MB, "gradient": 0.5 * MB, "optimizer": 3 * MB},
}
MEASURED = {**FORMULA, "FSDP": {"weight": 0.6 * MB, "gradient": 0.5 * MB, "optimizer": 3 * MB}}
PLAIN = [  # two units under a root, seconds as a clock gives them
    (5.0, "unshard", None), (5.1, "unshard", 0), (5.2, "reshard", 0), (5.3, "unshard", 1),
    (5.4, "reshard", 1),
    (5.5, "unshard", 1), (5.6, "reshard", 1), (5.7, "unshard", 0), (5.8, "reshard", 0),
    (5.9, "reshard", None),
]  # fmt: skip
AHEAD = [
    (0.0, "unshard", None), (0.1, "unshard", 0), (0.2, "unshard", 1), (0.3, "reshard", 0),
    (0.4, "reshard", 1),
    (0.5, "unshard", 1), (0.6, "unshard", 0), (0.7, "reshard", 1), (0.8, "reshard", 0),
    (0.9, "reshard", None),
]  # fmt: skip
EVENTS = {"FSDP": PLAIN, "prefetching": AHEAD}
STEPS = {
    "FSDP": [
        ("wire", 1.0, 1.1, "gather 0"), ("compute", 1.1, 1.2, "forward 0"),
        ("compute", 1.2, 1.4, "backward 0"),
        ("wire", 1.4, 1.5, "reduce 0"), ("compute", 1.5, 1.51, "update"),
    ],
    "prefetching": [
        ("wire", 0.0, 0.1, "gather 0"), ("compute", 0.1, 0.2, "forward 0"),
        ("wire", 0.2, 0.3, "gather 0"),
        ("compute", 0.2, 0.4, "backward 0"),
    ],
}  # fmt: skip
VOLUME = {f"stage {s}": {k: sent_elements(800, s, 4, k) / 600 for k in (1, 2, 4)} for s in SHARDED}
SENT = {**VOLUME, "stage 3": {1: 2.9, 2: 5.8, 4: 11.6}}
AT = ["forward 0", "forward 1", "backward 1", "backward 0", "step"]
LIVE = {"stage 0": [16e6, 16e6, 17e6, 18e6, 18e6], "FSDP": [5e6, 5e6, 6e6, 6.5e6, 4e6]}
LIVE = {name: list(zip(AT, n_bytes, strict=True)) for name, n_bytes in LIVE.items()}
REMEDIES = {
    name: memory_over_a_step(PATIENTS[1], Remedy(stage, checkpointing, False, 1))
    for name, stage, checkpointing in (
        ("data parallelism", 0, False),
        ("ZeRO-2", 2, False),
        ("ZeRO-3", 3, False),
        ("ZeRO-1 with checkpointing", 1, True),
    )
}
SINGULAR = {"the gradient": [0.9, 0.3, 0.02, 0.001], "5 iterations": [1.1, 0.9, 0.8, 0.4]}
OWNERS = {"in order": [0, 0, 0, 1, 2], "by cost": [2, 0, 0, 1, 2]}
FIGURES = {
    "who": plots.who_holds_what,
    "who of 8": lambda: plots.who_holds_what(8),
    "by stage": lambda: plots.state_by_stage(7_500_000_000, 64, note="Figure 1."),
    "of a small model": lambda: plots.state_by_stage(125_000_000, 2, "bf16"),
    "of one rank": lambda: plots.state_by_stage(7_500_000_000, 1),
    "measured": lambda: plots.state_measured(MEASURED, FORMULA, note="4 ranks."),
    "exactly": lambda: plots.state_measured(FORMULA, FORMULA),
    "units": lambda: plots.units_unsharded(EVENTS, ["block 0", "block 1"], note="2 blocks."),
    "one way": lambda: plots.units_unsharded({"FSDP": PLAIN}, ["block 0", "block 1"]),
    "prefetch": lambda: plots.prefetch_timeline(STEPS, note="A slow link."),
    "volume": lambda: plots.volume_by_stage(SENT, VOLUME, note="4 ranks."),
    "volume in seconds": lambda: plots.volume_by_stage({}, VOLUME, unit_seconds=0.5),
    "live": lambda: plots.memory_over_a_step(LIVE, note="4 ranks."),
    "remedies": lambda: plots.memory_by_remedy(REMEDIES, 66e9, note="Llama 3 8B."),
    "singular values": lambda: plots.singular_values(SINGULAR, note="A gradient."),
    "owners": lambda: plots.owner_loads(
        [6, 6, 18, 18, 12], OWNERS, 3, "units", ["q", "k", "up", "down", "v"]
    ),
    "one owner": lambda: plots.owner_loads([6, 6], {"one": [0, 0]}, 1),
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
        ("who",
         ["16, 7, 5.5, 4 bytes per parameter and rank", "Stage 2: 1/4 of gradients and optimizer"]),
        ("singular values",
         ["After 5 iterations 75% of the singular values", "A gradient.", "from 0.9 to 0.001"]),
        ("owners",
         ["by cost: the busiest owner has 20% more than the mean, in order 50%",
          "rank 2 2 of 5, 18"]),
        ("who of 8", ["16, 5.5, 3.75, 2 bytes per parameter and rank"]),
        ("by stage", ["7.5 billion parameters, 64 ranks: 120, 31.4, 16.6, 1.9 GB by stage"]),
        ("by stage",
         ["it fits in 80 GB at stage 1 and above", "stage 3: weights 0.234, gradients 0.234,"]),
        ("of a small model",
         ["125 million parameters, 2 ranks: 1, 0.75, 0.625, 0.5 GB", "all fit in 80 GB"]),
        ("of one rank", ["1 rank: 120, 120, 120, 120 GB", "none fits in 80 GB"]),
        ("measured",
         ["Measured within 2.5% of the formula: stage 0 16 MB, FSDP 4.1 MB", "4 ranks."]),
        ("measured",
         ["FSDP: weights 0.6, gradients 0.5, optimizer state 3 MB measured, weights 0.5,"]),
        ("remedies",
         ["2 of 4 remedies fit: ZeRO-3, ZeRO-1 with checkpointing",
          "data parallelism: at most 171 GB"]),
        ("exactly", ["Measured is the formula, to the byte"]),
        ("units", ["FSDP keeps at most 1 of 2 units unsharded, prefetching at most 2"]),
        ("units", ["FSDP, unsharded units in order of events: 0, 1, 0, 1, 0, 1, 0, 1, 0, 0."]),
        ("prefetch",
         ["Prefetching: 400 ms instead of 510, 50% of communication hidden",
          "0% of the communication"]),
        ("prefetch", ["gather 0 from 0 to 100 ms, forward 0 from 100 to 200 ms"]),
        ("volume", ["With 4 micro-batches stage 3 sends 5.8 times as much as stage 0"]),
        ("volume", ["stage 2, by the formula: 2 with k = 1, 3 with k = 2, 5 with k = 4."]),
        ("live", ["FSDP needs at most 6.5 MB, in backward 0, and stage 0 18 MB", "step 4 MB."]),
    ],
)  # fmt: skip
def test_the_alt_text_holds_the_claim_and_the_numbers(name, words):
    for word in words:
        assert word in drawing(name).alt


@pytest.fixture
def drawn(monkeypatch):
    """drawn(name) -> (figure, title): the figure itself in place of its PNG."""
    return lambda name: behind(FIGURES[name], monkeypatch)[:2]


def rectangles(axes, height=None):
    """[(x, y, width, height, colour), ...]"""
    found = [
        (p.get_x(), p.get_y(), p.get_width(), p.get_height(), to_hex(p.get_facecolor()))
        for p in axes.patches
    ]
    return [r for r in found if height is None or r[3] == pytest.approx(height)]


def words(axes):
    return [text.get_text() for text in axes.texts]


def test_each_owner_has_a_box_for_each_of_its_matrices_as_long_as_it_costs(drawn):
    figure, _ = drawn("owners")
    for axes, ranks in zip(figure.axes, OWNERS.values(), strict=True):
        boxes = rectangles(axes, 0.72)
        assert sorted((round(y + 0.36), w) for _, y, w, *_ in boxes) == sorted(
            zip(ranks, (6, 6, 18, 18, 12), strict=True)
        )
        assert [line.get_xdata()[0] for line in axes.lines] == [20]


def test_a_stage_cuts_one_row_more_and_a_rank_keeps_its_own_strip(drawn):
    figure, _ = drawn("who")
    for stage, axes in enumerate(figure.axes):
        whole = [r for r in rectangles(axes) if r[4] == EVERYWHERE]
        strips = rectangles(axes, 0.88 / 4)
        assert sorted(int(y) for _, y, *_ in whole) == sorted(4 * list(range(3 - stage)))
        assert len(strips) == 4 * stage
        for x, y, width, _, color in strips:
            rank = int(x)
            assert color == plots.rank_color(rank) and width == 0.88
            # strips of all ranks together are the whole
            assert y % 1 == pytest.approx(0.06 + rank * 0.22)
    assert [axes.get_xlabel() for axes in figure.axes] == [
        "16 bytes",
        "7 bytes",
        "5.5 bytes",
        "4 bytes",
    ]


def test_bars_are_as_long_as_the_formula(drawn):
    figure, title = drawn("by stage")
    (axes,) = figure.axes
    for stage in SHARDED:
        state = rank_state(7.5, stage, 64)  # GB
        bars = [r for r in rectangles(axes) if round(r[1] + r[3] / 2) == stage]
        sizes = (state.weight, state.gradient, state.master + state.momentum + state.variance)
        assert [width for _, _, width, *_ in bars] == pytest.approx(sizes)
        assert [x for x, *_ in bars] == pytest.approx([0, sizes[0], sizes[0] + sizes[1]])
        assert [color for *_, color in bars] == list(stage_memory.COLOR.values())
    totals = [word for word in words(axes) if "GB" in word]
    assert totals == [
        "120 GB",
        "31.4 GB, 3.8 x less",
        "16.6 GB, 7.2 x less",
        "1.9 GB, 64 x less",
        "a GPU of 80 GB",
    ]
    assert axes.lines[0].get_xdata()[0] == 80
    assert title.endswith("; it fits in 80 GB at stage 1 and above")


def test_a_gpu_much_larger_than_the_model_is_left_out(drawn):
    figure, title = drawn("of a small model")
    assert not figure.axes[0].lines and "a GPU of 80 GB" not in words(figure.axes[0])
    assert title.endswith("all fit in 80 GB")


def test_the_formula_is_a_dashed_outline_round_what_was_measured(drawn):
    figure, _ = drawn("measured")
    (axes,) = figure.axes
    for row, name in enumerate(MEASURED):
        filled = [r for r in rectangles(axes, 0.7) if r[1] + 0.35 == pytest.approx(row)]
        outlines = [line for line in axes.lines if line.get_ydata()[0] == pytest.approx(row - 0.43)]
        assert [width * MB for _, _, width, *_ in filled] == pytest.approx(
            list(MEASURED[name].values())
        )
        ends = [line.get_xdata() for line in outlines]
        assert [(x[1] - x[0]) * MB for x in ends] == pytest.approx(list(FORMULA[name].values()))
        assert all(line.is_dashed() for line in outlines)
    assert [word for word in words(axes) if "MB" in word] == ["16 MB", "7 MB", "4.1 MB (+2.5%)"]


def test_a_bar_lies_from_unshard_to_reshard_and_the_unsharded_units_are_counted(drawn):
    figure, _ = drawn("units")
    for panel, bars, count in (
        (0, [(1, 2, 1), (7, 8, 1), (3, 4, 2), (5, 6, 2)], [0, 1, 0, 1, 0, 1, 0, 1, 0, 0]),
        (1, [(1, 3, 1), (6, 8, 1), (2, 4, 2), (5, 7, 2)], [0, 1, 2, 1, 0, 1, 2, 1, 0, 0]),
    ):
        upper, lower = figure.axes[panel], figure.axes[2 + panel]
        colored = [r for r in rectangles(upper, 0.72) if r[4] in units.PHASE.values()]
        found = [(x, x + width, round(y + height / 2)) for x, y, width, height, _ in colored]
        assert found == [(0, 5, 0), (5, 9, 0), *bars]  # the root's bar is cut where backward begins
        forward, backward = units.PHASE.values()
        assert [color for *_, color in colored] == [forward, backward] * 3
        assert list(lower.lines[-1].get_ydata())[:-1] == count
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == [
        "root",
        "block 0",
        "block 1",
    ]
    assert figure.axes[1].get_title(loc="left") == "prefetching: at most 2 unsharded"


def test_forward_and_backward_alternate_with_micro_batches():
    twice = [*PLAIN[1:9], *((t + 1, what, place) for t, what, place in PLAIN[1:9])]
    assert units.phases(twice) == [
        (0, "forward"),
        (4, "backward"),
        (8, "forward"),
        (12, "backward"),
    ]
    steps = [*PLAIN, *((t + 1, what, place) for t, what, place in PLAIN)]
    assert units.phases(steps) == [
        (0, "forward"),
        (5, "backward"),
        (10, "forward"),
        (15, "backward"),
    ]
    assert units.unsharded_spans(PLAIN[:2]) == {None: [(0, 2)], 0: [(1, 2)]}  # never resharded


def test_what_changes_nothing_is_not_drawn():
    again = [
        *PLAIN[2:3],
        *PLAIN[:2],
        (5.15, "unshard", 0),
        *PLAIN[2:],
        (6.0, "reshard", 1),
        (4.0, "reshard", None),
    ]
    assert units.changes("FSDP", again, 2) == PLAIN
    assert (
        plots.units_unsharded({"FSDP": again}, ["block 0", "block 1"]).png == drawing("one way").png
    )


def test_boxes_lie_from_begin_to_end_on_their_lane_and_a_bracket_spans_the_step(drawn):
    figure, _ = drawn("prefetch")
    for axes, (name, boxes), total in zip(figure.axes, STEPS.items(), (510, 400), strict=True):
        zero = min(begin for _, begin, *_ in boxes)
        colored = [r for r in rectangles(axes, 0.84) if r[4] != plots.OP_COLOR["idle"]]
        for (lane, begin, end, label), (x, y, width, _, color) in zip(boxes, colored, strict=True):
            assert (x, width) == pytest.approx((1e3 * (begin - zero), 1e3 * (end - begin)))
            assert (
                round(y + 0.42) == ("compute", "wire").index(lane)
                and color == prefetch.COLOR[label.split()[0]]
            )
        assert list(axes.lines[0].get_xdata()) == pytest.approx([0, 0, total, total])
        assert f"{total} ms" in words(axes) and words(axes).count("0") == sum(
            label[-1] == "0" for *_, label in boxes
        )
        assert axes.get_xlim() == figure.axes[0].get_xlim() and axes.get_title(
            loc="left"
        ).startswith(name)


def test_bars_of_volume_are_grouped_by_micro_batches(drawn):
    figure, _ = drawn("volume")
    (axes,) = figure.axes
    filled = [r for r in rectangles(axes) if r[4] in plots.RANK_COLORS]
    dashed = [p for p in axes.patches if p.get_linestyle() != "solid"]
    heights = lambda volume: [volume[stage][k] for k in (1, 2, 4) for stage in VOLUME]
    assert [height for *_, height, _ in filled] == pytest.approx(heights(SENT))
    assert [p.get_height() for p in dashed] == pytest.approx(heights(VOLUME))
    assert [round(x + width / 2) for x, _, width, *_ in filled] == 4 * [0] + 4 * [1] + 4 * [2]
    assert words(axes) == ["2", "2", "2", "2.9", "2", "2", "3", "5.8", "2", "2", "5", "11.6"]


def test_units_are_seconds_on_the_wire(drawn):
    figure, title = drawn("volume in seconds")
    figure.draw_without_rendering()
    (seconds,) = figure.axes[0].child_axes
    assert seconds.get_ylabel() == "time on the wire (s)"
    assert seconds.get_ylim() == pytest.approx([0.5 * y for y in figure.axes[0].get_ylim()])
    assert title == "With 4 micro-batches stage 3 sends 6 times as much as stage 0"


def test_a_line_per_stage_runs_along_the_events(drawn):
    figure, _ = drawn("live")
    (axes,) = figure.axes
    for line, events in zip(axes.lines, LIVE.values(), strict=False):
        assert list(line.get_xdata()) == list(range(5))
        assert [y * MB for y in line.get_ydata()] == pytest.approx([n for _, n in events])
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "1", "1", "0", ""]
    assert {"forward", "backward", "step", "FSDP\nat most 6.5 MB"} <= set(words(axes))
    assert words(axes).count("forward") == 1


@pytest.mark.parametrize(
    ("draw", "says"),
    [
        (lambda: plots.who_holds_what(1), "N=1: a column per rank, 2 to 8"),
        (lambda: plots.state_by_stage(0, 4), "0 parameters on 4 ranks: give at least one"),
        (lambda: plots.state_measured({}, {}),
         "measured nothing, predicted nothing: give 1 to 8 labels"),
        (lambda: plots.state_measured(MEASURED, {}),
         "measured stage 0, ZeRO-1, FSDP, predicted nothing"),
        (lambda: plots.state_measured({"a": {"buffer": 1}}, {"a": {"weight": 1}}),
         "a: {'buffer': 1} are not bytes of"),
        (lambda: plots.state_measured({"a": {}}, {"a": {}}),
         "a: {} are not bytes of weight, gradient, optimizer"),
        (lambda: plots.units_unsharded({}, ["a"]), "0 lists of events, 1 names: give 1 or 2"),
        (lambda: plots.units_unsharded({"x": PLAIN}, ["a"]),
         "x: unshard of 1: give unshard and reshard of units 0 to 0"),
        (lambda: plots.units_unsharded({"x": [(0.0, "gather", 0)]}, ["a"]),
         "x: gather of 0: give unshard and reshard"),
        (lambda: plots.prefetch_timeline({"x": []}), "{'x': 0} boxes: give 1 to 3 steps"),
        (lambda: plots.prefetch_timeline({"x": [("gpu", 0, 1, "forward 0")]}),
         r"x: \('gpu', 0, 1, 'forward 0'\)"),
        (lambda: plots.prefetch_timeline({"x": [("wire", 0, 1, "send 0")]}),
         "begins with one of forward, backward,"),
        (lambda: plots.prefetch_timeline({"x": [("wire", 1, 0, "gather 0")]}),
         "an end that is not before its begin"),
        (lambda: plots.volume_by_stage({}, {}), "0 stages, k = none; no formula for them"),
        (lambda: plots.volume_by_stage({"a": {2: 1}}, {"a": {1: 2}}),
         "1 stages, k = 1; no formula for a, k = 2"),
        (lambda: plots.memory_over_a_step({}), "{} events: give 1 to 8 stages"),
        (lambda: plots.memory_over_a_step({"a": [("x", 1), ("y", 2)], "b": [("x", 1), ("z", 2)]}),
         "{'a': 2, 'b': 2}"),
        (lambda: plots.singular_values({"a": [1.0, 0.5]}), r"a: \(2,\): give 2 to 6 lines"),
        (lambda: plots.singular_values({"a": [1.0, 0.5], "b": [1.0, 0.0]}), "above 0"),
        (lambda: plots.owner_loads([1, 2], {"a": [0, 3]}, 3),
         r"a: \[0, 3\] for 2 matrices: a rank, 0 to 2"),
        (lambda: plots.owner_loads([1, 2], {}, 3), "0 placements on 3 ranks"),
    ],
)  # fmt: skip
def test_wrong_data_is_refused_with_its_numbers(draw, says):
    with pytest.raises(ValueError, match=says):
        draw()
