"""The audit: put the ranks' books side by side, and see whether they are about the same communication.

    collectives   n-th op of a group on rank 0  <->  n-th op of that group on every other member
    messages      n-th send from a to b (same tag)  <->  n-th receive on b from a

gloo passes in silence, with wrong numbers: SUM against MAX, float32 against int32, a receive larger than its send.
These are findings. Two collectives of one shape in swapped order cannot be told from a program that meant it: if the
source lines differ, that is a warning (`certain=False`) that names both.
"""

from collections import defaultdict
from dataclasses import dataclass

from lib.ledger.book import Entry
from lib.ledger.read import Ledger
from lib.ledger.record import UNEVEN
from lib.ledger.source import place


@dataclass(frozen=True)
class Finding:
    """Where the books disagree. certain: proved; else a warning."""

    kind: str  # "reduce op", "dtype", "shape", "op", "root", "size", "missing", "order", "history"
    text: str
    certain: bool
    ranks: tuple[int, ...]


def audit(ledger: Ledger, ended: bool = True) -> list[Finding]:
    """Compare the books. ended: every rank has left its function, so an op that a partner lacks is missing for good."""
    findings = _audit_collectives(ledger, ended) + _audit_messages(ledger, ended)
    return sorted(findings, key=lambda f: not f.certain)


def _audit_collectives(ledger, ended):
    by_place = defaultdict(dict)  # (group, members, n) -> rank -> entry
    for entry in ledger.entries:
        if not entry.is_message:
            by_place[entry.group, entry.members, entry.nth][entry.rank] = entry
    findings, groups_checked = [], set()
    for (group, members, n), present in by_place.items():
        first = present[min(present)]
        if len(present) == len(members) and (group, members) not in groups_checked:
            groups_checked.add((group, members))
            findings += _compare_history(first, present, n)
        different = next((d for e in present.values() if (d := _difference(first, e))), None)
        if different:
            findings.append(_collective_finding(different, first, present, n))
        elif ended and len(present) < len(members) and not any(ledger.lost):
            absent = [r for r in members if r not in present]
            findings.append(Finding("missing", f"{ranks_text(absent)} never called {say(first)}", True, tuple(absent)))
        elif other := next((e for e in present.values() if _site(e) != _site(first)), None):
            findings.append(
                Finding(
                    "order",
                    f"{first.op} #{n} of {group_text(first)} was called from different lines: "
                    f"rank {first.rank} at {place(*_site(first))}; rank {other.rank} at {place(*_site(other))}. "
                    "If those are two different tensors, the ranks called them in a different order.",
                    False,
                    (first.rank, other.rank),
                )
            )
    return findings


def _compare_history(first, present, n):
    """The oldest op that all books still hold: do the hashes agree on everything before it?"""
    if n == 0 or len({e.chain for e in present.values()}) == 1:
        return []
    if any(_difference(first, e) for e in present.values()):
        return []  # this op itself differs, and says so
    other = next(e for e in present.values() if e.chain != first.chain)
    text = (
        f"before {first.op} #{n} of {group_text(first)}, the oldest that the books still hold, ranks {first.rank} and "
        f"{other.rank} called different collectives (the rolling hashes differ). Run fewer steps to see which."
    )
    return [Finding("history", text, True, (first.rank, other.rank))]


def _difference(a: Entry, b: Entry) -> str | None:
    if a.op != b.op:
        return "op"
    if a.reduce_op != b.reduce_op:
        return "reduce op"
    if a.dtype != b.dtype:
        return "dtype"
    if a.peer != b.peer:
        return "root"
    if a.op not in UNEVEN and a.numel != b.numel:
        return "shape"
    return None


def _collective_finding(kind, first, present, n):
    alike = defaultdict(list)  # ranks that said the same
    for rank, entry in sorted(present.items()):
        alike[entry.op, entry.reduce_op, entry.dtype, entry.shape, entry.peer, _site(entry)].append(rank)
    lines = [f"{ranks_text(ranks)}: {say(present[ranks[0]])}" for ranks in alike.values()]
    text = f"collective #{n} of {group_text(first)}: the ranks differ in the {kind}\n" + "\n".join(
        f"  {x}" for x in lines
    )
    return Finding(kind, text, True, tuple(sorted(present)))


def _audit_messages(ledger, ended):
    pairs = defaultdict(dict)  # (channel, n) -> "send" / "recv" -> entry
    unresolved = set()  # ranks that still wait for a message from anyone: it may be any that lacks its receive
    for entry in ledger.entries:
        if entry.is_message and entry.nth < 0:
            unresolved.add(entry.rank)
        elif entry.is_message:
            pairs[entry.channel, entry.nth]["send" if entry.op == "send" else "recv"] = entry
    findings = []
    for (channel, _), pair in pairs.items():
        _, src, dst, tag = channel
        if len(pair) == 2:
            send, recv = pair["send"], pair["recv"]
            kind = "dtype" if send.dtype != recv.dtype else "size" if send.numel != recv.numel else None
            if kind:
                findings.append(Finding(kind, _message_text(kind, send, recv), True, (src, dst)))
        elif ended and dst not in unresolved and not any(ledger.lost):
            entry = next(iter(pair.values()))
            verb = f"rank {dst} never received it" if entry.op == "send" else f"rank {src} never sent it"
            tagged = f" (tag {tag})" if tag else ""
            findings.append(Finding("missing", f"rank {entry.rank}: {say(entry)}{tagged}: {verb}", True, (src, dst)))
    return findings


def _message_text(kind, send, recv):
    sent, held = f"{send.numel} x {send.dtype}", f"{recv.numel} x {recv.dtype}"
    more = ""
    if kind == "size" and recv.numel > send.numel:
        more = f" The last {recv.numel - send.numel} elements of the receive were never written."
    return (
        f"rank {send.rank} sent {sent} to rank {recv.rank}, which received it into {held}.{more}\n"
        f"  rank {send.rank}: {say(send)}\n  rank {recv.rank}: {say(recv)}"
    )


def _site(entry):
    return entry.file, entry.line, entry.function


def say(entry: Entry, at: bool = True) -> str:
    """An op in words: `recv from rank 1, float32 (4,), at line 4: dist.recv(x, left)`."""
    what = {
        "send": f"send to rank {entry.peer}",
        "recv": f"recv from rank {entry.peer}",
        "recv_any": "recv from anyone",
    }
    words = what.get(entry.op, entry.op)
    if not entry.is_message:
        words += f" #{entry.nth}"
        if entry.reduce_op:
            words += f" {entry.reduce_op.upper()}"
        if entry.peer is not None:
            words += f" with root {entry.peer}"
    if entry.dtype and entry.op != "barrier":
        words += f" of {entry.dtype} {entry.shape}"
    if entry.via:
        words += f" in {entry.via}"
    return f"{words}, {place(*_site(entry))}" if at else words


def ranks_text(ranks) -> str:
    """`rank 2`, `ranks 0, 1 and 3`."""
    ranks = sorted(ranks)
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def group_text(entry: Entry) -> str:
    """The group in words: all ranks, or which."""
    members = entry.members
    return f"all {len(members)} ranks" if entry.group == "0" else f"the group of {ranks_text(members)}"
