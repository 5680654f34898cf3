"""Measures how well the cost model predicts published runs, source by source, and compares it with
a null model that has only one number per source.

    error of a row   | predicted / measured - 1 |
    in sample        with parameters that were fitted to all rows
    cross-validated  fitted to four fifths of the configuration groups, tested on the others; five
                     times
    extrapolated     fitted to runs of at most 512 GPUs, tested on those of 1,500 and more
    null, step time  operations / (GPUs x peak x e), with one efficiency e per source, its median
    null, memory     one share of the GPU's memory per source, its median

A configuration group is a model on a number of GPUs of one family, with the same tp, pp, cp and ep.
A plan in six releases of a stack, or with several micro-batches, is therefore one group, so that it
is not tested on parameters that were fitted to near copies of it. The null model has an advantage:
its medians include the test rows.
"""

import zlib
from typing import NamedTuple

import numpy as np

from lib.calibration import fit, sweeps
from lib.calibration.metrics import hardware_flops
from lib.calibration.predict import UNITS
from lib.calibration.rows import Unpredictable, job
from lib.cost import ranges
from lib.cost.memory import peak_bytes
from lib.cost.parameters import from_values, parameters
from lib.cost.published import table
from lib.cost.stacks import DEFAULT_STACK

FOLDS = 5
UNSEEN = "in no fit: of other releases"  # data/unseen.csv


class Line(NamedTuple):
    """The errors on a source's rows, in percent: mean and 90th percentile, of the cost model and of
    the null model."""

    source: str
    rows: int
    mean: float
    p90: float
    null_mean: float
    null_p90: float


def errors(predicted, measured):
    """(rows,): absolute percentage errors."""
    return 100 * np.abs(np.asarray(predicted) / np.asarray(measured) - 1)


def lines(sources, ours, null):
    """[Line], one per source in order of appearance, and one for all rows. ours, null: (rows,)
    errors."""
    sources = np.array(sources)
    found = []
    for source in [*dict.fromkeys(sources.tolist()), "all"]:
        mine = np.full(len(sources), True) if source == "all" else sources == source
        a, b = ours[mine], null[mine]
        found.append(
            Line(source, len(a), a.mean(), np.percentile(a, 90), b.mean(), np.percentile(b, 90))
        )
    return found


def by_source(sources, values):
    """(rows,): for each row the median of `values` over all rows of its source."""
    names, values = np.array(sources), np.asarray(values)
    return np.array([np.median(values[names == source]) for source in sources])


def null_seconds(cases):
    """(cases,): step times of the null model, where all runs of a source have its median
    efficiency."""
    ideal = []
    for case in cases:
        model, plan, gpu, _ = case.job
        operations = hardware_flops(case.source, model, plan) * plan.global_batch * model.seq
        ideal.append(operations / (plan.gpus * gpu.peak(plan.precision)))
    measured, ideal = np.array([case.seconds for case in cases]), np.array(ideal)
    return ideal * by_source([case.source for case in cases], measured / ideal)


def step_time(k=None, cases=None):
    """[Line] of step times, in sample. k: Parameters, those of data/parameters.csv if not given."""
    cases = cases or fit.cases()
    measured = [case.seconds for case in cases]
    ours = errors(fit.seconds(k or parameters(), cases), measured)
    return lines([case.source for case in cases], ours, errors(null_seconds(cases), measured))


def memory_cases():
    """[Case] of peak memory, whose `seconds` are the measured bytes."""
    found = []
    for row in fit.table_as_text("rows"):
        if row["metric"] == "peak_mem":
            try:
                task = job(row)
            except Unpredictable:
                continue
            found.append(
                fit.Case(row["source"], row["row"], task, float(row["value"]) * UNITS[row["unit"]])
            )
    return found


def memory():
    """[Line] of peak memory. Only four numbers of that model were set to match such rows: two
    counts of bytes per logit, and what two allocators reserve."""
    cases = memory_cases()
    sources = [case.source for case in cases]
    predicted = [peak_bytes(case.job.model, case.job.plan, case.job.stack) for case in cases]
    measured, sizes = (
        np.array(values) for values in zip(*((c[3], c.job.gpu.memory) for c in cases), strict=True)
    )
    null = sizes * by_source(sources, measured / sizes)
    return lines(sources, errors(predicted, measured), errors(null, measured))


def group(case):
    """The configuration group of a case, as a text."""
    model, plan, gpu, _ = case.job
    return f"{model.name} {gpu.family} {plan.gpus} {plan.tp} {plan.pp} {plan.cp} {plan.ep}"


def cross_validated(cases=None, folds=FOLDS, rounds=3):
    """(cases, predicted seconds), where each case is predicted by parameters that were fitted
    without its configuration group. rounds: of the solver, see `fit.fit`."""
    cases = cases or fit.cases()
    start = fit.now()
    fold = np.array([zlib.crc32(group(case).encode()) % folds for case in cases])
    predicted = np.zeros(len(cases))
    for i in range(folds):
        train = [case for case, f in zip(cases, fold, strict=True) if f != i]
        test = [case for case, f in zip(cases, fold, strict=True) if f == i]
        k = from_values(fit.fit(fit.thinned(train), start, rounds))
        predicted[fold == i] = fit.seconds(k, test)
    return cases, predicted


