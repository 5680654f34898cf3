"""What each rank sent, received and waits for; whether the ranks' logs agree; which rank is to
blame for a hang.

on a rank     install / uninstall, mark, not_waited_for
    record.py     sees every operation in torch's dispatcher; logs who, with whom, what, where
    caller.py     the user's line that led to it
    inside.py     the module of the model that torch's own code needs it for
    follow.py     learns when an operation has ended
    log.py        the file of one rank, which outlives it
    made.py       next to it, the groups that the rank made
    splits.py     and how many elements it gave to each rank, and expected
in the parent Logs, Ledger
    read.py       the ranks' files together: entries, matrix, section
    words.py      ops, ranks and groups in words
    source.py     how a position in the source is written
    trace.py      the same as a Chrome trace, to look at in Perfetto; intervals read back from one
judging       audit, verdict
    match.py      pairs what the logs say, and finds what does not agree
    verdict.py    who waits for whom, and when that is a deadlock for certain
on a cluster  record_to_dir(), `python -m lib.ledger DIR`
    record_to_dir.py  a log under plain torchrun
    flight.py     PyTorch's Flight Recorder, where there is no ledger
"""

from lib.ledger.log import Entry
from lib.ledger.match import Finding, audit
from lib.ledger.read import Ledger, Logs
from lib.ledger.record import (
    attributed_to,
    call_site,
    finish,
    install,
    mark,
    not_waited_for,
    uninstall,
)
from lib.ledger.record_to_dir import record_to_dir
from lib.ledger.verdict import verdict

__all__ = [
    "Entry", "Finding", "Ledger", "Logs", "attributed_to", "audit", "call_site", "finish",
    "install", "mark", "not_waited_for", "record_to_dir", "uninstall", "verdict",
]  # fmt: skip
