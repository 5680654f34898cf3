"""Numbers as people read them, and labels that do not lie on top of each other."""

import numpy as np


def scale(largest, unit):
    """A factor and a name that bring `largest` below 1,000: 4,200,000 bytes -> (1e6, "MB")."""
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if largest >= 10 * factor or (largest >= factor and factor > 1e3):
            return factor, f"{prefix}B" if unit == "bytes" else f"{prefix} {unit}".replace("k ", "thousand ")
    return 1.0, unit


def short(value):
    """Three digits, no trailing zeros: 12.345 -> "12.3", 1500.0 -> "1,500"."""
    if value == round(value) or value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def spread(places, gap):
    """Move label places apart to at least `gap`, keeping their order and their mean."""
    order = np.argsort(places, kind="stable")
    out = np.array(places, dtype=float)[order]
    for _ in range(100):
        for i in range(len(out) - 1):
            short = gap - (out[i + 1] - out[i])
            if short > 1e-12:
                out[i], out[i + 1] = out[i] - short / 2, out[i + 1] + short / 2
    back = np.empty_like(out)
    back[order] = out
    return back
