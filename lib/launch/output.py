"""Shows what the ranks print, as `[rank 2] ...`, up to a limit for each rank. Each rank writes into
two files (stdout and stderr), which the parent reads while the rank runs.

For one second after the first output nothing is shown, unless a rank prints very much. A short run
therefore shows all lines of rank 0, then all of rank 1, and so on, in the same order every time. A
longer run then streams its output: at each look it shows, in rank order, what is new.
"""

import glob
import os
import sys
import time

LIMIT = 20_000  # characters that a rank may show per launch, on each of stdout and stderr
OF_GLOO = "[Gloo] Rank "  # torch 2.10 prints such a line, from C++, for each new group
HOLD = 1.0  # seconds after the first output in which nothing is shown


class Output:
    """Collects what all ranks print in one run, and shows it if `show` is true."""

    def __init__(self, folder: str, nproc: int, show: bool, earlier: bool = False):
        """earlier: the ranks have done other runs before, whose output is dropped."""
        self.folder, self.nproc, self.show = folder, nproc, show
        self.first: float | None = None  # when the first output was seen
        self.streams: dict[tuple[int, str], _Stream] = {}
        self.lines: list[tuple[int, str]] = []  # (rank, line) of stdout
        if earlier:
            for stream in self._all().values():
                stream.empty()

    def pump(self, final: bool = False) -> None:
        """Show what is new. final: the run is over, so nothing is held back any longer, not even a
        last line without a newline."""
        streams = self._all()
        if self.first is None and any(stream.size() for stream in streams.values()):
            self.first = time.monotonic()
        hold = not final and (self.first is None or time.monotonic() - self.first < HOLD)
        for (which, rank), stream in streams.items():
            if not (hold and stream.size() <= 4 * LIMIT):
                for line in stream.take(final):
                    if which == "stdout":
                        self.lines.append((rank, line))
                    if self.show:
                        print(
                            f"[rank {rank}] {line}",
                            file=sys.stdout if which == "stdout" else sys.stderr,
                        )
        if self.show:
            sys.stdout.flush()

    def _all(self):
        """{(which, rank): _Stream}, stdout of all ranks before stderr. Ranks that have not been
        started yet are missing."""
        if len(self.streams) < 2 * self.nproc:
            wanted = [(which, rank) for which in ("stdout", "stderr") for rank in range(self.nproc)]
            for attempt in glob.glob(f"{self.folder}/log/*/attempt_0"):
                paths = {(which, rank): f"{attempt}/{rank}/{which}.log" for which, rank in wanted}
                self.streams = {
                    k: self.streams.get(k) or _Stream(p)
                    for k, p in paths.items()
                    if os.path.exists(p)
                }
        return self.streams


class _Stream:
    """One file that a rank writes and we read: its stdout or its stderr."""

    def __init__(self, path):
        self.path, self.at, self.shown, self.pending, self.capped = path, 0, 0, b"", False

    def size(self):
        return os.path.getsize(self.path)

    def empty(self):
        if self.size():
            os.truncate(self.path, 0)

    def take(self, final):
        size = os.path.getsize(self.path)
        if self.capped:
            self._drop()
        elif size > self.at:
            with open(self.path, "rb") as file:
                file.seek(self.at)
                data = file.read(2 * LIMIT)
            self.at += len(data)
            self.pending += data
        *lines, rest = self.pending.split(b"\n")
        self.pending = rest
        if final and rest:
            lines, self.pending = [*lines, rest], b""
        for line in lines:
            text = line.decode(errors="replace").rstrip("\r")
            if text.startswith(OF_GLOO):
                continue
            if self.shown + len(text) > LIMIT:
                yield from self._cap(text)
                return
            self.shown += len(text) + 1
            yield text
        if len(self.pending) > LIMIT:  # very long output without a newline
            yield from self._cap(self.pending.decode(errors="replace"))
        elif size > self.at:
            yield from self.take(final)

    def _cap(self, text):
        if self.capped:
            return
        room = LIMIT - self.shown
        self.capped, self.pending = True, b""
        if room > 0:
            yield text[:room]
        yield (
            f"... (output capped: a rank may show {LIMIT:,} characters per launch, on each of "
            f"stdout and stderr. Print less, or return the data.)"
        )
        self._drop()

    def _drop(self):
        """Empty the file of a rank that has reached its limit, so that a rank that prints forever
        does not fill the disk."""
        os.truncate(self.path, 0)
