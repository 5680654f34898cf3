"""The cost model against runs that others have published: it is fitted to them, and its errors are
measured on rows that the fit has not seen.

    python -m lib.calibration score
    python -m lib.calibration predict ROWS.csv --out OUT.csv
    python -m lib.calibration fit

    described.py  the model of a published row
    rows.py       its plan, GPU and software, with a table of what is assumed where it is silent
    metrics.py    its metric as seconds of a step
    predict.py    the row predicted in its own metric, with a range, or the reason why not
    fit.py        the parameters of the cost model, from the rows of data/rows.csv
    score.py      errors by source, in sample and cross-validated: the source of data/residuals.csv
    sweeps.py     of a published sweep, how much slower the plan is that the model would have chosen

The model is `lib.cost`, and data/ its folder of tables. Nothing there imports this package: what it
has learnt from published runs it reads from data/parameters.csv and data/residuals.csv.
"""

__all__ = [
    "described", "fit", "metrics", "predict", "rows", "score", "sweeps",
]  # fmt: skip
