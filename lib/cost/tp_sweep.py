"""The width D above which a tensor-parallel layer computes for longer than it sends, and a
published sweep of tp.

    threshold    D at which t_send = t_compute: 2/9 (tp-1) C/W, for layers of 12 D^2 weights

The sweep varies the degree of tensor parallelism. The authors of vTrain measured it with
Megatron-DeepSpeed on A100s, 8 to a node, with full recomputation and without a pipeline.

The number of GPUs and the batch stay the same, so a larger tp means fewer data-parallel ranks: each
GPU computes as much as before, and data parallelism sends less. At tp = 16 a group spans two nodes.

    sending    6 all-reduces per layer (2 forward, 2 again in recomputation, 2 backward) of the
               tokens of a group, D elements of 2 bytes each: 2 (tp-1)/tp times that from each rank

Sources: VIA-Research/vTrain, ground_truth_multi.csv, as in data/rows.csv and data/sweeps.csv.
"""

from typing import NamedTuple

from lib.cost.hardware import default_all_reduce, gpu
from lib.cost.published import table

PER_NODE = 8
NODE_NETWORK = 100e9  # bytes/s that a node's NICs have together: 800 Gbit/s


def threshold(device, tp, bytes_per_second):
    """The least D at which tp ranks compute for longer than they send, over a link of this rate."""
    return 2 / 9 * (tp - 1) * device.bf16 / bytes_per_second


def _ring_size(device):
    """GiB of the all-reduce for which the rate of the ring, `device.link`, was measured."""
    return 1 if device.family == "A100" else 8


def threshold_table(names=("A100-80GB", "H100-80GB", "B200")):
    """Lines of text with the thresholds on these GPUs: at tp = 2, 4 and 8 for a ring in the node
    and for the network, and at tp = 8 for NCCL's default all-reduce if that is not the ring. Next
    to a rate inside the node is the size of the messages for which it was measured."""
    lines = [f"{'least D: computes longer than it sends':<42}{'tp = 2':>8}{'4':>8}{'8':>8}"]
    for device in map(gpu, names):
        rates = {
            f"ring, {_ring_size(device)} GiB": device.link, "network": device.nic,
            "default, 8 GiB": default_all_reduce(device),
            "default, 64 MiB": default_all_reduce(device, 2**26),
        }  # fmt: skip
        for link, rate in rates.items():
            if rate:
                degrees = (8,) if "default" in link else (2, 4, 8)  # measured on 8 GPUs
                least = {tp: f"{threshold(device, tp, rate):,.0f}" for tp in degrees}
                where = f"{device.name + ', ' + link:<27}{rate / 1e9:>10.0f} GB/s"
                lines.append(where + "".join(f"{least.get(tp, ''):>8}" for tp in (2, 4, 8)))
    return lines


class Step(NamedTuple):
    """A measured step, and how much of it the formula says is spent on all-reduces. Seconds."""

    model: str
    n_gpus: int
    micro_batch: int
    tp: int
    seconds: float
    sending: float


def sending_seconds(layers, tokens, hidden, tp):
    """Seconds of a step's six all-reduces per layer, for the tokens of one tensor-parallel group.

    The rate is that of NCCL's ring inside a node, and that of the node's network across two nodes.
    """
    rate = gpu("A100-80GB").link if tp <= PER_NODE else NODE_NETWORK
    return 6 * layers * 2 * (tp - 1) / tp * tokens * hidden * 2 / rate


def steps():
    """Every Step of the sweep without a pipeline, sorted by model, GPUs, micro-batch and tp."""
    rows = [
        r
        for name in ("rows", "sweeps")
        for r in table(name)
        if (r["source"], r["metric"], r["pp"]) == ("vtrain-multi", "step_time", 1)
    ]
    return sorted(
        Step(
            r["model"].removeprefix("gpt-").upper(), r["n_gpus"], r["micro_batch"], r["tp"],
            r["value"],
            sending_seconds(
                r["layers"], r["global_batch"] * r["seq"] / r["dp"], r["hidden"], r["tp"]
            ),
        )
        for r in rows
    )  # fmt: skip


def pairs(small=8, large=16):
    """[(Step at tp = small, Step at tp = large), ...] of the same model, GPUs and micro-batch."""
    at = {step[:4]: step for step in steps()}
    return [
        (step, at[*step[:3], large])
        for step in at.values()
        if step.tp == small and (*step[:3], large) in at
    ]
