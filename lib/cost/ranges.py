"""How accurate a prediction is: the range that contains 80 % of published runs, computed from the
errors on runs that were left out of the fit.

    e_j = | log measured_j / predicted_j |     row j predicted by parameters fitted without its
                                               configuration group
    s_j = (a + b mixture_j + c launch_j) r     how large we expect e_j to be; launch: the share of
                                               the step in which the GPU waits for the host; a, b,
                                               c: least squares
    r = (n mean e / mean s + 6) / (n + 6)      from the n other configurations of the same
                                               publisher, shrunk towards 1
    low, high = predicted x exp(-q s), x exp(q s)
                                               q: the value that 80 % (S + 1) / S of all e_j / s_j
                                               do not exceed

The width of a range therefore depends on the row: mixtures, and steps that wait for the host, are
predicted less well than others, and some publishers' runs less well than those of others. No source
counts as more than 25 rows. The runs of one source are alike, so S sources say less about a new one
than the number of their rows suggests. The correction (S + 1) / S accounts for this. The model of
memory has no fitted parameters, so its e_j is simply the error of the prediction, and s_j = a r.

A plan that has not been run by any publisher has no source, and therefore no factor of its stack.
In this case e_j is the error that row j has with the planner's factor instead of its own, r is 1,
and each of S publishers has the same weight. So the differences between clusters and between stacks
count as well. The same holds for a source that has no row here, because the factor of another
release of its publisher predicts its rows hardly better than the planner's factor does (80 % of the
errors are below 4.1 times s, and below 4.3 times s).

Such a range extends about 25 % to either side for a dense model, and 54 % for a mixture, for two
reasons: mixtures have twice the s, and only three publishers have any, with 89 of the 99 step times
from Megatron-Bridge. It is not too wide, as 15 of the 23 mixtures in data/unseen_stacks.csv are
within it. Their errors are large because the factor of their stack is unknown: with the factor that
the other rows of the same source imply, their mean | log measured / predicted | falls from 0.46 to
0.17. So a few steps that are measured on a stack and added to data/rows.csv would narrow its ranges
more than anything that these rows can teach about mixtures in general.

Source of the rule: split conformal prediction with normalised residuals (Lei et al. 2018, section
5.2). The errors are in data/residuals.csv, written by `python -m lib.calibration fit`.
"""

import csv
import functools
from math import exp, log
from typing import NamedTuple

import numpy as np

from lib.cost.published import DATA, table_as_text
from lib.cost.step import step_seconds

SHARE = 0.8  # of the runs
DRAWN = 6  # weight, in configurations, of the assumption that a publisher is like all others
MOST = 25  # a source counts as at most this many rows
COLUMNS = ["kind", "source", "row", "group", "mixture", "launch", "error", "unseen_stack"]


class Errors(NamedTuple):
    """What is known about the errors of one kind of prediction."""

    coefficients: np.ndarray  # a, b, c
    sources: frozenset
    publishers: dict  # {publisher: (configurations, mean e / mean s)}
    q: float  # for a run of a known source
    unseen: float  # q for a run without a known source


def publisher(source):
    """The publisher of a source: "mbridge" for "mbridge-26.04"."""
    return source.split("-")[0]


def features(kind, task):
    """What the size of an error depends on: [1, mixture, launch], or [1, 0, 0] for memory.

    task: (Model, Plan, GPU, Stack).
    """
    if kind == "memory":
        return [1.0, 0.0, 0.0]
    seconds = step_seconds(*task)
    return [1.0, float(bool(task[0].experts)), seconds["launch"] / sum(seconds.values())]


def half_width(kind, task, source=None):
    """q s: the range from predicted x exp(-q s) to predicted x exp(q s) contains 80 % of such runs.

    kind: "time" or "memory"; source: that of a published row. It counts as known if it begins with
    the name of a known one, such as "simumax-b200-again". Any other run has no source.
    Raises ValueError for a kind of which no errors are known.
    """
    known = _errors(kind)
    s = float(scale(features(kind, task), known.coefficients))
    if source and source.startswith(tuple(known.sources)):
        return known.q * s * drawn(*known.publishers[publisher(source)])
    return known.unseen * s


