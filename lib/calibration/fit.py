"""Fits the parameters of the cost model to the published step times, by weighted least squares.

    residual of row j  e_j = log R_j - log T_j(x, f_stack), the measured over the predicted time
    f_stack            a factor on the predicted time, one per software stack, for all but the
                       vocabulary's matmul and the loss. It makes the weighted mean of the stack's e
                       nearly 0, and is drawn a little towards 1, more so if the stack has few rows
    weight             w_j = min(1, sqrt(25 / rows of its source)), on e_j, so that many rows of one
                       source count as 25

Beyond 10 %, a weighted error w e counts like |w e| rather than (w e)^2, so that a few outliers have
little effect on the fit. Of the 720 single-node rows of vTrain we use every sixth. A fit takes
about a minute, most of which is spent in evaluating the model.
"""

import csv
from typing import NamedTuple

import numpy as np

from lib.calibration.metrics import TIME_METRICS, to_seconds
from lib.calibration.rows import Job, Unpredictable, job
from lib.cost.parameters import from_values
from lib.cost.published import DATA, table, table_as_text
from lib.cost.step import step_seconds

SOFT = 0.1  # residuals beyond this count less than their square
DRAWN = 0.3  # a stack's factor is drawn towards 1 as if by this many rows


class Case(NamedTuple):
    """One published step time, converted from the metric in which it was published."""

    source: str
    row: str
    job: Job
    seconds: float


def cases(name="rows"):
    """[Case] of data/`name`.csv. If several metrics of a run give its step time, the first one that
    can be predicted is taken. Rows that cannot be predicted are left out."""
    found = {}
    for row in table_as_text(name):
        key = row["source"], row["row"]
        if row["metric"] not in TIME_METRICS or key in found:
            continue
        try:
            task = job(row)
        except Unpredictable:
            continue
        found[key] = Case(
            *key, task, to_seconds(row["metric"], row["source"], task, float(row["value"]))
        )
    return list(found.values())


def thinned(cases):
    """Every sixth of vTrain's single-node rows, and all other rows."""
    single = [case for case in cases if case.source == "vtrain-single"]
    dropped = {(case.source, case.row) for i, case in enumerate(single) if i % 6}
    return [case for case in cases if (case.source, case.row) not in dropped]


def seconds(k, cases):
    """Predicted seconds of each case, (len(cases),). Equal jobs are computed once."""
    known = {}
    for case in cases:
        if case.job not in known:
            known[case.job] = sum(step_seconds(*case.job, k).values())
    return np.array([known[case.job] for case in cases])


def weights(cases):
    sources = [case.source for case in cases]
    return np.array([min(1.0, (25 / sources.count(source)) ** 0.5) for source in sources])


def stack_factors(errors, cases, w):
    """{stack: log factor}, from the log errors of the model without factors.

    f = sum of v e / (sum of v + DRAWN), where v is w^2, reduced for a row far from f, because such
    a row counts less in the fit, too.
    """
    errors, stacks = np.asarray(errors), np.array([case.job.stack.name for case in cases])
    found = {}
    for stack in dict.fromkeys(stacks.tolist()):
        e, squares = errors[stacks == stack], w[stacks == stack] ** 2
        f = np.median(e)
        for _ in range(5):
            v = squares / np.sqrt(1 + ((e - f) / SOFT) ** 2)
            f = (v * e).sum() / (v.sum() + DRAWN)
        found[stack] = float(f)
    return found


def fit(cases, start=None, rounds=12):
    """Fit everything in data/parameters.csv, including the stack factors, to these cases alone, and
    return {parameter: value}.

    start: {parameter: value} to begin with; the table's column `start` if not given. rounds: how
    often the solver may evaluate the model, not counting the evaluations for derivatives.
    """
    from scipy.optimize import least_squares  # here, because it takes half a second to import

    rows = [row for row in table("parameters") if not row["parameter"].startswith("factor ")]
    names = [row["parameter"] for row in rows]
    column = lambda key: np.log([row[key] for row in rows])
    origin, low, high = column("start"), column("low"), column("high")
    spread = np.array([row["spread"] for row in rows])
    measured, w = np.log([case.seconds for case in cases]), weights(cases)

    def errors(x, passes=2):
        k, logs = from_values(dict(zip(names, np.exp(x), strict=True))), {}
        of_rows = lambda: np.array([logs.get(case.job.stack.name, 0.0) for case in cases])
        # repeated, because a step's time is not quite proportional to the factor
        for _ in range(passes):
            now = k._replace(factors={stack: float(np.exp(log)) for stack, log in logs.items()})
            e = measured - np.log(seconds(now, cases)) + of_rows()
            logs = stack_factors(e, cases, w)
        return e - of_rows(), logs

    def residuals(x):
        e, factors = errors(x)
        return np.concatenate(
            [w * e, 0.15 * (x - origin) / spread, 0.1 * np.array(list(factors.values()))]
        )

    x = origin if start is None else np.log([start[name] for name in names])
    x = np.clip(x, low + 1e-6, high - 1e-6)
    found = least_squares(
        residuals,
        x,
        bounds=(low, high),
        loss="soft_l1",
        f_scale=SOFT,
        diff_step=1e-3,
        max_nfev=rounds,
    ).x
    _, factors = errors(found, passes=5)
    values = dict(zip(names, np.exp(found).tolist(), strict=True))
    return {**values, **{f"factor {stack}": float(np.exp(log)) for stack, log in factors.items()}}


def now():
    """{parameter: value} of data/parameters.csv, without the stack factors."""
    return {
        row["parameter"]: row["value"] for row in table("parameters") if row["start"] is not None
    }


def write(values):
    """Write fitted values to data/parameters.csv, and leave its other columns as they are."""
    rows = [
        row for row in table_as_text("parameters") if not row["parameter"].startswith("factor ")
    ]
    for row in rows:
        row["value"] = f"{values[row['parameter']]:.4g}"
    about = {row["stack"]: row["source"] for row in table_as_text("stacks")}
    for name in sorted(values):
        if name.startswith("factor "):
            text = f"step time relative to the model's: {about[name.removeprefix('factor ')]}"
            value, source = f"{values[name]:.4g}", rows[0]["source"]
            rows.append({"parameter": name, "value": value, "meaning": text, "source": source})
    with open(DATA / "parameters.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n", restval="")
        writer.writeheader()
        writer.writerows(rows)
