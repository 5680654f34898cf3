"""How the random numbers of a rank begin: differently on each rank, and in every run the same.

    seed 0, rank 0  ->  8213...  torch.rand(2) on rank 0 and on rank 1 differs, as under torchrun.
    seed 0, rank 1  ->  4507...  There every run differs, too; with a base seed it is repeated
                                 number by number

A model that no rank seeds therefore begins with other weights on every rank, so a forgotten
broadcast shows. To get the same numbers on all ranks, call `torch.manual_seed` with one number on
all of them, as you would under torchrun.
"""

import hashlib
import random

import numpy as np
import torch

from lib import backend


def seed(base: int, rank: int) -> None:
    """Seed torch's generators on the CPU and on this rank's GPU, numpy's and Python's, from a base
    seed and the rank.

    The two numbers are hashed, so that no rank draws what another rank draws with the next base
    seed, nor what `torch.manual_seed(base)` gives.
    """
    number = int.from_bytes(hashlib.sha256(f"{base} {rank}".encode()).digest()[:8])
    # torch.manual_seed takes a millisecond where CUDA has not begun
    torch.default_generator.manual_seed(number)
    if backend.device().type == "cuda":
        torch.cuda.manual_seed(number)
    np.random.seed(number % 2**32)
    random.seed(number)
