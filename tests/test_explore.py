"""The static figure comes first and is all there is under LAB_STATIC; a slider redraws it."""

import itertools
import sys
from fractions import Fraction

import ipywidgets
import nbformat
import pytest
import sweeps
from nbclient import NotebookClient

from lib import explore, plots
from lib.explore.lab2 import SCHEDULES, bubble_formula
from lib.pipeline import simulate
from lib.plots import style

EXPLORERS = {
    "pipeline": explore.draw_pipeline,
    "data_parallel_step": explore.draw_data_parallel_step,
    "scaling_explorer": explore.draw_scaling,
    "all_reduce_cost": explore.draw_all_reduce_cost,
    "model_memory": explore.draw_model_memory,
    "ring_against_hierarchical": explore.draw_ring_against_hierarchical,
    "zero_memory": explore.draw_zero_memory,
    "zero_volume": explore.draw_zero_volume,
    "capacity": explore.draw_capacity,
    "plans": explore.draw_plans,
}


def draw_line(slope=1.0, size=1e4):
    return plots.cost_curves({}, {"line": ([1e3, 1e6], [slope, 1e3 * slope])}, at=size)


def test_a_slider_that_moves_gives_a_new_image():
    seen = []
    box = explore.sliders(
        draw_line, seen.append, slope=[0.5, 1.0, 2.0], size={"1 KB": 1e3, "10 KB": 1e4}
    )
    slope, size = box.children
    assert isinstance(slope, ipywidgets.SelectionSlider) and (slope.value, size.value) == (1.0, 1e4)
    slope.value = 2.0
    size.value = 1e3
    assert [drawing.png for drawing in seen] == [draw_line(2.0).png, draw_line(2.0, 1e3).png]
    assert seen[0].png != seen[1].png != draw_line().png


def sliders_of(name, monkeypatch):
    """The box that a live kernel would get, and the list that fills with what its sliders draw."""
    made, seen = [], []
    room = sys.modules[getattr(explore, name).__module__]
    monkeypatch.setattr(room, "explore", lambda draw, **choices: made.append((draw, choices)))
    getattr(explore, name)()
    ((draw, choices),) = made
    return explore.sliders(draw, seen.append, **choices), seen


@pytest.mark.parametrize("name", sweeps.quick(EXPLORERS, slow=EXPLORERS.keys() - {"capacity"}))
def test_every_slider_draws(name, monkeypatch):
    box, seen = sliders_of(name, monkeypatch)
    whole = style.rendered
    for control in box.children:
        values = [
            value
            for value, *_ in (
                option[::-1] if isinstance(option, tuple) else (option,)
                for option in control.options
            )
        ]
        before, start = len(seen), control.value
        for value in (values[0], values[-1]):
            control.value = value
        assert len(seen) > before
        if control is not box.children[-1]:  # on the way back nobody looks
            monkeypatch.setattr(style, "rendered", lambda figure: b"")
        control.value = start
        monkeypatch.setattr(style, "rendered", whole)
    assert len({drawing.png for drawing in seen} - {b""}) > len(box.children)
    assert seen[-1].png == EXPLORERS[name]().png  # all sliders back where they began


@pytest.mark.usefixtures("words_only")
def test_who_wins_changes_with_the_sliders():
    assert (
        "recursive doubling is the fastest" in explore.draw_all_reduce_cost(ranks=8, size=1e3).alt
    )
    assert "ring is the fastest" in explore.draw_all_reduce_cost(ranks=3, size=1e9).alt
    assert "hierarchical is the fastest" in explore.draw_ring_against_hierarchical().alt
    same = explore.draw_ring_against_hierarchical(
        nodes=2, ranks_per_node=4, link_inside=1e8, link_between=1e11, size=1e9
    )
    assert "flat ring" in same.alt
    assert "All of these fit in one H200" in explore.draw_model_memory().alt
    assert "None of these fits" in explore.draw_model_memory(parameters=175 * 10**9).alt
    assert (
        "All of these fit"
        in explore.draw_model_memory(175 * 10**9, ranks_that_share_the_state=64).alt
    )


@pytest.mark.usefixtures("words_only")
def test_overlap_and_a_larger_batch_hide_more():
    step = explore.draw_data_parallel_step
    assert (
        "overlapped, 1 rank: 262 ms, 183 ms of communication per rank, 44% of it hidden"
        in step().alt
    )
    # 3 of 4 buckets: from the break-even batch on
    assert "75% of it hidden" in step(tokens_per_rank=16_384).alt
    assert "98% of it hidden" in step(tokens_per_rank=16_384, buckets=64).alt
    assert "Overlapped: 0% of communication hidden" in step(buckets=1).alt
    for fits, parameters in (("14,004 tokens", 13_000_000_000), ("14,043 tokens", 1_300_000_000)):
        # nearly the same: a model's size cancels but for latency
        assert fits in step(parameters=parameters).alt


def test_a_menu_chooses_a_schedule_and_sliders_the_rest(monkeypatch):
    box, _ = sliders_of("pipeline", monkeypatch)
    kinds = [type(control).__name__ for control in box.children]
    assert kinds == ["Dropdown"] + 7 * ["SelectionSlider"]
    assert box.children[0].options == (
        "relay",
        "GPipe",
        "1F1B",
        "interleaved",
        "ZB-H1",
        "ZB-V",
        "DualPipeV",
    )


