"""ZeRO: data parallelism that shards its state over the ranks (Rajbhandari et al. 2020).

A model has psi parameters, and in each step every one of N ranks runs k micro-batches. The table
says which fraction a rank keeps, and what it sends in a step, in units of (N-1)/N psi elements:

                      weights  gradients  optimizer state  sent per rank and step
    data parallelism  full     full       full             2
    zero1.py          full     full       1/N              2
    zero2.py          full     1/N        1/N              k + 1
    fsdp.py, ZeRO-3   1/N      1/N        1/N              3 k

The root unit of ZeRO-3 stays unsharded between forward and backward, so it is gathered once per
micro-batch instead of twice, and sends 2 k of these units for its own parameters.

file            what it is
--------------  ----------------------------------------------------------------------------------
flat.py         flat parameters: one padded buffer, a shard per rank; parameter groups
zero1.py        reduce-scatter gradients, update the shard, all-gather parameters
zero2.py        the reduce-scatter while backward runs; full gradients are freed
unit.py         ZeRO-3's unit: unshard, reshard; pre-backward and post-backward hooks
fsdp.py         which unit is unsharded when
prefetch.py     the next unit's all-gather overlaps with compute; HSDP, replicas across nodes
module.py       the same as an nn.Module, with mixed precision: for a script of your own
muon.py         Muon: full matrices, each updated by the rank that owns it
masters.py      fp32 master weights of 16-bit shards; masters and optimizer state in CPU memory
state.py        all of it in a checkpoint, for any number of ranks
guards.py       errors for what would go wrong silently in a script of your own
live.py         bytes that live tensors hold, to compare with the formulas (`lib.cost.zero`)

The names are those of PyTorch FSDP where it has one: flat parameter, unshard, reshard, prefetch. A
`Flat` is its FlatParameter, a `Unit` its FSDPParamGroup or FSDP instance, and the three stages are
DeepSpeed's "stage": 1, 2 and 3. `Zero1` is torch's ZeroRedundancyOptimizer.

Gradients are averaged, as in data parallelism: ranks have equal shares of the batch, and after
`average_gradients()` every shard's `.grad` is the mean. `lib.training.clip` clips them by their
global norm.

In a script of your own, first put the model on its device, load its weights, and then wrap it. You
can also load pretrained weights into a wrapped model, in the same way on every rank:

    # FSDP, PrefetchingFSDP, HSDP: each rank keeps its shard
    with fsdp.unsharded() as full:
        full.load_state_dict(torch.load("pretrained.pt"))
    # FSDPModule does the same by itself
    module.load_state_dict(torch.load("pretrained.pt"))
    # Zero1, Zero2: the parameters are full at all times
    model.load_state_dict(torch.load("pretrained.pt"))

Make `MasterShards` only after loading, because masters are copies, and the next step would
overwrite the loaded weights with the old ones. Mistakes that would otherwise go unnoticed raise an
error that says what to do instead (guards.py): giving an optimizer or a clipping function the
model's parameters, calling `state_dict()` on a sharded model, or unfreezing a parameter later.

`# exercise: lab.name` marks what students write in that lab (lib/README.md).
"""

from lib.zero.flat import Flat, padded_size, parameter_groups
from lib.zero.fsdp import FSDP
from lib.zero.live import PeakBytes, live_bytes, start_counting
from lib.zero.masters import MasterShards, OffloadedOptimizer
from lib.zero.module import FSDPModule
from lib.zero.muon import Muon, newton_schulz, owners
from lib.zero.prefetch import HSDP, PrefetchingFSDP, start_unshard
from lib.zero.state import load_shards, save_shards
from lib.zero.unit import Unit, on_backward
from lib.zero.zero1 import Zero1, flats_of, gather_parameters, reduce_gradients
from lib.zero.zero2 import Zero2

__all__ = [
    "FSDP", "HSDP", "FSDPModule", "Flat", "MasterShards", "Muon", "OffloadedOptimizer",
    "PeakBytes", "PrefetchingFSDP", "Unit", "Zero1", "Zero2", "flats_of", "gather_parameters",
    "live_bytes", "load_shards", "newton_schulz", "on_backward", "owners", "padded_size",
    "parameter_groups", "reduce_gradients", "save_shards", "start_counting", "start_unshard",
]  # fmt: skip
