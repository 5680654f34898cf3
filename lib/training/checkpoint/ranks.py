"""Save and load a checkpoint on ranks. State that is the same on all ranks is written once, by rank
0, and every rank writes the state that only it has.

    step_00000042/
        shared.pt               written by rank 0: replicated parameters, optimizer state, the facts
        rank_0.pt rank_1.pt ..  written by each rank: its random state, its shard

A save on rank 0 and on another rank r, from left to right:

    rank 0   makes the folder ->           | rank_0.pt, shared.pt | barrier | publishes | barrier
    rank r                    -> broadcast | rank_r.pt            | barrier |           | barrier

The folder has to be on a file system that all ranks see, and only one run may use it.

A state may contain tensors, None, bool, int, float, str, torch.Size, torch.dtype, torch.device, and
dicts, lists and tuples of these. Other types are refused because torch.load(weights_only=True) may
not load them, and without weights_only a file can run any code when it is read. Tensors are loaded
bit for bit, onto the CPU, and `load_state_dict` copies them to their device.
"""

import zipfile
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from lib import backend, collectives
from lib.training.checkpoint.folder import (
    checkpoints,
    clear_leftovers,
    latest,
    on_disk,
    publish,
    step_of,
    sync_folder,
    unfinished,
)

LEAVES = (type(None), bool, int, float, str, torch.Size, torch.dtype, torch.device)


def save(folder, step, shared, own=None, group=None, open=open):
    """Write the checkpoint of `step`. Returns on every rank when it is complete and on disk.

    shared: the state that is the same on all ranks; only rank 0's is written. own: the state of
    this rank alone. open(path, mode) opens a file. A checkpoint of the same step is replaced. The
    last 2 checkpoints are kept, and what killed saves have left is removed.
    Sends: a broadcast of 2 int64 and two barriers.
    Raises TypeError for a type that could not be loaded again; ValueError for a negative step, if
    ranks save different steps, or if the folder has a later step; FileNotFoundError if a rank does
    not see the folder.
    """
    states = prepare(folder, step, shared, own, group)
    write(folder, step, states, open)
    collectives.barrier(group)  # after it, every file of every rank is on disk
    if dist.get_rank(group) == 0:
        publish(folder, step)
    collectives.barrier(group)


def prepare(folder, step, shared, own=None, group=None):
    """Make the folder in which the checkpoint of `step` is written. Returns {file name: state}, the
    files that this rank has to write. Arguments and errors: see `save`."""
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    if step < 0:
        raise ValueError(f"step is {step}: steps count from 0")
    states = {f"rank_{rank}.pt": plain(own, "own")}
    later = -1
    if rank == 0:
        states["shared.pt"] = {
            "step": step,
            "world_size": world_size,
            "state": plain(shared, "shared"),
        }
        clear_leftovers(folder)
        later = max((s for s in checkpoints(folder) if s > step), default=-1)
        if later < 0:
            unfinished(folder, step).mkdir(parents=True)
    agreed, later = from_rank_0([step, later], group)
    if agreed != step:
        raise ValueError(
            f"rank {rank} saves step {step}, rank 0 step {agreed}: all ranks save the same step"
        )
    # We cannot leave the later step there, because `load` would still take it as the latest, and we
    # must not remove it, because it may belong to another run.
    if later >= 0:
        raise ValueError(
            f"{folder} holds step {later}, after {step}: load it, remove it, or save to another "
            f"folder"
        )
    beside = unfinished(folder, step)
    if not beside.is_dir():
        raise FileNotFoundError(
            f"rank {rank} does not see {beside}, made by rank 0: use a folder that all ranks see"
        )
    return states


def write(folder, step, states, open=open):
    """Write this rank's files, {file name: state}, into the unfinished folder of `step`. Returns
    when they are on disk. Sends nothing."""
    beside = unfinished(folder, step)
    for name, state in states.items():
        with on_disk(beside / name, open) as file:
            torch.save(state, file)
    sync_folder(beside)


def load(folder, step=None, group=None):
    """Read a complete checkpoint: (shared, own, facts). All ranks read the one that rank 0 picks.

    step: None takes the latest. own: what this rank saved as its own; None if the checkpoint was
    saved on another number of ranks. Sends: a broadcast of 1 int64.
    Raises FileNotFoundError if there is no such checkpoint, and RuntimeError for a damaged file;
    its message names the next older step, if there is one.
    """
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    newest = latest(folder) if step is None else step
    (step,) = from_rank_0([-1 if newest is None else newest], group)
    whole = checkpoints(folder)
    if step not in whole:
        there = (
            f"it holds steps {', '.join(map(str, whole))}"
            if whole
            else "nothing has been saved there"
        )
        raise FileNotFoundError(
            f"{folder} holds no whole checkpoint{f' of step {step}' if step >= 0 else ''}: {there}"
        )
    path = whole[step]
    saved = read(path / "shared.pt")
    facts = Facts(saved["step"], saved["world_size"], path)
    own = facts.own_of(rank) if facts.world_size == world_size else None
    return saved["state"], own, facts


@dataclass(frozen=True)
class Facts:
    """What a checkpoint says about itself."""

    step: int
    world_size: int  # of the run that saved it
    path: Path

    def own_of(self, rank):
        """What `rank` saved as its own, for resharding to another number of ranks. Raises
        ValueError if no such rank saved the checkpoint."""
        if not 0 <= rank < self.world_size:
            raise ValueError(
                f"{self.path} was saved on {self.world_size} ranks, 0 to {self.world_size - 1}: no "
                f"{rank}"
            )
        return read(self.path / f"rank_{rank}.pt")


def from_rank_0(numbers, group):
    """Broadcast: rank 0's integers, returned on every rank."""
    return collectives.broadcast(
        torch.tensor(numbers, device=backend.device()), 0, group
    ).tolist()  # (n,) int64


def plain(state, where):
    """`state` as it will be loaded. Raises TypeError for a type that a checkpoint may not contain,
    and says where in the state it is."""
    if isinstance(state, torch.Tensor):
        state = state.detach()
        part_of_more = state.untyped_storage().nbytes() > state.nbytes
        # for a view, torch.save would write the full storage
        return state.clone() if part_of_more else state
    if type(state) in (dict, OrderedDict):
        return type(state)(
            (plain(key, f"a key of {where}"), plain(x, f"{where}[{key!r}]"))
            for key, x in state.items()
        )
    if type(state) in (list, tuple):
        return type(state)(plain(x, f"{where}[{i}]") for i, x in enumerate(state))
    if type(state) not in LEAVES:
        raise TypeError(
            f"{where} is a {type(state).__module__}.{type(state).__name__}, which could not be "
            f"loaded again: save tensors, numbers, strings, and dicts, lists and tuples of these "
            "(of an array, torch.from_numpy(array))"
        )
    return state


def read(file):
    """Load a file of torch.save onto the CPU. If that fails, raises RuntimeError, which names the
    file and the next older step, if there is one."""
    try:
        with zipfile.ZipFile(
            file
        ) as archive:  # torch.save writes a zip file, whose checksums torch.load does not verify
            if entry := archive.testzip():
                raise ValueError(f"the checksum of {entry} does not fit")
        return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file can raise any exception
        here = file.parent
        older = [step for step in checkpoints(here.parent) if step < step_of(here)]
        use = f"the next older is step {older[-1]}" if older else "there is no older one"
        reason = (
            "it is missing"
            if isinstance(error, FileNotFoundError)
            else f"{type(error).__name__}: {error}"
        )
        raise RuntimeError(f"{file} is damaged ({reason}). Remove {here}; {use}") from error
