"""The numbers that are fitted, each with a meaning, and nothing else is.

    R_j  measured seconds of row j              T_j(x)   the model's, with parameters x
    x*   minimises the sum of rho( w (log R_j - log T_j(x)) ) + (how far x is from its start, in its
         own spread)^2

lib/calibration/fit.py finds x*, on the rows of data/rows.csv alone, and writes it to
data/parameters.csv next to start, bounds and meaning. Hardware's own figures (hardware.py) are not
fitted, and neither is anything of memory.
"""

import functools
from typing import NamedTuple

from lib.cost.published import table


class Parameters(NamedTuple):
    """What is fitted. Shares and factors have no unit."""

    matmul: dict  # {family: share of its peak that a large bf16 product reaches}
    flash: dict  # {family: share of the bf16 peak that fused attention reaches}
    fp8: dict  # {family: an fp8 product's share of its peak, relative to bf16's share of its own}
    fp4: float  # the same for fp4
    grouped: float  # experts' products: rate, relative to one product of that size
    # and in fp8 and fp4, where small experts pay for conversion, relative to that
    grouped_fp8: float
    # seconds in which an expert on a rank has its operands put into fp8 or fp4, forward
    convert: float
    ramp: float  # steps of the inner dimension that starting a tile and writing it take
    hbm: float  # share of the memory's bandwidth that kernels reach
    unfused: float  # bytes of elementwise kernels, relative to a count of what must move
    launch: float  # seconds that the host takes to launch one layer's forward
    launch_moe: float  # one layer with experts, relative to that
    network: float  # share of the network cards' rate that a collective reaches
    hidden: float  # share of a layer's computing behind which collectives of data parallelism hide
    exposed: float  # share of a pipeline message's time that a stage waits
    misaligned: float  # slowdown of the scores' products if 8 does not divide the head size
    # growth of the step with each doubling of the nodes: the slowest sets the pace
    straggler: float
    factors: dict  # {stack: its factor on step time, the vocabulary's product apart}


def from_values(values):
    """Parameters from {name: value}; "matmul A100" is matmul["A100"], "factor torchtitan"
    factors["torchtitan"]."""
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
