"""Checkpoints of a hybrid run: saved on one mesh, they can be loaded on a mesh of other sizes, and
with or without a sharded optimizer.

    saved on pp=2 dp=2 tp=2                             loaded on pp=4 tp=2
    rank_0.pt   blocks 0 1, heads 0 1   shard 0         rank 1 wants block 0, heads 2 3:
    rank_1.pt   blocks 0 1, heads 2 3   shard 0           reads the ranks that have block 0,
    rank_2.pt   blocks 0 1, heads 0 1   shard 1           joins data shards, then heads,
    ...                                                   takes its part of them

A rank writes the tensors that its optimizer updates, and the optimizer's state for them. Each is
written as a flat buffer, called a line here. It holds all of the rank's part of one parameter, or,
if the update is sharded over the data ranks, the rank's shard of a flat. Without such sharding all
data ranks have the same lines, so only the first of them writes them. Loading merges the shards of
a name into the full tensor, and then takes this rank's part of it.

To find a name, a rank searches the stages from the first one on, and reads entire files. This is
good enough for the models here; real systems (torch.distributed.checkpoint) read single tensors.
"""

import copy
import functools
import math
from pathlib import Path
from typing import Any

import torch

from lib.hybrid.mesh import groups_along, rank_at
from lib.hybrid.train import DATA, EXPERT_DATA
from lib.tensor_parallel import split_dim
from lib.training.checkpoint import load, save


def save_hybrid(
    folder: str | Path, step: int, hybrid: Any, shared: dict | None = None, own: dict | None = None
) -> None:
    """Write weights and optimizer state of a Hybrid as the checkpoint of `step`. Frozen parameters
    are left out. Of the optimizer's settings, such as the learning rate, only those of the first
    parameter group are saved, and `load_hybrid` gives them to all groups.

    shared, own: further state to save, as in `checkpoint.save`. Sends and raises: as that function.
    """
    names = {parameter: name for name, parameter in hybrid.part.named_parameters()}
    lines: dict[tuple[str, ...], list] = {axes: [] for axes in (DATA, EXPERT_DATA)}
    for axes, update in zip((DATA, EXPERT_DATA), hybrid.updates, strict=False):
        if update.shards_over or hybrid.mesh.local_rank(*axes) == 0:
            lines[axes] = [
                _line(parameters, mine, names, update.optimizer)
                for parameters, mine in update.lines()
            ]
    settings = {
        key: x for key, x in hybrid.dense.optimizer.param_groups[0].items() if key != "params"
    }
    is_sharded = bool(hybrid.dense.shards_over)
    facts = {
        "sizes": hybrid.mesh.sizes,
        "sharded": is_sharded,
        "settings": settings,
        "shared": shared,
    }
    save(folder, step, facts, {"lines": list(lines.values()), "own": own})


def _line(parameters, mine, names, optimizer):
    """A line as it is saved: {"names": of its parameters, "shapes": their shapes, "pieces":
    {"weight": (m,), "exp_avg": (m,), ...}, "alike": {"step": 7}}. "alike" is the optimizer's state
    that is the same on all ranks."""
    state = {"weight": mine, **optimizer.state.get(mine, {})}
    pieces = {
        key: x.detach().flatten()
        for key, x in state.items()
        if isinstance(x, torch.Tensor) and x.shape == mine.shape
    }
    alike = {key: x for key, x in state.items() if key not in pieces}
    shapes = [list(p.shape) for p in parameters]
    return {
        "names": [names[p] for p in parameters],
        "shapes": shapes,
        "pieces": pieces,
        "alike": alike,
    }