def scale(found, coefficients):
    """s without r, for one [1, mixture, launch] or for rows of them."""
    return np.maximum(0.01, np.asarray(found) @ coefficients)


def drawn(n, ratio):
    """r, from n configurations whose errors are larger than expected by the factor `ratio`."""
    return (n * ratio + DRAWN) / (n + DRAWN)


@functools.cache
def _errors(kind):
    """The Errors of all rows of this kind in data/residuals.csv."""
    return errors_of(read(kind))


def read(kind):
    """[row of data/residuals.csv] of one kind. Raises ValueError if there is none."""
    rows = [row for row in table_as_text("residuals") if row["kind"] == kind]
    if not rows:
        raise ValueError(
            f"no errors of kind {kind!r} in lib/cost/data/residuals.csv: use time or memory"
        )
    return rows


def errors_of(rows):
    """The Errors of these rows of data/residuals.csv."""
    column = lambda key: np.array([float(row[key]) for row in rows])
    sources, e, unseen = [row["source"] for row in rows], column("error"), column("unseen_stack")
    count = np.array([sources.count(source) for source in sources])
    w = np.sqrt(np.minimum(1, MOST / count))
    x = np.stack([np.ones(len(rows)), column("mixture"), column("launch")], 1)
    coefficients = np.linalg.lstsq(x * w[:, None], np.minimum(e, 0.6) * w, rcond=None)[0]
    s = scale(x, coefficients)
    groups = {}  # {publisher: {configuration: [rows]}}
    for j, row in enumerate(rows):
        groups.setdefault(publisher(row["source"]), {}).setdefault(row["group"], []).append(j)
    publishers, r = {}, np.ones(len(rows))
    for name, of in groups.items():
        pairs = np.array([[e[js].mean(), s[js].mean()] for js in of.values()])
        total = pairs.sum(0)
        publishers[name] = len(of), total[0] / total[1]
        for pair, js in zip(pairs, of.values(), strict=True):  # the others of the publisher
            rest = total - pair
            r[js] = drawn(len(of) - 1, rest[0] / rest[1]) if len(of) > 1 else 1.0
    names = [publisher(source) for source in sources]
    alike = 1 / np.array([names.count(name) for name in names])
    q, q_unseen = _most(e / (s * r), w**2, len(set(sources))), _most(unseen / s, alike, len(groups))
    return Errors(coefficients, frozenset(sources), publishers, q, q_unseen)


def _most(values, weights, n):
    """The value that a share SHARE (n + 1) / n of the values, by weight, do not exceed. n: how many
    of them are independent."""
    order = np.argsort(values)
    share = np.cumsum(weights[order]) / weights.sum()
    return float(values[order][np.searchsorted(share, min(1.0, SHARE * (n + 1) / n) - 1e-9)])


def around(kind, value, task, source=None):
    """(low, high) of a predicted value, in its unit. The formula is the same for a time and for a
    rate, which is 1 / time."""
    q = half_width(kind, task, source)
    return value * exp(-q), value * exp(q)


def residual(kind, source, row, group, task, ratio, factor=1.0):
    """One line of data/residuals.csv. ratio: measured / predicted; factor: the factor of the row's
    stack, divided by the planner's factor."""
    _, mixture, launch = features(kind, task)
    values = kind, source, row, group, f"{mixture:.0f}", f"{launch:.3f}"
    return dict(
        zip(
            COLUMNS,
            (*values, f"{abs(log(ratio)):.4f}", f"{abs(log(ratio * factor)):.4f}"),
            strict=True,
        )
    )


def write(rows):
    """Write data/residuals.csv. rows: results of `residual`."""
    with open(DATA / "residuals.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    _errors.cache_clear()
