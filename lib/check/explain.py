"""Reads from a wrong value which mistake produced it: which rank's part is missing, counted twice,
or at the position of another's.

    got / k(e)  in base 4      rank 3 2 1 0
    81                              1 1 0 1     without rank 1
    101                             1 2 1 1     rank 2 twice
    255                             3 3 3 3     3 x expected

This works for the inputs of `cases.py`. `shares` decomposes a sum of any known parts, by least
squares.
"""

from fractions import Fraction
from math import isfinite

import torch

from lib.check.cases import FINE, k, number, total
from lib.check.failure import without_addresses


def two(want, got) -> tuple[str, str]:
    """Both numbers as text, with so many digits that different numbers have different texts, such
    as ("33.90841", "33.90842")."""
    want, got = (x.item() if isinstance(x, torch.Tensor) else x for x in (want, got))
    if isinstance(want, float) and isinstance(got, float):
        for digits in (6, 9, 12, 15):
            a, b = (grouped(x) if _is_whole(x) else f"{x:.{digits}g}" for x in (want, got))
            rounding = sum(abs(float(s.replace(",", "")) - x) for s, x in ((a, want), (b, got)))
            if a != b and not rounding > abs(got - want) / 2:  # also true if one number is nan
                return a, b
    return grouped(want), grouped(got)


def grouped(x) -> str:
    """1,342,177,280 for a large whole number, so that its size can be seen at a glance."""
    return f"{x:,}" if (isinstance(x, int) or _is_whole(x)) and abs(x) > 9999 else f"{x}"


def _is_whole(x):
    return isinstance(x, float) and x.is_integer() and abs(x) < 1e15


def cut(x, most: int = 80) -> str:
    """repr(x) without addresses, on one line. A long one is cut off, between two items if possible,
    and ends in "..."."""
    text = " ".join(without_addresses(repr(x)).split())
    if len(text) <= most:
        return text
    end = text.rfind(", ", 0, most) + 1
    return f"{text[: end or most]} ..."


def described(x) -> str:
    """`3.5, a float`: a value and its type, for a value of the wrong type."""
    return f"{cut(x, 60)}, {kind_of(x)}"


def kind_of(x) -> str:
    """`a float`, `an int`"""
    name = type(x).__name__
    return f"{'an' if name[0] in 'aeiouAEIO' else 'a'} {name}"


def times(got: float, want: float) -> str:
    """ "0.98 x expected", with enough digits to differ from 1. Returns "" if 0 is expected, or if
    `got` is right or not finite."""
    if not want or got == want or not isfinite(got):
        return ""
    digits = next((d for d in (4, 7, 10, 13, 16) if f"{got / want:.{d}g}" != "1"), 17)
    return f"{got / want:.{digits}g} x expected"


def narrowed(got, want) -> bool:
    """True if rounding to a narrower type, which has 24, 11 or 8 bits, can explain the difference:
    no element is off by more than 2^-6 of its right value."""
    comparable = torch.is_tensor(got) and got.shape == want.shape and want.numel() > 0
    if not comparable or torch.equal(got, want):
        return False
    off = (got.double() - want.double()).abs()
    near = want.isfinite() & (off <= 2.0**-6 * want.double().abs())
    return bool((near | (got == want)).all())


