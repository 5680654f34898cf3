"""The parent's watch over running ranks: finished, failed, deadlocked, or out of time.

    a rank raised, called exit, or its process is gone     -> failed, at once
    books unchanged for 0.1 s, and a deadlock is proved    -> deadlock
    books unchanged, every rank idle, and inside           -> no progress, after 2 s: blocked below Python, as in
      torch or a lib collective, for 2 s                      DDP's reducer, where the books alone prove nothing;
                                                              10 s where the machine can be to blame: while a
                                                              rank makes a group, or is in an op that all it
                                                              needs have called
    the time is over, counted from when all have begun,    -> timeout, with the line each rank is at
      without what a busy machine kept from the ranks
    not every rank has begun after 5 minutes               -> no start
    all ranks have returned, and do not leave for 10 s     -> None: their results are there, and the books are compared

A slow but correct program is never blamed: a rank that computes, sleeps or reads is in none of these. What the machine
keeps from the ranks (share.py) counts up to 5 minutes.
"""

import contextlib
import math
import os
import re
import signal
import time
from dataclasses import dataclass, field

import torch

from lib.launch.share import Share, awake
from lib.ledger import source
from lib.ledger.book import EXITED, RAISED, RETURNED, RUNNING, Head
from lib.ledger.read import Books, Ledger
from lib.ledger.verdict import find_waits, is_deadlock

STABLE = 0.1  # seconds without a change in any book before it is judged
STALL = 2.0  # seconds without processor time, for ranks blocked below Python
PATIENCE = 10.0  # the same where the machine can be to blame: a connection that fails is tried again after 1, 3, 7 s
START = 300.0  # seconds until every rank has begun; on a busy machine that is not the function's fault
KEPT = 300.0  # seconds that a busy machine may keep from the ranks, and the timeout does not count
ANSWER = 2.0  # seconds to say where it is, for a rank that the machine lets wait
LEAVE = 10.0  # seconds to leave once all have returned: on a GPU, with ops that nobody read, a rank may not
GRACE = 1.0  # seconds at most between the first failure and the look at the others, for those that are not asleep
TORCH = os.path.dirname(torch.__file__)
LIB = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
now = time.monotonic


@dataclass
class Failure:
    """How a run went wrong, as it was at that moment.

    kind: "failed", "deadlock", "no progress", "timeout" or "no start".
    """

    kind: str
    seconds: float  # that were allowed, or without progress
    heads: list[Head]
    ledger: Ledger
    gone: list[int]  # ranks whose process had ended before its function returned
    busy: dict[int, str]  # rank -> the user's line that it is at
    exit_codes: dict[int, int | None] = field(default_factory=dict)


def watch(agent, books: Books, output, timeout: float, ledger: bool) -> Failure | None:
    """Wait for the agent, showing output. Returns what went wrong, the ranks still alive; None if all returned."""
    started = began = changed = now()
    last, judged, share, stall, spent = None, False, Share(), STALL, 0.0
    returned = math.inf
    while not agent.ends_within(0.01):
        output.pump()
        heads = books.heads()
        if _failed(agent, heads):
            heads = _settled(books, share)
            gone = [r for r, head in enumerate(heads) if head.state < RETURNED and not agent.alive(r)]
            return Failure("failed", timeout, heads, books.read(), gone, {})
        if any(head.state == 0 for head in heads):
            began, spent = now(), 0.0
        if all(head.state == RETURNED for head in heads):
            returned = min(returned, now())
            if now() - returned > LEAVE:
                return None
            continue
        spent += share.look({head.rank: head.pid for head in heads if head.state == RUNNING})
        signature = _signature(heads)
        if signature != last:
            last, changed, judged, stall = signature, now(), False, STALL
            share.expect()
        kind = None
        if ledger and not judged and now() - changed > STABLE:
            judged = True
            kind = "deadlock" if is_deadlock(books.read(), heads) else None
        elif ledger and judged and share.idle(stall):
            waiting = find_waits(books.read(), heads)
            running = [r for r, head in enumerate(heads) if head.state == RUNNING]
            stacks = _stacks(agent, books, running)
            under_way = any(not wait.awaited for wait in waiting.values())
            if stall == STALL and (under_way or any(map(_is_connecting, stacks.values()))):
                stall = PATIENCE
                continue
            blocked = all(_is_blocked(stacks.get(r, [])) or (r in waiting and waiting[r].for_certain) for r in running)
            kind = "no progress" if waiting and blocked and _signature(books.heads()) == signature else None
            share.expect()
        if kind is None and (spent > timeout or now() - began > timeout + KEPT):
            kind = "timeout"
        if kind is None and began - started > START:
            kind = "no start"
        if kind:
            stacks = _stacks(agent, books, [r for r, head in enumerate(heads) if head.state == RUNNING])
            busy = {rank: line for rank, frames in stacks.items() if (line := _user_line(frames))}
            seconds = {"no start": START, "no progress": stall}.get(kind, timeout)
            return Failure(kind, seconds, books.heads(), books.read(), [], busy)
    return None


def _settled(books, share):
    """The ranks' heads once those that still run are asleep, as in a wait for the one that failed. GRACE at most."""
    began, theirs = now(), 0.0
    while theirs < GRACE and now() - began < PATIENCE:
        running = {head.rank: head.pid for head in books.heads() if head.state == RUNNING}
        if not awake(running.values(), 0.05):
            break
        theirs += share.look(running)
    return books.heads()


def _signature(heads):
    """It changes with everything that a rank writes into its book."""
    return tuple((head.state, head.touches) for head in heads)


def _failed(agent, heads):
    for rank, head in enumerate(heads):
        if head.state in (RAISED, EXITED) or (head.state < RETURNED and not agent.alive(rank)):
            return True
    return False


GROUP = ("new_group", "init_process_group")  # torch's functions that make one
FRAME = re.compile(r'File "(.*)", line (\d+) in (.*)')


def _stacks(agent, books, ranks):
    """rank -> [(file, line, function), ...] of its main thread, innermost first. faulthandler writes it on SIGUSR1."""
    paths = {rank: f"{agent.folder}/stack{rank}" for rank in ranks}
    starts = {rank: os.path.getsize(path) for rank, path in paths.items() if os.path.exists(path)}
    for rank in starts:
        with contextlib.suppress(ProcessLookupError):
            os.kill(books.readers[rank].head().pid, signal.SIGUSR1)
    sizes, before, asked = dict(starts), None, now()
    while now() - asked < ANSWER and not (sizes == before and all(sizes[rank] > starts[rank] for rank in starts)):
        time.sleep(0.05)
        before, sizes = sizes, {rank: os.path.getsize(paths[rank]) for rank in starts}
    stacks = {}
    for rank, start in starts.items():
        with open(paths[rank], errors="replace") as file:
            file.seek(start)
            text = file.read()
        main = text.split("Current thread")[-1]
        stacks[rank] = [(f, int(line), function) for f, line, function in FRAME.findall(main)]
    return stacks


def _is_blocked(frames):
    """Is the rank inside a torch call, or inside a wait of one of lib's collectives or of the ledger?"""
    inner = next((f for f in frames if not f[0].endswith("threading.py")), None)
    return inner is not None and inner[0].startswith((TORCH, LIB + "collectives", LIB + "ledger"))


def _is_connecting(frames):
    """Is the rank making a process group, in torch?"""
    return any(file.startswith(TORCH) and function in GROUP for file, _, function in frames)


def _user_line(frames):
    for file, line, function in frames:
        if not file.startswith((TORCH, LIB + "launch", LIB + "ledger", "<frozen")) and "python3" not in file:
            return source.place(file, line, function)
    return None
