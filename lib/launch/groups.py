"""The process groups of a rank: its world, which stays from run to run, and those made on it.

    a run ends    groups that it made are destroyed, but a check's, which the next run of that check
                  asks for again
    a run begins  the groups it makes meet at keys of their own in the store

Making the groups of 8 ranks on gloo takes as long as everything else that a check does. But every
group has a thread in every rank that wakes a hundred times a second. Therefore the groups that a
run has not asked for are destroyed after it, and all are before a run whose time is measured.
"""

import contextlib
import sys

import torch.distributed as dist

from lib.backend import torch_private
from lib.launch.stacks import LIB

world: dist.ProcessGroup | None = None
_asked: set[tuple] = set()  # the keys of those that this run has asked for
kept: dict[
    tuple, dist.ProcessGroup
] = {}  # (its ranks, how many of the same a run had asked for before) -> group


def begin(run: int, timed: bool) -> None:
    """Groups made from now on meet where no earlier run has left an address. timed:
    none may disturb."""
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
    """How many groups this rank has made. torch names a group by it: ranks that differ can make
    none together."""
    return torch_private.registry().group_count


def destroy_others() -> None:
    """Destroy all groups but the world and those that are kept because this run has
    asked for them."""
    for key in kept.keys() - _asked:
        del kept[key]
    stay = {world, *kept.values()}
    for group in [group for group in torch_private.registry().pg_map if group not in stay]:
        dist.destroy_process_group(group)


@contextlib.contextmanager
def kept_for_checks():
    """Inside, `dist.new_group(ranks)` called from lib gives the group that an earlier run on these
    ranks made for it.

    Called by an answer it makes a new one, as always.
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
