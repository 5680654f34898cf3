"""The score, as regression bars a little above what the model reaches, in percent.

In sample here, for time's sake. `python -m lib.calibration score` also cross-validates by
configuration group and extrapolates; lib/cost/README.md shows those.
"""

import re
from pathlib import Path

import numpy as np
import pytest

from lib.calibration import fit, score
from lib.cost.parameters import from_values, parameters
from lib.cost.published import table

BARS = {  # source: (mean, 90th percentile)
    "megatron2021-t1": (3.5, 6), "megatron2021-t2": (7, 13), "korthikanti2022-t5": (3.5, 5),
    "megascale-t2": (3, 5),
    "bigscience-176b": (4.5, 10), "vtrain-multi": (8, 16.5), "vtrain-single": (10.5, 22),
    "zerobubble-t4": (4, 7),
    "zerobubble-t6": (3.5, 5.5), "simumax-b200": (8, 15), "torchtitan-202412": (9.5, 18),
    "mbridge-26.04": (12, 32),
    "mbridge-25.11": (12, 24), "llmfoundry-a100-40gb-with-1600-gbps-node-node-inter": (5.5, 9.5),
    "llmfoundry-a100-80gb-with-1600-gbps-node-node-inter": (7.5, 19),
    "llmfoundry-h100-80gb-bf16": (9, 20),
    "mcore-h100-weak": (4, 6), "all": (9.5, 20.5),
}  # fmt: skip


@pytest.fixture(scope="module")
def cases():
    return fit.cases()


@pytest.fixture(scope="module")
def lines(cases):
    return {line.source: line for line in score.step_time(cases=cases)}


@pytest.mark.parametrize("source", BARS)
def test_errors_stay_below_their_bars(lines, source):
    mean, p90 = BARS[source]
    assert lines[source].mean < mean and lines[source].p90 < p90, lines[source]


def test_below_the_null_model_wherever_there_are_8_rows(lines):
    large = [line for line in lines.values() if line.rows >= 8]
    assert len(large) >= 19
    for line in large:
        assert line.mean < line.null_mean, line


def test_the_page_shows_these_errors(lines):
    """lib/cost/README.md: rows, errors in sample and the null model's of each source, to
    the digit shown."""
    page = (Path(__file__).parents[2] / "lib" / "cost" / "README.md").read_text(encoding="utf-8")
    table = page.split("| in sample |")[1].split("\n\n")[0]
    number = r"(\d+\.\d)"
    row = re.compile(
        rf"^\| (\S+) \| (\d+) \| {number} / {number} % \|.*\| {number} / {number} % \|$",
        re.MULTILINE,
    )
    shown = {source: tuple(map(float, values)) for source, *values in row.findall(table)}
    assert len(shown) > 30 and shown.keys() <= lines.keys()
    for source, values in shown.items():
        line = lines[source]
        now = (line.rows, line.mean, line.p90, line.null_mean, line.null_p90)
        assert values == pytest.approx(now, abs=0.0501), source


def test_the_null_model_is_one_efficiency_per_source(cases):
    some = [case for case in cases if case.source == "korthikanti2022-t5"]
    null, measured = score.null_seconds(some), np.array([case.seconds for case in some])
    assert np.median(measured / null) == pytest.approx(1)


def test_a_configuration_is_on_one_side_of_the_split(cases):
    """The same plan in two releases, or with two micro-batches, is one group."""
    groups = {}
    for case in cases:
        groups.setdefault(score.group(case), []).append(case)
    assert any(len({case.source for case in members}) > 3 for members in groups.values())
    assert any(
        len({case.job.plan.micro_batch for case in members}) > 3 for members in groups.values()
    )
    assert len(groups) > 100


def test_fitting_finds_a_factor_and_a_rate_again(cases):
    """Step times made by the model with other parameters are fitted to a tenth of the
    change that was made."""
    some = [case for case in cases if case.source.startswith(("vtrain-multi", "zerobubble-t4"))]
    start = {row["parameter"]: row["value"] for row in table("parameters")}
    other = {**start, "matmul A100": 0.8 * start["matmul A100"], "factor zero-bubble": 1.3}
    made = fit.seconds(from_values(other), some)
    made = [case._replace(seconds=seconds) for case, seconds in zip(some, made, strict=True)]
    before = score.errors(fit.seconds(parameters(), made), [case.seconds for case in made]).mean()
    found = from_values(fit.fit(made, start, rounds=3))
    after = score.errors(fit.seconds(found, made), [case.seconds for case in made]).mean()
    assert before > 15 and after < 2.5


def test_parameters_are_documented_and_inside_their_bounds():
    for row in table("parameters"):
        assert row["meaning"] and row["source"]
        if not row["parameter"].startswith("factor "):
            assert row["low"] <= row["value"] <= row["high"], row
        else:
            assert 0.4 < row["value"] < 2.5, row


def test_runs_for_the_figure_are_all_rows(cases):
    runs = score.runs(cases=cases)
    assert sum(len(measured) for measured, _ in runs.values()) == len(cases)
    assert len(runs) <= 8


def test_errors_left_out_are_the_cross_validated_ones_and_larger_than_those_in_sample(cases):
    kinds = score.left_out(cases)
    unseen, inside = kinds.pop(score.UNSEEN)
    assert inside is None and len(unseen) == len(fit.cases("unseen")) > 80
    assert sum(len(out) for out, _ in kinds.values()) == len(cases)
    out, inside = (np.concatenate([kind[i] for kind in kinds.values()]) for i in (0, 1))
    assert 0.08 < out.mean() < 0.11 and 0.07 < inside.mean() < out.mean()
    want = [float(row["error"]) for row in fit.table_as_text("residuals") if row["kind"] == "time"]
    assert np.sort(out) == pytest.approx(np.sort(np.expm1(want)))
