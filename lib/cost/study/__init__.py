"""How good the cost model is: what it is fitted on, its errors on rows that it has not seen, what
its choices cost.

    fit.py     the parameters, from the rows of data/rows.csv
    score.py   errors by source, and cross-validated: the source of data/residuals.csv
               and of the ranges
    sweeps.py  of a published sweep, how much slower the plan is that the model would have chosen

Nothing that predicts or plans needs this folder.
"""

__all__ = [
    "fit", "score", "sweeps",
]  # fmt: skip
