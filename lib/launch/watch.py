"""The parent's watch over a run: it decides whether the ranks have finished, failed, deadlocked, or
run out of time.

It looks at the ranks' logs every 10 ms. A run is always in one of these states; the third column
names the kind of `Failure` with which a state can end the run:

    state     is entered when                            can end the run with
    --------  -----------------------------------------  -------------------------------------------
    starting  the ranks are launched                     "no start", if some rank has not begun
                                                         after 5 minutes
    running   all ranks have begun, or any log changes   (no failure of its own)
    quiet     no log has changed for 0.1 s               "deadlock", if the logs prove one
    stalled   still no log has changed, and every rank   "no progress", if every rank that runs is
              has been idle for 2 s                      blocked inside torch (below Python, as in
                                                         DDP's reducer) or in a wait of lib
    patient   as stalled, but the machine may be to      "no progress", as in "stalled", but only
              blame: a rank is making a group, or is in  after every rank has been idle for 10 s
              an op that every rank it needs has called
    quiet,    a rank waits for its GPU: the host then    "no progress", if the logs prove a deadlock
    on GPUs   spins, so it is never idle                 under the assumption that every rank whose
                                                         stack has not moved for 10 s waits for its
                                                         GPU
    over      all ranks have returned                    nothing

    in each   a rank raised, called exit, or is gone     "failed", at once. In a session, however, a
                                                         rank that raised counts as returned until
                                                         the others have returned, or wait for it
    in each   a person interrupts the run                "stopped", with the line where each rank is
    once all  the timeout is over                        "timeout", with the line where each rank is
    have begun

A correct program that is only slow is ended by the timeout at worst, because "deadlock" has to
follow from the logs, and "no progress" needs ranks that are blocked inside torch or a wait of lib.
The timeout counts from when all ranks have begun. It leaves out the time for which a busy machine
kept the ranks from running (cpu_time.py), up to 5 minutes.
"""

import time
from dataclasses import dataclass, field

from lib import linux
from lib.launch import stacks
from lib.launch.cpu_time import CpuTime, awake, now
from lib.ledger.log import EXITED, RAISED, RETURNED, RUNNING, Head
from lib.ledger.read import Ledger, Logs
from lib.ledger.verdict import find_waits, is_deadlock

LOOK = 0.01  # seconds between two looks; shorter at first, because a run may take milliseconds
STABLE = 0.1  # seconds without a change in any log before the logs are judged
STALL = 2.0  # seconds without processor time before ranks can count as blocked below Python
# the same if the machine may be to blame, because a failed connection is retried after 1, 3 and 7 s
PATIENCE = 10.0
# seconds within which every rank has to begin: a long time, because the machine may just be busy
START = 300.0
KEPT = 300.0  # the most seconds of delay by a busy machine that the timeout leaves out
# the most seconds that we wait, after the first failure, until the other ranks are at rest
GRACE = 1.0


@dataclass
class Failure:
    """How a run went wrong, with the state of the ranks at that moment.

    kind: "failed", "deadlock", "no progress", "timeout", "no start" or "stopped".
    """

    kind: str
    seconds: float  # the time that was allowed, or that passed without progress
    heads: list[Head]
    ledger: Ledger
    # ranks whose process ended before its function returned, beginning with those seen first
    gone: list[int]
    busy: dict[int, str]  # rank -> what it is doing, and at which line of the user's code
    elapsed: float = 0.0  # seconds by the clock since all ranks had begun; "stopped": since launch
    exit_codes: dict[int, int | None] = field(default_factory=dict)


def watch(
    agent,
    logs: Logs,
    output,
    timeout: float,
    ledger: bool,
    sign=None,
    prompt=None,
    stays: bool = False,
) -> Failure | None:
    """Wait until all ranks have returned, and show their output meanwhile. Returns None if all went
    well, else what went wrong. Ranks that are still alive are left running.

    agent: the lib.launch.agent.Agent that started them. timeout: in seconds. ledger: whether the
        ranks record their ops, without which no deadlock can be found.
    sign: a lib.launch.sign.Sign, which says meanwhile what the ranks are doing. prompt: a
        lib.launch.debugger.Prompt, which asks a person for commands. stays: whether the ranks
        belong to a session.
    A KeyboardInterrupt ends the wait, and the Failure says what the ranks were doing. A second
    KeyboardInterrupt that arrives before this is known is raised.
    """
    watched, pause = _Watch(agent, logs, timeout, ledger, stays), 0.0005
    try:
        while watched.look() != "over" and not agent.has_ended:
            time.sleep(pause)
            if pause == LOOK:
                output.pump()
                if sign is not None:
                    sign.look()
                if prompt is not None and (seconds := prompt.look()):
                    watched.rested(seconds)
            pause = min(LOOK, 1.2 * pause)
        if watched.state != "over":
            watched.look()  # the agent has ended, because a rank is gone or none could be started
    except KeyboardInterrupt:
        watched.stop()
    return watched.failure


