"""Ranges: how many runs they hold, how wide they are, and that nearness is what it says."""

import csv
from math import exp

import numpy as np
import pytest

from lib.cost import ranges
from lib.cost.predict import predict
from lib.cost.published import DATA
from lib.cost.rows import job
from lib.cost.study import fit

ROWS = fit.table_as_text("rows")


def left_out(kind):
    """(covered, half-width) of each row of data/residuals.csv by the other rows: [], []."""
    with open(DATA / "residuals.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["kind"] == kind]
    sizes = np.log2([[float(row[key]) for key in ranges.SIZES] for row in rows]) * list(ranges.SIZES.values())
    text = {key: np.array([row[key] for row in rows]) for key in ranges.APART}
    errors = np.array([float(row["error"]) for row in rows])
    covered, widths = [], []
    for i in range(len(rows)):
        far = np.sqrt(((sizes - sizes[i]) ** 2).sum(axis=1))
        far += sum(doublings * (text[key] != text[key][i]) for key, doublings in ranges.APART.items())
        far[i] = np.inf
        q = np.sort(errors[np.argsort(far, kind="stable")[: ranges.NEAR]])[11]
        covered.append(errors[i] <= q)
        widths.append((exp(q) - exp(-q)) / 2)
    return np.array(covered), np.array(widths), text["source"]


@pytest.mark.parametrize("kind", ["time", "memory"])
def test_four_fifths_of_the_rows_left_out_are_in_the_range(kind):
    """Each row by the others: at least 80 % of all rows, and of those that are not vTrain's single node; and the median
    half-width is at most 12 % of the value."""
    covered, widths, source = left_out(kind)
    others = source != "vtrain-single"
    assert covered.mean() >= 0.8 and np.median(widths) <= 0.12
    assert covered[others].mean() >= 0.8 and np.median(widths[others]) <= 0.12


def test_ranges_are_wider_where_errors_were_larger():
    """vTrain's one node, BigScience's cluster and Megatron-Bridge on Blackwell, in the order of their errors."""
    q = {}
    for source in ("bigscience-176b", "mbridge-26.04"):
        tasks = [job(row) for row in ROWS if row["source"] == source][::8]
        q[source] = np.median([ranges.half_width("time", task, source) for task in tasks])
    assert q["bigscience-176b"] < 0.12 < q["mbridge-26.04"]


def test_a_stack_that_nobody_has_measured_has_a_wider_range():
    wider = 0
    tasks = [(row["source"], job(row)) for row in ROWS if row["source"] in ("korthikanti2022-t5", "mcore-h100-weak")]
    for source, task in tasks:
        wider += ranges.half_width("time", task) > ranges.half_width("time", task, source)
    assert wider == len(tasks)


def test_a_source_left_out_whole_is_in_the_range_of_an_unseen_stack():
    """Every source by the nearest row of each other: of an average source's rows at least 80 % are inside."""
    with open(DATA / "residuals.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["kind"] == "time"]
    text, sizes, _, unseen = ranges._table("time")
    covered = {}
    for row, own, error in zip(rows, sizes, unseen, strict=True):
        far = np.sqrt((((sizes - own) * list(ranges.SIZES.values())) ** 2).sum(axis=1))
        far += sum(doublings * (text[key] != row[key]) for key, doublings in ranges.APART.items())
        order = np.argsort(far, kind="stable")
        order = order[text["source"][order] != row["source"]]
        _, first = np.unique(text["source"][order], return_index=True)
        nearest = np.sort(unseen[order[np.sort(first)[: ranges.NEAR]]])
        covered.setdefault(row["source"], []).append(error <= nearest[11])
    assert np.mean([np.mean(each) for each in covered.values()]) >= 0.8


def test_low_and_high_are_the_half_width_s_powers():
    row = next(row for row in ROWS if row["source"] == "korthikanti2022-t5" and row["metric"] == "step_time")
    value, low, high, _ = predict(row)
    q = ranges.half_width("time", job(row), row["source"])
    assert high / value == pytest.approx(value / low) == pytest.approx(exp(q))


def test_residuals_are_those_of_the_published_rows():
    """One line for each case of the fit and each peak: the file is not older than the rows."""
    with open(DATA / "residuals.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    times = {(line["source"], line["row"]) for line in lines if line["kind"] == "time"}
    assert times == {(case.source, case.row) for case in fit.cases()}
    assert sum(line["kind"] == "memory" for line in lines) == sum(row["metric"] == "peak_mem" for row in ROWS)


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="no errors of kind 'energy'"):
        ranges.half_width("energy", job(ROWS[0]), ROWS[0]["source"])
