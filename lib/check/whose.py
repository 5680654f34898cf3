"""Finds which elements of a wrong tensor are wrong, on which ranks, and which rank's part is
missing or is at the position of another's. All of this is derived from what the ranks were given
and what they show, so no exercise has to specify it.

    what is known                                   what the verdict says
    rank 0 is right, the others are not             It is right on rank 0, but wrong on the others.
    rank 2 shows what rank 0 should show            Rank 2 has what rank 0 should have.
    expected: x of rank 0 + ... + x of rank 3       On rank 0 it is the sum without rank 2.
    expected: x of rank 0, then x of rank 1, ...    The ranks' parts are in the order 0, 1, 1, and
                                                    nothing comes from rank 2.
    all else is right                               All wrong elements are in [:, :, 4:8], the
                                                    second of 3 equal parts.

A sentence is given only if it holds for every element, up to rounding.
"""

import torch

from lib.check.exercise import Problem
from lib.check.explain import shares, who

SMALL = 4096  # only tensors of at most this many elements are kept for the comparison
NEAR = 1e-6  # relative to the largest expected value
ORDINALS = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth"]


def kept(got, want):
    """(got, want) of a wrong tensor, from which the sentences are made; None if the shapes differ,
    or if there are fewer than 2 elements or more than SMALL."""
    fits = torch.is_tensor(got) and got.shape == want.shape and 1 < want.numel() <= SMALL
    return (got.detach().double(), want.detach().double()) if fits else None


def small(tensors) -> dict:
    """{key: value} with only the floating-point tensors of 2 to SMALL elements, as float64 on the
    CPU."""
    return {
        key: x.detach().cpu().double()
        for key, x in tensors.items()
        if torch.is_tensor(x) and x.is_floating_point() and 1 < x.numel() <= SMALL
    }


def told(problem: Problem, records) -> tuple[str, dict]:
    """Return (sentences, facts for the hints) about a wrong value. records: the records of all
    ranks of the case."""
    values = problem.fact("values")
    if not values or problem.fact("factor") is not None or problem.fact("narrowed"):
        return "", {}
    name, key = problem.fact("name"), problem.fact("key")
    ranks = [record["wrong"].get(name) for record in records]
    all_compared = not any("" in record["wrong"] for record in records)
    wrong = [r for r, one in enumerate(ranks) if one]
    said, facts = [], {}
    show_it = [r for r, record in enumerate(records) if name in record.get("names", ())]
    right = [r for r in show_it if r not in wrong]
    if all_compared and right:
        facts["right_on"] = right
        others = "the others" if 1 < len(wrong) == len(records) - len(right) else who(wrong)
        said.append(f"It is right on {who(right)}, but wrong on {others}.")
    rank = next((r for r in wrong if ranks[r].fact("values") is values), None)
    sentence, more = "", {}
    if rank is not None:
        sentence, more = _of_other_ranks(rank, values, key, records)
    facts |= more
    sentence = sentence or _where(values[0], values[1], len(records))
    return "\n".join([*said, *filter(None, [sentence])]), facts


def _of_other_ranks(rank, values, key, records):
    """Return (a sentence, facts). The sentence relates this rank's wrong value to what the ranks
    were given, or to what another rank should have."""
    got, want = values
    should = [record.get("wants", {}).get(key) for record in records]
    if len(records) > 1:
        for other, one in enumerate(should):
            if other != rank and one is not None and _same(got, one):
                return f"Rank {rank} has what rank {other} should have.", {"instead": other}
    for name in records[rank].get("parts", {}):
        parts = [record.get("parts", {}).get(name) for record in records]
        if len(parts) < 2 or any(x is None or x.shape != parts[rank].shape for x in parts):
            continue
        found = _as_a_sum(got, want, parts, rank, name) or _as_joined(got, want, parts, name)
        if found:
            return found
    return "", {}


def _same(a, b):
    near = NEAR * max(1.0, b.abs().max().item())
    return a.shape == b.shape and bool(((a - b).abs() <= near).all())


