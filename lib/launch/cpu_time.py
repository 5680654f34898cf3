"""Measures how much processor time the ranks want and how much they get, so that the watch
(watch.py) does not mistake a busy machine for a program that is stuck or slow.

A rank *wants* a processor while one of its threads runs, or while its main thread is ready to run
but has to wait for one. The watch asks two questions:

    idle       Has every rank wanted one for at most 3 % of the time, plus 30 ms? Then they may be
               stuck.
    scheduled  How much time counts towards the timeout? All of it, except when other programs kept
               the ranks waiting, or when the machine or its disk stood still. As a timeline:

                |== ranks run ==|-- ranks ready, others run --|........ all ranks sleep ........|
                |== scheduled ==|                             |========== scheduled ============|

Linux counts in nanoseconds how long each thread has waited (lib/linux.py), and reports whether it
waits for a disk (state D), for example for a page of torch that was dropped from memory. On other
systems no rank is ever considered idle, and all time counts as scheduled, unless the machine stood
still.
"""

import time
from collections.abc import Collection

from lib import linux

EVERY = 0.2  # seconds between two looks
# if more seconds than this pass between two looks, we assume that the machine stood still
ABSENT = 0.5
PROCESSORS = len(linux.processors())
now = time.monotonic


class CpuTime:
    """Samples the ranks' threads repeatedly, from the parent."""

    def __init__(self):
        self.looked, self.seen, self.told = now(), {}, {}
        self.reset()

    def reset(self):
        """Start anew, because the ranks have just done something and were not idle until now."""
        self.since, self.wanted = now(), {}

    def sample(self, pids: dict[int, int]) -> float:
        """Look at the ranks. Returns the scheduled seconds since the last look, which are at most
        `ABSENT`, and 0 if the look was less than `EVERY` seconds ago, or if a thread waits for a
        disk.

        pids: {rank: process id} of the ranks that run.
        """
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
        # a rank that has left meanwhile is not in `seen`, and does not matter for the others
        for rank, threads in seen.items():
            for number in threads.keys() & before.get(rank, {}).keys():
                ran, waited = self._since(number, before[rank][number], threads[number], span)
                all_ran, all_waited = all_ran + ran, all_waited + waited
                # other threads' waits do not count, because gloo's often wait only in order to poll
                waited = waited if number == str(pids[rank]) else 0.0
                self.wanted[rank] = self.wanted.get(rank, 0.0) + ran + waited
        if any(wanted > 0.03 + 0.03 * (now() - self.since) for wanted in self.wanted.values()):
            self.reset()
        return min(span - kept(span, all_ran, all_waited, PROCESSORS), ABSENT)

    def _since(self, number, before, thread, span):
        """(seconds that a thread ran, seconds that it was ready and had to wait) in the last `span`
        seconds.

        Linux adds a wait to its counter only when it is over. If a thread is ready and has not run
        since the last look, we conclude that it is still waiting, count `span`, and subtract that
        again (`told`) when Linux adds the wait. A thread that has run meanwhile may be ready only
        by chance: gloo's threads wake a hundred times a second, so among more than a hundred of
        them some are always ready.
        """
        ran, booked = thread.ran - before.ran, thread.waited - before.waited
        told = self.told.pop(number, 0.0)
        if thread.state != "R" or ran > 0:
            return ran, max(0.0, booked - told)
        self.told[number] = told + span
        return 0.0, span

    def idle(self, seconds: float) -> bool:
        """Have all ranks been idle for this many seconds? (gloo's own thread uses only 1 %.)"""
        return linux.counts_waiting() and bool(self.seen) and now() - self.since > seconds


def kept(span: float, ran: float, waited: float, processors: int) -> float:
    """Seconds of `span` in which other programs had the processors that the ranks were ready for.

    ran, waited: seconds, summed over all ranks. The ranks cannot use more processors than there
    are, and if a rank waits for a processor that another rank uses, nothing is lost to other
    programs. Together they therefore wanted min(processors * span, ran + waited) seconds. We divide
    the part that they did not get by the number of processors that they could have used, which is
    wanted / span, and at least one.
    """
    wanted = min(processors * span, ran + waited)
    return max(0.0, wanted - ran) / max(1.0, wanted / span)


def awake(pids: Collection[int], seconds: float) -> bool:
    """Does one of these processes run, or wait for a processor or a disk, during the next `seconds`
    seconds, in which we watch them? Up to a tenth of that time is ignored."""
    before = [linux.threads(pid) for pid in pids]
    time.sleep(seconds)
    for then, at in zip(before, map(linux.threads, pids), strict=True):
        wanted = sum(
            at[t].ran + at[t].waited - then[t].ran - then[t].waited for t in at.keys() & then.keys()
        )
        if wanted > 0.1 * seconds or any(thread.state in "RD" for thread in at.values()):
            return True
    return False
