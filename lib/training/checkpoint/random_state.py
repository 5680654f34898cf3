"""The state of the random generators that a training step draws from, for example for dropout, the
order of the data, or augmentation.

    run       o--o--o--o--o--o--o        each o draws numbers
    resumed         |  o--o--o--o        the same numbers, if the generators have their old states

There are four on each rank: torch's on the CPU, torch's on the rank's GPU, Python's `random`, and
numpy's. A `torch.Generator` of your own is not among them, so save its get_state() yourself.
"""

import random

import numpy as np
import torch

from lib import backend


def random_state():
    """The states of the global generators, about 15 kB, of types that a checkpoint may contain."""
    kind, words, *rest = np.random.get_state()
    return {
        "torch": torch.get_rng_state(),  # (5056,) uint8
        "cuda": torch.cuda.get_rng_state()
        if backend.device().type == "cuda"
        else None,  # (16,) uint8
        "python": random.getstate(),
        "numpy": (kind, words.tolist(), *rest),
    }


def set_random_state(state):
    """Set the generators to `state`, which `random_state` returned. Call it last, directly before
    the loop continues, because whatever runs in between may draw numbers.

    Raises RuntimeError if only one of the two runs is on a GPU, because their numbers would differ.
    """
    on_gpu = backend.device().type == "cuda"
    if on_gpu != (state["cuda"] is not None):
        there, here = ("a GPU", "the CPU") if not on_gpu else ("the CPU", "a GPU")
        raise RuntimeError(
            f"this random state is of a run on {there}, and this rank is on {here}: resume it there"
        )
    torch.set_rng_state(state["torch"])
    if on_gpu:
        torch.cuda.set_rng_state(state["cuda"])
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
