"""Reads the logs of all ranks together. `Logs` represents the files, which may still change. A
`Ledger` contains what was read from them, as plain data that other code can analyse."""

import glob
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lib.ledger import made, trace
from lib.ledger.log import Entry, Head, LogReader

UNITS = ("messages", "elements", "bytes")


class Logs:
    """The files of all ranks. They can be read while the ranks run, after they have ended, and
    after they have died."""

    def __init__(self, folder: str, world_size: int | None = None):
        """world_size: how many ranks there are. None: find the logs in `folder`, and raise
        FileNotFoundError if there are none or some are missing."""
        if world_size is None:
            world_size = _find(folder)
        self.folder = folder
        self.readers = [LogReader(folder, rank) for rank in range(world_size)]

    def heads(self) -> list[Head]:
        """The current header of each log."""
        return [reader.head() for reader in self.readers]

    def read(self) -> "Ledger":
        """A Ledger of all that the logs contain now."""
        heads = self.heads()
        zero = _zero(heads)
        return Ledger(
            [reader.entries(zero[rank]) for rank, reader in enumerate(self.readers)],
            np.array([reader.totals() for reader in self.readers], dtype=np.int64),
            [max(0, head.count - head.capacity) for head in heads],
            zero,
            [made.read(self.folder, rank, zero[rank]) for rank in range(len(heads))],
        )


def _find(folder):
    names = (os.path.basename(path) for path in glob.glob(os.path.join(folder, "log*")))
    ranks = sorted(int(match[1]) for name in names if (match := re.fullmatch(r"log(\d+)", name)))
    if not ranks:
        raise FileNotFoundError(
            f"no rank's log in {folder!r}: was LEDGER_DIR set where the ranks ran?"
        )
    world_size = LogReader(folder, ranks[0]).head().world_size
    missing = sorted(set(range(world_size)) - set(ranks))
    if missing:
        raise FileNotFoundError(
            f"{folder!r} holds the logs of ranks {ranks}, but the job had {world_size} ranks: "
            f"copy those of ranks {missing} there too (another node may have them)"
        )
    return world_size


def _zero(heads):
    """For each rank, what its own monotonic clock showed when the first rank began. Every node has
    a separate monotonic clock, so we align the nodes by their wall clocks."""
    heads_begun = [head for head in heads if head.state] or heads
    first = min(head.wall for head in heads_begun)
    own = [head.began - (head.wall - first) for head in heads]
    # On one machine all ranks have the same monotonic clock, and the wall clock would only add
    # noise.
    drift = [head.began - head.wall for head in heads_begun]
    one_clock = max(drift) - min(drift) < 0.1
    return [min(head.began for head in heads_begun)] * len(heads) if one_clock else own


class Ledger:
    """What all ranks of a run communicated. It is plain data, so it outlives the run and its
    files."""

    def __init__(
        self,
        by_rank: list[list[Entry]],
        totals: np.ndarray | None,
        lost: list[int],
        zero: Any = None,
        groups: Any = None,
    ) -> None:
        """by_rank: each rank's entries, in order. totals: (N, N, 3), what each rank sent to each
        other rank, in the order of UNITS; with None it is summed from the entries. lost: for each
        rank, how many of its entries were overwritten. zero: for each rank, its time.monotonic() at
        time 0 of its entries; None means 0. groups: for each rank, the groups that it made, in
        order; None if they are not known.
        """
        self.by_rank, self.totals, self.lost = by_rank, totals, lost
        self.world_size = len(by_rank)
        self.zero = zero or [0.0] * self.world_size
        self.groups: list[list[made.Made]] = groups or [[] for _ in by_rank]

    def of(self, rank: int) -> list[Entry]:
        """The entries of one rank, in the order in which it posted them."""
        return self.by_rank[rank]

    @property
    def entries(self) -> list[Entry]:
        """The entries of all ranks without the marks, sorted by the time at which they were
        posted."""
        return sorted(
            (e for mine in self.by_rank for e in mine if e.op != "mark"), key=lambda e: e.posted
        )

    @property
    def marks(self) -> list[str]:
        """The labels of the sections, in the order of first use."""
        return list(dict.fromkeys(e.file for mine in self.by_rank for e in mine if e.op == "mark"))

    def section(self, label: str) -> "Ledger":
        """The part of every rank's log after `ledger.mark(label)` and before the rank's next mark.
        If a rank made the mark several times, all these parts together.

        Raises KeyError if no rank made the mark, and RuntimeError if a log has overwritten entries.
        """
        if any(self.lost):
            raise RuntimeError(
                f"the logs keep only the newest entries and have overwritten {self.lost} of them, "
                f"by rank: totals (`matrix`, `sent`) stay exact, sections do not. Run fewer ops "
                "per launch."
            )
        if label not in self.marks:
            raise KeyError(f"no rank called ledger.mark({label!r}); the marks are {self.marks}")
        parts = []
        for mine in self.by_rank:
            inside, part = False, []
            for entry in mine:
                if entry.op == "mark":
                    inside = entry.file == label
                elif inside:
                    part.append(entry)
            parts.append(part)
        return Ledger(parts, None, [0] * self.world_size, self.zero)

    def matrix(self, unit: str = "bytes") -> np.ndarray:
        """An (N, N) array of integers. At [src, dst] is what src put on the wire for dst with
        sends. The backend's own collectives are not included. Raises ValueError if `unit` is not
        one of UNITS."""
        if unit not in UNITS:
            raise ValueError(f"unit={unit!r} is not one of {', '.join(UNITS)}")
        if self.totals is not None:  # exact for a job of any length: totals are never overwritten
            return self.totals[:, :, UNITS.index(unit)].copy()
        out = np.zeros((self.world_size, self.world_size), dtype=np.int64)
        for entry in self.entries:
            if entry.op == "send":
                out[entry.rank, entry.peer] += {
                    "messages": 1,
                    "elements": entry.numel,
                    "bytes": entry.nbytes,
                }[unit]
        return out

    def trace(self, path: str | Path, spans: Sequence = ()) -> None:
        """Write a Chrome trace to `path`, for ui.perfetto.dev, and print a line about it. The trace
        shows each rank's operations and waits, with an arrow from each send to its receive.

        spans: what else the ranks did, as `paced.Spans` records it: (rank, lane, label, begin,
        end), where begin and end are seconds of the rank's monotonic clock.
        """
        operations = trace.write(self, path, spans)
        print(
            f"{Path(path).name}: {operations} operations of {self.world_size} ranks, for "
            f"https://ui.perfetto.dev"
        )

    def sent(self, unit: str = "bytes", rank: int | None = None) -> int:
        """What one rank, or all ranks together if `rank` is None, put on the wire with sends. unit:
        one of UNITS."""
        matrix = self.matrix(unit)
        return int(matrix.sum() if rank is None else matrix[rank].sum())
