"""Exchanges a few bytes between the ranks of a group, through named pipes.

    rank 0    reads up1, up2, up3, and writes the bytes of all ranks into down1, down2, down3
    rank 1    writes its own bytes into up1, and reads those of all ranks from down1

Before each call, hundreds of times in a check, the ranks compare what they are about to do. With
four ranks on two cores, gloo takes about 3 ms for this, and pipes take about 0.2 ms.

In the ranks' logs every exchange is a barrier of the group, so a verdict on a hang can name the
ranks that each rank waits for. If a rank has exited, the others wait until the launcher ends them,
because the launcher's verdict names the rank that has exited.
"""

import contextlib
import functools
import os

import torch.distributed as dist

from lib import ledger
from lib.launch import worker


class Wire:
    """One rank's end. Every rank of `group`, whose ranks are all on one machine, creates one."""

    def __init__(self, group: dist.ProcessGroup):
        members = tuple(dist.get_process_group_ranks(group))
        self.group, self.place, self.N = group, dist.get_rank(group), len(members)
        name = "-".join(map(str, [group.group_name, *members]))
        self.pipes = _pipes(name, self.place, self.N)

    def exchange(self, mine: bytes) -> list[bytes]:
        """The bytes of all ranks, in the order of the ranks. All ranks pass the same number."""
        if self.N == 1:
            return [mine]
        n = len(mine)
        with ledger.barrier(self.group):
            if self.place == 0:
                everyones = b"".join([mine, *(_read(up, n) for up, _ in self.pipes)])
                for _, down in self.pipes:
                    _write(down, everyones)
            else:
                ((up, down),) = self.pipes
                _write(up, mine)
                everyones = _read(down, n * self.N)
        return [everyones[n * r : n * (r + 1)] for r in range(self.N)]

    def agreed(self, ok: bool) -> bool:
        """True if `ok` holds on every rank of the group."""
        return all(said[0] for said in self.exchange(bytes([ok])))


@functools.cache  # groups are kept from run to run, and pipes are empty after each exchange
def _pipes(name, place, N):
    """[(up, down), ...]: the pipes of all other ranks for the first rank, else this rank's own."""
    path = f"{worker.folder_of_this_set}/wire-{name}"
    others = range(1, N) if place == 0 else [place]
    return [tuple(_pipe(f"{path}-{way}{r}") for way in ("up", "down")) for r in others]


def _pipe(path):
    with contextlib.suppress(FileExistsError):
        os.mkfifo(path)
    # both ends are opened, because opening one would wait for the other rank
    return os.open(path, os.O_RDWR)


def _read(pipe, n):
    found = memoryview(bytearray(n))
    done = 0
    while done < n:
        done += os.readv(pipe, [found[done:]])
    return bytes(found)


def _write(pipe, data):
    left = memoryview(data)
    while left:
        left = left[os.write(pipe, left) :]