@pytest.mark.usefixtures("words_only")
def test_what_cannot_be_run_is_told_in_the_figures_place():
    alt = explore.draw_pipeline("interleaved", p=4, m=9).alt
    assert "cannot run this" in alt and "use m = 8 or m = 12" in alt
    assert "bubble 15.8% (formula 15.8%)" in explore.draw_pipeline("interleaved", p=4, m=8).alt
    for schedule, m in (("ZB-H1", 2), ("interleaved", 2), ("ZB-V", 6)):
        assert "(no formula here)" in explore.draw_pipeline(schedule, p=4, m=m).alt
    assert "at least 2p = 8" in explore.draw_pipeline("DualPipeV", p=4, m=6).alt
    assert "bubble 5.9% (formula 5.9%)" in explore.draw_pipeline("ZB-V", p=4, m=8).alt
    slow = explore.draw_pipeline("1F1B", message=1.0).alt
    assert "(formula 27.3%, without messages)" in slow and "bubble 27.3%" not in slow


def test_the_formulas_are_what_the_simulation_gives():
    """Whole numbers: the bubble is compared with ==."""
    for (name, schedule), p, m, v in itertools.product(
        SCHEDULES.items(), (1, 2, 3, 4, 8), (1, 2, 4, 8, 24), (1, 2, 3)
    ):
        for F, I, W in ((1, 1, 1), (2, 3, 1), (1, 2, 3), (3, 1, 2), (5, 4, 1)):
            if (
                (v > 1 and name != "interleaved")
                or (name == "DualPipeV" and m < 2 * p)
                or m % max(1, m // p)
            ):
                continue
            times = {"F": F, "B": I + W, "I": I, "W": W}
            formula = bubble_formula(name, p, m, v, *map(Fraction, (F, I, W)))
            if formula is None:
                assert name in ("ZB-V", "DualPipeV") or (name in ("ZB-H1", "interleaved") and m < p)
                continue
            simulation = simulate(schedule(p, m, v), times)
            assert (
                Fraction(p * simulation.makespan - sum(simulation.busy), p * simulation.makespan)
                == formula
            )


def test_nothing_is_left_in_pyplot():
    explore.draw_pipeline()
    assert (
        "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()
    )


@pytest.mark.usefixtures("words_only")
def test_weak_scaling_lasts_longer_than_strong():
    assert (
        "On 1,024 ranks weak scaling (overlapped) keeps 71%, strong"
        in explore.draw_scaling().alt.replace(" of perfect", "")
    )
    assert (
        "weak scaling (overlapped) keeps 99%"
        in explore.draw_scaling(bandwidth=1e11, tokens_per_rank=131_072).alt
    )


@pytest.mark.parametrize(
    ("choices", "says"),
    [
        (
            {"angle": [1, 2]},
            r"angle: \[1, 2\] must hold the default of that parameter of draw\(slope=1.0, "
            r"size=10000.0\)",
        ),
        ({"slope": [3, 4]}, r"slope: \[3, 4\] must hold the default"),
    ],
)
def test_choices_without_the_default_are_refused(choices, says):
    with pytest.raises(ValueError, match=says):
        explore.explore(draw_line, **choices)


def test_without_a_kernel_there_is_the_figure_alone(capsys):
    explore.explore(draw_line, slope=[0.5, 1.0])
    assert capsys.readouterr().out.count("Line chart of time against size") == 1


def executed(static):
    """The outputs of a cell with an explorer, executed by a real kernel."""
    cell = nbformat.v4.new_code_cell(
        "from lib import explore\nexplore.all_reduce_cost()", id="explorer"
    )
    nb = nbformat.v4.new_notebook(cells=[cell])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAB_STATIC", "1" if static else "0")
        NotebookClient(
            nb, timeout=120, kernel_name="python3", record_timing=False, store_widget_state=False
        ).execute()
    return cell.outputs, nb.metadata


@pytest.fixture(scope="module")
def stored():
    return executed(static=True)


@pytest.mark.slow
def test_a_kernel_stores_the_static_figure_and_nothing_else_under_lab_static(stored):
    outputs, metadata = stored
    (figure,) = outputs
    assert figure.metadata["image/png"]["alt"] == figure.data["text/plain"]
    assert "widgets" not in metadata and not figure.get("transient")
    again, _ = executed(static=True)
    assert again == outputs


@pytest.mark.slow
def test_a_live_kernel_shows_the_same_figure_first_then_sliders(stored):
    (static,), _ = stored
    (figure, widgets), _ = executed(static=False)
    assert figure == static
    assert "application/vnd.jupyter.widget-view+json" in widgets.data


@pytest.mark.slow
def test_in_a_live_kernel_a_slider_replaces_the_figure_that_is_shown(monkeypatch):
    monkeypatch.setenv("LAB_STATIC", "0")
    cells = [
        "from lib import explore\nfrom lib.explore import show\nmade = []\nplain = show.sliders\n"
        "def keep(*args, **kwargs):\n    made.append(plain(*args, **kwargs))\n    return made[0]\n"
        "show.sliders = keep\nexplore.all_reduce_cost()",
        "made[0].children[0].value = 1024",
    ]
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    NotebookClient(nb, timeout=120, kernel_name="python3", store_widget_state=False).execute()
    shown = nb.cells[0].outputs[0]
    assert shown.data["text/plain"] == explore.draw_all_reduce_cost(ranks=1024).alt
    assert "1024 ranks" in shown.metadata["image/png"]["alt"]
