"""What each rank sent, received and waits for; whether the ranks' books agree; who is to blame for a hang.

on a rank     install / uninstall, mark          record.py writes, follow.py learns when an op ends, book.py is the file
in the parent Books, Ledger                      read.py: entries, matrix, section
judging       audit, verdict                     match.py pairs the books; verdict.py explains a hang
on a cluster  kept(), python -m lib.ledger DIR   keep.py, __main__.py
"""

from lib.ledger.book import Entry
from lib.ledger.keep import kept
from lib.ledger.match import Finding, audit
from lib.ledger.read import Books, Ledger
from lib.ledger.record import attributed_to, call_site, finish, install, mark, uninstall
from lib.ledger.verdict import verdict

__all__ = [
    "Books", "Entry", "Finding", "Ledger", "attributed_to", "audit", "call_site", "finish", "install", "kept",
    "mark", "uninstall", "verdict",
]  # fmt: skip
