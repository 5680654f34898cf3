"""Automatic parallelism: a search finds the parallel plan of a model, so that you do not have to
write it by hand (Zheng et al. 2022, "Alpa"). There are two searches, one inside the other:

    layers, devices --> outer pass: stages, and how many devices each has     a pipeline
    a stage         --> inner pass: how each operator is split over them      data, tensor, sequence

file            what it is
--------------  -----------------------------------------------------------------------------
stages.py       outer pass: layers into stages, devices to stages, by dynamic programming
trace.py        a module as a list of operators, by torch.fx
layouts.py      how a tensor is laid out on the ranks, and what changes one layout to another
strategies.py   the ways in which one operator can be split
price.py        seconds and elements of a plan: compute, and the messages between operators
choose.py       inner pass: the cheapest plan, exactly
execute.py      a module run as its plan says, on ranks

All files but execute.py need no ranks: their functions take and return plain data.

    traced = trace(module, (B, T, D))
    plan = choose(traced.operators, Cluster(4, 1e12, 1e11, 1e-5, 1e-10, 4))
    # on every rank: the same results and gradients as `module`
    sharded = Sharded(traced, plan, group)

Other systems search in other ways. Alpa's inner pass solves an integer program over a traced graph;
its outer pass is the one here, with times from the inner pass. FlexFlow (Jia et al. 2019) makes
random changes to a plan and keeps those that are better. Colossal-AI (Liu et al. 2023,
"Colossal-Auto") also solves an integer program, and then chooses what to recompute. We are simpler
than Alpa in one more respect. Our ranks form a mesh of one dimension, so a tensor is split on one
dim only, whereas Alpa's meshes have two, and it can split one dim of the tensor over each of them.
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
