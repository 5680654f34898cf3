"""GPUs and the links between them: what their datasheets state, and what NCCL reaches over a link.

    peak      operations per second of dense matmuls, by number format
    hbm       bytes per second between the chip and its memory
    link      bytes per second of a ring inside a node (NVLink), as nccl-tests measured it: bus
              bandwidth
    nic       bytes per second of each GPU's share of its node's NICs
    host      bytes per second to the host's memory, one way: PCIe, or NVLink-C2C on a Grace
              superchip
    per_node  GPUs that NVLink connects: 8, but 16 for the V100, and 64 in an NVL72 rack

GPUs of one family share one measured efficiency: A100-40GB and A100-80GB, for example, are the same
chip. Data and sources: data/machines.csv.
"""

import functools
from typing import NamedTuple

from lib.cost.published import table

GIB = 2**30


class GPU(NamedTuple):
    """One GPU and its links."""

    name: str
    family: str
    memory: float  # bytes
    bf16: float  # FLOP/s, dense
    fp8: float
    fp4: float
    hbm: float  # bytes/s
    link: float  # bytes/s of a ring inside the node
    nic: float  # bytes/s, this GPU's share of its node's NICs
    per_node: int
    sms: int  # multiprocessors, each of which computes one tile at a time
    host: float  # bytes/s to the host's memory, one way

    def peak(self, precision):
        """FLOP/s of matmuls in `precision`: bf16, fp16, fp8 or fp4."""
        return {"bf16": self.bf16, "fp16": self.bf16, "fp8": self.fp8, "fp4": self.fp4}[precision]

    def lacks(self, precision):
        """Why this GPU has no matmuls in `precision`; None if it has them."""
        slower = {"fp8": "bf16", "fp4": "fp8"}.get(precision)
        if slower and self.peak(precision) <= self.peak(slower):
            return (
                f"{self.name} has no {precision}: use {slower if self.fp8 > self.bf16 else 'bf16'}"
            )
        return None


@functools.cache
def gpus():
    """{name: GPU} of all GPUs in the table."""
    found = {}
    for row in table("machines"):
        rates = [row[f"{name}_TFLOPs"] * 1e12 for name in ("bf16", "fp8", "fp4")]
        *widths, host = [row[f"{name}_GBps"] * 1e9 for name in ("hbm", "link", "nic", "host")]
        memory, chip = row["memory_GiB"] * GIB, (row["gpus_per_node"], row["sms"])
        found[row["gpu"]] = GPU(row["gpu"], row["family"], memory, *rates, *widths, *chip, host)
    return found


def gpu(name):
    """The GPU called `name`; "A100" and "H100" mean the 80 GB versions, and "V100" the 32 GB one.

    Raises ValueError for a GPU that is not in the table; the message lists those that are.
    """
    known = gpus()
    for full in (name, f"{name}-80GB", f"{name}-32GB"):
        if full in known:
            return known[full]
    raise ValueError(
        f"no GPU {name!r} in lib/cost/data/machines.csv: there are {', '.join(known)}; add a row"
    )


def default_all_reduce(device, n_bytes=2**33):
    """Bus bandwidth in bytes/s of NCCL's all-reduce of `n_bytes` on 8 GPUs with its default
    settings; None if nothing was published. (`link` is what NCCL's ring reaches.)

    On Hopper and Blackwell the default for large tensors is NVLS, where the NVLink switch does the
    additions. NVLink 4 was measured on H200 and NVLink 5 on B200. (S. Bekman, Machine Learning
    Engineering.)
    """
    measured_on = {"H100": "H200", "H100-500W": "H200", "Blackwell": "B200"}.get(device.family)
    rows = [
        row
        for row in table("nccl")
        if (row["collective"], row["gpu"], row["ranks"], row["nodes"], row["size_bytes"])
        == ("allreduce", measured_on, 8, 1, n_bytes)
        and "NVLS disabled" not in row["method"]
    ]
    # prefer the run next to which a ring was measured, if there is one
    rows.sort(key=lambda row: row["method"] != "default algo")
    return rows[0]["busbw_GBps"] * 1e9 if rows else None
