"""The audit compares the ranks' logs to find out whether they describe the same communication.

Ops have no names, so we pair them by their order, as the backends do:

    collectives   n-th op of a group on rank 0  <->  n-th op of that group on every other member
    messages      n-th send from a to b (same tag)  <->  n-th receive on b from a

gloo silently accepts pairs that do not match, and then the results are wrong: SUM with MAX, float32
with int32, a receive larger than its send, an all_to_all in which a rank expects more than it is
given. Each of these is a finding. If ranks call two collectives of the same shape in swapped order,
however, their logs look like those of a program that does so on purpose. Therefore, if the source
lines differ, the audit gives only a warning (`certain=False`), which names both lines.
"""

import math
from collections import defaultdict
from dataclasses import dataclass

from lib.ledger.log import Entry
from lib.ledger.made import Made
from lib.ledger.read import Ledger
from lib.ledger.record import UNEVEN
from lib.ledger.source import position
from lib.ledger.words import group_text, ranks_text, say, site


@dataclass(frozen=True)
class Finding:
    """One disagreement between the logs. certain: it is proved; otherwise it is a warning."""

    # What differs ("reduce op", "dtype", "shape", "op", "root", "size", "split", "module", "group",
    # "order" or "history"), or what is absent: a partner ("missing") or a wait ("unwaited").
    kind: str
    text: str
    certain: bool
    ranks: tuple[int, ...]


def audit(ledger: Ledger, ended: bool = True) -> list[Finding]:
    """Compare the logs, and return the findings, the certain ones first. ended: every rank has left
    its function, so a partner or a wait that is still absent will never come, and is a finding,
    unless a log has overwritten entries."""
    findings = (
        _audit_groups(ledger) + _audit_collectives(ledger, ended) + _audit_messages(ledger, ended)
    )
    if ended and not any(ledger.lost):
        findings += groups_not_made(ledger) + never_waited_for(ledger)
    return sorted(findings, key=lambda f: not f.certain)


EVERY_GROUP = "every rank must call new_group for every group, in the same order"


def _audit_groups(ledger):
    """A finding for the first group that ranks made with different members under the same number.
    torch takes all groups with one number for the same group (lib/ledger/made.py)."""
    for number, made in sorted(_groups_by_number(ledger).items()):
        alike = _alike(made, lambda group: group.members)
        if len(alike) > 1:
            who = ", ".join(
                f"{ranks_text(ranks)}{f' made group {number}' if i == 0 else ''} with "
                f"{list(members)}"
                for i, (members, ranks) in enumerate(alike.items())
            )
            each = ", ".join(str(list(members)) for members in sorted(alike)[:4])
            lines = [f"  {ranks_text(ranks)}: {called(made[ranks[0]])}" for ranks in alike.values()]
            lines += [
                f"  Try: groups = [dist.new_group(ranks) for ranks in ({each})] on every rank; a "
                f"rank then uses the group that it is a member of"
            ]
            return [
                Finding(
                    "group", "\n".join([f"{who}; {EVERY_GROUP}", *lines]), True, tuple(sorted(made))
                )
            ]
    return []


def groups_not_made(ledger: Ledger) -> list[Finding]:
    """A warning for the first group that some ranks made and others did not. It is only a warning,
    because gloo tolerates this, although no other backend is known to."""
    for number, made in sorted(_groups_by_number(ledger).items()):
        if len(made) < ledger.world_size and len({group.members for group in made.values()}) == 1:
            absent = [rank for rank in range(ledger.world_size) if rank not in made]
            group = made[min(made)]
            text = (
                f"{ranks_text(made)} made group {number} with {list(group.members)}, "
                f"{ranks_text(absent)} did not; {EVERY_GROUP}, also ranks that are not its "
                f"members\n  {ranks_text(made)}: {called(group)}"
            )
            return [Finding("group", text, False, tuple(absent))]
    return []


def _groups_by_number(ledger):
    """{torch's number of a group: {rank: the group that it made under that number}}."""
    by_number = defaultdict(dict)
    for made in ledger.groups:
        for group in made:
            by_number[group.number][group.rank] = group
    return by_number


def _alike(by_rank, key):
    """Group the ranks by key(by_rank[rank]): {key: [rank, ...]}, ordered by the lowest rank."""
    alike = defaultdict(list)
    for rank, thing in sorted(by_rank.items()):
        alike[key(thing)].append(rank)
    return alike


