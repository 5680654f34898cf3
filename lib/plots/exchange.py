"""Rows of tokens between ranks with experts: the matrix of an uneven all-to-all."""

import dataclasses

import numpy as np

from lib.plots.traffic import traffic_matrix


def exchange_matrix(rows, title=None):
    """Who sends how many rows to whom: `traffic_matrix` of rows, and who gets most, for whom all others wait.

    rows: (N, N), [src, dst]; the diagonal holds what stays on its rank, which is not sent.
    """
    rows = np.asarray(rows)
    if rows.ndim != 2 or rows.shape[0] != rows.shape[1] or rows.size == 0 or (rows < 0).any():
        raise ValueError(f"an exchange is N x N numbers of rows, [src, dst], none below 0; got shape {rows.shape}")
    got, busiest = rows.sum(0), int(rows.sum(0).argmax())
    if not rows.any():
        claim = "Nobody has a row for anybody"
    elif got.max() == got.min():
        claim = f"Even: every rank's experts get {got[0]:,} rows"
    else:
        claim = (
            f"Rank {busiest}'s experts get {got[busiest]:,} of {rows.sum():,} rows, "
            f"{got[busiest] / got.mean():.2g} times their share"
        )
    drawing = traffic_matrix(rows, "rows", title or claim)
    return dataclasses.replace(drawing, alt=f"{claim}. {drawing.alt}")
