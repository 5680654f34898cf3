"""How much of its machine a training job uses: tokens per second, and model FLOPs utilization
(MFU).

    MFU = operations per second of the model's matmuls in a step
          / operations per second that the same ranks reach with nothing but a matmul, the peak

    step 0 [forward|backward|messages|update] matmul    step 1 [forward| ... |update] matmul    ...
           [== the clock of a step =========] [ peak ]         [= clock of a step ==] [ peak ]

We count the matmuls of the model, with twice as many operations in backward as in forward, but not
what recomputation repeats. This makes 6 operations per weight and token, and 12 T D per layer and
token for attention's two matmuls, Q K^T and P V. This course's GPT computes all of the scores,
including those above the causal diagonal. Usually the peak is the one in the GPU's datasheet. Here
it is measured after every step, on all ranks at once, because the ranks of one machine share its
cores.

Sources: Chowdhery et al. 2022 (PaLM), section 4.1 and appendix B, for MFU; Kaplan et al. 2020 for 6
per weight.
"""

import time

import numpy as np
import torch
import torch.distributed as dist

from lib import backend

CPU, GPU = 512, 4096  # rows and columns of the matrices with which the peak is measured


def operations_per_token(shape):
    """Operations per token, forward and backward, of the matmuls of a `lib.training.model.GPT` of
    this Shape."""
    kv = shape.n_kv_heads * shape.hidden // shape.n_heads  # columns of k, and of v
    # weights: q and out, k and v, up and down; each term of the sum stands for two matrices
    layer = 2 * shape.hidden * (shape.hidden + kv + shape.mlp_hidden)
    weights = shape.n_layers * layer + shape.vocab_size * shape.hidden
    return 6 * weights + 12 * shape.n_layers * shape.seq_len * shape.hidden


class Meter:
    """Times the steps of a job: `for step in meter(range(100)): ...`. If the job has ranks, all of
    them have to use it, because they measure the peak together."""

    def __init__(self, shape, tokens, dtype=torch.float32):
        """shape: the model's Shape. tokens: the number of tokens in a step, summed over all ranks.
        dtype: the dtype in which the model computes; the matmul that measures the peak uses it,
        too."""
        self.operations = tokens * operations_per_token(shape)
        self.tokens, self.step_seconds, self.peaks = tokens, [], []
        n = CPU if backend.device().type == "cpu" else GPU
        self.x = torch.ones(n, n, dtype=dtype)

    def __call__(self, steps):
        """Yield each of `steps`, and time the body of the loop until the next one is asked for."""
        self._peak()  # the first one is slower than the others, so it is not used
        for step in steps:
            begin = time.perf_counter()
            yield step
            backend.synchronize()
            self.step_seconds.append(time.perf_counter() - begin)
            self.peaks.append(self._peak())

    def rates(self):
        """{"tokens per second", "MFU"}: (steps - 1,) each. The first step is left out because it is
        slower than the others."""
        seconds, peaks = np.array(self.step_seconds[1:]), np.array(self.peaks[1:])
        return {
            "tokens per second": self.tokens / seconds,
            "MFU": self.operations / seconds / peaks,
        }

    def _peak(self):
        """Operations per second of a matmul on every rank, summed over the ranks and timed from
        barrier to barrier."""
        _meet()
        begin = time.perf_counter()
        self.x @ self.x
        backend.synchronize()
        _meet()
        ranks = dist.get_world_size() if dist.is_initialized() else 1
        return ranks * 2 * len(self.x) ** 3 / (time.perf_counter() - begin)


def _meet():
    if dist.is_initialized():
        dist.barrier()
