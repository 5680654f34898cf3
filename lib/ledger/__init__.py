"""The ledger records every communication op of every rank in a log. From the logs of all ranks it
determines whether the ranks agree on what they communicate, and which rank is to blame for a hang.

The files are grouped by where they run. Each group's first line names what other packages call:

on a rank     install, finish, uninstall, mark, barrier, not_waited_for, call_site, attributed_to
    record.py     intercepts every op in torch's dispatcher, and logs it with ranks, size and line
    caller.py     finds the line of the user's program that led to an op
    inside.py     names the module for which torch's own code (FSDP2, DTensor, DDP) called an op
    follow.py     detects when an op has ended
    log.py        the log of one rank: a file that outlives the rank
    made.py       a file next to the log that lists the process groups that the rank made
    splits.py     another one that lists how many elements the rank gave to and expected from each
in the parent Logs, Ledger
    read.py       reads the logs of all ranks together: entries, traffic matrix, sections
    words.py      describes ops, ranks and groups in words
    source.py     formats a position in the source
    trace.py      writes a ledger as a Chrome trace for Perfetto, and reads intervals from a trace
judging       audit, verdict
    match.py      pairs the ops of different ranks, and reports where they do not agree
    verdict.py    finds out which rank waits for which, and when this is certainly a deadlock
on a cluster  record_to_dir(), `python -m lib.ledger DIR`
    record_to_dir.py  writes the logs of a job that plain torchrun has started
    flight.py     reads PyTorch's Flight Recorder, for jobs that ran without a ledger
"""

from lib.ledger.log import Entry
from lib.ledger.match import Finding, audit
from lib.ledger.read import Ledger, Logs
from lib.ledger.record import (
    attributed_to,
    barrier,
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
    "Entry", "Finding", "Ledger", "Logs", "attributed_to", "audit", "barrier", "call_site",
    "finish", "install", "mark", "not_waited_for", "record_to_dir", "uninstall", "verdict",
]  # fmt: skip
