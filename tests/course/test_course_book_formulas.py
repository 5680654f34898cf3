"""The formulas and the simulator in the book's formulas.js against lib's, on a grid of settings."""

import inspect
import itertools
import random
import re

import pytest
from javascript import evaluated

from lib import explore, pipeline
from lib.collectives.cost import COST, hierarchical_time
from lib.cost import data_parallel, search, zero
from lib.cost.hardware import gpu
from lib.cost.memory import memory
from lib.cost.plan import Plan
from lib.cost.shapes import known
from lib.cost.stacks import DEFAULT_STACK, stacks
from lib.cost.state import RECIPES
from lib.cost.step import step_seconds
from lib.explore import lab0, lab2, lab5, lab6
from lib.plots.components import name_of

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
     "scaling_explorer", "pipeline", "zero_memory", "zero_volume", "capacity", "plans"],
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
     "ring_against_hierarchical", "zero_memory", "zero_volume", "plans"],
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
        "() => { "
        "const at = (controls, moved, stop) => Object.fromEntries("
        "controls.map((one) => [one.name, one === moved ? stop : one.start])); "
        "const all = Object.values(explorers); "
        "return all.flatMap(({ controls, draw }) => controls.flatMap((moved) => "
        "[moved.stops[0], moved.stops.at(-1)].map((stop) => draw(at(controls, moved, stop))))) }",
        None,
    )
    assert len(drawn) > 60
    for one in drawn:
        assert "NaN" not in one["svg"] and "undefined" not in one["svg"] + one["alt"]


# --- plans: lib.cost's memory and step, its refusals and its search


def plan_settings():
    """Every setting of Lab 6's explorer, in an order without a pattern, so that each slice of them
    has all sorts."""
    choices = explore.settings(explore.plans)[1]
    settings = list(itertools.product(*choices.values()))
    random.Random(0).shuffle(settings)
    return settings


def plan_costs(settings):
    """What lib says of each setting: a refusal, or [name, {component: bytes or seconds}]."""
    stack, found = stacks()[DEFAULT_STACK], []
    for model, kind, gpus, batch, tp, pp, b, stage, recompute in settings:
        shape = known()[model]
        plan = Plan(batch, b, tp, pp, gpus // (tp * pp), zero=stage, recompute=recompute,
                    sequence_parallel=tp > 1)  # fmt: skip
        if gpus % (tp * pp) or (why := plan.problem(shape) or lab6._empty(shape, plan)):
            found.append("no multiple" if gpus % (tp * pp) else why)
        else:
            found.append([name_of(plan), costs_of(shape, plan, gpu(kind), stack)])
    return found


def costs_of(shape, plan, device, stack):
    costs = {f"memory {name}": n for name, n in memory(shape, plan, stack).items()}
    costs |= {f"step {name}": n for name, n in step_seconds(shape, plan, device, stack).items()}
    return {name: cost for name, cost in costs.items() if cost}


COSTS = """const named = (what, parts) => Object.entries(parts)
    .filter(([, one]) => one).map(([name, one]) => [`${what} ${name}`, one]);
const costs = (model, plan, kind) => Object.fromEntries([
    ...named("memory", formulas.memory(model, plan)),
    ...named("step", formulas.stepSeconds(model, plan, formulas.machines[kind]))]);"""


def agree(found, wanted):
    """The components, to 12 digits, or to what rounding leaves of a difference of sums."""
    for what in ("memory", "step"):
        total = sum(cost for name, cost in wanted.items() if name.startswith(what))
        of = lambda costs, what=what: {n: cost for n, cost in costs.items() if n.startswith(what)}
        assert of(found) == pytest.approx(of(wanted), rel=1e-12, abs=1e-12 * total)


# the 307,200 settings of the explorer take a minute and a half
@pytest.mark.parametrize("n", [6000, pytest.param(None, marks=pytest.mark.slow)])
def test_plans_have_lib_s_memory_and_step_and_the_same_are_refused(n):
    settings, plans = plan_settings()[:n], 0
    found = evaluated(
        f"all => {{ {COSTS} return all.map(([name, kind, gpus, batch, tp, pp, b, ...rest]) => {{ "
        "if (gpus % (tp * pp)) return 'no multiple'; "
        "const model = formulas.models[name]; "
        "const plan = formulas.planOf(batch, b, tp, pp, gpus / (tp * pp), 1, ...rest); "
        "return formulas.problem(model, plan) ?? "
        "[formulas.nameOf(plan), costs(model, plan, kind)] }) }",
        settings,
    )
    for ours, wanted in zip(found, plan_costs(settings), strict=True):
        if isinstance(wanted, str):
            assert ours == wanted
        else:
            plans += 1
            assert ours[0] == wanted[0]
            agree(ours[1], wanted[1])
    assert plans > len(settings) / 3


def test_the_search_has_the_same_plans_and_these_cost_the_same():
    stack = stacks()[DEFAULT_STACK]
    jobs = ("llama3-70b", "B200", 64, 512), ("gpt-1t", "A100-80GB", 1024, 1536)
    for model, kind, gpus, batch in jobs:
        shape, device = known()[model], gpu(kind)
        wanted = list(search.plans(shape, device, gpus, batch, stack))
        assert any(plan.v > 1 for plan in wanted)
        found = evaluated(
            f"([name, kind, gpus, batch]) => {{ {COSTS} const model = formulas.models[name]; "
            "return [...formulas.planSpace(model, gpus, batch)].map((plan) => "
            "[formulas.nameOf(plan), costs(model, plan, kind)]) }",
            [model, kind, gpus, batch],
        )
        assert [name for name, _ in found] == [name_of(plan) for plan in wanted]
        for (_, ours), plan in zip(found, wanted, strict=True):
            agree(ours, costs_of(shape, plan, device, stack))


JOBS = grid(*list(explore.settings(explore.plans)[1].values())[:4])


@pytest.mark.parametrize("every", [37, pytest.param(1, marks=pytest.mark.slow)])
def test_the_best_plan_of_a_job_is_that_of_lib_s_search(every):
    found = evaluated(
        "all => all.map((job) => { const plan = formulas.bestPlan(...job); "
        "return plan && formulas.nameOf(plan) })",
        JOBS[::every],
    )
    best = [lab6.best_plan(*job) for job in JOBS[::every]]
    assert None in best and found == [plan and name_of(plan) for plan in best]


def test_gpus_of_the_memory_figure_are_those_of_the_table():
    shown = evaluated(
        "() => explorers.model_memory.draw({parameters: 1e9, ranks_that_share_the_state: 1}).svg",
        None,
    )
    assert all(f">{row['gpu']}<" in shown for row in lab0.table("gpus") if row["gpu"] != "A100")
