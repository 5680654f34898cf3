"""The relative error of a tensor, and random generators that draw the same values on all ranks."""

import torch
from torch import Tensor

from lib import backend


def seeded(seed: int) -> torch.Generator:
    """A generator on this rank's device. With the same seed, every rank draws the same values."""
    return torch.Generator(backend.device()).manual_seed(seed)


def error(a: Tensor | None, b: Tensor | None) -> float:
    """The largest absolute difference between a and b, relative to the largest absolute value of b.
    Raises ValueError if one of them is None, which means that a gradient was never computed."""
    if a is None or b is None:
        raise ValueError("a gradient is missing: nothing that was run depends on its tensor")
    return ((a - b).abs().max() / b.abs().max()).item()
