"""Exchanges a few bytes between ranks, through named pipes.

    rank 0    reads up1, up2, up3, and writes the bytes of all ranks into down1, down2, down3
    rank 1    writes its own bytes into up1, and reads those of all ranks from down1

Before each call, hundreds of times in a check, the ranks compare what they are about to do. With
four ranks on two cores, gloo takes about 3 ms for this, and pipes take about 0.2 ms.

A wire also needs no process group. Making groups takes as long as a check's exchanges, and each
group has a thread on every rank that wakes a hundred times a second.

In the ranks' logs every exchange is a barrier, so a verdict on a hang can name the ranks that each
rank waits for. If a rank has exited, the others wait until the launcher ends them, because the
launcher's verdict names the rank that has exited.
"""

import contextlib
import functools
import os
from collections.abc import Iterable

import torch.distributed as dist

from lib import ledger
from lib.launch import worker


class Wire:
    """One rank's end. Each of the ranks creates one.

    members: global ranks, all on one machine, including this one. name: distinguishes the wires
        that are in use between the same ranks at the same time.
    """

    def __init__(self, members: Iterable[int], name: str):
        self.members = tuple(members)
        self.place, self.N = self.members.index(dist.get_rank()), len(self.members)
        self.name = "-".join(["wire", name, *map(str, self.members)])
        self.pipes = _pipes(self.name, self.place, self.N)

    def exchange(self, mine: bytes) -> list[bytes]:
        """The bytes of all ranks, in the order of the ranks. All ranks pass the same number."""
        if self.N == 1:
            return [mine]
        n = len(mine)
        with ledger.barrier(self.name, self.members):
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
        """True if `ok` holds on every rank."""
        return all(said[0] for said in self.exchange(bytes([ok])))


@functools.cache  # pipes are kept from run to run, because they are empty after each exchange
def _pipes(name, place, N):
    """[(up, down), ...]: the pipes of all other ranks for the first rank, else this rank's own."""
    path = f"{worker.folder_of_this_set}/{name}"
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
