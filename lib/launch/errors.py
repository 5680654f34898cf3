"""Turns whatever went wrong on the ranks into one RankError, which says which rank failed, at which
line, with which values, and what to do.

One failure soon causes others, because the other ranks lose their connection to the rank that
failed, or wait for it. The message therefore begins with the rank that failed first, and mentions
the others in a few lines. It also says so if the logs prove that the ranks' calls do not match.
"""

import json
import os
import signal
from typing import Any

from lib.launch import stacks
from lib.ledger.log import EXITED, RAISED, RETURNED
from lib.ledger.match import audit
from lib.ledger.source import position
from lib.ledger.verdict import cycle_of, find_waits, verdict
from lib.ledger.words import ranks_text

USUAL_CAUSES = {
    "SIGABRT": ": a C++ library gave up",
    "SIGBUS": " (a file that it keeps in memory could not grow: is /dev/shm full?)",
    "SIGKILL": " (out of memory, or killed by hand)",
}
# if a run took more than this many times its timeout, the message also gives the time by the clock
WELL_OVER = 1.3
# is this process executing a student's notebook to grade it?
GRADED = "LAB_REPORT" in os.environ and "LAB_OURS" not in os.environ


def short(error: Exception) -> Exception:
    """Make a notebook show only the message of `error`, and return `error`. This is for errors that
    we raise on purpose, for which a traceback through lib would add nothing."""
    error._render_traceback_ = lambda: [f"{type(error).__name__}: {error}"]  # type: ignore
    return error


class Stopped(KeyboardInterrupt):
    """A person has pressed the stop button or Ctrl-C.

    error: a RankError of kind "stopped" that says what the ranks did at that moment; None if the
        stop came before or after they ran, or if the person quit the debugger.
    at: the line that a student's function had reached, if a check ran it in this process.
    what, then: what the person did, and what happened to the ranks, in words.
    """

    error: "RankError | None" = None
    at = ""
    what, then = "stopped", "the ranks have been ended"

    def _render_traceback_(self):  # in a notebook: one line instead of the frames of lib
        joined = ", and " if self.then[0].islower() else ". "
        return [f"KeyboardInterrupt: {self.what}{joined}{self.then}"]


class RankError(RuntimeError):
    """A run on ranks failed. The message explains how, and `ledger` holds the ranks' logs.

    kind: "raised", "exited", "died", "mismatch", "deadlock", "no progress", "timeout", "no
        start" or "stopped".
    reports: {rank: {"type", "text", "frames", "site", ...}} of the ranks that raised or exited; {}
        if a process has died.
    output: [(rank, line), ...] that the ranks printed to stdout.
    """

    def __init__(self, message: str, kind: str, ledger: Any = None, waits: Any = None) -> None:
        super().__init__(message)
        self.kind, self.ledger = kind, ledger
        self.waits = waits or {}  # rank -> the ranks it waits for, when it hangs
        self.waits_in = {}  # rank -> the op in which it waits
        self.busy = {}  # rank -> what it does and where, if it waits for no other rank
        self.elapsed = 0.0  # seconds by the clock
        self.reports, self.output = {}, []

    def _render_traceback_(self):  # in a notebook: the verdict alone, without the frames of lib
        return [f"RankError: {self}"]


def from_failure(failure, folder: str) -> RankError:
    """The RankError for a Failure that the watch has returned.

    folder: the run's folder, which contains the reports of the ranks that raised an error. The
    stacks of all ranks are in its parent folder.
    """
    mismatch = next((f for f in audit(failure.ledger, ended=False) if f.certain), None)
    found = find_waits(failure.ledger, failure.heads)
    reports = {}
    if failure.kind == "failed":
        left = (
            []
            if failure.gone
            else [r for r, head in enumerate(failure.heads) if head.state in (RAISED, EXITED)]
        )
        reports = {rank: _load(f"{folder}/error{rank}") for rank in left}
        kind, message = _failed(failure, folder, mismatch, reports)
    else:
        kind, message = failure.kind, _hang(failure, mismatch)
        kind = "mismatch" if mismatch and kind != "stopped" else kind
    error = RankError(
        message, kind, failure.ledger, {rank: list(wait.awaited) for rank, wait in found.items()}
    )
    error.waits_in, error.reports = {rank: wait.entry.op for rank, wait in found.items()}, reports
    error.busy, error.elapsed = failure.busy, failure.elapsed
    return error


def from_findings(findings, ledger) -> RankError:
    """The RankError for a run in which all ranks returned but their logs prove that their calls do
    not match. The results are then wrong, although torch has raised nothing."""
    text = "\n".join(_indent(f.text) for f in findings[:3])
    more = f"\n  ... and {len(findings) - 3} more" if len(findings) > 3 else ""
    return RankError(
        f"every rank returned, but their calls do not match, so the results cannot be "
        f"trusted\n{text}{more}",
        "mismatch", ledger,
    )  # fmt: skip


