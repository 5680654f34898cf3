"""Gradients made by hand, so that the square of a wrong norm tells whose squares are in it, and how often.

    pp=2 tp=2     the set of           cut 0,0   cut 0,1   cut 1,0   cut 1,1   whole 0   whole 1   tied 0   tied 1
                  its squares sum to   1         16        16^2      16^3      16^4      16^5      16^6     16^7

(Numbers are stage, tp.) Digit d of the square, in base 16, says how often set d was counted; right is 1 of each. Sums
along dp have been made: data ranks have the same gradients, tp ranks the same of whole ones, both ends of tied ones.
"""

import math

import torch

from lib import backend
from lib.check.framework import Problem
from lib.check.lab0.cases import form_of
from lib.check.lab6.over_sets import shapes_of
from lib.mesh import coordinates

TOLERANCE = 1e-12  # relative


def sets_of(case):
    """[(set, stage, tp), ...]: the whole model's, each once. tp is None where all tp ranks have the same."""
    stages, parts = range(case.sizes["pp"]), range(case.sizes["tp"])
    found = [("cut", s, t) for s in stages for t in parts] + [("whole", s, None) for s in stages]
    return found + [("tied", 0, t) for t in parts if len(stages) > 1]


def squares_of(case):
    """{set: the sum of its gradients' squares}"""
    found = sets_of(case)
    base = 16 if len(found) < 10 else 4  # with more sets, the smallest must still be seen beside the largest
    return {key: float(base**digit) for digit, key in enumerate(found)}


def norm_by_hand(case):
    return math.sqrt(sum(squares_of(case).values()))


def made_up(case, here, name, shape):
    """The gradient of a parameter in the list `name`, of a rank at these coordinates."""
    return torch.full(shape, _element(case, here, name), dtype=torch.float64, device=backend.device())


def _element(case, here, name):
    stage = 0 if name == "tied" else here["pp"]
    shapes = shapes_of(stage, case.sizes["pp"])[name]
    elements = sum(torch.Size(shape).numel() for shape in shapes)
    return math.sqrt(squares_of(case)[name, stage, None if name == "whole" else here["tp"]] / elements)


def wrong_norm(case, rank, got, want, by_hand=True):
    """A Problem if rank `rank`'s norm is not `want`. Facts for hints: is, the mistake in words, if it is known."""
    where = f"{case.where}: {case.rank(rank)}: |g|"
    if not torch.is_tensor(got) or got.shape != () or got.dtype != torch.float64:
        return Problem("form", f"{where}: expected {form_of(torch.tensor(0.0).double())}, got {form_of(got)}")
    got = got.item()
    if abs(got - want) <= TOLERANCE * want:
        return None
    words = _mistake(case, rank, got, want) if by_hand else ""
    said = f"\nIt is {words}." if words else ""
    return Problem("value", f"{where}: expected {want:.14g}, got {got:.14g}{said}", {"is": words})


def _mistake(case, rank, got, want):
    """In words; "" where it is none that is known."""
    known = next((words for words, value in _known(case, want) if abs(got - value) <= TOLERANCE * value), "")
    if known:
        return known
    counts = _counts(case, got)
    cause = _cause(case, rank, counts) if counts else ""
    if not cause and abs(got - want) < 1e-6 * want:
        return "rounded as float32 is"
    return f"the root of a sum with {_off(counts)}: {cause}".removesuffix(": ") if counts else ""


def _known(case, want):
    """[(a mistake in words, the norm that it gives), ...]"""
    squares, dp = squares_of(case), case.sizes["dp"]
    stages, parts = range(case.sizes["pp"]), range(case.sizes["tp"])
    cut_of = lambda s, t: sum(squares[key] for key in squares if key[0] != "whole" and key[1:] == (s, t))
    root = math.sqrt
    whole = [squares["whole", s, None] for s in stages]
    last_tied = [squares.get(("tied", 0, t), 0.0) if s == len(stages) - 1 else 0.0 for s in stages for t in parts]
    locals_ = [cut_of(s, t) + whole[s] for s in stages for t in parts]
    yield "the square: no root was taken", want**2
    yield "the norms of ranks, added", sum(map(root, locals_))
    yield "the norms of ranks, added", sum(root(a + b) for a, b in zip(locals_, last_tied, strict=True))
    yield "the norms of stages, added", sum(root(sum(cut_of(s, t) for t in parts) + whole[s]) for s in stages)
    yield (
        "the norms of sets, added",
        sum(
            root(sum(square for key, square in squares.items() if key[0] == name)) for name in ("cut", "whole", "tied")
        ),
    )
    places = (coordinates(rank, case.sizes) for rank in case.members)
    yield "the largest number of all", max(_element(case, here, name) for here in places for name, s, t in squares
                                           if s == here["pp"])  # fmt: skip
    if dp > 1:
        yield "divided by dp", want / dp
        yield "the root of the squares divided by dp", want / root(dp)


def _counts(case, got):
    """{set: how often it is in the square}, or None where that has other things in it."""
    squares, square = squares_of(case), got**2
    if not square < float("inf") or abs(square - round(square)) > 0.1:
        return None
    base = 16 if len(squares) < 10 else 4
    number, counts = round(square), {}
    for key in squares:
        number, counts[key] = divmod(number, base)
    return None if number else counts


def _off(counts):
    """What is not counted once."""
    said = []
    for name in ("cut", "whole", "tied"):
        of_set = {key: n for key, n in counts.items() if key[0] == name}
        if of_set and len(set(of_set.values())) == 1:
            said += [f"{name} {_times(n)}" for n in set(of_set.values()) if n != 1]
        else:
            said += [f"{_words(key)} {_times(n)}" for key, n in of_set.items() if n != 1]
    return ", ".join(said[:4]) + (f" and {len(said) - 4} more" if len(said) > 4 else "")


def _words(key):
    name, stage, t = key
    at = [f"stage {stage}"] * (name != "tied") + [f"tp {t}"] * (t is not None)
    return f"{name} ({', '.join(at)})"


def _times(n):
    return {0: "left out", 2: "twice"}.get(n, f"{n} times")


def _cause(case, rank, counts):
    """In words, from who is counted how often; "" where it is no mistake that is known."""
    dp, tp, here = case.sizes["dp"], case.sizes["tp"], coordinates(rank, case.sizes)
    named = {name: {n for key, n in counts.items() if key[0] == name} or {1} for name in ("cut", "whole", "tied")}
    if set(counts.values()) == {dp}:
        return "summed over dp too"
    if named == {"cut": {1}, "whole": {1}, "tied": {0}}:
        return "no end counts the tied ones"
    if named == {"cut": {1}, "whole": {1}, "tied": {2}}:
        return "both ends count the tied ones"
    if named["whole"] == {tp} and tp > 1 and named["cut"] == {1}:
        return "each tp rank counts the whole ones"
    out = {key for key, n in counts.items() if n == 0}
    other_stage = {key for key in counts if key[1] != here["pp"]}
    other_part = {key for key in counts if key[2] not in (None, here["tp"])}
    if out and out == other_stage | other_part and other_stage and other_part:
        return "this rank's own alone"
    if out and out == other_stage:
        return "not summed over pp"
    if out and out == other_part:
        return "not summed over tp"
    return ""
