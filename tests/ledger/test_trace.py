"""A ledger's Chrome trace: valid by the format's rules, and with the times, sizes and
partners of the logs."""

import json
import time
from collections import Counter, defaultdict
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist

from lib import launch, ledger
from lib.ledger import trace
from lib.ledger.read import Ledger
from lib.measuring.paced import Spans

REQUIRED = {  # "Trace Event Format": what each phase needs besides name, pid
    "X": {"ts", "dur", "tid", "cat", "args"}, "M": {"args"}, "i": {"ts", "tid", "s"},
    "s": {"ts", "tid", "id", "cat"},
    "f": {"ts", "tid", "id", "cat", "bp"},
}  # fmt: skip
# and its argument
METADATA = {"process_name": "name", "process_sort_index": "sort_index", "thread_name": "name"}
TYPES = {
    "name": str,
    "cat": str,
    "id": str,
    "pid": int,
    "tid": int,
    "ts": int | float,
    "dur": int | float,
}


def ring():
    """Everybody sends to the right, posted before anybody waits; then a sum."""
    rank, N = dist.get_rank(), dist.get_world_size()
    ledger.mark("ring")
    got = torch.empty(5)
    works = [
        dist.isend(torch.full((5,), float(rank)), (rank + 1) % N),
        dist.irecv(got, (rank - 1) % N),
    ]
    for work in works:
        work.wait()
    ledger.mark("sum")
    dist.all_reduce(got)


@pytest.fixture(scope="module")
def log():
    return launch.run(ring, nproc=3).ledger


@pytest.fixture
def events(log, tmp_path, capsys):
    path = tmp_path / "run.json"
    log.trace(path)
    assert (
        capsys.readouterr().out
        == "run.json: 9 operations of 3 ranks, for https://ui.perfetto.dev\n"
    )
    found = json.loads(path.read_text())
    assert set(found) == {"traceEvents", "displayTimeUnit"} and found["displayTimeUnit"] in (
        "ms",
        "ns",
    )
    return found["traceEvents"]


def slices(events, lane):
    """{(pid, tid): slices} of the lanes whose name begins so."""
    titled = {
        (e["pid"], e["tid"])
        for e in events
        if e["name"] == "thread_name" and e["args"]["name"].startswith(lane)
    }
    found = defaultdict(list)
    for event in events:
        if event["ph"] == "X" and (event["pid"], event["tid"]) in titled:
            found[event["pid"], event["tid"]].append(event)
    return found


