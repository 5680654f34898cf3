"""Gradients made by hand, so that a wrong sum tells whose gradients are in it, and how often.

Rank r's gradient is 64^r times a small number that parameter and element say. Rank 0 of pp=2 dp=2 tp=2, of cut:

    expected     1/2 of rank 0, 1/2 of rank 2            it has the same part of the weight, and other rows
    got          1/2 of ranks 0 1 2 3                    summed over tp too: rank 1's is another part of the weight

All of it is exact in float64: whole numbers below 2^50, divided by a power of two.
"""

from fractions import Fraction

import torch

from lib import backend
from lib.check.framework import Problem
from lib.check.lab0.cases import form_of
from lib.check.lab6.over_cases import WORLD
from lib.mesh import axes_of, coordinates

BASE, MOST = 64, 15  # counts up to 15 can be read
DIVISORS = (1, 2, 4, 8, 16, 32)
AXES = {"cut": ("dp",), "whole": ("dp", "tp"), "tied": ("pp", "dp")}  # tied: of pp the two ends
SAID = {"pp": "the ends", "dp": "dp", "tp": "tp"}


def small(number, shape):
    """What parameter and element say: 1 to 5."""
    n = torch.Size(shape).numel()
    return (1 + (2 * number + torch.arange(n, dtype=torch.float64, device=backend.device())) % 5).view(shape)


def made_up(rank, number, shape):
    """Rank `rank`'s gradient of the parameter that is `number` in its list."""
    return BASE**rank * small(number, shape)


def summed_over(case, name, rank):
    """The ranks whose gradients are summed for a parameter of rank `rank` in the list `name`."""
    here, last = coordinates(rank, case.sizes), case.sizes["pp"] - 1
    places = {other: coordinates(other, case.sizes) for other in case.members}
    alike = [o for o, at in places.items() if all(at[x] == here[x] for x in here if x not in AXES[name])]
    return [other for other in alike if name != "tied" or places[other]["pp"] in (0, last)]


def right_mean(case, name, rank, number, shape):
    """The gradient of the mean loss over the whole batch."""
    parts = [made_up(other, number, shape) for other in summed_over(case, name, rank)]
    return sum(parts) / case.sizes["dp"]


def wrong_mean(case, rank, named):
    """A Problem with the first wrong gradient of rank `rank`, or None. named: [(set, number, parameter), ...]

    Facts for hints: what, the set; is, the mistake in words, if it is known.
    """
    wrong, right, touched = [], [], False
    for name, i, p in named:
        want = right_mean(case, name, rank, i, p.shape)
        fits = torch.is_tensor(p.grad) and p.grad.shape == want.shape and p.grad.dtype == want.dtype
        if not (fits and torch.equal(p.grad, want)):
            wrong.append((name, i, p.grad, want, fits))
            touched = touched or not (fits and torch.equal(p.grad, made_up(rank, i, p.shape)))
        elif len(summed_over(case, name, rank)) > 1:
            right.append(name)
    if not wrong:
        return None
    name, i, got, want, fits = wrong[0]
    where = f"{case.where}: {case.rank(rank)}: sets.{name}[{i}].grad"
    if not fits:
        return Problem("form", f"{where}: expected {form_of(want)}, got {form_of(got)}", {"what": name})
    e = tuple((got != want).nonzero()[0].tolist())
    text = f"{where}, element {e[0] if len(e) == 1 else e}: expected {want[e].item():.15g}, got {got[e].item():.15g}"
    parts = weights(rank, got, small(i, want.shape))
    if parts is None:
        text += f"\nIt is no sum of the ranks' gradients of sets.{name}[{i}]."
        return Problem("value", text, {"what": name, "is": "no sum"})
    ranks = summed_over(case, name, rank)
    should = dict.fromkeys(ranks, Fraction(1, case.sizes["dp"]))
    if parts == {rank: 1} and (right or not touched):
        words = "this rank's own, as it was" + ", while others have been summed" * bool(right)
    else:
        words = _mistake(case, name, parts, should, right)
    text += f"\nIt is {_told(parts)}; expected {_told(should)}{': ' * bool(words)}{words}."
    return Problem("value", text, {"what": name, "is": words})


def weights(rank, got, units):
    """{rank: how much of its gradient is in `got`}, if it is the same in all elements; else None. rank: whose it is."""
    found = None
    for value, unit in zip(got.flatten().tolist(), units.flatten().tolist(), strict=True):
        if not 0 <= value < float("inf"):
            return None
        # 1/8 of rank 3 could also be 8 of rank 2. The better reading has something of this rank, and smaller counts.
        read = [_counts(Fraction(value) * D / int(unit)) for D in DIVISORS]
        read = [(counts, D) for counts, D in zip(read, DIVISORS, strict=True) if counts]
        if not read:
            return None
        counts, D = min(read, key=lambda one: (one[0][rank] == 0, max(one[0])))
        parts = {r: Fraction(count, D) for r, count in enumerate(counts) if count}
        if found not in (None, parts):
            return None
        found = parts
    return found


def _counts(number):
    """How often each rank is in it, from the digits; None if a digit is no count."""
    if number.denominator > 1 or number >= BASE**WORLD:
        return None
    counts = [int(number) // BASE**rank % BASE for rank in range(WORLD)]
    return counts if max(counts) <= MOST else None


def _mistake(case, name, got, want, right):
    """In words; "" where it is none that is known. right: the sets of which something is right."""
    dp, tp = case.sizes["dp"], case.sizes["tp"]
    if len(set(got.values())) != 1:
        return ""
    if got.keys() == want.keys():
        factor = next(iter(got.values())) * dp
        known = [
            ("not divided by dp", factor == dp),
            ("divided by 2, and not by dp", 2 * factor == dp and not right),
            ("divided by 2 ends too", name == "tied" and factor * 2 == 1),
            ("divided by tp too", tp > 1 and factor * tp == 1),
            (f"divided by all {WORLD} ranks", factor * WORLD == dp),
            ("divided by dp twice", factor * dp == 1),
            (f"{factor} times what is expected", factor > 1),
        ]
        return next((words for words, fits in known if fits), "")
    along, should = set(axes_of(got, case.sizes)), set(axes_of(want, case.sizes))
    lacks = [f"not summed over {SAID[axis]}" for axis in SAID if axis in should - along]
    beside = [f"summed over {'pp' if axis == 'pp' else SAID[axis]} too" for axis in SAID if axis in along - should]
    return ", ".join(lacks + beside)


def _told(parts):
    """`1/2 of ranks 0 and 2's`."""
    said = []
    for weight in sorted(set(parts.values())):
        ranks = [str(rank) for rank, part in sorted(parts.items()) if part == weight]
        who = ranks[0] if len(ranks) == 1 else f"{', '.join(ranks[:-1])} and {ranks[-1]}"
        said.append(f"{'' if weight == 1 else f'{weight} of '}rank{'s' * (len(ranks) > 1)} {who}'s")
    return " + ".join(said) or "zeros"
