"""A student's prediction, printed next to the formula and the measurement.

    my_kilobytes = None                                     # the cell as it is handed out
    show_prediction("rank 0 sends", my_kilobytes, "kB", formula=24, measured=24.1)
        rank 0 sends: formula 24 kB, measured 24.1 kB

    my_kilobytes = "24,000 bytes"                           # or 24, "24 kB", "0.024 MB"
        rank 0 sends: you 24 kB, formula 24 kB, measured 24.1 kB

    my_kilobytes = 24_000
        rank 0 sends: you 24,000 kB (too much by a factor of 1,000: did you mean bytes?), ...

A prediction earns no points, so a text that is not a number raises no error, and is shown as it was
typed. Without a prediction the line has no "you". `in_words` says how many of this kernel's
predictions were within 20 % of one of the values next to them. A prediction that is right except
for its unit counts as one of them.
"""

import itertools
import math
import re
from collections.abc import Sequence

# for each kind of quantity, {unit: its size in bytes, in seconds, or as a plain number}
KINDS = (
    {
        "bytes": 1, "byte": 1, "b": 1, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12,
        "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
    },
    {
        "s": 1, "sec": 1, "second": 1, "seconds": 1, "ms": 1e-3, "millisecond": 1e-3,
        "milliseconds": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "microseconds": 1e-6,
        "ns": 1e-9, "min": 60, "minutes": 60, "h": 3600, "hours": 3600, "days": 86400,
    },
    {"": 1, "%": 0.01, "percent": 0.01, "x": 1, "times": 1},
)  # fmt: skip
# units of one kind from small to large, spelt as in a hint
LADDERS = (
    ("bytes", "kB", "MB", "GB", "TB"),
    ("bytes", "KiB", "MiB", "GiB", "TiB"),
    ("ns", "µs", "ms", "s"),
)
NAMES = {"byte": "bytes", "B": "bytes", "seconds": "s", "us": "µs"}  # how LADDERS spells these
NEAR = 0.2  # a prediction is good if its relative error is at most this
_good: dict[str, bool] = {}  # of this kernel: quantity -> was its prediction good?
SUFFIXES = {"k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12}  # of counts without unit: 2.4k, 7B
NUMBER = re.compile(
    r"\s*(?:about|~|≈)?\s*(?P<number>[-+]?[\d.,_']*\d[\d.]*(?:e[-+]?\d+)?)(?:\s*/\s*(?P<over>\d+))?"
    r"\s*(?P<unit>\S.*)?",
    re.IGNORECASE,
)


def show_prediction(what: str, yours, unit: str = "", digits: int = 3, **found) -> None:
    """Print one line: what the student predicted, then each value of `found` under its name.

    what: the quantity, such as "rank 0 sends". yours: None, or what the student typed: a number in
    `unit`, or a text such as "24 kB", "30 %", "3/4", "2.4k". unit: the unit in which values are
    printed, such as "kB", "ms", "%" or "messages"; with "%" numbers are percent. digits:
    significant digits. found: numbers in `unit`, or texts, printed in this order; an underscore in
    a name is printed as a space.
    """
    told = [f"{name.replace('_', ' ')} {_shown(v, unit, digits)}" for name, v in found.items()]
    if _is_typed(yours):
        value = read(yours, unit)
        off, hint = _other_unit(value, unit, [*found.values()])
        told.insert(0, f"you {_shown(value, unit, digits)}{hint}")
        if (good := _is_near(value, off, [*found.values()])) is not None:
            _good[what] = good
    print(f"{what}: {', '.join(told)}")


def in_words() -> str:
    """ "3 of your 5 predictions were within 20 %."; "" if nothing was predicted."""
    good, n = sum(_good.values()), len(_good)
    if not n:
        return ""
    if n == 1:
        return f"Your one prediction was {'' if good else 'not '}within {100 * NEAR:.0f} %."
    return f"{good} of your {n} predictions were within {100 * NEAR:.0f} %."


def _numbers(values):
    return [float(v) for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]


def _is_near(value, off, found):
    """Is the predicted number within NEAR of one that was found, once it is divided by `off`, the
    factor of a wrong unit? None where there are no two numbers to compare."""
    mine, found = _numbers([value]), _numbers(found)
    if not mine or not found:
        return None
    return any(abs(mine[0] / off - one) <= NEAR * abs(one) for one in found)


def _other_unit(value, unit, found):
    """Recognise a prediction that is right in another unit, because it is off by about a power of
    1,000 or 1,024. Returns (that factor, the hint in words); (1, "") for any other prediction."""
    for mine, one in itertools.product(_numbers([value]), _numbers(found)):
        if not _ladder(unit) or mine * one <= 0:
            continue
        times, much = max(mine / one, one / mine), mine > one
        steps = [1000] if unit in LADDERS[-1] else _steps(times)
        for power, step in itertools.product((1, 2, 3), steps):
            if abs(times / step**power - 1) <= NEAR:
                other = _below(unit, power if much else -power)
                words = f"too {'much' if much else 'little'} by a factor of {step**power:,}"
                asks = f": did you mean {other}?" if other else ""
                return step**power if much else 1 / step**power, f" ({words}{asks})"
    return 1, ""


def _steps(times):
    """1,000 and 1,024. The one with the power closest to `times` comes first."""
    powers = math.log(times, 1000)
    return sorted((1000, 1024), key=lambda step: abs(times - step ** round(powers)))


def _ladder(unit):
    """The units of the same kind as `unit`, from small to large; () for a count or a share."""
    return next((ladder for ladder in LADDERS if NAMES.get(unit, unit) in ladder), ())


def _below(unit, steps):
    """The unit that is `steps` steps of 1,000 or 1,024 smaller; "" if there is none."""
    ladder = _ladder(unit)
    place = ladder.index(NAMES.get(unit, unit)) - steps
    return ladder[place] if 0 <= place < len(ladder) else ""


def read(yours, unit: str = "") -> float | str:
    """The number in the text `yours`, converted to `unit`; the text itself if it is no number of
    that kind. Anything that is not a text is returned as it is."""
    if not isinstance(yours, str):
        return yours
    match = NUMBER.fullmatch(yours)
    if not match:
        return yours.strip()
    try:
        number = float(re.sub(r"[,_']", "", match["number"])) / int(match["over"] or 1)
    except (ValueError, ZeroDivisionError):  # such as 1.2.3 or 1/0
        return yours.strip()
    if not math.isfinite(number):  # such as 1e999
        return yours.strip()
    given, asked = (match["unit"] or "").strip().rstrip("."), unit
    if not given and match["over"] and asked == "%":
        return 100 * number
    if not given or given.casefold() == asked.casefold():
        return number
    for kind in KINDS:
        if given.casefold() in kind and asked.casefold() in kind:
            return number * kind[given.casefold()] / kind[asked.casefold()]
    scale = SUFFIXES.get(given.split()[0].casefold()) if _is_count(asked) else None
    if scale and given.split()[1:] in ([], asked.split()):
        return number * scale
    return yours.strip()


def _is_count(unit: str) -> bool:
    return not any(unit.casefold() in kind for kind in KINDS[:2]) and unit != "%"


def _is_typed(yours) -> bool:
    if isinstance(yours, str):
        return bool(yours.strip())
    return yours is not None and yours is not ...


def _shown(value, unit: str, digits: int) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence):
        return " and ".join(_shown(each, unit, digits) for each in value)
    try:
        number = float(value)
    except (TypeError, ValueError):
        return str(value)
    text = f"{number:,.{_decimals(number, digits)}f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return f"{text}{'' if unit == '%' or not unit else ' '}{unit}"


def _decimals(number: float, digits: int) -> int:
    """The decimal places that show `number` to `digits` significant digits."""
    if not number or not math.isfinite(number):
        return 0
    return max(0, digits - 1 - math.floor(math.log10(abs(number))))