def called(made: Made) -> str:
    """The line that made a group, in words."""
    return position(made.file, made.line, made.function)


def _audit_collectives(ledger, ended):
    by_call = defaultdict(dict)  # (group, members, n) -> rank -> entry
    for entry in ledger.entries:
        if not entry.is_message:
            by_call[entry.group, entry.members, entry.nth][entry.rank] = entry
    findings, groups_checked = [], set()
    for (group, members, n), present in by_call.items():
        first = present[min(present)]
        if len(present) == len(members) and (group, members) not in groups_checked:
            groups_checked.add((group, members))
            findings += _compare_history(first, present, n)
        different = next((d for e in present.values() if (d := _difference(first, e))), None)
        if different:
            findings.append(_collective_finding(different, first, present, n))
        elif uneven := _split_finding(present):
            findings.append(uneven)
        elif ended and len(present) < len(members) and not any(ledger.lost):
            absent = [r for r in members if r not in present]
            findings.append(
                Finding(
                    "missing",
                    f"{ranks_text(absent)} never called {say(first)}",
                    True,
                    tuple(absent),
                )
            )
        elif other := next((e for e in present.values() if site(e) != site(first)), None):
            findings.append(
                Finding(
                    "order",
                    f"{first.op} #{n} of {group_text(first)} was called from different lines: rank "
                    f"{first.rank} at {position(*site(first))}; rank {other.rank} at "
                    f"{position(*site(other))}. If those are two different tensors, the ranks "
                    "called them in a different order.",
                    False,
                    (first.rank, other.rank),
                )
            )
    return findings