def _as_a_sum(got, want, parts, rank, name):
    """The sentence and facts if the expected value is the sum of all ranks' parts, or of this
    rank's shard of each part; else None."""
    N = len(parts)
    dims = [dim for dim, size in enumerate(parts[0].shape) if size % N == 0]
    for dim in (None, *dims):
        terms = parts if dim is None else [x.chunk(N, dim)[rank] for x in parts]
        if terms[0].shape != want.shape or any(not x.any() for x in terms):
            continue
        if not _same(sum(terms), want) or not got.isfinite().all():
            continue
        counts = shares(got, terms, NEAR) if got.any() else {}
        if counts is None or any(abs(c - round(c)) > NEAR for c in counts.values()):
            return None
        counts = [round(counts.get(r, 0)) for r in range(N)]
        absent = [r for r, count in enumerate(counts) if count == 0]
        several = [r for r, count in enumerate(counts) if count > 1]
        facts = {"lacks": absent, "several times": several}
        if min(counts) < 0 or not (absent or several):
            return None
        if len(absent) == N:
            return "All elements are 0, because nothing was added.", facts
        if sum(counts) == 1:
            one = counts.index(1)
            own = "this rank's own part" if one == rank else f"rank {one}'s part"
            return f"On rank {rank} it is {own} of {name}, to which nothing was added.", facts
        without = f"without {who(absent)}" if absent else "of all ranks"
        twice = f", with {who(several)} counted more than once" if several else ""
        return f"On rank {rank} it is the sum {without}{twice}.", facts
    return None


def _as_joined(got, want, parts, name):
    """The sentence and facts if the expected value is the concatenation of all ranks' parts, else
    None."""
    for dim in range(want.dim()):
        if parts[0].dim() != want.dim() or not _same(torch.cat(parts, dim), want):
            continue
        blocks = got.chunk(len(parts), dim)
        there = [next((r for r, x in enumerate(parts) if _same(b, x)), None) for b in blocks]
        if None in there:
            return None
        absent = [r for r in range(len(parts)) if r not in there]
        order = ", ".join(map(str, there))
        lacks = f", and nothing comes from {who(absent)}" if absent else ""
        return f"The ranks' parts are in the order {order}{lacks}.", {"lacks": absent}
    return None


def _where(got, want, n_parts):
    """A sentence about a block of at most 3/4 of the tensor that has all wrong elements, or all
    right ones; "" if there is no such block."""
    finite = want[want.isfinite()].abs()
    wrong = (got - want).abs() > NEAR * max(1.0, finite.max().item() if len(finite) else 1.0)
    wrong |= ~(got.isfinite() | (got == want))
    found = []
    for mask, begin, share in (
        (wrong, "All wrong elements are", 0.5),
        (~wrong, "The right elements are all", 1.0),
    ):
        box = _box(mask)
        inside = mask[tuple(slice(*one) for one in box)] if box else mask.new_empty(0)
        if 2 <= inside.numel() <= 0.75 * mask.numel() and inside.double().mean() >= share:
            text = f"{begin} in {_slices(box, mask.shape)}{_which(box, mask.shape, n_parts)}."
            found.append((inside.numel(), text))
    return min(found, default=(0, ""))[1]  # the sentence about the smaller block


def _box(mask):
    """[(begin, stop) of each dimension] of the smallest box around all elements that are True; None
    if there are none."""
    at = mask.nonzero()
    if not len(at) or not mask.dim():
        return None
    return [(int(a), int(b) + 1) for a, b in zip(at.amin(0), at.amax(0), strict=True)]


def _slices(box, shape):
    inside = [
        ":" if stop - begin == size else f"{begin}" if stop - begin == 1 else f"{begin}:{stop}"
        for (begin, stop), size in zip(box, shape, strict=True)
    ]
    return f"[{', '.join(inside)}]"


def _which(box, shape, n_parts):
    """Which of n_parts equal parts of a dimension the box is, in words; "" if it is none."""
    partial = [d for d, (a, b) in enumerate(box) if b - a < shape[d]]
    if len(partial) != 1 or not 1 < n_parts <= len(ORDINALS) or shape[partial[0]] % n_parts:
        return ""
    (begin, stop), size = box[partial[0]], shape[partial[0]] // n_parts
    if stop - begin != size or begin % size:
        return ""
    return f", the {ORDINALS[begin // size]} of {n_parts} equal parts"
