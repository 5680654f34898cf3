"""Decides which process groups of a rank are kept for its next run. The world, which is the group
of all ranks, is always kept. The groups that a run makes are destroyed after it, except those that
a check makes, because the next run of that check needs them again.

Keeping groups has a benefit and a cost. On gloo, making the groups of 8 ranks takes as long as
everything else that a check does. However, every group has a thread in every rank that wakes a
hundred times a second. Therefore a group is kept only if the last run asked for it, and all but the
world are destroyed before a run whose time is measured.

The ranks of a new group find each other's addresses under keys in the store. Each run uses keys of
its own, because those of an earlier run lead to groups that no longer exist.
"""

import contextlib
import sys

import torch.distributed as dist

from lib.backend import torch_private
from lib.launch.stacks import LIB

world: dist.ProcessGroup | None = None
_asked: set[tuple] = set()  # the keys, as in `kept`, of the groups that this run has asked for
# (the ranks, how many groups of the same ranks the run had asked for before) -> group
kept: dict[tuple, dist.ProcessGroup] = {}


def begin(run: int, timed: bool) -> None:
    """Let the groups that run number `run` makes use their own keys in the store.

    timed: the time of the run is measured, so destroy all groups but the world first.
    """
    global world
    world = dist.group.WORLD
    if timed:
        kept.clear()
        destroy_others()
    _asked.clear()
    name, store = torch_private.registry().pg_map[world]
    base = store.underlying_store if run > 0 else store
    torch_private.registry().pg_map[world] = (name, dist.PrefixStore(f"run{run}", base))


def made() -> int:
    """How many groups this rank has made. torch derives a group's name from this number, so ranks
    on which it differs can no longer make a group together."""
    return torch_private.registry().group_count


def destroy_others() -> None:
    """Destroy all groups but the world and those that this run has asked for inside
    `kept_for_checks`."""
    for key in kept.keys() - _asked:
        del kept[key]
    stay = {world, *kept.values()}
    for group in [group for group in torch_private.registry().pg_map if group not in stay]:
        dist.destroy_process_group(group)


@contextlib.contextmanager
def kept_for_checks():
    """Inside the block, `dist.new_group(ranks)` returns the group that an earlier run of this rank
    made for the same call, if there is one.

    This holds only for calls from lib. A call in a student's function makes a new group, as always.
    """
    counts: dict[tuple, int] = {}
    plain = dist.new_group

    def new_group(ranks=None, *args, **kwargs):
        if args or kwargs or not sys._getframe(1).f_code.co_filename.startswith(LIB):
            return plain(ranks, *args, **kwargs)
        members = None if ranks is None else tuple(ranks)
        key = (members, counts.get(members, 0))
        counts[members] = key[1] + 1
        _asked.add(key)
        if key not in kept:
            kept[key] = plain(members if members is None else list(members))
        return kept[key]

    dist.new_group = new_group
    try:
        yield
    finally:
        dist.new_group = plain
