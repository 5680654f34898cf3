"""Describes ops, ranks and groups in words, so that verdicts, findings and traces all use the same
words for them."""

from lib.ledger.log import Entry
from lib.ledger.source import position


def site(entry: Entry) -> tuple[str, int, str]:
    """The position of the line that called an op: (file, line, function)."""
    return entry.file, entry.line, entry.function


def say(entry: Entry, at: bool = True) -> str:
    """An op in words: `recv from rank 1 of float32 (4,), line 4: dist.recv(x, left)`. at: whether
    to add the line that called it."""
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
    if entry.tag:
        words += f" with tag {entry.tag}"
    if entry.via or entry.inside:
        words += f" in {entry.via or entry.inside}"
    return f"{words}, {position(*site(entry))}" if at else words


def ranks_text(ranks) -> str:
    """`rank 2`, `ranks 0, 1 and 3`."""
    ranks = sorted(ranks)
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def group_text(entry: Entry) -> str:
    """An op's group in words: `all 4 ranks`, `the group of ranks 0 and 2`."""
    members = entry.members
    return (
        f"all {len(members)} ranks" if entry.group == "0" else f"the group of {ranks_text(members)}"
    )