class _Watch:
    """The state of a run, as in the table above, and the times from which it is judged."""

    def __init__(self, agent, logs, timeout, ledger, stays):
        self.stays = stays
        self.agent, self.logs, self.timeout, self.ledger = agent, logs, timeout, ledger
        self.cpu_time, self.failure, self.signature = CpuTime(), None, None
        self.launched = self.began = self.changed = now()
        self.spent = 0.0  # seconds of the timeout that are used up
        self.on_gpus, self.spins = False, {}  # rank -> (its stack, since when it has not moved)
        self.state = "starting"

    def look(self) -> str:
        """Look at the ranks once. Returns the state of the run, which is "over" if there is nothing
        more to wait for."""
        self.state = self._looked(self.logs.heads())
        return self.state

    def _looked(self, heads):
        raised = any(head.state in (RAISED, EXITED) for head in heads)
        if _gone(self.agent, heads) or (raised and not self.stays):
            return self._failed(heads)
        if any(head.state == 0 for head in heads):
            return self._starting(heads)
        if all(head.state >= RETURNED for head in heads):
            return self._failed(heads) if raised else "over"
        self.spent += self.cpu_time.sample(
            {head.rank: head.pid for head in heads if head.state == RUNNING}
        )
        signature, entered = _signature(heads), self.state
        if signature != self.signature:
            self.signature, self.changed, entered = signature, now(), "running"
            self.cpu_time.reset()
        if self.ledger:
            entered = {"running": self._running, "quiet": self._quiet, "patient": self._patient}[
                entered
            ](heads)
        if entered != "over" and (
            self.spent > self.timeout or now() - self.began > self.timeout + KEPT
        ):
            return self._over("timeout", heads, self.timeout)
        return entered

    def _starting(self, heads):
        self.began, self.spent = now(), 0.0
        return self._over("no start", heads, START) if now() - self.launched > START else "starting"

    def _running(self, heads):
        if now() - self.changed <= STABLE:
            return "running"
        ledger = self.logs.read()
        self.on_gpus = any(e.open and e.item >= 0 for log in ledger.by_rank for e in log)
        self.looked, self.spins = self.changed, {}
        proved = is_deadlock(ledger, heads) and self._unchanged()
        return self._over("deadlock", heads) if proved else "quiet"

    def _quiet(self, heads):
        if self.cpu_time.idle(STALL):
            return self._stalled(heads)
        return self._spinning(heads) if self.on_gpus and now() - self.looked > STALL else "quiet"

    def _spinning(self, heads):
        """A host that waits for its GPU spins, so it is never idle. Therefore we compare its stack
        with the previous one every STALL seconds.

        A host whose GPU is computing spins as well. It is not blamed, because a verdict requires
        that the ranks' stacks have not moved for PATIENCE seconds, and that the logs prove a
        deadlock under the assumption that these ranks wait for their GPUs.
        """
        self.looked, before = now(), self.spins
        running = {head.rank: head.pid for head in heads if head.state == RUNNING}
        busy = {rank for rank, pid in running.items() if linux.state(pid) == "R"}
        seen = {
            rank: f
            for rank, f in self._stacks(heads).items()
            if rank in busy or stacks.is_blocked(f)
        }
        self.spins = {
            r: before[r] if r in before and before[r][0] == f else (f, self.looked)
            for r, f in seen.items()
        }
        waits = {rank for rank, (_, since) in self.spins.items() if self.looked - since > PATIENCE}
        if waits and is_deadlock(self.logs.read(), heads, waits) and self._unchanged():
            return self._over("no progress", heads, PATIENCE)
        return "quiet"

    def _stalled(self, heads):
        """All ranks have been idle for STALL seconds. Decide whether they are blocked for good, or
        whether the machine may be to blame."""
        ledger, stack = self.logs.read(), self._stacks(heads)
        waits = find_waits(ledger, heads)
        # If a rank has returned without waiting for a message or collective of its own, that may be
        # lost, and then waiting longer does not help.
        lost = any(
            entry.owed for head in heads if head.state == RETURNED for entry in ledger.of(head.rank)
        )
        under_way = any(not wait.awaited for wait in waits.values()) and not lost
        if under_way or any(map(stacks.is_connecting, stack.values())):
            return "patient"
        return self._no_progress(heads, waits, stack, STALL)

    def _patient(self, heads):
        if not self.cpu_time.idle(PATIENCE):
            return "patient"
        return self._no_progress(
            heads, find_waits(self.logs.read(), heads), self._stacks(heads), PATIENCE
        )

    def _no_progress(self, heads, waits, stack, seconds):
        running = [rank for rank, head in enumerate(heads) if head.state == RUNNING]
        sure = all(
            stacks.is_blocked(stack.get(r, [])) or (r in waits and waits[r].for_certain)
            for r in running
        )
        if waits and sure and self._unchanged():
            return self._over("no progress", heads, seconds)
        self.cpu_time.reset()
        return "quiet"

    def _unchanged(self):
        """Are all logs unchanged since this look began? They are read one after another, and a rank
        may have continued meanwhile, so a proof counts only if no log has changed."""
        return _signature(self.logs.heads()) == self.signature

    def _failed(self, heads):
        first = _gone(self.agent, heads)
        heads = _settled(self.agent, self.logs, self.cpu_time)
        gone = [*first, *(rank for rank in _gone(self.agent, heads) if rank not in first)]
        self.failure = Failure("failed", self.timeout, heads, self.logs.read(), gone, {})
        return "over"

    def rested(self, seconds: float) -> None:
        """Leave out `seconds` for which a person has debugged a rank, so that they count towards no
        timeout."""
        self.began += seconds
        self.changed = now()
        self.cpu_time.reset()

    def stop(self) -> None:
        """Record what the ranks are doing at this moment, because a person has interrupted the
        run."""
        self._over("stopped", self.logs.heads())
        self.failure.elapsed = now() - self.launched

    def _over(self, kind, heads, seconds=0.0):
        doing = {
            rank: _doing(heads[rank].pid, frames) for rank, frames in self._stacks(heads).items()
        }
        elapsed = now() - self.began
        if kind != "stopped" and any(head.state in (RAISED, EXITED) for head in heads):
            kind = "failed"
        self.failure = Failure(
            kind, seconds, self.logs.heads(), self.logs.read(), [], doing, elapsed
        )
        return "over"

    def _stacks(self, heads):
        running = {head.rank: head.pid for head in heads if head.state == RUNNING}
        return stacks.ask(self.agent.folder, running)


