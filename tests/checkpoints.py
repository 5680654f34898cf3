"""What the tests of checkpoints save, and how they look at what is left."""

import os
from pathlib import Path

import torch
import torch.distributed as dist

from lib.training import checkpoint


def names(folder):
    return sorted(path.name for path in Path(folder).iterdir())


def state_at(step):
    return {"step": step, "weight": torch.full((100,), float(step))}


def save_at(folder, step):
    """This rank's part tells step and rank."""
    checkpoint.save(folder, step, state_at(step), own=torch.tensor([step, dist.get_rank()]))


def is_whole(folder, step):
    """Does `step` load, with what was saved at that step?"""
    shared, own, facts = checkpoint.load(folder)
    world_size = dist.get_world_size()
    return (
        (facts.step, facts.world_size) == (step, world_size)
        and shared["step"] == step
        and bool((shared["weight"] == step).all())
        and own.tolist() == [step, dist.get_rank()]
    )


def said(fn, *args, **kwargs):
    try:
        fn(*args, **kwargs)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def in_a_child(run):
    """run() in a forked process; its exit status, negative for a signal. On one rank of gloo: no
    message under way."""
    child = os.fork()
    if child == 0:
        try:
            run()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
