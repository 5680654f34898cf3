"""Finds out which rank waits for which, and when this is certainly a deadlock.

    rank 0  waits for  rank 3   There is an edge to each rank whose call an op still lacks. For a
       ^                  |     send or a receive, this is the rank at the other end. For a
       |                  v     collective, these are the members that have not called it.
    rank 1  <---------  rank 2

A rank is *stuck for good* if it has a single thread, that thread is inside a wait, and a rank that
it waits for has left its function or is itself stuck for good. (For a receive from any source, this
must hold for all other members of the group.) To find the largest set of such ranks, we start with
all ranks that certainly wait, and repeatedly remove those that may still continue. Nothing here
looks at a clock, so the ranks of a program that is only slow are never in that set.
"""

from collections.abc import Collection
from dataclasses import dataclass

from lib.cycle import find_cycle
from lib.ledger.log import EXITED, KILLED, RAISED, RETURNED, RUNNING, Entry, Head
from lib.ledger.match import audit, called, groups_not_made, never_waited_for
from lib.ledger.read import Ledger
from lib.ledger.words import ranks_text, say


@dataclass(frozen=True)
class Wait:
    """One rank's wait. entry: the op that it waits for. awaited: the ranks that have not called
    this op yet. for_certain: the rank's only thread is inside that wait, or the rank is `spinning`
    (see `find_waits`)."""

    rank: int
    entry: Entry
    awaited: tuple[int, ...]
    for_certain: bool


def find_waits(
    ledger: Ledger, heads: list[Head], spinning: Collection[int] = ()
) -> dict[int, Wait]:
    """{rank: its Wait} for the ranks that wait.

    spinning: ranks whose stacks indicate that they wait below Python for their GPU, and therefore
    for the first op in its queue.
    """
    reached = _reached(ledger)
    waits = {}
    for rank, head in enumerate(heads):
        if head.state not in (0, RUNNING):
            continue
        mine = ledger.of(rank)
        inside = next((e for e in reversed(mine) if e.wait_from is not None and e.open), None)
        entry = inside or next(
            (e for e in mine if e.open and _is_below_python(e, rank in spinning)), None
        )
        if entry is not None:
            certain = entry.threads == 1 if inside else rank in spinning
            first = min(_first_of_queue(mine, entry), key=lambda e: not _lacks(e, reached))
            waits[rank] = Wait(rank, first, _lacks(first, reached), certain)
    return waits


def _is_below_python(entry, spins):
    """May the rank be waiting for this op without having called a `wait` that we see? That is
    possible for a collective, as in DDP's reducer, and, if the rank spins, for an op in its GPU's
    queue."""
    return entry.item >= 0 if spins else not entry.is_message and entry.op != "mark"


def _first_of_queue(mine, entry):
    """The ops that have to end first if a rank waits for `entry`: the op at the head of its group's
    queue on the GPU, or all ops of the batch there. Without such a queue (gloo), only `entry`."""
    queue = [e for e in mine if e.open and 0 <= e.item <= entry.item and e.group == entry.group]
    return [e for e in queue if e.item == queue[0].item] or [entry]


def _reached(ledger):
    """A dict with two kinds of keys. (rank, channel, kind) -> how many such ops the rank has
    posted, where kind is the op of a message and "" for a collective. (rank, "anyone") -> True if
    the rank has an open receive from any source.

    An op that waits in a GPU's queue behind one that has not ended cannot have begun, so it is not
    counted.
    """
    reached = {}
    for rank in range(ledger.world_size):
        at = {}  # group -> the item at the head of its queue
        for e in ledger.of(rank):
            if e.open and e.item >= 0:
                at.setdefault(e.group, e.item)
            if e.item > at.get(e.group, e.item):
                continue
            if e.op != "mark" and e.nth >= 0:
                kind = e.op if e.is_message else ""
                reached[rank, e.channel, kind] = max(
                    reached.get((rank, e.channel, kind), 0), e.nth + 1
                )
            elif e.op == "recv_any" and e.nth < 0:
                reached[rank, "anyone"] = True
    return reached


def _lacks(entry, reached):
    if entry.op == "recv_any":
        return tuple(m for m in entry.members if m != entry.rank)
    if entry.is_message:
        if entry.op == "send" and reached.get((entry.peer, "anyone")):
            return ()  # the open receive from any source may take it
        other = "recv" if entry.op == "send" else "send"
        return (
            () if reached.get((entry.peer, entry.channel, other), 0) > entry.nth else (entry.peer,)
        )
    return tuple(m for m in entry.members if reached.get((m, entry.channel, ""), 0) <= entry.nth)


def stuck_for_good(waits: dict[int, Wait], left: set[int]) -> set[int]:
    """The ranks that can never continue, whatever the others do. left: the ranks that have left
    their function."""
    stuck = {rank for rank, wait in waits.items() if wait.for_certain}
    while True:
        dead = stuck | left
        hopeless = {
            rank
            for rank in stuck
            # A receive from any source is hopeless only if all its possible senders are dead. Any
            # other op is hopeless as soon as one of the ranks that it needs is dead.
            if (all if waits[rank].entry.op == "recv_any" else any)(
                peer in dead for peer in waits[rank].awaited
            )
        }
        if hopeless == stuck:
            return stuck
        stuck = hopeless


