"""The fitted parameters of the cost model. Each of them has a physical meaning, and the fit changes
nothing else.

    R_j  measured seconds of row j              T_j(x)   the model's, with parameters x
    x*   minimises the sum of rho( w (log R_j - log T_j(x)) ), plus a penalty that grows with the
         distance of x from its start, relative to its spread

lib/calibration/fit.py finds x*, from the rows of data/rows.csv alone, and writes it to
data/parameters.csv next to its start, bounds and meaning. The figures of the hardware (hardware.py)
are not fitted. The model of memory has no parameters here, but four of its numbers were set by hand
so that they match published rows (stacks.py).
"""

import functools
from typing import NamedTuple

from lib.cost.published import table


class Parameters(NamedTuple):
    """The fitted parameters. Shares and factors have no unit."""

    matmul: dict  # {family: share of its peak that a large bf16 matmul reaches}
    flash: dict  # {family: share of the bf16 peak that fused attention reaches}
    fp8: dict  # {family: share of its peak that an fp8 matmul reaches, relative to bf16's share}
    fp4: float  # the same for fp4, for all families
    grouped: float  # rate of the experts' matmuls, relative to one matmul of that size
    # a further factor on that rate in fp8 and fp4
    grouped_fp8: float
    # seconds that forward takes to convert the operands of one expert to fp8 or fp4
    convert: float
    ramp: float  # time to start and write a tile, in steps of the inner dimension
    hbm: float  # share of the memory bandwidth that kernels reach
    unfused: float  # bytes of elementwise kernels, relative to a count of what must move
    launch: float  # seconds that the host takes to launch one layer's forward
    launch_moe: float  # the same for a layer with experts, relative to `launch`
    network: float  # share of the NICs' rate that a collective reaches
    hidden: float  # share of a layer's computation that can hide data parallelism's collectives
    exposed: float  # share of a pipeline message's time in which the stage waits for it
    misaligned: float  # slowdown of the scores' matmuls if 8 does not divide the head size
    # share of the step that each doubling of the nodes adds, because the slowest node sets the pace
    straggler: float
    # {stack: its factor on the step, except for the vocabulary's matmul and the loss}
    factors: dict


def from_values(values):
    """Parameters from {name: value}. The name "matmul A100" stands for matmul["A100"], and "factor
    torchtitan" for factors["torchtitan"]."""
    families = {"matmul": {}, "flash": {}, "fp8": {}, "factor": {}}
    plain = {}
    for name, value in values.items():
        head, _, rest = name.partition(" ")
        if rest:
            families[head][rest] = value
        else:
            plain[name] = value
    factors = families.pop("factor")
    return Parameters(**families, **plain, factors=factors)


@functools.cache
def parameters():
    """The Parameters of data/parameters.csv."""
    return from_values({row["parameter"]: row["value"] for row in table("parameters")})
