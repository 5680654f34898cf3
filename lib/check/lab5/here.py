"""What the exercises of pure functions share: the student's function runs here, in the kernel, on small tensors.

    fn(case 1), fn(case 2), ...  -->  what was got beside what is expected  -->  the first that is wrong, and why

A wrong number may come from several mistakes. So one is named only where it gives exactly what was got in every case
that is wrong: known() lists what the mistakes give, [(the mistake in words, its tensor), ...].
"""

import os
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from lib.check.framework import Problem
from lib.check.lab0.cases import form_of, number
from lib.check.pure import noting_calls
from lib.ledger.source import place

TOLERANCE = 1e-12  # of the largest number expected, or of 1


class Told(NamedTuple):
    """One tensor that was got."""

    where: str  # in which case
    what: str  # which tensor
    got: Any
    want: torch.Tensor
    known: Callable = list  # () -> [(words, tensor), ...]; asked only if it is wrong


def draw(seed, *shape):
    """Random numbers, normal, float64: the same everywhere and always."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def answered(builds, fn, where, *args):
    """What fn(*args) returns, or the Problem of the error that it raises. builds: lib's function, not to be called."""
    with noting_calls(builds) as calls:
        got = attempted(where, fn, *args)
    if calls:
        return Problem("built-in", f"{where}: the answer calls lib's {builds.__name__}, which this exercise builds")
    return got


def attempted(where, fn, *args):
    """What fn(*args) returns, or the Problem of the error that it raises."""
    try:
        return fn(*args)
    except Exception as error:
        if type(error) is NotImplementedError:  # not written yet
            raise
        text = f"{where}: {type(error).__name__}: {str(error).split(' Hint: ')[0]}"
        inside = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_ours(frame.filename)]
        if inside:
            text += f"\n  {place(inside[-1].filename, inside[-1].lineno, inside[-1].name)}"
        return Problem("raised", text, {"where": where})


def _is_ours(file):
    """This file, or one of torch's: not a place to look for the mistake."""
    return file == __file__ or file.startswith(os.path.dirname(torch.__file__) + os.sep)


def first_wrong(tolds):
    """A Problem with the first tensor that is not what it should be. Facts for hints: what, is (the mistake), nan."""
    wrong = [told for told in tolds if not alike(told.got, told.want)]
    if not wrong:
        return None
    where, what, got, want, _ = wrong[0]
    words = explained([(told.got, told.known()) for told in wrong], alike)
    is_tensor = torch.is_tensor(got)
    facts = {"what": what, "is": words, "where": where, "got": got, "want": want}
    facts["nan"] = is_tensor and got.is_floating_point() and bool(got.isnan().any())
    told = f"\nIt is {words}." if words else ""
    if not is_tensor or got.shape != want.shape or got.dtype != want.dtype:
        return Problem("form", f"{where}: {what}: expected {form_of(want)}, got {form_of(got)}{told}", facts)
    element = tuple((~_close(got.detach(), want)).nonzero()[0].tolist())
    at = f", element {element[0] if len(element) == 1 else element}" if element else ""
    text = f"{where}: {what}{at}: expected {number(want[element])}, got {number(got.detach()[element])}"
    return Problem("value", text + told, facts)


def explained(wrong, same):
    """The words of the first mistake that gives what was got in all of wrong, [(got, [(words, ...), ...]), ...]."""
    gives = [[words for words, mistaken in known if same(got, mistaken)] for got, known in wrong]
    return next((words for words in gives[0] if all(words in others for others in gives)), "")


def alike(a, b):
    """Equal up to rounding, of the same shape and dtype?"""
    if not torch.is_tensor(a) or a.shape != b.shape or a.dtype != b.dtype:
        return False
    return b.numel() == 0 or bool(_close(a.detach(), b).all())


def _close(a, b):
    """Element by element; nan where nan is expected is close."""
    largest = b.nan_to_num(0, 0, 0).abs().max().item()
    return ((a - b).abs() <= TOLERANCE * max(1.0, largest)) | (a.isnan() & b.isnan())


def slope(where, what, output, leaf, weights):
    """The gradient of (weights * output).sum() with respect to leaf, or the Problem that there is none."""
    if not output.requires_grad:
        return Problem("no graph", f"{where}: {what}: no gradient, as autograd does not know how it was made")
    backward = lambda: torch.autograd.grad(output, leaf, weights, retain_graph=True, allow_unused=True)[0]
    gradient = attempted(f"{where}: {what}: backward", backward)
    if gradient is None:
        return Problem("no graph", f"{where}: {what}: no gradient reaches what the function was given")
    return gradient


def changed(where, tensors, before):
    """The Problem that the function changed a tensor that it was given; {name: tensor}, both of them."""
    name = next((name for name, tensor in tensors.items() if not torch.equal(tensor.detach(), before[name])), None)
    return Problem("touched", f"{where}: {name} itself has changed, the tensor that was given") if name else None


def found(what):
    """A claim's judge: the Problem that the measurement found under this name, or None."""

    def judge(runs):
        ((seen,),) = (run.results for run in runs)
        return seen[what]

    return judge


def is_kind(kind, *words, what=""):
    """For hints: a Problem of that kind, about that tensor, that one of these words tell (parts of them; none: any)."""

    def fits(p):
        told = not words or any(word in p.facts.get("is", "") for word in words)
        return p.kind == kind and what in p.facts.get("what", "") and told

    return fits


def in_place(p):
    """For hints: did the function change what it was given, or what backward needs?"""
    return p.kind == "touched" or (p.kind == "raised" and "inplace operation" in p.text)