def is_deadlock(ledger: Ledger, heads: list[Head], spinning: Collection[int] = ()) -> bool:
    """Is it proved that the run cannot end well? There are three proofs: a rank is stuck for good,
    a GPU waits for a rank that has left, or the audit has a certain finding while some rank
    certainly waits or is making a group.

    spinning: as in `find_waits`.
    """
    waits = find_waits(ledger, heads, spinning)
    left = {rank for rank, head in enumerate(heads) if head.state >= RETURNED}
    if stuck_for_good(waits, left):
        return True
    # An op on a GPU that needs a rank which has left cannot end, whatever the program does
    # meanwhile.
    if any(wait.entry.item >= 0 and left.intersection(wait.awaited) for wait in waits.values()):
        return True
    if not any(wait.for_certain for wait in waits.values()) and not _making(ledger, heads):
        return False
    return any(finding.certain for finding in audit(ledger, ended=False))


def _making(ledger, heads):
    """{rank: the group that it is making}, for running ranks whose new_group has not returned."""
    last = {
        rank: made[-1]
        for rank, made in enumerate(ledger.groups)
        if made and heads[rank].state == RUNNING
    }
    return {rank: group for rank, group in last.items() if group.done is None}


def cycle_of(waits: dict[int, Wait]) -> list[int]:
    """The ranks of a cycle in which each waits for the next; empty if there is no cycle."""
    return find_cycle((rank, awaited) for rank, wait in waits.items() for awaited in wait.awaited)


def verdict(ledger: Ledger, heads: list[Head], busy: dict[int, str] | None = None) -> list[str]:
    """What is known about a hang, as lines of text: mismatches, a cycle, what each rank does, and
    warnings.

    busy: {rank: words}. For a rank that waits for nothing, the words say what it does and where
    (from its stack). For a rank that has left with an error or was killed, they say how that
    happened.
    """
    waits, busy = find_waits(ledger, heads), busy or {}
    mismatches = [finding for finding in audit(ledger, ended=False) if finding.certain][:2]
    lines = [line for finding in mismatches for line in finding.text.splitlines()]
    named = {rank for finding in mismatches for rank in finding.ranks}
    if tags := _tags_differ(waits):
        lines.append(tags)
    cycle = cycle_of(waits)
    if cycle and not tags:
        lines.append("a cycle: " + " -> ".join(f"rank {r}" for r in [*cycle, cycle[0]]))
    making = _making(ledger, heads)
    for rank, head in enumerate(heads):
        if rank in named and (rank in waits or rank in making):
            continue  # the mismatch has explained its wait
        if rank in waits:
            wait = waits[rank]
            lines.append(f"rank {rank} waits in {say(wait.entry)}{for_whom(wait)}")
        elif head.state == RETURNED:
            lines.append(f"rank {rank} has returned{last_op(ledger, rank)}")
        elif head.state in (RAISED, EXITED):
            lines.append(f"rank {rank} {busy.get(rank, 'has left with an error')}")
        elif head.state == KILLED:
            lines.append(f"rank {rank} {busy.get(rank, 'was killed')}")
        elif head.state == 0:
            lines.append(f"rank {rank} never began")
        elif rank in making:
            group = making[rank]
            lines.append(
                f"rank {rank} is making group {group.number} with {list(group.members)}, "
                f"{called(group)}"
            )
        else:
            lines.append(f"rank {rank} {busy.get(rank, 'computes and waits for no rank')}")
    returned = {rank for rank, head in enumerate(heads) if head.state == RETURNED}
    perhaps = [] if named else groups_not_made(ledger) + never_waited_for(ledger, returned)[:3]
    return lines + [line for finding in perhaps for line in finding.text.splitlines()]


def last_op(ledger: Ledger, rank: int) -> str:
    """The op that a rank called last, in words that continue a sentence."""
    last = next((e for e in reversed(ledger.of(rank)) if e.op != "mark"), None)
    return f"; its last op: {say(last)}" if last else " without any op"


def _tags_differ(waits):
    """A sentence that says so if two ranks wait for each other in a send and a receive that do not
    match because their tags differ; else ""."""
    for wait in waits.values():
        send, other = wait.entry, waits.get(wait.entry.peer)
        recv = other and other.entry
        if (
            send.op == "send"
            and recv
            and recv.op == "recv"
            and recv.peer == send.rank
            and recv.tag != send.tag
        ):
            return (
                f"rank {send.rank} sends with tag {send.tag} and rank {recv.rank} receives with "
                f"tag {recv.tag}: a receive takes only a message with its own tag. Try: the same "
                "tags in the same order on both ranks"
            )
    return ""


def for_whom(wait: Wait) -> str:
    """Which ranks have not called the op of a wait, in words that continue a sentence; "" if the
    words of the op have already named them."""
    if wait.entry.op == "recv_any":
        return ""
    if wait.entry.is_message:
        return "" if wait.awaited else " (its partner is there)"
    if not wait.awaited:
        return " (every member has called it)"
    return (
        f"; {ranks_text(wait.awaited)} "
        + ("has" if len(wait.awaited) == 1 else "have")
        + " not called it"
    )
