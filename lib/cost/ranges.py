"""How sure a prediction is: the range that holds 80 % of published runs, from the errors on runs that were not fitted.

    e_j = | log measured_j / predicted_j |      row j predicted by parameters fitted without its configuration group
    low, high = predicted x exp(-q), x exp(q)   q: the 12th smallest e of the 14 nearest rows, for (14 + 1) x 0.8 = 12

Nearest: rows of the same source first, then of the same kind (family of GPU, precision, mixture or not), then of like
size: doublings between degrees, micro-batch, width, length and GPUs are added up (root of the sum of squares).

A plan that nobody has run has no source, so no factor of its stack either. There e_j is the error that row j has with
the planner's factor instead of its own, and each of the 14 nearest sources gives one row: what differs from cluster to
cluster and from stack to stack counts too. For memory nothing is fitted, so e_j is the error as it is.

Source of the rule: split conformal prediction (Vovk et al. 2005; Lei et al. 2018), with neighbours for local width. The
errors are in data/residuals.csv, written by `python -m lib.cost fit`.
"""

import csv
import functools
from math import exp, log, log2

import numpy as np

from lib.cost.published import DATA

NEAR, SHARE = 14, 0.8
APART = {"source": 4.0, "family": 4.0, "mixture": 4.0, "precision": 2.0}  # what a difference counts, in doublings
SIZES = {
    "gpus": 0.5, "tp": 1.0, "pp": 1.0, "cp": 1.0, "ep": 1.0, "micro_batch": 1.0, "micro_batches": 0.25,
    "hidden": 1.0, "layers": 0.5, "seq": 1.0,
}  # fmt: skip
COLUMNS = ["kind", "source", "row", "family", "precision", "mixture", *SIZES, "error", "unseen_stack"]


def features(task, source=None):
    """{column: text or number}: what nearness is about. task: (Model, Plan, GPU, Stack)."""
    model, plan, gpu, _ = task
    kind = {"source": source, "family": gpu.family, "precision": plan.precision, "mixture": int(bool(model.experts))}
    sizes = {key: getattr(plan if hasattr(plan, key) else model, key) for key in SIZES}
    return {**kind, **sizes}


def half_width(kind, task, source=None):
    """q: predicted x exp(-q) to predicted x exp(q) holds 80 % of such runs.

    kind: "time" or "memory"; source: of a published row, a run of its own kind otherwise.
    Raises ValueError for a kind of which no errors are known.
    """
    return _half_width(kind, tuple(features(task, source).items()))


@functools.lru_cache(maxsize=4096)
def _half_width(kind, items):
    asked, (of_kind, sizes, errors, unseen) = dict(items), _table(kind)
    own = np.array([log2(asked[key]) for key in SIZES])
    far = np.sqrt((((sizes - own) * list(SIZES.values())) ** 2).sum(axis=1))
    for key, doublings in APART.items():
        far = far + doublings * (of_kind[key] != str(asked[key]))
    order = np.argsort(far, kind="stable")
    if asked["source"] in of_kind["source"]:
        nearest = errors[order[:NEAR]]
    else:
        _, first = np.unique(of_kind["source"][order], return_index=True)
        nearest = unseen[order[np.sort(first)[:NEAR]]]
    rank = min(len(nearest), -int(-(len(nearest) + 1) * SHARE // 1))  # rounded up
    return float(np.sort(nearest)[rank - 1])


@functools.cache
def _table(kind):
    """({text column: (rows,)}, sizes in doublings (rows, SIZES), errors (rows,), errors with an unseen stack)."""
    with open(DATA / "residuals.csv", newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["kind"] == kind]
    if not rows:
        raise ValueError(f"no errors of kind {kind!r} in lib/cost/data/residuals.csv: use time or memory")
    text = {key: np.array([row[key] for row in rows]) for key in APART}
    sizes = np.log2([[float(row[key]) for key in SIZES] for row in rows])
    return text, sizes, *(np.array([float(row[key]) for row in rows]) for key in ("error", "unseen_stack"))


def around(kind, value, task, source=None):
    """(low, high) of a predicted value, in its unit; the same for a time and for a rate, 1 / time."""
    q = half_width(kind, task, source)
    return value * exp(-q), value * exp(q)


def residual(kind, source, row, task, ratio, factor=1.0):
    """One line of data/residuals.csv. ratio: measured / predicted; factor: of the row's stack over the planner's."""
    found = {"kind": kind, "row": row, **features(task, source)}
    return {**found, "error": f"{abs(log(ratio)):.4f}", "unseen_stack": f"{abs(log(ratio * factor)):.4f}"}


def write(rows):
    """Write data/residuals.csv. rows: of `residual`."""
    with open(DATA / "residuals.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    _table.cache_clear()
    _half_width.cache_clear()
