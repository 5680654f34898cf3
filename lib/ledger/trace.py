"""Writes a ledger as a Chrome trace, a JSON file that Perfetto (ui.perfetto.dev) and
chrome://tracing display. Each rank is shown as a process, with these lanes:

    process "rank 1"
      lane "program"          | waits: recv from rank 0 |     slices: the program waits
      lane "operations"            | recv from rank 0      |  slices: posted ... done
      lane "operations, 2"           | send to rank 2   |     what is in flight at the same time
                                     ^ an arrow from each send to its receive;
                                       flags where a section begins
      lane "compute"      | forward |    | backward     |     slices: the spans given to `write`

`intervals` reads slices back, from this trace or from another program's, such as torch.profiler's.
The format is described in "Trace Event Format", a document of Chromium's trace viewer. We use
complete events (ph X), flow events (s, f), instant events (i) and metadata (M). Times are in
microseconds.
"""

import json
from collections.abc import Callable
from pathlib import Path

from lib.ledger.log import Entry
from lib.ledger.source import position
from lib.ledger.words import group_text, ranks_text, say


def write(ledger, path: str | Path, spans=()) -> int:
    """Write a `Ledger` to `path` as a Chrome trace, overwriting an existing file. Returns how many
    operations the trace shows.

    spans: [(rank, lane, label, begin, end), ...], what else the ranks did. Each span is shown in
    the lane of that name. begin and end are seconds of the rank's time.monotonic().
    """
    last = max((_known_end(entry) for entry in ledger.entries), default=0.0)  # seconds
    events = [
        event for rank in range(ledger.world_size) for event in _rank(ledger, rank, last, spans)
    ]
    Path(path).write_text(
        json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}), encoding="utf-8"
    )
    return len(ledger.entries)


def intervals(path: str | Path, wanted: Callable[[dict], bool]) -> list[tuple[float, float]]:
    """[(start, end), ...] in seconds, sorted, of the slices of a Chrome trace for which
    wanted(event) is true.

    event: a dict from the file, whose "name", "pid" and "cat" (category) say what it is. In our
    traces "pid" is the rank, and "cat" is the operation or a span's lane.
    """
    events = json.loads(Path(path).read_text(encoding="utf-8"))["traceEvents"]
    found = [
        (e["ts"] / 1e6, (e["ts"] + e["dur"]) / 1e6) for e in events if e["ph"] == "X" and wanted(e)
    ]
    return sorted(found)


def _rank(ledger, rank, last, spans):
    entries = [entry for entry in ledger.of(rank) if entry.op != "mark"]
    waits = [
        (e.wait_from, last if e.wait_to is None else e.wait_to, e)
        for e in entries
        if e.wait_from is not None
    ]
    lanes = {
        "program": waits,
        "operations": [(e.posted, last if e.open else _known_end(e), e) for e in entries],
    }
    for who, lane, label, begin, end in spans:
        if who == rank:
            lanes.setdefault(lane, []).append(
                (begin - ledger.zero[rank], end - ledger.zero[rank], label)
            )
    yield {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}}
    yield {"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}}
    for entry in ledger.of(rank):
        if entry.op == "mark":
            yield {
                "ph": "i",
                "s": "p",
                "name": entry.file,
                "pid": rank,
                "tid": 0,
                "ts": _us(entry.posted),
            }
    tid = 0
    for title, of_lane in lanes.items():
        for number, lane in enumerate(_lanes(of_lane), 1):
            name = title if number == 1 else f"{title}, {number}"
            yield {
                "ph": "M",
                "name": "thread_name",
                "pid": rank,
                "tid": tid,
                "args": {"name": name},
            }
            for start, end, what in lane:
                slice_ = {
                    "ph": "X",
                    "pid": rank,
                    "tid": tid,
                    "ts": _us(start),
                    "dur": _us(end - start),
                }
                yield slice_ | _told(title, what)
                if title == "operations" and what.is_message and what.nth >= 0:
                    yield _arrow(what, tid, start, end)
            tid += 1


def _told(title, what):
    """A slice's name, category and arguments. what: an Entry, or a span's label."""
    if isinstance(what, str):
        return {"name": what, "cat": title, "args": {}}
    said = say(what, at=False).split(" of ")[0]
    return {
        "name": f"waits: {said}" if title == "program" else said,
        "cat": what.op,
        "args": _facts(what),
    }


def _lanes(intervals: list[tuple[float, float, Entry | str]]) -> list[list]:
    """Distribute the intervals over lanes such that no two in a lane overlap. Each interval is put
    into the first lane that is free when it starts."""
    lanes: list[list] = []
    for interval in sorted(intervals, key=lambda i: i[0]):
        free = next((lane for lane in lanes if lane[-1][1] <= interval[0]), None)
        if free is None:
            lanes.append(free := [])
        free.append(interval)
    return lanes


def _arrow(entry, tid, start, end):
    """One end of the arrow from the n-th send of a channel to the n-th receive of that channel."""
    ends = (
        {"ph": "s", "ts": _us(start)}
        if entry.op == "send"
        else {"ph": "f", "bp": "e", "ts": _us(end)}
    )
    name = "/".join(map(str, (*entry.channel, entry.nth)))
    return ends | {"cat": "message", "name": "message", "id": name, "pid": entry.rank, "tid": tid}


def _facts(entry):
    facts = {"line": position(entry.file, entry.line, entry.function), "group": group_text(entry)}
    facts |= {
        "elements": entry.numel,
        "bytes": entry.nbytes,
        "dtype": entry.dtype,
        "shape": list(entry.shape),
    }
    if entry.via:
        facts["called by"] = entry.via
    if entry.open:
        facts["open"] = f"not finished when {ranks_text([entry.rank])}'s log was read"
    return facts


def _known_end(entry):
    return max(t for t in (entry.posted, entry.wait_to, entry.done) if t is not None)


def _us(seconds):
    return round(seconds * 1e6, 3)
