"""A run that failed, as seen from the case it was in.

A check runs many cases in one launch, the ranks in step:

    rank 0   mark("2 ranks") [ fn ] mark("")  wait | mark("3 ranks") [ fn ......
    rank 1   mark("2 ranks") [ fn ] mark("")  wait | mark("3 ranks") [ fn ] mark("")  wait ...
    rank 3                                    wait |                                  wait ...

If rank 0 hangs in the case "3 ranks", the launcher's verdict tells of all three. To the student rank 1 has returned
from the function and rank 3 has nothing to do with it.
"""

import re
from dataclasses import dataclass
from types import SimpleNamespace

from lib.launch import RankError
from lib.launch.errors import from_failure
from lib.launch.watch import Failure
from lib.ledger import Ledger, audit
from lib.ledger.book import RETURNED, RUNNING

HANGS = ("deadlock", "no progress")
BEGINS = "exercise: "  # how the mark that opens an exercise's part of the book begins: it opens no case


@dataclass(frozen=True)
class Failed:
    """What went wrong, in which case ("": outside of any), and for which ranks (global) that case was."""

    kind: str
    text: str
    case: str
    members: tuple[int, ...]
    book: Ledger | None  # what these ranks did in that case
    mismatch: str = ""  # for messages that do not match: in "size", "dtype", ...


def in_its_case(error: RankError) -> Failed:
    """Tell `error` for the first case that went wrong: whose messages do not match, or in which a rank still is."""
    ledger = error.ledger
    inside = {rank: label for rank in range(ledger.world_size) if (label := _last_mark(ledger.of(rank)))}
    for case in (label for label in ledger.marks if label and not label.startswith(BEGINS)):
        book = ledger.section(case)
        findings = [finding for finding in audit(book, ended=False) if finding.certain]
        if not findings and case not in inside.values():
            continue
        members = tuple(r for r in range(ledger.world_size) if _last_mark(ledger.of(r), case))
        if error.kind == "mismatch" and findings:
            first = min(findings, key=lambda finding: finding.ranks)
            return Failed("mismatch", first.text, case, members, book, first.kind)
        hang = next((kind for kind in HANGS if str(error).startswith(kind)), None)
        if hang:
            return Failed(hang, _retold(hang, ledger, book, members, inside), case, members, book)
        return Failed(error.kind, _without_addresses(error), case, members, book)
    return Failed(error.kind, _without_addresses(error), "", tuple(range(ledger.world_size)), None)


def _without_addresses(error):
    """The same text on every run."""
    return re.sub(r" (object )?at 0x[0-9a-f]+", "", str(error))


def _last_mark(entries, label=None):
    """The label of the last mark, or of the last that is `label`."""
    marks = [entry.file for entry in entries if entry.op == "mark" and label in (None, entry.file)]
    return marks[-1] if marks and not marks[-1].startswith(BEGINS) else ""


def _retold(hang, ledger, book, members, inside):
    """The verdict if every rank that is not inside a case had returned instead of waiting for the others."""
    heads = [SimpleNamespace(state=RUNNING if r in inside else RETURNED) for r in range(ledger.world_size)]
    books = [ledger.of(rank) if rank in inside else book.of(rank) for rank in range(ledger.world_size)]
    failure = Failure(hang, 0, heads, Ledger(books, None, [0] * len(books)), [], {})
    lines = str(from_failure(failure, "")).splitlines()
    strangers = tuple(f"  rank {r} " for r in range(ledger.world_size) if r not in members)
    return "\n".join(line for line in lines if not line.startswith(strangers))
