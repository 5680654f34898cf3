"""Calibrates the cost model, lib.cost, with training runs that others have published: its
parameters are fitted to them, and its errors are measured on runs that the fit has not seen.

    python -m lib.calibration score
    python -m lib.calibration predict ROWS.csv --out OUT.csv
    python -m lib.calibration fit

A published run is a row of data/rows.csv: a model, GPUs, a plan, and a measured number (metric).

    described.py  reads a row's model
    rows.py       reads its plan, GPU and software, and assumes what the row does not state
    metrics.py    converts the seconds of a step to the row's metric, and back
    predict.py    predicts a row in its own metric, with a range, or says why it cannot
    fit.py        fits the parameters of the cost model to data/rows.csv
    score.py      errors by source, in sample and cross-validated, which data/residuals.csv stores
    sweeps.py     how much slower the model's choice of a plan is than the best plan that was run

data/ is the folder lib/cost/data. lib.cost does not import this package. Instead it reads the
fitted parameters and the errors from two files there, data/parameters.csv and data/residuals.csv.
"""

__all__ = [
    "described", "fit", "metrics", "predict", "rows", "score", "sweeps",
]  # fmt: skip
