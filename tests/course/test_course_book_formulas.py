"""The formulas and the simulator in the book's formulas.js against lib's, on a grid of settings."""

import inspect
import itertools
import re

import pytest
from javascript import evaluated

from lib import explore, pipeline
from lib.collectives.cost import COST, hierarchical_time
from lib.cost import data_parallel, zero
from lib.cost.state import RECIPES
from lib.course.book import plans
from lib.explore import lab0, lab2, lab5

SIZES, LINKS = (1e3, 3e5, 1e8), ((1e-6, 1e-9), (1e-4, 4e-11))
# what lib keeps apart and the book shows as one
PARTS = {
    "weights": ("weight",),
    "gradients": ("gradient",),
    "fp32 weights": ("master",),
    "Adam's moments": ("momentum", "variance"),
}


def same(found, wanted):
    """Equal to 12 digits, or to what rounding leaves of a difference near zero."""
    assert found == pytest.approx(wanted, rel=1e-12, abs=1e-12)


def grid(*axes):
    return [list(setting) for setting in itertools.product(*axes)]


def test_all_reduces_take_the_same_time():
    names = ("star", "tree", "ring", "recursive_doubling", "halving_doubling")
    settings = grid(names, SIZES, range(2, 70), LINKS)
    found = evaluated(
        "all => all.map(([name, bytes, N, link]) => "
        "formulas.allReduce[name.replaceAll('_', ' ')](bytes, N, ...link))",
        settings,
    )
    same(found, [COST[name].time(n, N, *link) for name, n, N, link in settings])


def test_a_hierarchical_all_reduce_takes_the_same_time():
    settings = grid(SIZES, (2, 3, 16), (1, 4, 8), LINKS, LINKS)
    found = evaluated("all => all.map((one) => formulas.hierarchical(...one))", settings)
    same(found, [hierarchical_time(*one) for one in settings])


def test_model_state_and_what_zero_sends_are_the_same():
    settings = grid((125e6, 70e9), range(4), (1, 3, 64), RECIPES)
    found = evaluated("all => all.map((one) => formulas.rankState(...one))", settings)
    wanted = [zero.rank_state(*one) for one in settings]
    for ours, state in zip(found, wanted, strict=True):
        same(ours, {part: sum(getattr(state, one) for one in of) for part, of in PARTS.items()})
    settings = grid(range(4), (1, 2, 16))
    found = evaluated("all => all.map((one) => formulas.zeroPasses(...one))", settings)
    same(found, [zero.sent_elements(12.0, stage, 4, k) * 4 / 3 / 12 for stage, k in settings])


def test_a_step_of_data_parallelism_takes_the_same_time():
    settings = grid((False, True), (1024, 16_384), (2, 64, 1000), (7e8, 14e9), LINKS, (1, 4, 64))
    compute = data_parallel.seconds_per_token(1.3e9, 4e14)
    found = evaluated(
        "([all, compute]) => all.map(([overlapped, rows, N, bytes, link, K]) => "
        "formulas.dataParallelStep(overlapped, rows, N, bytes, compute, link, K))",
        [settings, compute],
    )
    for ours, (overlapped, rows, N, n_bytes, link, K) in zip(found, settings, strict=True):
        way = data_parallel.overlapped_step if overlapped else data_parallel.bucketed_step
        step = way(rows, N, n_bytes, compute, link, K)
        same([ours["seconds"], ours["exposed"], ours["communication"]],
             [step.seconds, step.exposed, step.communication])  # fmt: skip
    found = evaluated(
        "([all, compute]) => all.map(([N, bytes, link, K]) => "
        "formulas.breakEvenRows(N, bytes, compute, link, K))",
        [grid((2, 64), (7e8,), LINKS, (1, 8)), compute],
    )
    same(found, [data_parallel.break_even_rows(N, n_bytes, compute, link, K)
                 for N, n_bytes, link, K in grid((2, 64), (7e8,), LINKS, (1, 8))])  # fmt: skip
    ready = [0.5, 0.6, 3.0]
    found = evaluated("all => formulas.bucketTimes(...all)", [ready, 0.4])
    wanted = data_parallel.bucket_times(ready, [0.4] * 3)
    for ours, one in zip(found, wanted, strict=True):
        same(ours, list(one))


def test_the_same_tokens_are_dropped_and_the_same_slots_are_empty():
    settings = grid((2, 8, 64), (0.0, 0.5, 1.5), (64, 1024))
    found = evaluated(
        "([all, factors]) => all.map((one) => formulas.droppedAndEmpty(factors, ...one))",
        [settings, lab5.CURVE],
    )
    for ours, (experts, skew, tokens) in zip(found, settings, strict=True):
        for mine, wanted in zip(
            ours, lab5.dropped_and_empty(lab5.CURVE, experts, skew, tokens), strict=True
        ):
            assert mine == pytest.approx(wanted, abs=1e-9)


SCHEDULED = grid(lab2.SCHEDULES, (1, 2, 3, 4, 8), (1, 2, 3, 4, 8, 12), (1, 2, 3))


def refused_or(made):
    try:
        return made()
    except ValueError:
        return None


def test_schedules_are_the_same_lists_of_actions_and_the_same_are_refused():
    found = evaluated(
        "all => all.map(([name, ...sizes]) => { try { return formulas.schedules[name](...sizes) } "
        "catch (refusal) { return null } })",
        SCHEDULED,
    )
    wanted = [refused_or(lambda s=s: lab2.SCHEDULES[s[0]](*s[1:])) for s in SCHEDULED]
    assert sum(one is None for one in wanted) > 5
    assert found == [one and [[list(action) for action in rank] for rank in one] for one in wanted]


