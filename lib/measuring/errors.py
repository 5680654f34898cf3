"""How far a tensor is from the right one, and generators with which all ranks draw alike."""

import torch
from torch import Tensor

from lib import backend


def seeded(seed: int) -> torch.Generator:
    """A generator on this rank's device: one seed gives the same values on every rank."""
    return torch.Generator(backend.device()).manual_seed(seed)


def error(a: Tensor | None, b: Tensor | None) -> float:
    """The largest difference of two tensors, relative to the largest value of b. Raises ValueError
    where one is a gradient that was never computed."""
    if a is None or b is None:
        raise ValueError("a gradient is missing: nothing that was run depends on its tensor")
    return ((a - b).abs().max() / b.abs().max()).item()
