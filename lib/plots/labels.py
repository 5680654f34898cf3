"""Text in figures: numbers and lists as people write them, and labels that do not overlap."""

import numpy as np

TIMES = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
BYTES = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
COUNTS = {"": 1, "thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12}


def scale(largest, unit):
    """(factor, unit) in which to write numbers of up to `largest`: 4,200,000 bytes -> (1e6, "MB").
    Thousands begin at 10,000: below that a number is still easy to read in full."""
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if largest >= 10 * factor or (largest >= factor and factor > 1e3):
            return factor, f"{prefix}B" if unit == "bytes" else f"{prefix} {unit}".replace(
                "k ", "thousand "
            )
    return 1.0, unit


def clock(longest):
    """(factor for seconds, unit) in which to write times of up to `longest`: (1e3, "ms") below a
    second, else (1, "s")."""
    return (1e3, "ms") if longest < 1 else (1.0, "s")


def short(value):
    """Three significant digits without trailing zeros, but all digits before the decimal point:
    12.345 -> "12.3", 1500.0 -> "1,500"."""
    if value == round(value) or value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def amount(value, digits=3):
    """`digits` significant digits without trailing zeros: 33 -> "33", 12345 -> "12,300", 0.123456
    -> "0.123"."""
    return short(float(f"{value:.{digits}g}"))


def in_unit(value, units, digits=2):
    """`value` in the largest unit in which it rounds to at least 1, or else in the smallest unit:
    0.00123 -> "1.2 ms". units: {name: factor}."""
    reached = [unit for unit in units if abs(value) >= (1 - 0.5 * 10**-digits) * units[unit]]
    unit = max(reached, key=units.get) if reached else min(units, key=units.get)
    return f"{amount(value / units[unit], digits)} {unit}".strip()


def size_in_words(n_bytes, digits=2):
    """1234 -> "1.2 kB", 1e9 -> "1 GB"; powers of 1000."""
    return in_unit(n_bytes, BYTES, digits)


def time_in_words(seconds, digits=2):
    """0.00123 -> "1.2 ms"."""
    return in_unit(seconds, TIMES, digits)


def capital(claim):
    """A claim as a title: it begins with a capital letter, unless its first word is a name with a
    digit or an underscore, such as fp16."""
    is_name = any(letter.isdigit() or letter == "_" for letter in claim.split(" ")[0])
    return claim if is_name else claim[0].upper() + claim[1:]


def few(n, most=8):
    """At most `most` of the indices 0 .. n-1, evenly spread, the first and the last among them. The
    alt text names only these points of a long curve."""
    return sorted({round(i * (n - 1) / (most - 1)) for i in range(most)})


def lines_in_words(measured, predicted):
    """The beginning of a caption that says what solid and dashed lines mean. A set of curves that
    is empty is left out."""
    return capital(
        "; ".join(
            ["solid lines are measured"] * bool(measured)
            + ["dashed lines are predicted"] * bool(predicted)
        )
    )


def each(of, words=lambda name, value: value):
    """A sentence "name: words(name, value)." for each item of the dict `of`."""
    return " ".join(f"{name}: {words(name, value)}." for name, value in of.items())


def listed(names):
    """Names separated by commas, for an error message; "nothing" if there are none."""
    return ", ".join(names) or "nothing"


def in_sentences(curves, words):
    """A sentence per curve. curves: {"measured": {"ring": curve, ...}, ...}; words: a function that
    describes a curve."""
    return " ".join(
        f"{name}, {how}: {words(curve)}."
        for how, some in curves.items()
        for name, curve in some.items()
    )


def spread(places, gap):
    """Move label positions apart until neighbours have a distance of at least `gap`, or nearly so,
    because there are at most 100 passes. Keeps their order and their mean."""
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
