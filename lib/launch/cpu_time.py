"""How much of the machine the ranks get: do they want a processor at all, and how much of the time
were they scheduled?

    idle       every rank wanted a processor for less than 3 % of the time; wanted = ran, or its
               main thread waited
    scheduled  the time, without what others kept from the ranks, and without what the machine or
               its disk stood still

                |== ranks run ==|-- ranks ready, others run --|........ all ranks sleep ........|
                |== scheduled ==|                             |========== scheduled ============|

A rank that a busy machine lets wait is neither idle nor slow. Linux counts the waiting for each
thread, in nanoseconds (lib/linux.py), and says whether it waits for a disk, as for a page of torch
that was dropped from memory (state D). Elsewhere no rank is ever called idle, and all the time is
scheduled time.
"""

import time
from collections.abc import Collection

from lib import linux

EVERY = 0.2  # seconds between two looks
# seconds between two looks after which it is the machine that stood still, and not the ranks
ABSENT = 0.5
PROCESSORS = len(linux.processors())
now = time.monotonic


class CpuTime:
    """Looks at the ranks again and again, from outside."""

    def __init__(self):
        self.looked, self.seen, self.told = now(), {}, {}
        self.reset()

    def reset(self):
        """The ranks have done something: whether they are idle is counted from here."""
        self.since, self.wanted = now(), {}

    def sample(self, pids: dict[int, int]) -> float:
        """To be called all the time. pids: of the ranks that run. Returns the scheduled seconds
        since its last look, 0 when that was just now."""
        span = now() - self.looked
        if span < EVERY:
            return 0.0
        seen = {rank: linux.threads(pid) for rank, pid in pids.items()}
        before, self.seen, self.looked = self.seen, seen, self.looked + span
        if any(thread.state == "D" for threads in seen.values() for thread in threads.values()):
            self.reset()
            return 0.0
        if span > ABSENT or seen.keys() != before.keys():
            self.reset()
        all_ran = all_waited = 0.0
        for (
            rank,
            threads,
        ) in seen.items():  # a rank that has left meanwhile says nothing about those that go on
            for number in threads.keys() & before.get(rank, {}).keys():
                ran, waited = self._since(number, before[rank][number], threads[number], span)
                all_ran, all_waited = all_ran + ran, all_waited + waited
                # gloo's thread polls, and waits to do so
                waited = waited if number == str(pids[rank]) else 0.0
                self.wanted[rank] = self.wanted.get(rank, 0.0) + ran + waited
        if any(wanted > 0.03 + 0.03 * (now() - self.since) for wanted in self.wanted.values()):
            self.reset()
        return min(span - kept(span, all_ran, all_waited, PROCESSORS), ABSENT)

    def _since(self, number, before, thread, span):
        """(seconds it ran, seconds it was ready and waited) of a thread in the last `span` seconds.

        Linux counts a wait when it is over. One that goes on is seen by a thread that is ready and
        has not run since the last look, and is subtracted when it is counted. A thread that has run
        may be ready by chance: gloo's threads wake a hundred times a second, and of more than a
        hundred of them some are always ready.
        """
        ran, booked = thread.ran - before.ran, thread.waited - before.waited
        told = self.told.pop(number, 0.0)
        if thread.state != "R" or ran > 0:
            return ran, max(0.0, booked - told)
        self.told[number] = told + span
        return 0.0, span

    def idle(self, seconds: float) -> bool:
        """Were all ranks idle for so long? (gloo's own thread takes 1 %.)"""
        return linux.counts_waiting() and bool(self.seen) and now() - self.since > seconds


def kept(span: float, ran: float, waited: float, processors: int) -> float:
    """Seconds of `span` in which others had the processors that the ranks were ready for.

    ran, waited: seconds, of all ranks together. They can use no more processors than there are, and
    to wait for one another is no loss: wanted = min(processors * span, ran + waited), on wanted /
    span of them, one at the least.
    """
    wanted = min(processors * span, ran + waited)
    return max(0.0, wanted - ran) / max(1.0, wanted / span)


def awake(pids: Collection[int], seconds: float) -> bool:
    """Looked at for so long, does one of these processes run, wait for a processor
    or for a disk?"""
    before = [linux.threads(pid) for pid in pids]
    time.sleep(seconds)
    for then, at in zip(before, map(linux.threads, pids), strict=True):
        wanted = sum(
            at[t].ran + at[t].waited - then[t].ran - then[t].waited for t in at.keys() & then.keys()
        )
        if wanted > 0.1 * seconds or any(thread.state in "RD" for thread in at.values()):
            return True
    return False
