"""The state of the generators that a training step may draw from: dropout, data order,
augmentation.

    run       o--o--o--o--o--o--o        each o draws numbers
    resumed         |  o--o--o--o        the same numbers, if the generators have their old states

Four of them: torch's on the CPU, torch's on this rank's GPU, Python's `random`, numpy's. Each rank
has its own. A `torch.Generator` of your own is not among them: save its get_state().
"""

import random

import numpy as np
import torch

from lib import backend


def random_state():
    """The global generators' states, as a checkpoint takes them: about 15 kB."""
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
    """Set the generators to `state`, which `random_state` returned. Call it last before the
    loop goes on.

    Raises RuntimeError where the state of a GPU is to be set and this rank has none: numbers would
    differ.
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