def test_the_simulator_gives_the_same_starts_bubbles_and_peaks():
    times = [
        dict(zip("FBIW", some, strict=True)) for some in ((1, 2, 1, 1), (0.5, 2.25, 0.75, 1.5))
    ]
    settings = [
        [s, t, message]
        for s, t, message in itertools.product(SCHEDULED, times, (0, 0.25))
        if refused_or(lambda s=s: lab2.SCHEDULES[s[0]](*s[1:]))
    ]
    found = evaluated(
        "all => all.map(([[name, ...sizes], times, message]) => { "
        "const run = formulas.simulate(formulas.schedules[name](...sizes), times, message); "
        "const bars = run.bars.map((bar) => [bar.rank, bar.start, bar.stage, bar.kind, "
        "bar.microbatch, bar.end]); bars.sort((a, b) => a[0] - b[0] || a[1] - b[1]); "
        "return [bars, run.makespan, run.bubbles, run.kept] })",
        settings,
    )
    for (bars, makespan, bubbles, kept), ((name, *sizes), some, message) in zip(
        found, settings, strict=True
    ):
        run = pipeline.simulate(lab2.SCHEDULES[name](*sizes), some, message)
        assert bars == [[rank, start, *action, end] for rank, action, start, end in run.bars]
        assert makespan == run.makespan and kept == run.peak_kept
        same(bubbles, run.bubbles)


def test_the_formula_of_the_bubble_is_the_same():
    values = (0.5, 1.0, 1.5)
    settings = grid(lab2.SCHEDULES, (2, 4), (2, 4, 8, 16), (1, 3), values, values, values)
    found = evaluated("all => all.map((one) => formulas.bubbleFormula(...one))", settings)
    for ours, setting in zip(found, settings, strict=True):
        wanted = lab2.bubble_formula(*setting)
        assert ours == wanted or ours == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize(
    "name",
    ["all_reduce_cost", "ring_against_hierarchical", "model_memory", "data_parallel_step",
     "scaling_explorer", "pipeline", "zero_memory", "zero_volume", "capacity"],
)  # fmt: skip
def test_all_that_the_notebook_can_set_can_be_set_and_both_begin_alike(name):
    draw, choices = explore.settings(getattr(explore, name))
    begin = {key: one.default for key, one in inspect.signature(draw).parameters.items()}
    found = evaluated("name => explorers[name].controls", name)
    assert {one["name"]: one["start"] for one in found} == {key: begin[key] for key in choices}
    for one in found:
        stops = choices[one["name"]]
        assert {*(stops.values() if isinstance(stops, dict) else stops)} <= {*one["stops"]}, one


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["all_reduce_cost", "model_memory", "data_parallel_step", "pipeline", "capacity",
     "ring_against_hierarchical", "zero_memory", "zero_volume"],
)  # fmt: skip
def test_at_first_a_figure_makes_the_notebooks_claim(name):
    draw, _ = explore.settings(getattr(explore, name))
    alt = evaluated(
        "name => { const { controls, draw } = explorers[name]; "
        "return draw(Object.fromEntries(controls.map((one) => [one.name, one.start]))).alt }",
        name,
    )
    claimed = re.findall(r"\d[\d.]*", re.split(r"\. ", alt)[0])
    assert claimed and all(number in draw().alt for number in claimed)


def test_each_figure_can_be_drawn_at_the_ends_of_each_slider():
    drawn = evaluated(
        "() => { const computed = Object.values(explorers).filter((one) => !one.data); "
        "const at = (controls, moved, stop) => Object.fromEntries("
        "controls.map((one) => [one.name, one === moved ? stop : one.start])); "
        "return computed.flatMap(({ controls, draw }) => controls.flatMap((moved) => "
        "[moved.stops[0], moved.stops.at(-1)].map((stop) => draw(at(controls, moved, stop))))) }",
        None,
    )
    assert len(drawn) > 60
    for one in drawn:
        assert "NaN" not in one["svg"] and "undefined" not in one["svg"] + one["alt"]


@pytest.mark.slow
def test_the_table_of_plans_has_lib_s_costs_and_refusals():
    table = plans.table()
    start = [begin for _, begin in plans.CONTROLS.values()]
    yours = table["costs"][" ".join(map(str, start))]
    title = explore.draw_plans().alt
    assert f"takes {sum(yours[1]):.3g} s a step" in title
    assert "no multiple" in table["costs"]["gpt-3-175b A100-80GB 8 6 1 1 none"]
    choices = explore.settings(explore.plans)[1]
    assert all({*stops} <= {*choices[name]} for name, (stops, _) in plans.CONTROLS.items())
    drawn = evaluated(
        "table => explorers.plans.draw(Object.fromEntries(table.controls.map((one) => "
        "[one.name, one.start])), table).alt",
        table,
    )
    assert drawn.split(" s a step")[0] in title


def test_gpus_of_the_memory_figure_are_those_of_the_table():
    shown = evaluated(
        "() => explorers.model_memory.draw({parameters: 1e9, ranks_that_share_the_state: 1}).svg",
        None,
    )
    assert all(f">{row['gpu']}<" in shown for row in lab0.table("gpus") if row["gpu"] != "A100")