def must_be_valid(events):
    for event in events:
        assert {"ph", "name", "pid"} <= set(event) and REQUIRED[event["ph"]] <= set(event), event
        assert all(isinstance(event[key], kind) for key, kind in TYPES.items() if key in event), (
            event
        )
        if event["ph"] == "M":
            assert [*event["args"]] == [METADATA[event["name"]]] and (
                event["name"] != "thread_name" or "tid" in event
            )
        # a flag's scope, an arrow's end
        assert event.get("s", "p") in ("g", "p", "t") and event.get("bp", "e") == "e"
        assert event.get("ts", 0) >= 0 and event.get("dur", 0) >= 0 and json.dumps(event)
    lanes = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            lanes[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    # slices of a thread lie in or after each other, or the viewer draws nonsense
    for lane in lanes.values():
        lane.sort()
        assert all(end <= start + 0.01 for (_, end), (start, _) in pairwise(lane))
    ends = Counter((e["id"], e["ph"]) for e in events if e["ph"] in "sf")
    assert set(ends.values()) <= {1} and all((name, "s") in ends for name, ph in ends if ph == "f")
    for event in events:
        if event["ph"] in "sf":  # an arrow hangs on a slice
            inside = [
                a - 0.01 <= event["ts"] <= b + 0.01 for a, b in lanes[event["pid"], event["tid"]]
            ]
            assert any(inside), event


def test_it_is_a_valid_trace(events):
    must_be_valid(events)


def test_it_tells_what_the_logs_say(log, events):
    named = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert named == {0: "rank 0", 1: "rank 1", 2: "rank 2"}
    found = [e for lane in slices(events, "operations").values() for e in lane]
    assert len(found) == len(log.entries) == 9
    for entry in log.entries:
        (event,) = [e for e in found if e["pid"] == entry.rank and e["cat"] == entry.op]
        assert event["ts"] == pytest.approx(entry.posted * 1e6, abs=0.01)
        assert (event["args"]["elements"], event["args"]["bytes"], event["args"]["dtype"]) == (
            5,
            20,
            "float32",
        )
        assert "test_trace.py" in event["args"]["line"] and event["args"]["group"] == "all 3 ranks"
    assert {e["name"] for e in found if e["pid"] == 1} == {
        "send to rank 2",
        "recv from rank 0",
        "all_reduce #0 SUM",
    }
    flags = [(e["pid"], e["name"]) for e in events if e["ph"] == "i"]
    assert sorted(flags) == sorted((rank, label) for rank in range(3) for label in ("ring", "sum"))


def test_an_arrow_goes_from_each_send_to_its_receive(events):
    start, end = ({e["id"]: e["pid"] for e in events if e["ph"] == ph} for ph in "sf")
    assert sorted((start[name], end[name]) for name in start) == [(0, 1), (1, 2), (2, 0)]


def test_waits_stand_in_a_lane_of_their_own_and_what_is_under_way_at_once_in_several(log, events):
    assert all(
        e["name"].startswith("waits: ") for lane in slices(events, "program").values() for e in lane
    )
    for rank in range(3):
        under_way = [key for key in slices(events, "operations") if key[0] == rank]
        assert len(under_way) >= 2  # the send and the receive
        waits = sum(len(lane) for key, lane in slices(events, "program").items() if key[0] == rank)
        assert waits == sum(e.wait_from is not None for e in log.of(rank) if e.op != "mark")


def test_an_operation_that_never_ended_reaches_to_the_last_time_known(log, tmp_path):
    def cut(entries):
        return [
            e
            if e.op != "recv"
            else type(e)(
                **{k: getattr(e, k) for k in e.__slots__} | {"done": None, "wait_to": None}
            )
            for e in entries
        ]

    hung = Ledger([cut(log.of(0)), log.of(1), log.of(2)], None, [0, 0, 0])
    trace.write(hung, tmp_path / "hung.json")
    events = json.loads((tmp_path / "hung.json").read_text())["traceEvents"]
    must_be_valid(events)
    (event,) = [
        e for e in events if e["ph"] == "X" and e["pid"] == 0 and e["name"] == "recv from rank 2"
    ]
    last = max(e["ts"] + e["dur"] for e in events if e["ph"] == "X")
    assert (
        event["ts"] + event["dur"] == pytest.approx(last, abs=0.01)
        and "not finished" in event["args"]["open"]
    )


def computing():
    """A step whose message goes beside what computes; returns this rank's spans."""
    spans = Spans()
    with spans("compute", "forward"):
        time.sleep(0.01)
    with spans("network", "0"):
        dist.all_reduce(torch.zeros(5))
    return list(spans)


def test_spans_stand_in_lanes_of_their_own_beside_the_operations_and_are_read_back(tmp_path):
    results, path = launch.run(computing, nproc=2), tmp_path / "step.json"
    trace.write(results.ledger, path, [*results[0], *results[1]])
    events = json.loads(path.read_text())["traceEvents"]
    must_be_valid(events)
    assert [len(slices(events, lane)) for lane in ("compute", "network", "operations")] == [2, 2, 2]
    (entry,) = results.ledger.of(1)
    for lane, span in zip(("compute", "network"), results[1], strict=True):
        ((start, end),) = trace.intervals(
            path, lambda e, lane=lane: e["pid"] == 1 and e["cat"] == lane
        )
        assert end - start == pytest.approx(span[4] - span[3], abs=1e-6)
    # one clock: the all-reduce was posted inside its span
    assert start - 1e-6 <= entry.posted <= end
    both = trace.intervals(path, lambda e: e["cat"] in ("compute", "network"))
    assert len(both) == 4 and both == sorted(both)


def test_an_empty_log_is_a_trace_too(tmp_path):
    assert trace.write(Ledger([[], []], None, [0, 0]), tmp_path / "empty.json") == 0
    must_be_valid(json.loads((tmp_path / "empty.json").read_text())["traceEvents"])
