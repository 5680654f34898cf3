"""Seeds the random numbers of a rank such that they differ between ranks and are the same in every
run. Each rank's seed is made from a base seed and the rank:

    base seed 0, rank 0  ->  10606828116669953531
    base seed 0, rank 1  ->  6684369156319846580

Under torchrun the numbers also differ between ranks, but they change from run to run, whereas the
base seed makes a run repeatable. Without `torch.manual_seed` a model therefore begins with other
weights on every rank, which reveals a forgotten broadcast. To get the same numbers on all ranks,
call `torch.manual_seed` with one number on all of them, as you would under torchrun.
"""

import hashlib
import random

import numpy as np
import torch

from lib import backend


def seed(base: int, rank: int) -> None:
    """Seed the generators of torch (on the CPU and on this rank's GPU), numpy and Python from a
    base seed and the rank.

    The base seed and the rank are hashed and not added. Otherwise a rank would draw the same
    numbers as another rank with the next base seed, or as `torch.manual_seed(base)`.
    """
    number = int.from_bytes(hashlib.sha256(f"{base} {rank}".encode()).digest()[:8])
    # instead of torch.manual_seed, which takes a millisecond where CUDA is not initialised
    torch.default_generator.manual_seed(number)
    if backend.device().type == "cuda":
        torch.cuda.manual_seed(number)
    np.random.seed(number % 2**32)
    random.seed(number)