def _compare_history(first, present, n):
    """Compare the rolling hashes at the oldest op that all logs still contain. They show whether
    the ranks agreed on everything before it, even though those entries have been overwritten."""
    if n == 0 or len({e.chain for e in present.values()}) == 1:
        return []
    if any(_difference(first, e) for e in present.values()):
        return []  # this op itself differs, so it has a finding of its own
    other = next(e for e in present.values() if e.chain != first.chain)
    text = (
        f"before {first.op} #{n} of {group_text(first)}, the oldest that the logs still hold, "
        f"ranks {first.rank} and {other.rank} called different collectives (the rolling hashes "
        f"differ). Run fewer steps to see which."
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
    if a.inside != b.inside and a.inside.startswith("FSDP") and b.inside.startswith("FSDP"):
        return "module"
    return None


def _split_finding(present):
    """A finding if a rank of this collective expects more or fewer elements from another rank than
    that rank gives to it, else None."""
    members = next(iter(present.values())).members
    split = [present[rank] for rank in members if rank in present and present[rank].gives]
    if len(split) == len(members) and [e.takes for e in split] == list(
        zip(*(e.gives for e in split), strict=True)
    ):
        return None
    at = {rank: i for i, rank in enumerate(members)}
    pairs = [(a, b, a.gives[at[b.rank]], b.takes[at[a.rank]]) for a in split for b in split]
    wrong = [pair for pair in pairs if pair[2] != pair[3]]
    if not wrong:
        return None
    a, b, given, expected = next((pair for pair in wrong if pair[0] is not pair[1]), wrong[0])
    counts = (
        f"rank {a.rank} gives rank {b.rank} {_counted(a, given)}, but rank {b.rank} expects "
        f"{_counted(a, expected)}"
    )
    more = f"; {len(wrong) - 1} more of the counts differ" if len(wrong) > 1 else ""
    row = _row(a)
    lines = [
        f"{a.op} #{a.nth} of {group_text(a)}: {counts} from it{more}",
        f"  rank {a.rank} gives {[n // row for n in a.gives]}: {say(a)}",
        f"  rank {b.rank} expects {[n // row for n in b.takes]}: {say(b)}",
    ]
    if expected > given:
        never = f"rank {b.rank} never receives the last {_counted(a, expected - given)} of these"
        lines.append(f"  {never}: its output keeps there what was in memory before")
    lines.append(f"  Try: {SPLIT_ADVICE.get(a.op, SPLIT_ADVICE['others'])}")
    return Finding("split", "\n".join(lines), True, tuple(sorted({a.rank, b.rank})))


EXCHANGE = (
    "exchange the counts first, with dist.all_to_all_single(receive_counts, send_counts), and "
)
SPLIT_ADVICE = {
    "all_to_all_single": EXCHANGE + "give receive_counts.tolist() as output_split_sizes",
    "all_to_all": EXCHANGE + "allocate the output tensors by them",
    "all_gather": "exchange the lengths first, pad every rank's tensor to the largest of them, cut "
    "after the gather",
    "others": "exchange the sizes first, and allocate the output by them",
}


def _row(entry):
    """The number of elements in a row, which is the unit of the splits of an all_to_all_single; 1
    for other ops."""
    return max(1, math.prod(entry.shape[1:])) if entry.op == "all_to_all_single" else 1


def _counted(entry, elements):
    """A number of elements in words: `2 rows of 4 elements`."""
    row = _row(entry)
    plural = lambda n, what: f"{n:,} {what}{'s' * (n != 1)}"
    if row == 1 or elements % row:
        return plural(elements, "element")
    return f"{plural(elements // row, 'row')} of {plural(row, 'element')}"


def never_waited_for(ledger: Ledger, left=None) -> list[Finding]:
    """Warnings for asynchronous ops that the program never waited for, so it may have used their
    results before they were complete.

    left: the ranks that have left their function; None means all. The other ranks may still wait,
        so we do not warn about their ops.
    """
    alike = defaultdict(list)  # one finding for all iterations of a loop, and for all ranks
    for entry in ledger.entries:
        if entry.owed and (left is None or entry.rank in left):
            kind = entry.op if entry.is_message else "collective"
            alike[kind, entry.op, site(entry)].append(entry)
    findings = []
    for (kind, _, _), entries in alike.items():
        # by rank, because the entry that was posted first varies from run to run
        first = min(entries, key=lambda entry: entry.rank)
        ranks = sorted({entry.rank for entry in entries})
        times = f" ({len(entries)} times)" if len(entries) > len(ranks) else ""
        others = (
            [r for r in ranks if r != first.rank]
            if len({entry.peer for entry in entries}) > 1
            else []
        )
        too = f" (on {ranks_text(others)}, too)" if others else ""  # with other partners
        who = ranks_text([rank for rank in ranks if rank not in others])
        danger = UNWAITED[kind]
        text = (
            f"{who}: {say(first)}{times}{too}: nothing waited for it, so {danger}. "
            "Try: call .wait() on the work that the call returns"
        )
        findings.append(Finding("unwaited", text, False, tuple(ranks)))
    return findings


UNWAITED = {
    "recv": "the tensor may be read before the message has arrived",
    "send": "the tensor may change before it has been sent, or the message be lost",
    "recv_any": "the tensor may be read before the message has arrived",
    "collective": "the tensor may be read before the result is in it",
}


def _collective_finding(kind, first, present, n):
    alike = _alike(
        present, lambda e: (e.op, e.reduce_op, e.dtype, e.shape, e.peer, e.inside, site(e))
    )
    lines = [f"{ranks_text(ranks)}: {say(present[ranks[0]])}" for ranks in alike.values()]
    text = f"collective #{n} of {group_text(first)}: the ranks differ in the {kind}\n" + "\n".join(
        f"  {x}" for x in lines
    )
    if any(entry.inside for entry in present.values()):
        text += (
            "\n  Try: every rank calls the same modules in "
            "the same order, also one for which it has no tokens"
        )
    return Finding(kind, text, True, tuple(sorted(present)))


def _audit_messages(ledger, ended):
    pairs = defaultdict(dict)  # (channel, n) -> "send" / "recv" -> entry
    # Ranks with an open receive from any source, which may take any message that has no receive
    # yet.
    unresolved = set()
    for entry in ledger.entries:
        if entry.is_message and entry.nth < 0:
            unresolved.add(entry.rank)
        elif entry.is_message:
            pairs[entry.channel, entry.nth]["send" if entry.op == "send" else "recv"] = entry
    findings = []
    for (channel, _), pair in pairs.items():
        _, src, dst, _ = channel
        if len(pair) == 2:
            send, recv = pair["send"], pair["recv"]
            kind = (
                "dtype"
                if send.dtype != recv.dtype
                else "size"
                if send.numel != recv.numel
                else None
            )
            if kind:
                findings.append(Finding(kind, _message_text(kind, send, recv), True, (src, dst)))
        elif ended and dst not in unresolved and not any(ledger.lost):
            entry = next(iter(pair.values()))
            verb = (
                f"rank {dst} never received it"
                if entry.op == "send"
                else f"rank {src} never sent it"
            )
            findings.append(
                Finding("missing", f"rank {entry.rank}: {say(entry)}: {verb}", True, (src, dst))
            )
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
