"""How much of the machine the ranks get: do they want a processor at all, and how much of the time was theirs?

    idle     every rank wanted a processor for less than 3 % of the time; wanted = ran on one + was ready and waited
    theirs   the time, without what others kept from the ranks, and without what the machine or its disk stood still

             |== ranks run ==|-- ranks ready, others run --|........ all ranks sleep ........|
             |==== theirs ===|                             |============ theirs =============|

A rank that a busy machine lets wait is neither idle nor slow. Linux counts the waiting for each thread, in nanoseconds
(schedstat in /proc), and says whether it waits for a disk, as for a page of torch that was dropped from memory (state D
in stat). Elsewhere no rank is ever called idle, and all the time is theirs.
"""

import contextlib
import os
import time

EVERY = 0.2  # seconds between two looks
ABSENT = 0.5  # seconds between two looks after which it is the machine that stood still, and not the ranks
PROCESSORS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
now = time.monotonic


class Share:
    """Looks at the ranks again and again, from beside them."""

    def __init__(self):
        self.looked, self.seen = now(), {}
        self.expect()

    def expect(self):
        """The ranks have done something: whether they are idle is counted from here."""
        self.since, self.wanted = now(), {}

    def look(self, pids: dict[int, int]) -> float:
        """To be called all the time. pids: of the ranks that run. Returns the seconds since its last look that were
        theirs, 0 when that was just now."""
        span = now() - self.looked
        if span < EVERY:
            return 0.0
        seen = {rank: _used(pid) for rank, pid in pids.items()}
        before, self.seen, self.looked = self.seen, seen, self.looked + span
        if any(on_disk for *_, on_disk in seen.values()):
            self.expect()
            return 0.0
        if span > ABSENT or seen.keys() != before.keys():
            self.expect()
            return min(span, ABSENT)
        ran = {rank: max(0.0, seen[rank][0] - before[rank][0]) for rank in seen}
        waited = {rank: max(0.0, seen[rank][1] - before[rank][1]) for rank in seen}
        for rank in seen:
            self.wanted[rank] = self.wanted.get(rank, 0.0) + ran[rank] + waited[rank]
        if any(wanted > 0.03 + 0.03 * (now() - self.since) for wanted in self.wanted.values()):
            self.expect()
        return span - kept(span, sum(ran.values()), sum(waited.values()), PROCESSORS)

    def idle(self, seconds: float) -> bool:
        """Were all ranks idle for so long? (gloo's own thread takes 1 %.)"""
        return os.path.exists("/proc/self/schedstat") and bool(self.seen) and now() - self.since > seconds


def kept(span: float, ran: float, waited: float, processors: int) -> float:
    """Seconds of `span` in which others had the processors that the ranks were ready for.

    ran, waited: seconds, of all ranks together. They can use no more processors than there are, and to wait for one
    another is no loss: wanted = min(processors * span, ran + waited), on wanted / span of them, one at the least.
    """
    wanted = min(processors * span, ran + waited)
    return max(0.0, wanted - ran) / max(1.0, wanted / span)


def _used(pid):
    """Of all threads of a process: (seconds on a processor, seconds ready and waiting for one, does one wait for a
    disk?)"""
    ran, waited, on_disk = 0, 0, False
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):  # it has ended
                on, ready, _ = map(int, _read(f"/proc/{pid}/task/{thread}/schedstat").split())
                state = _read(f"/proc/{pid}/task/{thread}/stat").rpartition(")")[2].split()[0]
                ran, waited, on_disk = ran + on, waited + ready, on_disk or state == "D"
    return ran / 1e9, waited / 1e9, on_disk


def _read(path):
    with open(path) as file:
        return file.read()
