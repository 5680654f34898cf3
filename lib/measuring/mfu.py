"""How much of its machine a training job uses: tokens per second, and model FLOPs utilization
(MFU).

    MFU = operations of the model a second
          / operations that the ranks' matrix products alone reach a second

    step 0 [forward|backward|messages|update] products  step 1 [forward| ... |update] products  ...
           [== the clock of a step =========]  [ peak ]        [= clock of a step ==]  [ peak ]

Counted are the products of the model, forward and twice that backward, and nothing that is computed
again: 6 operations per weight and token, and 12 T D per layer and token for attention's scores,
which this course's GPT computes in full. A GPU's maker states its peak. Here it is measured beside
every step, on all ranks at once, since ranks of one machine share its cores.

Sources: Chowdhery et al. 2022 (PaLM), section 4.1 and appendix B, for MFU; Kaplan et al. 2020 for 6
per weight.
"""

import time

import numpy as np
import torch
import torch.distributed as dist

from lib import backend

CPU, GPU = 512, 4096  # rows and columns of the products that the peak is measured with


def operations_per_token(shape):
    """Operations in matrix products per token, forward and backward, of a `lib.training.model.GPT`
    of this Shape."""
    kv = shape.n_kv_heads * shape.hidden // shape.n_heads  # columns of k, and of v
    # weights of q and out, k and v, up and down
    layer = 2 * shape.hidden * (shape.hidden + kv + shape.mlp_hidden)
    weights = shape.n_layers * layer + shape.vocab_size * shape.hidden
    return 6 * weights + 12 * shape.n_layers * shape.seq_len * shape.hidden


class Meter:
    """Goes through a job's steps, and clocks them: `for step in meter(range(100)): ...`. On ranks,
    on all of them."""

    def __init__(self, shape, tokens, dtype=torch.float32):
        """shape: the model's; tokens: of a step, on all ranks together; dtype: of the
        products, the model's."""
        self.operations = tokens * operations_per_token(shape)
        self.tokens, self.step_seconds, self.peaks = tokens, [], []
        n = CPU if backend.device().type == "cpu" else GPU
        self.x = torch.ones(n, n, dtype=dtype)

    def __call__(self, steps):
        """Yield each of `steps`; what the loop's body does with it is the step."""
        self._peak()  # the first is never like the others
        for step in steps:
            begin = time.perf_counter()
            yield step
            backend.synchronize()
            self.step_seconds.append(time.perf_counter() - begin)
            self.peaks.append(self._peak())

    def rates(self):
        """{"tokens per second", "MFU"}: (steps - 1,) each; the first step is never
        like the others."""
        seconds, peaks = np.array(self.step_seconds[1:]), np.array(self.peaks[1:])
        return {
            "tokens per second": self.tokens / seconds,
            "MFU": self.operations / seconds / peaks,
        }

    def _peak(self):
        """Operations per second of matrix products, all ranks together, from the first's begin to
        the last's end."""
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
