"""Automatic parallelism: the plan is searched for, not written down (Zheng et al. 2022, "Alpa").

    layers, devices --> outer pass: stages, and how many devices each has     a pipeline
    a stage         --> inner pass: how each operator is split over them      data, tensor, sequence

file            what it is
--------------  -----------------------------------------------------------------------------
stages.py       outer pass: layers into stages, devices to stages, by dynamic programming
trace.py        a module as a list of operators, by torch.fx
layouts.py      how a tensor is laid out on the ranks, and what changes one layout to another
strategies.py   the ways in which one operator can be split
price.py        seconds and elements of a plan: compute, and messages in and between operators
choose.py       inner pass: the cheapest plan, exactly
execute.py      a module run as its plan says, on ranks

All but execute.py is pure: plain data in, plain data out.

    traced = trace(module, (B, T, D))
    plan = choose(traced.operators, Cluster(4, 1e12, 1e11, 1e-5, 1e-10, 4))
    # on every rank: the same results and gradients as `module`
    sharded = Sharded(traced, plan, group)

How others search. Alpa's inner pass is an integer program over a traced graph; its outer pass is
the one here, with the inner pass's times in its table. FlexFlow (Jia et al. 2019) walks at random
among plans and keeps the better one. Colossal-AI's (Liu et al. 2023, "Colossal-Auto") is an integer
program too, with recomputation chosen after it. Here a stage's ranks are in a line, and a tensor is
split on one dim; Alpa's are in a grid, with a dim for each axis.
"""

from lib.hybrid.automatic.choose import choose
from lib.hybrid.automatic.execute import Sharded
from lib.hybrid.automatic.layouts import COPY, PARTIAL, REPLICATE, reshard
from lib.hybrid.automatic.price import Cluster, Move, Plan, named, price
from lib.hybrid.automatic.stages import Stages, cut_into_stages
from lib.hybrid.automatic.strategies import Strategy, strategies
from lib.hybrid.automatic.trace import Operator, Traced, trace

__all__ = [
    "COPY", "PARTIAL", "REPLICATE", "Cluster", "Move", "Operator", "Plan", "Sharded", "Stages",
    "Strategy", "Traced", "choose", "cut_into_stages", "named", "price", "reshard",
    "strategies", "trace",
]  # fmt: skip
