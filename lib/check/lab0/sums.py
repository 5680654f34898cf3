"""What a wrong sum says about the mistake: whose part is missing, counted twice, or lies in another's place.

    got / k(e)  in base 4      rank 3 2 1 0
    81                              1 1 0 1     without rank 1
    101                             1 2 1 1     rank 2 twice
    255                             3 3 3 3     3 x expected

The inputs that make this possible are those of `cases.py`.
"""

import torch

from lib.check.lab0.cases import k, number, part, total


def read_sum(case, rank, got, start=0):
    """(what is wrong in words, facts for the hints); got: the wrong elements start, start+1, ... of `rank`'s sum.

    facts: absent and doubled ranks, own (nothing was added), factor (got = factor x expected), divided, moved (the
    chunk that lies here instead), tail (only the remainder is wrong).
    """
    world_size, n = case.world_size, case.n
    want = total(world_size, n, case.dtype)[start : start + len(got)]
    wrong = (got != want).nonzero().flatten()
    first = int(wrong[0])
    here = _chunk_of(start + first, n, world_size)
    same = wrong[(wrong + start >= here.start) & (wrong + start < here.stop)]  # of one chunk: one mistake
    x, y = number(want[first]), number(got[first])
    line = f"{case.name}: {case.rank(rank)}, element {start + first}: expected {x}, got {y}"

    units = k(n)[same + start]  # k(e) of the wrong elements
    counts = _counts(got[same], units, world_size)
    text, facts = _explain(case, rank, got[same], want[same], units[0], counts, y, same[0] + start)
    facts["tail"] = n % world_size > 0 and 0 < len(got) - len(wrong) == first
    if facts["tail"]:
        elements = "element is" if len(wrong) == 1 else f"{len(wrong)} elements are"
        text += f"\nOnly the last {elements} wrong: {n} is no multiple of {world_size}."
    return f"{line}\n{text}", {"case": case, "rank": rank, **facts}


def _explain(case, rank, got, want, unit, counts, y, element):
    world_size = case.world_size
    facts = {"absent": [], "doubled": [], "own": False, "factor": None, "divided": False, "moved": None}
    if torch.equal(got * world_size, want):
        return f"{y} = expected / {world_size}: a sum is not divided.", {**facts, "divided": True}
    if counts is not None:
        facts["absent"] = [r for r, count in enumerate(counts) if count == 0]
        facts["doubled"] = [r for r, count in enumerate(counts) if count > 1]
        facts["own"] = sum(counts) == counts[rank] == 1
        facts["factor"] = counts[0] if len(set(counts)) == 1 else None
        return _of_counts(rank, counts, unit, y, got.dtype, facts), facts
    factor = (got[0] / want[0]).item()
    if factor > 1 and factor.is_integer() and torch.equal(got, want * int(factor)):
        return f"{y} = {int(factor)} x expected.", {**facts, "factor": int(factor)}
    other = _elsewhere(case, got, element)
    if other is not None:
        moved, counts = other
        facts |= {"moved": moved, "absent": [r for r, count in enumerate(counts) if count == 0]}
        lacks = f", without {who(facts['absent'])}" if facts["absent"] else ", finished"
        return f"{y} belongs to chunk {moved} of the sum{lacks}.", facts
    return f"{y} is no sum of what the ranks have at this element: values of different elements were added.", facts


def _of_counts(rank, counts, unit, y, dtype, facts):
    """What the base-4 number says."""
    absent, doubled = facts["absent"], facts["doubled"]
    has = lambda r: f"rank {r}'s {number((4**r * unit).to(dtype))}"
    if facts["own"]:
        return f"{y} is rank {rank}'s own value: nothing was added to it."
    if not any(counts):
        return f"{y}: nothing was ever written there."
    if facts["factor"]:
        return f"{y} = {facts['factor']} x expected."
    if not absent:
        return f"{y} is the sum with {_and(f'{has(r)} counted {_times(counts[r])}' for r in doubled)}."
    if sum(counts) == 1:
        return f"{y} is rank {counts.index(1)}'s value alone."
    twice = f", and with {_and(f'{has(r)} counted {_times(counts[r])}' for r in doubled)}" if doubled else ""
    if len(absent) <= 2:
        return f"{y} is the sum without {_and(map(has, absent))}{twice}."
    present = _and(str(r) for r, count in enumerate(counts) if count)
    return f"{y} is the sum of ranks {present} only{twice}: {len(absent)} of {len(counts)} ranks are missing."


def _counts(got, units, world_size):
    """How often each rank is in these elements, if it is the same in all of them; else None."""
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
    """The elements of each chunk, as ranges: tensor_split's."""
    return [range(int(c[0]), int(c[-1]) + 1) for c in torch.arange(n).tensor_split(world_size) if len(c)]


def _chunk_of(element, n, world_size):
    return next(chunk for chunk in _chunks(n, world_size) if element in chunk)


def _elsewhere(case, got, element):
    """(chunk, counts) of the other chunk whose elements, summed over some ranks, begin like `got`; or None."""
    here = _chunk_of(int(element), case.n, case.world_size)
    for chunk, elements in enumerate(_chunks(case.n, case.world_size)):
        size, offset = min(len(elements), len(got)), int(element) - here.start
        units = k(case.n)[elements.start + offset : elements.stop][:size]
        counts = _counts(got[: len(units)], units, case.world_size)
        if elements != here and len(units) > 1 and counts and any(counts) and max(counts) == 1:
            return chunk, counts
    return None


def finished(case, out):
    """The rank whose chunk of the sum `out` is, or None."""
    chunks = total(case.world_size, case.n, case.dtype).tensor_split(case.world_size)
    return next((r for r, chunk in enumerate(chunks) if chunk.shape == out.shape and torch.equal(chunk, out)), None)


def is_own(case, rank, out):
    """Is `out` what `rank` gave, unchanged?"""
    return torch.equal(out, part(rank, case.n, case.dtype))


def who(ranks):
    """`rank 2`, `ranks 0, 1 and 3`."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {_and(map(str, ranks))}"


def _and(words):
    words = list(words)
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def _times(count):
    return {2: "twice"}.get(count, f"{count} times")
