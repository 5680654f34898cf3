"""Numbers and lists as people read them, and labels that do not lie on top of each other."""

import numpy as np

TIMES = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
BYTES = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
COUNTS = {"": 1, "thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12}


def scale(largest, unit):
    """A factor and a name that bring `largest` below 1,000: 4,200,000 bytes -> (1e6, "MB")."""
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if largest >= 10 * factor or (largest >= factor and factor > 1e3):
            return factor, f"{prefix}B" if unit == "bytes" else f"{prefix} {unit}".replace(
                "k ", "thousand "
            )
    return 1.0, unit


def clock(longest):
    """A factor for seconds and its unit: (1e3, "ms") where `longest` is below a second,
    else (1, "s")."""
    return (1e3, "ms") if longest < 1 else (1.0, "s")


def short(value):
    """Three digits, no trailing zeros, and all digits before the point: 12.345 -> "12.3",
    1500.0 -> "1,500"."""
    if value == round(value) or value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def amount(value, digits=3):
    """So many digits, no trailing zeros: 33 -> "33", 12345 -> "12,300", 0.123456 -> "0.123"."""
    return short(float(f"{value:.{digits}g}"))


def in_unit(value, units, digits=2):
    """`value` in the largest of the units that it reaches when rounded: 0.00123 -> "1.2 ms". units:
    {name: factor}."""
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
    """A claim as a title begins: with a capital letter, but for a name with a digit or an
    underscore, such as fp16."""
    is_name = any(letter.isdigit() or letter == "_" for letter in claim.split(" ")[0])
    return claim if is_name else claim[0].upper() + claim[1:]


def few(n, most=8):
    """At most so many of the places 0 .. n-1, the first and the last included: what a
    sentence can hold."""
    return sorted({round(i * (n - 1) / (most - 1)) for i in range(most)})


def lines_in_words(measured, predicted):
    """What the lines of two sets of curves mean, to begin a sentence with; a set that is
    empty is left out."""
    return capital(
        "; ".join(
            ["solid lines are measured"] * bool(measured)
            + ["dashed lines are predicted"] * bool(predicted)
        )
    )


def each(of, words=lambda name, value: value):
    """A sentence for each: "name: words(name, value)." of: {name: value}."""
    return " ".join(f"{name}: {words(name, value)}." for name, value in of.items())


def listed(names):
    """Names, for a refusal; "nothing" of none."""
    return ", ".join(names) or "nothing"


def in_sentences(curves, words):
    """A sentence per curve. curves: {"measured": {"ring": curve, ...}, ...}; words:
    a curve as text."""
    return " ".join(
        f"{name}, {how}: {words(curve)}."
        for how, some in curves.items()
        for name, curve in some.items()
    )


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
