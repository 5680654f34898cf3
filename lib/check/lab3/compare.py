"""Is a tensor what it should be; and if not, is it what a known mistake makes of it?

    wrong("2 ranks: rank 0: x.grad", got, want, {"this rank's own part": own, "2 x expected": 2 * want})

        2 ranks: rank 0: x.grad, element (0, 1): expected 3, got 1
        It is this rank's own part.

The words are also what a hint looks at: `it_is("this rank's own part")`.
"""

import torch

from lib.check.framework import Problem
from lib.check.lab0.cases import form_of, number

TOLERANCE = 1e-12  # of the largest number expected, or of 1: some gradients are zero but for rounding


def wrong(where, got, want, known):
    """A Problem unless `got` is `want`. known: {what it may be instead, in words: a tensor}."""
    got = got.detach() if torch.is_tensor(got) else got
    words = next((words for words, mistaken in known.items() if same(got, mistaken)), "")
    told = f"\nIt is {words.strip()}." if words else ""
    if not torch.is_tensor(got) or got.shape != want.shape or got.dtype != want.dtype:
        return Problem("form", f"{where}: expected {form_of(want)}, got {form_of(got)}{told}", {"is": words})
    if same(got, want):
        return None
    element = tuple((~_close(got, want)).nonzero()[0].tolist())
    at = f"element {element[0] if len(element) == 1 else element}"
    text = f"{where}, {at}: expected {number(want[element])}, got {number(got[element])}"
    return Problem("value", text + told, {"is": words})


def same(a, b):
    """Equal up to rounding?"""
    return torch.is_tensor(a) and a.shape == b.shape and a.dtype == b.dtype and bool(_close(a, b).all())


def _close(a, b):
    return (a - b).abs() <= TOLERANCE * max(1.0, b.abs().max().item())


def multiples(want, world_size):
    """For `known`: the sum taken twice, or a mean."""
    if world_size == 1:
        return {}
    return {f"{world_size} x expected": world_size * want, f"expected / {world_size}": want / world_size}


def it_is(*words):
    """For hints: is it a tensor that one of these, a part of the words, tells?"""
    return lambda p: any(word in p.facts.get("is", "") for word in words)