def _settled(agent, logs, cpu_time):
    """The heads of the ranks' logs a little after a failure, once every rank has begun and those
    that still run are asleep in some wait, so that the report says where they wait. Waits for at
    most GRACE seconds of the ranks' own time, and on a busy machine for up to 3 * PATIENCE seconds
    by the clock."""
    began, scheduled = now(), 0.0
    while scheduled < GRACE and now() - began < 3 * PATIENCE:
        heads, pids = logs.heads(), dict(enumerate(agent.pids()))
        coming = {rank for rank, head in enumerate(heads) if head.state == 0 and agent.alive(rank)}
        going_on = {r: pid for r, pid in pids.items() if heads[r].state == RUNNING or r in coming}
        if not awake(going_on.values(), 0.05) and not coming:
            break
        scheduled += cpu_time.sample(going_on)
    return logs.heads()


def _signature(heads):
    """A value that changes whenever a rank writes into its log."""
    return tuple((head.state, head.touches) for head in heads)


def _gone(agent, heads):
    """The ranks whose process ended before its function returned. If the agent has ended, these are
    all ranks that have not returned, because the agent ends its ranks first."""
    ended = agent.has_ended and agent.pids()
    return [
        rank
        for rank, head in enumerate(heads)
        if head.state < RETURNED and (ended or not agent.alive(rank))
    ]


def _doing(pid, frames):
    """What a rank that waits for no other rank is doing, and at which line, in words."""
    line = stacks.user_line(frames)
    words = {
        "T": "is stopped by a signal",
        "S": "sleeps, in no communication that the ledger knows",
    }
    return words.get(linux.state(pid), "computes and waits for no rank") + (
        f": {line}" if line else ""
    )
