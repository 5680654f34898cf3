"""Ranges: how many runs they hold, how wide they are, and what they depend on."""

from math import exp

import numpy as np
import pytest

from lib.calibration import fit
from lib.calibration.predict import predict
from lib.calibration.rows import job
from lib.cost import ranges
from lib.cost.parameters import parameters

ROWS = fit.table_as_text("rows")


def left_out(kind, key):
    """(covered, half-width, source) of each row, ranges made without the rows whose `key`
    is its own: arrays."""
    rows, found = ranges.read(kind), []
    for name in dict.fromkeys(key(row) for row in rows):
        known = ranges.errors_of([row for row in rows if key(row) != name])
        for row in rows:
            if key(row) == name:
                s = ranges.scale(
                    [1.0, float(row["mixture"]), float(row["launch"])], known.coefficients
                )
                publisher = known.publishers.get(ranges.publisher(row["source"]))
                q = s * (known.q * ranges.drawn(*publisher) if publisher else known.unseen)
                error = float(row["error"] if publisher else row["unseen_stack"])
                found.append((error <= q, (exp(q) - exp(-q)) / 2, row["source"]))
    return [np.array(each) for each in zip(*found, strict=True)]


@pytest.mark.parametrize("kind", ["time", "memory"])
def test_four_fifths_of_the_rows_left_out_are_in_the_range(kind):
    """Each row by those of other configurations: at least 80 % of all rows, and of those that are
    not vTrain's single node; and the median half-width is at most 12 % of the value."""
    fold = lambda row: sum(map(ord, row["group"])) % 20
    covered, widths, source = left_out(kind, fold)
    others = source != "vtrain-single"
    assert covered.mean() >= 0.8 and np.median(widths) <= 0.12
    assert covered[others].mean() >= 0.8 and np.median(widths[others]) <= 0.12


def test_a_publisher_left_out_whole_is_in_the_range_of_an_unseen_stack():
    """Of an average source's rows at least 80 %, and of all rows."""
    covered, _, source = left_out("time", lambda row: ranges.publisher(row["source"]))
    assert (
        np.mean([covered[source == name].mean() for name in set(source)]) >= 0.8
        and covered.mean() >= 0.8
    )


def test_ranges_are_wider_where_errors_were_larger():
    """BigScience's cluster and Megatron-Bridge on Blackwell, in the order of their errors;
    mixtures before dense."""
    q = {}
    for source in ("bigscience-176b", "mbridge-26.04"):
        tasks = [job(row) for row in ROWS if row["source"] == source][::8]
        q[source] = np.median([ranges.half_width("time", task, source) for task in tasks])
    assert q["bigscience-176b"] < 0.12 < q["mbridge-26.04"]
    of = {row["model"]: job(row) for row in ROWS if row["source"] == "mbridge-26.04"}
    width = lambda model: ranges.half_width("time", of[model], "mbridge-26.04")
    assert width("qwen3-235b-a22b") > width("llama3-405b")


def test_a_stack_that_nobody_has_measured_has_a_wider_range():
    tasks = [
        (row["source"], job(row))
        for row in ROWS
        if row["source"] in ("korthikanti2022-t5", "mcore-h100-weak")
    ]
    for source, task in tasks:
        nobody = ranges.half_width("time", task)
        assert nobody > ranges.half_width("time", task, source)
        assert nobody == ranges.half_width("time", task, "elsewhere")
        # no row of it is known
        assert nobody == ranges.half_width("time", task, ranges.publisher(source) + "-next")
        assert ranges.half_width("time", task, source + "-again") == ranges.half_width(
            "time", task, source
        )


def test_another_release_is_as_far_off_as_another_publisher():
    """Rows with the factor of each other release of their publisher on that chip: 80 % within 4.1
    s; unseen: 4.3 s."""
    known, factors, cases = ranges._errors("time"), parameters().factors, {}
    for case in fit.cases():
        cases[case.source, case.row] = case.job.stack.name, case.job.gpu.family
    rows = [
        (row, ranges.publisher(row["source"]), *cases[row["source"], row["row"]])
        for row in ranges.read("time")
    ]
    ratios, weights, publishers = [], [], []
    for row, name, stack, family in rows:
        others = {other for _, of, other, chip in rows if (of, chip) == (name, family)} - {stack}
        away = np.log(factors[stack] / factors["megatron-core"])
        size, unseen = float(row["error"]), float(row["unseen_stack"])
        signed = min(size, -size, key=lambda error: abs(abs(error + away) - unseen))
        s = ranges.scale([1.0, float(row["mixture"]), float(row["launch"])], known.coefficients)
        for other in others:
            ratios.append(abs(signed + np.log(factors[stack] / factors[other])) / s)
            weights.append(1 / len(others))
            publishers.append(name)
    total = {
        name: sum(w for w, of in zip(weights, publishers, strict=True) if of == name)
        for name in publishers
    }
    alike = np.array([w / total[name] for w, name in zip(weights, publishers, strict=True)])
    assert ranges._most(np.array(ratios), alike, len(total)) == pytest.approx(4.14, abs=0.01)
    assert known.unseen == pytest.approx(4.35, abs=0.01)


def test_a_publisher_s_errors_are_drawn_towards_all_others():
    """Of 24 rows of one publisher, twice as large as another's 24: (6 x 4/3 + 6) / (6 + 6)
    of what is expected."""
    rows = [
        {
            "source": f"{name}-1",
            "group": f"{name}{j % 6}",
            "mixture": 0,
            "launch": 0,
            "error": e,
            "unseen_stack": e,
        }
        for name, e in (("a", 0.2), ("b", 0.1))
        for j in range(24)
    ]
    found = ranges.errors_of(rows)
    assert found.coefficients @ [1, 0, 0] == pytest.approx(0.15)
    assert found.publishers["a"] == (6, pytest.approx(4 / 3))
    assert ranges.drawn(*found.publishers["a"]) == pytest.approx(14 / 12)
    # the larger one's: S = 2 asks for all
    assert found.q == pytest.approx(0.2 / (0.15 * (5 * 4 / 3 + 6) / 11))
    assert found.unseen == pytest.approx(4 / 3)


def test_low_and_high_are_the_half_width_s_powers():
    row = next(
        row
        for row in ROWS
        if row["source"] == "korthikanti2022-t5" and row["metric"] == "step_time"
    )
    value, low, high, _ = predict(row)
    q = ranges.half_width("time", job(row), row["source"])
    assert high / value == pytest.approx(value / low) == pytest.approx(exp(q))


def test_residuals_are_those_of_the_published_rows():
    """One line for each case of the fit and each peak: the file is not older than the rows."""
    times = {(line["source"], line["row"]) for line in ranges.read("time")}
    assert times == {(case.source, case.row) for case in fit.cases()}
    assert len(ranges.read("memory")) == sum(row["metric"] == "peak_mem" for row in ROWS)


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="no errors of kind 'energy'"):
        ranges.half_width("energy", job(ROWS[0]), ROWS[0]["source"])
