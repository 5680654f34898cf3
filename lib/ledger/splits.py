"""Records how many elements each rank gives to each other rank in a collective that may be uneven,
and how many it expects, so that the audit can compare the two. For example:

    all_to_all_single  rank 0 gives [1, 2] rows  rank 1 expects 3 rows from rank 0, but gets 2: the
                       rank 1 gives [3, 0] rows  third row keeps what torch.empty found in memory,
                                                 and no error is raised

The counts are stored in another file next to a rank's log. It is a ring, too, with a slot of fixed
size for each such call, and the entry in the log stores the number of the call.
"""

import math
import mmap
import os
import struct

RING = 1 << 20  # approximate size in bytes, unless 64 slots need more
SPLIT = ("all_gather", "all_to_all", "all_to_all_single", "gather", "scatter", "reduce_scatter")
# the count between two ranks that exchange nothing in this kind of collective, as in a gather
# between two ranks that are not its root
NONE = -1


def give_and_take(name: str, given: dict, root: int, n: int) -> tuple[list[int], list[int]]:
    """Return two lists with one item for each rank of the group: how many elements this rank gives
    to that rank, and how many it expects from it.

    name: one of SPLIT. given: the arguments of the dispatcher's op. root: the root's rank in the
    group, for a rooted op. n: the number of ranks of the group.
    """
    if name == "all_to_all_single":
        return _rows(given["input"], given["input_split_sizes"], n), _rows(
            given["output"], given["output_split_sizes"], n
        )
    gives, takes = _sizes(given["input_tensors"]), _sizes(given["output_tensors"])
    if name == "all_gather":
        return gives * n, takes
    if name == "reduce_scatter":
        return gives, takes * n
    if name == "gather":
        return [gives[0] if r == root else NONE for r in range(n)], takes or [NONE] * n
    if name == "scatter":
        return gives or [NONE] * n, [takes[0] if r == root else NONE for r in range(n)]
    return gives, takes


def _rows(tensor, splits, n):
    if not splits:
        return [tensor.numel() // n] * n
    row = math.prod(tensor.shape[1:])
    return [rows * row for rows in splits]


def _sizes(tensors):
    """The number of elements of each tensor of a list, or of a list of lists."""
    return [
        t.numel() for item in tensors for t in (item if isinstance(item, (list, tuple)) else [item])
    ]


def _slot(world_size):
    return struct.Struct(f"<qq{2 * world_size}q")  # number, ranks of the group, gives, takes


class SplitsWriter:
    """The rank's side. The file is created at the first such collective."""

    def __init__(self, log):
        self.path, self.world_size = f"{log.folder}/splits{log.rank}", log.world_size
        self.map: mmap.mmap | None = None
        self.slot, self.count = _slot(log.world_size), 0

    def write(self, gives: list[int], takes: list[int]) -> int:
        """Write the counts of a call. Returns the number of the call, counted from 1."""
        if self.map is None:
            with open(self.path, "w+b") as file:
                file.truncate(_slots(self.slot) * self.slot.size)
                self.map = mmap.mmap(file.fileno(), 0)
        self.count += 1
        padding = [0] * (2 * self.world_size - len(gives) - len(takes))
        at = (self.count % _slots(self.slot)) * self.slot.size
        self.slot.pack_into(self.map, at, self.count, len(gives), *gives, *takes, *padding)
        return self.count


class SplitsReader:
    """The parent's side, which reads the current contents of the file."""

    def __init__(self, folder: str, rank: int, world_size: int):
        self.map: mmap.mmap | None = None
        self.path, self.slot = f"{folder}/splits{rank}", _slot(world_size)

    def read(self, number: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(gives, takes) of the call with this number; ((), ()) if it has been overwritten, or if
        the file does not exist."""
        if self.map is None:
            if not os.path.exists(self.path):
                return (), ()
            with open(self.path, "rb") as file:
                self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        found, n, *counts = self.slot.unpack_from(
            self.map, (number % _slots(self.slot)) * self.slot.size
        )
        return (tuple(counts[:n]), tuple(counts[n : 2 * n])) if found == number else ((), ())


def _slots(slot):
    return max(64, RING // slot.size)
