"""Properties of a software stack that a plan does not state: which kernels it has, what it overlaps
and what it keeps.

Time
    flash               attention is fused: scores never reach memory
    sequence_parallel   norms and residuals are split over tp too, unless the row says otherwise
    recompute           what it recomputes if the row does not say
    interleaves         1 if it interleaves pipeline stages when the row does not say how many
    tp_overlap          share of tensor parallelism's collectives that is hidden behind matmuls
    dp_overlap          1 if gradients are exchanged during backward
    expert_overlap      1 if, with interleaved stages, an all-to-all between nodes is hidden behind
                        the matmuls of another micro-batch
    even_context        0 if context ranks have contiguous tokens: under a causal mask the last
                        rank then has 2 - 1/cp times the mean number of scores
    offloads            1 if activations that do not fit are moved to the host's memory instead of
                        being recomputed
    scatter_gather      1 if pipeline messages are split over the tensor ranks
    splits_batch        1 if a rank's batch is split into as many micro-batches as there are stages
                        (torchtitan)
    gradient_bytes      bytes per parameter in which gradients are summed and exchanged
    fused_sum           1 if the matmul that computes a weight's gradient also adds it to the sum
                        over micro-batches
    launch, launch_moe  host time of a layer, and of one with experts, relative to eager Megatron-LM
    nic                 bytes per second of each GPU's share of the network, if that is not the
                        GPU's usual share
Memory
    state               bytes per parameter: weights, gradients, optimizer
    logit_bytes         bytes per logit at the peak, with the vocabulary on one rank
    split_logit_bytes   the same with the vocabulary over tp ranks: torch's loss_parallel is not
                        fused
    kept_logit_bytes    bytes per logit that torch's pipelining keeps for every micro-batch until
                        the step ends; if it is not 0, buffers for all incoming messages are kept,
                        too
    runtime, reserve    bytes, and a factor, by which the source's tool reports more than is
                        allocated
    selective           share of a layer's activations that selective recomputation keeps, with
                        fused attention

These properties are taken from the text or code of each source. (DeepSpeed's pipelines split
messages, too: `is_pipe_partitioned`. Transformer Engine, and Megatron-LM since 2023, fuse the sum.)
Only a few numbers were set so that they match published rows: logit_bytes of torchtitan-2025 and
megatron-core-0.14, reserve of torchtitan and Megatron-DeepSpeed, and the nic of zero3-2021. The
rest of torchtitan's memory is counted. Its selective recomputation keeps the output of every other
matmul, that of attention, and the layer's input. Its loss takes 12 bytes per logit at the peak
(log-probabilities, their gradient and that of the logits, in fp32), and 16 in torch's
loss_parallel, which has one more such tensor at once. One number is fitted for each stack: a
`factor` on its step time (parameters.py). Data: data/stacks.csv.
"""

import functools
from fnmatch import fnmatchcase
from typing import NamedTuple

from lib.cost.published import table

DEFAULT_STACK = "megatron-core"  # the planner's


class Stack(NamedTuple):
    """A software stack. The defaults are those of a current Megatron-Core."""

    name: str
    rows: tuple = ()  # patterns of "source:row" that ran on it
    flash: int = 1
    sequence_parallel: int = 1
    recompute: str = "none"
    interleaves: int = 1
    tp_overlap: float = 0.8
    dp_overlap: int = 1
    scatter_gather: int = 1
    gradient_bytes: int = 4
    fused_sum: int = 1
    launch: float = 0.3
    nic: float | None = None  # bytes/s
    state: tuple = (2, 4, 12)  # bytes per parameter
    logit_bytes: float = 8
    split_logit_bytes: float = 8
    runtime: float = 0.0  # bytes
    reserve: float = 1.0
    selective: float = 1.0
    launch_moe: float = 1.0
    kept_logit_bytes: float = 0.0
    splits_batch: int = 0
    expert_overlap: int = 0
    offloads: int = 0
    even_context: int = 1

    @property
    def transformer_engine(self):
        """Whether its kernels are Transformer Engine's: fused attention and fused sums."""
        return bool(self.flash and self.fused_sum)

    @property
    def written(self):
        """Bytes that the matmul of a weight's gradient moves for each element: it reads and writes
        the sum, or writes 16 bits."""
        return 2 * self.gradient_bytes if self.fused_sum else 2


@functools.cache
def stacks():
    """{name: Stack} of data/stacks.csv."""
    found = {}
    for row in table("stacks"):
        row.pop("source")
        nic, runtime = row.pop("nic_GBps"), row.pop("runtime_GiB") * 2**30
        row["state"] = tuple(int(size) for size in row["state"].split("+"))
        row["rows"] = tuple(row["rows"].split("|"))
        name = row.pop("stack")
        found[name] = Stack(name, nic=nic and nic * 1e9, runtime=runtime, **row)
    return found


def stack_of(source, row="", gpu=""):
    """The Stack that a published row ran on, which is that of the longest pattern that matches the
    beginning of "source:row gpu"; None if none does."""
    fits = [
        (len(pattern), stack)
        for stack in stacks().values()
        for pattern in stack.rows
        if fnmatchcase(f"{source}:{row} {gpu}", pattern + "*")
    ]
    return max(fits, key=lambda fit: fit[0])[1] if fits else None
