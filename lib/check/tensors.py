"""Makes random tensors for checks, and describes how a tensor differs from the expected one.

    compared(case, what, got, want)    a Problem of kind "returned", "form" or "value", or None

The facts of such a Problem, which hints look at, are: case; what (which tensor it is); got (its
form); dims (the number of its dimensions); and the flags dtype, shape, floats, nan and narrowed,
which say what is wrong with it.
"""

import torch

from lib.check.cases import form_of, name_of
from lib.check.exercise import Problem
from lib.check.explain import rounded_words, two

# relative to the largest expected value, or to 1 if that is larger
TOLERANCE = {
    torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2.0**-8, torch.bfloat16: 2.0**-5,
}  # fmt: skip
NARROWER = (torch.float32, torch.float16, torch.bfloat16)
FLOAT32 = 2.0**-22  # relative error of a float64 that was rounded to float32, with some margin


def draw(seed, *shape):
    """Random normal values of this shape in float64, the same on every machine and in every run."""
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")


def compared(case, what, got, want):
    """The Problem of a tensor that differs from the expected one by more than rounding, or None."""
    if torch.is_tensor(got) and got.dtype == want.dtype and torch.equal(got, want):
        return None  # a quick test, which is enough for most tensors
    facts = {"case": case, "what": what, "got": form_of(got)}
    facts |= {"dtype": False, "shape": False, "nan": False}
    forms = f"{case}: {what}: expected {form_of(want)}, got {form_of(got)}"
    if not torch.is_tensor(got):
        return Problem("returned", forms, facts)
    got, want = got.detach(), want.detach()
    facts["dims"] = got.dim()
    if got.shape == want.shape and got.dtype != want.dtype and got.dtype in NARROWER:
        # values that no rounding explains are reported before the dtype
        problem = compared(case, what, got.to(want.dtype), want)
        if problem and not problem.facts["narrowed"] and far(got.to(want.dtype), want):
            problem.text += f"\nIts dtype is {name_of(got.dtype)}, expected {name_of(want.dtype)}."
            return problem
    if got.shape != want.shape or got.dtype != want.dtype:
        facts |= {"dtype": got.shape == want.shape, "shape": got.shape != want.shape}
        facts["floats"] = got.is_floating_point()
        return Problem("form", forms, facts)
    off = (got.double() - want.double()).abs()
    finite = want[want.isfinite()].abs()
    largest = finite.max().item() if finite.numel() else 0
    near = (off <= TOLERANCE.get(want.dtype, 0) * max(1.0, largest)) | (got == want)  # -inf is -inf
    wrong = (~near).nonzero()
    if not len(wrong):
        return None
    index = tuple(wrong[0].tolist())
    facts["nan"] = got.is_floating_point() and bool(got.isnan().any())
    as_float32 = near | (off <= FLOAT32 * max(1.0, largest))
    facts["narrowed"] = want.dtype == torch.float64 and bool(as_float32.all())
    at = f", element {index[0] if len(index) == 1 else index}" if index else ""
    x, y = two(want[index], got[index])
    said = f"\n{rounded_words(want.dtype)}" if facts["narrowed"] else ""
    return Problem("value", f"{case}: {what}{at}: expected {x}, got {y}{said}", facts)


def far(got, want) -> bool:
    """True if a tensor is further from the right one than rounding to 8 bits can explain."""
    largest = max(1.0, want[want.isfinite()].abs().max().item()) if want.numel() else 1.0
    off = (got.double() - want.double()).abs()
    return bool((off > 2.0**-6 * largest).any())
