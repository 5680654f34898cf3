"""The sharded state of ZeRO in a checkpoint: the tensors that each rank's optimizer updates and the
optimizer's state of them, resharded if the number of ranks changes.

    rank r saves  per flat  weight (m,), exp_avg (m,), exp_avg_sq (m,)  its own shard of each
    all ranks     per flat  step 7                                      replicated, so once
                  once      learning rates and the like; each flat's shapes, to recognise the model

A weight is saved as its fp32 master if it has one; the 16-bit weight follows from it. Momentum and
variance are flat buffers like the weights, so an optimizer that works element by element can
continue from any sharding of them. torch's DCP calls this resharding, DeepSpeed a universal
checkpoint.

In the arguments, `shared` is state that is equal on all ranks and is written once, and `own` is
state of this rank alone, such as that of its random generator.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from lib.backend import Group
from lib.training.checkpoint import load_sharded, save, save_sharded
from lib.zero.flat import Flat


def save_shards(
    folder: str | Path,
    step: int,
    flats: Sequence[Flat],
    optimizer: Any,
    shared: dict | None = None,
    own: dict | None = None,
    group: Group = None,
    save: Callable = save,
) -> None:
    """Write weights and optimizer state of `flats` as the checkpoint of `step`; each rank writes
    its shards.

    flats, optimizer: zero.flats and zero.optimizer, or fsdp.flats and the optimizer of fsdp.groups.
    shared, own: more to save, as in `checkpoint.save`, such as buffers and Zero1's frozen
    parameters, which are in no flat. save: `checkpoint.save`, or a BackgroundSave's, which writes
    while training goes on. Sends, raises: as `checkpoint.save_sharded`.
    """
    shards, sizes, replicated = {}, {}, {}
    for name, flat, master, state in entries(flats, optimizer):
        for key, value in [("weight", master), *state.items()]:
            if is_flat(value, flat):
                shards[f"{name} {key}"], sizes[f"{name} {key}"] = value.detach(), flat.n
            else:
                replicated[f"{name} {key}"] = value
    settings = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    # "alike" is what files of this format call replicated optimizer state
    once = {"layout": layout(flats), "alike": replicated, "settings": settings, "shared": shared}
    save_sharded(folder, step, shards, sizes, once, own, group, save)


@torch.no_grad()
def load_shards(
    folder: str | Path,
    flats: Sequence[Flat],
    optimizer: Any,
    step: int | None = None,
    group: Group = None,
) -> tuple:
    """Fill the shards and the optimizer's state from a checkpoint, saved on any number of ranks.

    With Zero1 or Zero2, call `gather_parameters()` afterwards. Returns (shared, own, facts) as
    `checkpoint.load` does; own is None if the number of ranks has changed, and facts are the
    checkpoint's step, world_size and path. Sends, raises: as `checkpoint.load_sharded`. Also raises
    ValueError if the checkpoint's flats have other shapes than these.
    """
    shards, saved, own, facts = load_sharded(folder, step, group)
    if saved["layout"] != layout(flats):
        raise ValueError(
            f"{facts.path} holds flats of {[sum(map(math.prod, f)) for f in saved['layout']]} "
            f"elements, and here are {[flat.n for flat in flats]}: build model, units or buckets, "
            f"and groups as in the run that saved it"
        )
    found, states = {**shards, **saved["alike"]}, {}
    for i, (name, flat, master, _) in enumerate(entries(flats, optimizer)):
        master.copy_(found.pop(f"{name} weight"))
        flat.shard.copy_(master)
        state = {
            key.removeprefix(f"{name} "): x
            for key, x in found.items()
            if key.startswith(f"{name} ")
        }
        states |= {i: state} if state else {}
    innermost = torch_optimizer(optimizer)
    here = innermost.state_dict()["param_groups"]
    groups = [{**g, **settings} for g, settings in zip(here, saved["settings"], strict=True)]
    innermost.load_state_dict({"state": states, "param_groups": groups})
    return saved["shared"], own, facts


def entries(flats, optimizer):
    """(name, flat, tensor that the optimizer updates, its state) of each flat; for a frozen flat,
    the third value is its shard."""
    # the tensors that the optimizer updates, in the order of the flats
    optimized = [master for g in optimizer.param_groups for master in g["params"]]
    state = torch_optimizer(optimizer).state
    for i, flat in enumerate(flats):
        master = optimized[i] if flat.requires_grad else flat.shard
        yield f"flat_{i}", flat, master, state.get(master, {})


def torch_optimizer(optimizer):
    """The torch optimizer itself, which MasterShards and OffloadedOptimizer wrap."""
    return getattr(optimizer, "optimizer", optimizer)


def is_flat(value, flat):
    """Whether this tensor of the optimizer's state is sharded like the flat, with one element for
    each element of the shard."""
    return isinstance(value, torch.Tensor) and value.shape == flat.shard.shape


def layout(flats):
    """[[shape, ...], ...] of the parameters in each flat."""
    return [[list(slot.shape) for slot in flat.slots] for flat in flats]
