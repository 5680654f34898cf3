"""Hybrid parallelism: all the other kinds together, on one mesh. Only this package combines them.

file          what it is
------------  ---------------------------------------------------------------------------
sets.py       how each parameter is sharded; over which ranks gradients and squares are summed
train.py      a GPT on a mesh, one step after another
by_hand.py    a whole step by hand, with separate messages for each gradient
update.py     the update over data ranks: all-reduce and a replicated update, or ZeRO-1
context.py    the sequence over cp, inside heads over tp
experts.py    mixtures over ep, with attention over tp and stages over pp
state.py      checkpoints: saved on one mesh, loaded on another
compare.py    gradients and trainings compared with those of a single process
paced.py      the same GPT on ranks that sleep, to show what a placement costs
small.py      a plan for hundreds of GPUs, run on a few ranks and compared with a single process
measured_runs.py
              a step's parts and full steps, measured on this machine
mesh.py       ranks with coordinates, and the groups along each dimension (torch's DeviceMesh)
unequal       devices that are not equally fast: shares of the batch and of the layers in proportion
automatic     the layouts of each operator and weight, found by a search
hunt          a job with a planted fault, to be found from its logs
"""

from lib.hybrid.by_hand import HybridByHand, average_over_mesh, norm_over_mesh
from lib.hybrid.experts import expert_gpt
from lib.hybrid.sets import Sets, global_norm, norm_sets, sets_of
from lib.hybrid.state import load_hybrid, save_hybrid
from lib.hybrid.train import (
    DATA,
    EXPERT_DATA,
    SETS,
    Hybrid,
    free_other_stages,
    local_batch,
    mesh_of,
)
from lib.hybrid.update import ReplicatedUpdate, ShardedUpdate

__all__ = [
    "DATA", "EXPERT_DATA", "SETS", "Hybrid", "HybridByHand", "ReplicatedUpdate", "Sets",
    "ShardedUpdate", "average_over_mesh", "expert_gpt", "free_other_stages", "global_norm",
    "load_hybrid", "local_batch", "mesh_of", "norm_over_mesh", "norm_sets", "save_hybrid",
    "sets_of",
]  # fmt: skip