def read_sum(case, rank, got, start=0):
    """Return (what is wrong in words, facts for the hints). got: the elements start, start+1, ...
    of `rank`'s sum.

    facts: absent and doubled (lists of ranks), own (nothing was added to the rank's own value),
    factor (got = factor x expected), divided (the sum was divided by N), moved (the chunk that is
    here instead), tail (only elements at the end are wrong, and N does not divide n), narrowed (the
    values were rounded to a narrower type).
    """
    world_size, n = case.world_size, case.n
    want = total(world_size, n, case.dtype)[start : start + len(got)]
    wrong = (got != want).nonzero().flatten()
    first = int(wrong[0])
    here = _chunk_of(start + first, n, world_size)
    # only elements of one chunk, because another chunk may be wrong for another reason
    same = wrong[(wrong + start >= here.start) & (wrong + start < here.stop)]
    x, y = two(want[first], got[first])
    line = f"{case.name}: {case.rank(rank)}, element {start + first}: expected {x}, got {y}"

    facts = {"case": case, "rank": rank, "tail": False, "narrowed": False, "moved": None}
    facts |= {"absent": [], "doubled": [], "own": False, "factor": None, "divided": False}
    units = k(n)[same + start]  # k(e) of the wrong elements
    fine = FINE.get(case.dtype, 1)
    plain = lambda t: (t // fine if t.dtype == torch.int64 else t / fine) if _fits(t, fine) else t
    counts = _counts(plain(got[same]), units, world_size)
    if counts is None and narrowed(got, want):
        return f"{line}\n{rounded_words(case.dtype)}", facts | {"narrowed": True}
    these = got[same], want[same], counts, y
    text, more = _explain(case, rank, *these, same[0] + start, plain, units[0])
    facts |= more
    facts["tail"] = n % world_size > 0 and 0 < len(got) - len(wrong) == first
    if facts["tail"]:
        elements = "element is" if len(wrong) == 1 else f"{len(wrong)} elements are"
        text += f"\nOnly the last {elements} wrong, and {n} is not a multiple of {world_size}."
    return f"{line}\n{text}", facts


def rounded_words(dtype) -> str:
    why = f"if the right values were rounded to a type narrower than {str(dtype)[6:]} on the way"
    return f"The difference is as small as {why}."


def _fits(t, fine):
    return t.dtype != torch.int64 or bool((t % fine == 0).all())


def _explain(case, rank, got, want, counts, y, element, plain, unit):
    world_size = case.world_size
    if torch.equal(got * world_size, want):
        return f"{y} = expected / {world_size}, but a sum is not divided.", {"divided": True}
    if counts is not None:
        facts = {
            "absent": [r for r, count in enumerate(counts) if count == 0],
            "doubled": [r for r, count in enumerate(counts) if count > 1],
            "own": sum(counts) == counts[rank] == 1,
            "factor": counts[0] if len(set(counts)) == 1 else None,
        }
        return _of_counts(rank, counts, y, facts, case.dtype, unit), facts
    factor = (got[0] / want[0]).item()
    if factor > 1 and factor.is_integer() and torch.equal(got, want * int(factor)):
        return f"{y} = {int(factor)} x expected.", {"factor": int(factor)}
    other = _elsewhere(case, plain(got), element)
    if other is not None:
        moved, counts = other
        absent = [r for r, count in enumerate(counts) if count == 0]
        which = f"sum without {who(absent)}" if absent else "finished sum"
        facts = {"moved": moved, "absent": absent}
        return f"{y} belongs to chunk {moved} of the {which}.", facts
    why = "those of another element are in it, or one is in it several times"
    return f"{y} is not a sum of the ranks' values at this element: {why}.", {}


def _of_counts(rank, counts, y, facts, dtype, unit):
    """What the base-4 digits say about the value, in words."""
    absent, doubled = facts["absent"], facts["doubled"]
    gave = lambda r: "part" if dtype in FINE else number((4**r * unit).to(dtype))
    has = lambda r: f"rank {r}'s {gave(r)}"
    more = _and(f"{has(r)} counted {_times(counts[r])}" for r in doubled) if doubled else ""
    if facts["own"]:
        return f"{y} is rank {rank}'s own value, to which nothing was added."
    if not any(counts):
        return "Nothing was ever written to this element."
    if facts["factor"]:
        return f"{y} = {facts['factor']} x expected."
    if not absent:
        return f"{y} is the sum with {more}."
    if sum(counts) == 1:
        return f"{y} is rank {counts.index(1)}'s value alone."
    twice = f", and with {more}" if more else ""
    if len(absent) <= 2:
        return f"{y} is the sum without {_and(map(has, absent))}{twice}."
    present = _and(str(r) for r, count in enumerate(counts) if count)
    missing = f"{len(absent)} of {len(counts)} ranks are missing"
    return f"{y} is the sum of ranks {present} only{twice}: {missing}."


def _counts(got, units, world_size):
    """How often each rank is contained in these elements, if that is the same for all elements;
    else None."""
    counts = None
    for value, unit in zip(got.tolist(), units.tolist(), strict=True):
        if not 0 <= value < unit * 4**world_size or value % unit:
            return None
        digits = [int(value // unit) // 4**rank % 4 for rank in range(world_size)]
        if counts not in (None, digits):
            return None
        counts = digits
    return counts


def _chunks(n, world_size):
    """The elements of each chunk as ranges, split as tensor_split does."""
    chunks = torch.arange(n).tensor_split(world_size)
    return [range(int(one[0]), int(one[-1]) + 1) for one in chunks if len(one)]


def _chunk_of(element, n, world_size):
    return next(chunk for chunk in _chunks(n, world_size) if element in chunk)


def _elsewhere(case, got, element):
    """(chunk, counts) of another chunk whose sum over all or some of the ranks begins with the
    values of `got`; None if there is no such chunk."""
    here = _chunk_of(int(element), case.n, case.world_size)
    for chunk, elements in enumerate(_chunks(case.n, case.world_size)):
        size, offset = min(len(elements), len(got)), int(element) - here.start
        units = k(case.n)[elements.start + offset : elements.stop][:size]
        counts = _counts(got[: len(units)], units, case.world_size)
        if elements != here and len(units) > 1 and counts and any(counts) and max(counts) == 1:
            return chunk, counts
    return None


def chunk_of_the_sum(case, out):
    """The index of the chunk of the sum that `out` equals, or None."""
    chunks = total(case.world_size, case.n, case.dtype).tensor_split(case.world_size)
    is_it = lambda chunk: chunk.shape == out.shape and torch.equal(chunk, out)
    return next((r for r, chunk in enumerate(chunks) if is_it(chunk)), None)


def shares(out, parts, tolerance=1e-9):
    """{r: c_r} such that out = sum_r c_r parts[r], found by least squares, without the c_r that are
    0. None if `out` is no such sum."""
    used = [r for r, one in enumerate(parts) if one.any()]
    if not used or out.shape != parts[0].shape:
        return None
    columns = torch.stack([parts[r].double().flatten() for r in used], 1)  # (elements, ranks)
    found = torch.linalg.lstsq(columns, out.double().flatten()[:, None]).solution[:, 0]  # (ranks,)
    off = (columns @ found - out.double().flatten()).abs()
    if (off > tolerance * max(1.0, out.abs().max().item())).any():
        return None
    return {r: share for r, share in zip(used, found.tolist(), strict=True) if abs(share) > 1e-6}


def fraction(value) -> str:
    """3/4, or 0.7391 for a value that is not a fraction of small integers."""
    near = Fraction(value).limit_denominator(64) if isfinite(value) else 0
    return str(near) if abs(float(near) - value) < 1e-6 else f"{value:.4g}"


def who(ranks) -> str:
    """`rank 2`, `ranks 0, 1 and 3`."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {_and(map(str, ranks))}"


def _and(words):
    words = list(words)
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def _times(count):
    return {2: "twice"}.get(count, f"{count} times")