def residuals(predicted=None):
    """[row of data/residuals.csv]: the cross-validated errors of step times, and the errors of peak
    memory.

    predicted: seconds of each of `fit.cases`, as `cross_validated` returns them; computed if not
    given.
    """
    cases = fit.cases()
    predicted = cross_validated(cases)[1] if predicted is None else predicted
    factors = parameters().factors
    of = lambda stack: factors.get(stack, 1.0) / factors[DEFAULT_STACK]
    found = [
        ranges.residual(
            "time", c.source, c.row, group(c), c.job, c.seconds / ours, of(c.job.stack.name)
        )
        for c, ours in zip(cases, predicted, strict=True)
    ]
    for c in memory_cases():
        ratio = c[3] / peak_bytes(*c.job[:2], c.job.stack)
        found.append(ranges.residual("memory", c.source, c.row, group(c), c.job, ratio))
    return found


def extrapolated(cases=None, most=512, least=1500, rounds=3):
    """[Line] of runs with `least` GPUs or more, by parameters fitted to runs with at most `most`.

    A stack that has only large runs gets no factor in this fit, so it is predicted with 1.
    """
    cases = cases or fit.cases()
    start = {
        row["parameter"]: row["start"] for row in table("parameters") if row["start"] is not None
    }
    small = [case for case in cases if case.job.plan.gpus <= most]
    large = [case for case in cases if case.job.plan.gpus >= least]
    k = from_values(fit.fit(fit.thinned(small), start, 2 * rounds))
    measured = [case.seconds for case in large]
    ours = errors(fit.seconds(k, large), measured)
    return lines([case.source for case in large], ours, errors(null_seconds(large), measured))


KINDS = {
    "Megatron on V100 and A100": lambda case: case.job.gpu.family in ("V100", "A100"),
    "Megatron on H100": lambda case: case.job.gpu.family == "H100",
    "Megatron on Blackwell": lambda case: case.job.gpu.family.startswith("Blackwell"),
}


def kind_of(case):
    """The kind of run that a case is, for figures: its software and its GPUs."""
    kind = next((kind for kind, fits in KINDS.items() if fits(case)), "torchtitan on 500 W H100")
    if case.source == "vtrain-single":
        kind = "one node, small models"
    if case.source.startswith(("llmfoundry", "torchtitan")) and "torchtitan" not in kind:
        kind = "FSDP: llm-foundry, torchtitan"
    return kind


def runs(k=None, cases=None):
    """{kind of run: (measured, predicted)} seconds, for lib.plots.predicted_against_measured."""
    cases = cases or fit.cases()
    found = {}
    for case, seconds in zip(cases, fit.seconds(k or parameters(), cases), strict=True):
        measured, ours = found.setdefault(kind_of(case), ([], []))
        measured.append(case.seconds)
        ours.append(float(seconds))
    return found


def left_out(cases=None):
    """{kind of run: (errors left out, errors in sample)} of step times, for
    lib.plots.prediction_errors.

    With an error of e, the prediction is too long or too short by a factor of 1 + e. Left out: the
    cross-validated errors of data/residuals.csv. In sample: the errors with the parameters that
    were fitted to all rows. The last kind is data/unseen.csv, whose rows are in no fit: (errors,
    None).
    """
    cases = cases or fit.cases()
    times = [row for row in fit.table_as_text("residuals") if row["kind"] == "time"]
    known = {(row["source"], row["row"]): float(row["error"]) for row in times}
    inside = np.abs(np.log(fit.seconds(parameters(), cases) / [case.seconds for case in cases]))
    found = {}
    for case, now in zip(cases, inside, strict=True):
        both = found.setdefault(kind_of(case), ([], []))
        both[0].append(float(np.expm1(known[case.source, case.row])))
        both[1].append(float(np.expm1(now)))
    new = fit.cases("unseen")
    errors_of_new = np.expm1(
        np.abs(np.log(fit.seconds(parameters(), new) / [case.seconds for case in new]))
    )
    return dict(sorted(found.items(), key=lambda kind: -len(kind[1][0]))) | {
        UNSEEN: (errors_of_new.tolist(), None)
    }


def show(title, found):
    """Print [Line] as a table."""
    print(f"\n{title}\n{'source':52} rows   mean    p90   null mean    p90")
    for line in found:
        ours, null = (
            f"{line.mean:5.1f}% {line.p90:5.1f}%",
            f"{line.null_mean:5.1f}% {line.null_p90:5.1f}%",
        )
        print(f"{line.source:52} {line.rows:4} {ours}      {null}")


def main():
    """Print everything: `python -m lib.calibration score`."""
    cases = fit.cases()
    measured = np.array([case.seconds for case in cases])
    sources = [case.source for case in cases]
    show("Step time, in sample: absolute percentage error", step_time(cases=cases))
    show("Peak memory", memory())
    sweeps.show(sweeps.sweeps())
    _, predicted = cross_validated(cases)
    null = errors(null_seconds(cases), measured)
    show(
        "Step time, cross-validated by configuration group",
        lines(sources, errors(predicted, measured), null),
    )
    show("Step time, fitted on at most 512 GPUs, tested on 1,500 and more", extrapolated(cases))