def _failed(failure, folder, mismatch, reports):
    if failure.gone and mismatch:
        names = [
            _how_it_died(failure.exit_codes.get(rank)).partition(":")[0] for rank in failure.gone
        ]
        return "mismatch", (
            f"the ranks' calls do not match, and {ranks_text(failure.gone)} "
            f"{' and '.join(dict.fromkeys(names))}\n" + _indent(mismatch.text)
        )
    if failure.gone:
        lines = [
            f"rank {rank} {_how_it_died(failure.exit_codes.get(rank))}" for rank in failure.gone
        ]
        for rank in failure.gone:
            if crashed := stacks.user_line(stacks.of_a_crash(os.path.dirname(folder), rank)):
                lines.append(f"  rank {rank} was at {crashed}")
            last = next((e for e in reversed(failure.ledger.of(rank)) if e.op != "mark"), None)
            if last:
                where = position(last.file, last.line, last.function)
                lines.append(f"  the last op of rank {rank}: {last.op} #{last.nth}, {where}")
            else:
                lines.append(f"  rank {rank} had not communicated yet")
        others = [r for r, head in enumerate(failure.heads) if head.state == RAISED]
        if others:
            lines.append(f"  {ranks_text(others)} then lost the connection to it")
        return "died", "\n".join(lines)
    first = min(reports, key=lambda rank: failure.heads[rank].left)
    report = reports[first]
    alike = [rank for rank, r in reports.items() if _same(r, report)]
    who = (
        f"all {len(failure.heads)} ranks"
        if len(alike) == len(failure.heads) > 1
        else ranks_text(alike)
    )
    if failure.heads[first].state == EXITED:
        lines = [
            f"{who} called {report['text']} and left the "
            f"others alone; return from the function instead"
        ]
    else:
        lines = [
            f"{who} raised {report['type']}"
            + (f": {report['text']}" if report["text"] != report["type"] else "")
        ]
    lines += _where(report)
    others = [rank for rank in reports if rank not in alike]
    twins = [rank for rank in others if reports[rank]["site"] == report["site"]]
    if twins:
        lines.append(f"{ranks_text(twins)} raised a similar error at the same line")
    for rank in [rank for rank in others if rank not in twins][:2]:
        lines.append(
            f"{ranks_text([rank])} raised {reports[rank]['type']}: {reports[rank]['text']}"
        )
        lines += _where(reports[rank])
    if mismatch:
        lines.append(_indent(mismatch.text))
    return "exited" if failure.heads[first].state == EXITED else "raised", "\n".join(lines)


def _same(a, b):
    return (a["type"], a["text"], a["site"]) == (b["type"], b["text"], b["site"])


def _where(report):
    """Lines with the user's calls from the outermost to the innermost, the values that the last
    line used, and advice if there is any. Of more than six calls, only the first and last three."""
    lib = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
    lines = []
    for file, line, function in report["frames"]:
        if "python3" not in file and not file.startswith(("<frozen", f"{lib}check")):
            inside = "lib, " if file.startswith(lib) else ""
            lines.append(f"  {inside}{position(file, line, function)}")
    if len(lines) > 6:
        lines = [*lines[:3], f"  ... {len(lines) - 6} more calls ...", *lines[-3:]]
    if report["values"]:
        lines.append(
            "  where " + ", ".join(f"{name} = {value}" for name, value in report["values"].items())
        )
    if report["way_out"]:
        lines.append(f"  {report['way_out']}")
    return lines


def _hang(failure, mismatch):
    waits = find_waits(failure.ledger, failure.heads)
    left = [rank for rank, head in enumerate(failure.heads) if head.state == RETURNED]
    awaited = sorted({peer for wait in waits.values() for peer in wait.awaited} & set(left))
    if mismatch:
        why = "the ranks' calls do not match, and they wait for ever"
    elif cycle_of(waits):
        why = "each waits for the next"
    elif awaited:
        why = (
            f"{ranks_text(awaited)} returned while others still wait for "
            f"{'it' if len(awaited) == 1 else 'them'}"
        )
    elif failure.kind == "timeout" and not waits:
        why = "no rank waits for another: the function itself does not end"
    elif failure.kind == "timeout":
        why = "not every rank finished"
    elif failure.kind == "stopped":
        why = "not every rank had finished" if waits else "no rank waited for another"
    elif failure.kind == "no start":
        late = ranks_text([rank for rank, head in enumerate(failure.heads) if head.state == 0])
        why = (
            f"{late} had not begun. This is not your function's doing: the machine has too much to "
            f"do, or too little "
        )
        why += "memory. End what else runs on it, or ask for fewer ranks"
    else:
        why = "the ranks wait, and none can go on"
    seconds = f"{failure.seconds:g} s"
    # In a graded notebook the text has to be the same each time, so we leave out the clock.
    if failure.kind == "timeout" and failure.elapsed > WELL_OVER * failure.seconds and not GRADED:
        seconds += f" ({failure.elapsed:.0f} s by the clock, on a busy machine)"
    heads = {
        "stopped": f"stopped after {failure.elapsed:.0f} s: {why}",
        "deadlock": f"deadlock: {why}",
        "no progress": f"no progress for {seconds}: {why}",
        "timeout": f"timeout after {seconds}: {why}. Slow, not stuck? Give launch.run a larger "
        f"timeout=",
        "no start": f"no start within {seconds}: {why}",
    }
    return heads[failure.kind] + "\n" + "\n".join(
        f"  {line}" for line in verdict(failure.ledger, failure.heads, failure.busy)
    )  # fmt: skip


def _how_it_died(code):
    if code is None:
        return "ended before its function returned"
    if code < 0:
        name = signal.Signals(-code).name
        return f"was ended by {name}{USUAL_CAUSES.get(name, '')}"
    return f"left with exit code {code} before its function returned"


def _load(path):
    with open(path) as file:
        return json.load(file)


def _indent(text):
    return "\n".join(f"  {line}" for line in text.splitlines())