@torch.no_grad()
def load_hybrid(folder: str | Path, hybrid: Any, step: int | None = None) -> tuple:
    """Load weights and optimizer state into a Hybrid, from a checkpoint that `save_hybrid` wrote on
    any mesh. Returns (shared, own, facts), as `checkpoint.load` does.

    own: None if it was saved on another number of ranks. Sends and raises: as `checkpoint.load`.
    Also raises ValueError for a parameter that the checkpoint does not have, or has in another
    shape.
    """
    saved, own, facts = load(folder, step)
    find, rank, tp = _reader(saved, facts), hybrid.mesh.here["tp"], hybrid.mesh.size("tp")
    names = {parameter: name for name, parameter in hybrid.part.named_parameters()}
    for update in hybrid.updates:
        states = {}
        for i, (parameters, mine) in enumerate(update.lines()):
            found = [_part(find(names[p]), names[p], rank, tp) for p in parameters]
            for p, (parts, _) in zip(parameters, found, strict=True):
                if parts["weight"].shape != p.shape:
                    raise ValueError(
                        f"{names[p]} for tp={tp} is {tuple(parts['weight'].shape)} in "
                        f"{facts.path}, and here {tuple(p.shape)}: build the model as in the run "
                        f"that saved it"
                    )
                p.copy_(parts.pop("weight"))  # also fills its flat buffer, and so the shard, if any
            averages, alike = (
                {key: [parts[key].flatten() for parts, _ in found] for key in found[0][0]},
                found[0][1],
            )
            states[i] = {
                key: update.own_piece(torch.cat(line), mine) for key, line in averages.items()
            } | alike
        groups = [{**g, **saved["settings"]} for g in update.optimizer.state_dict()["param_groups"]]
        update.optimizer.load_state_dict(
            {"state": {i: s for i, s in states.items() if s}, "param_groups": groups}
        )
    return saved["shared"], own and own["own"], facts


def _part(found, name, rank, tp):
    """({key: this tp rank's shard}, a copy of the state that is the same on all ranks). It is a
    copy because optimizers count their steps in place. found: what `_reader`'s find returns."""
    (full, alike), dim = found, split_dim(name)
    parts = {key: x if dim is None else x.chunk(tp, dim)[rank] for key, x in full.items()}
    return parts, copy.deepcopy(alike)


def _reader(saved, facts):
    """Returns find(name) -> ({key: the full tensor}, the state that is the same on all ranks),
    which reads the ranks' files."""
    sizes = saved["sizes"]
    read = functools.cache(lambda rank: facts.own_of(rank)["lines"])

    @functools.cache
    def of(stage, tp):
        """{name: (pieces, alike)} of one tp rank of one stage, with the shards of its data ranks
        joined, and with all experts of the stage."""
        found = {}
        for ep in range(sizes["ep"]):
            first = rank_at({**dict.fromkeys(sizes, 0), "pp": stage, "ep": ep, "tp": tp}, sizes)
            for kind, axes in enumerate((DATA, EXPERT_DATA)):
                ranks = next(ranks for ranks in groups_along(axes, sizes) if first in ranks)
                for shards in zip(
                    *(read(r)[kind] for r in (ranks if saved["sharded"] else ranks[:1])),
                    strict=True,
                ):
                    found |= _joined(shards)
        return found

    def find(name):
        for stage in range(sizes["pp"]):
            if name in of(stage, 0):
                parts, dim = [of(stage, tp)[name] for tp in range(sizes["tp"])], split_dim(name)
                (first, alike), whole = parts[0], {}
                for key in first:
                    whole[key] = (
                        first[key]
                        if dim is None
                        else torch.cat([part[key] for part, _ in parts], dim)
                    )
                return whole, alike
        if name == "head.weight":  # tied: without a pipeline it has one name only
            return find("embedding.token.weight")
        raise ValueError(f"{facts.path} has no {name}: build the model as in the run that saved it")

    return find


def _joined(shards):
    """{name: ({key: tensor}, alike)} of one line, from its shards in the order of the ranks."""
    first, found = shards[0], {}
    counts = [math.prod(shape) for shape in first["shapes"]]
    for key in first["pieces"]:
        # without the padding
        line = torch.cat([shard["pieces"][key] for shard in shards])[: sum(counts)]
        for name, shape, piece in zip(
            first["names"], first["shapes"], line.split(counts), strict=True
        ):
            found.setdefault(name, ({}, first["alike"]))[0][key] = piece.view(shape)
    return found
