"""Ops on a GPU queue in their group, `wait` does not block, and a synchronous op has no Work.
Judged without a GPU."""

import _thread
import contextlib
import dataclasses
import gc
import operator
import sys
import threading
import time
import weakref
from types import SimpleNamespace

import pytest
import torch

from lib.ledger.caller import locate
from lib.ledger.follow import Blocking, Queued
from lib.ledger.log import RETURNED, RUNNING, Entry, LogReader, LogWriter
from lib.ledger.match import never_waited_for
from lib.ledger.read import Ledger
from lib.ledger.verdict import cycle_of, find_waits, is_deadlock


def entry(rank, op, item, peer=None, open=True, waits=False, nth=0):
    """An op of rank `rank` on the world of two; open: not seen to end; waits: its rank is
    inside its wait."""
    return Entry(
        rank=rank, seq=0, op=op, reduce_op="", dtype="float32", group="0", members=(0, 1),
        peer=peer, tag=0, shape=(4,),
        numel=4, nbytes=16, nth=nth, chain=0, item=item, posted=0.0,
        wait_from=1.0 if waits else None, wait_to=None,
        done=None if open else 2.0, threads=1, file="f.py", line=1, function="f",
    )  # fmt: skip


def judge(logs, states=(RUNNING, RUNNING)):
    ledger, heads = Ledger(logs, None, [0, 0]), [SimpleNamespace(state=state) for state in states]
    return is_deadlock(ledger, heads), find_waits(ledger, heads)


def both(make):
    return [make(rank, 1 - rank) for rank in range(2)]


def test_messages_one_behind_the_other_are_a_deadlock_and_the_one_in_front_is_named():
    """isend, irecv, wait: on NCCL each rank's receive stands behind a send that waits for the
    other's receive."""
    logs = both(
        lambda r, other: [entry(r, "send", 0, other), entry(r, "recv", 1, other, waits=True)]
    )
    stuck, waits = judge(logs)
    assert stuck and cycle_of(waits) == [0, 1]
    assert [wait.entry.op for wait in waits.values()] == ["send", "send"]


@pytest.mark.parametrize(
    "items", [(0, 0), (-1, -1)], ids=["as one batch", "on gloo, where nothing queues"]
)
def test_messages_that_begin_together_are_none(items):
    logs = both(
        lambda r, other: [entry(r, "send", items[0], other), entry(r, "recv", items[1], other,
            waits=True)]
    )  # fmt: skip
    assert not judge(logs)[0]


def test_of_a_batch_the_message_that_lacks_its_partner_is_named():
    batch = [entry(0, "send", 0, 1, waits=True), entry(0, "recv", 0, 1, waits=True)]
    stuck, waits = judge([batch, [entry(1, "recv", 0, 0, open=False)]], (RUNNING, RETURNED))
    assert stuck and waits[0].entry.op == "recv" and waits[0].awaited == (1,)


@pytest.mark.parametrize(("item", "proved"), [(0, True), (-1, False)], ids=["NCCL", "gloo"])
def test_a_gpu_that_waits_for_a_rank_that_has_left_is_stuck_whatever_its_program_does(item, proved):
    """As in DDP's reducer, whose waits are below Python. On gloo it is told when the ranks
    make no progress."""
    assert judge([[entry(0, "all_reduce", item)], []], (RUNNING, RETURNED))[0] is proved


@pytest.mark.parametrize("op", ["all_reduce", "recv"])
def test_a_host_that_spins_is_stuck_with_what_its_gpu_lacks(op):
    """rank 0 has posted an op, and then waits in `.item()`; rank 1 waits for a message that rank 0
    would send later."""
    logs = [[entry(0, op, 0, 1)], [entry(1, "recv", 0, 0, waits=True)]]
    ledger, heads = Ledger(logs, None, [0, 0]), [SimpleNamespace(state=RUNNING)] * 2
    assert not is_deadlock(ledger, heads), "it may compute, and send later"
    assert is_deadlock(ledger, heads, spinning={0})
    assert not is_deadlock(Ledger([[], logs[1]], None, [0, 0]), heads, spinning={0}), (
        "its GPU computes"
    )


class Device:
    """A GPU whose queue ends when the test says so."""

    def __init__(self):
        self.ended = threading.Event()

    def record_event(self):
        return SimpleNamespace(query=self.ended.is_set)


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """(log, queue, device, read): read() gives the entries as the parent sees them."""
    device, log = Device(), LogWriter(str(tmp_path), 0, 1)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: device)
    queued = Queued(log)
    yield log, queued, device, LogReader(str(tmp_path), 0).entries
    queued.close()


def post(log, queued):
    item, number = queued.item("0"), log.name
    names = [
        number(text) for text in ("all_reduce", "sum", "float32", ("0", (0,)), ("f.py", 1, "f"), "")
    ]
    item.slots.append(log.record(*names, -1, 0, (4,), 4, 16, ("0",), 7, item.number))
    return item


def test_a_synchronous_op_without_a_work_is_waited_for_on_the_host(kept):
    log, queued, device, read = kept
    threading.Timer(0.2, device.ended.set).start()
    began = time.monotonic()
    queued.given("0", post(log, queued), None, "cuda")
    assert time.monotonic() - began > 0.15
    (seen,) = read()
    assert seen.item == 0 and None not in (seen.wait_from, seen.wait_to, seen.done)
    assert seen.wait_to - seen.wait_from > 0.15


def test_an_op_that_nobody_waits_for_is_seen_to_end_and_finish_waits_for_it(kept):
    log, queued, device, read = kept
    work = FakeWork(device.ended.is_set)
    queued.given("0", post(log, queued), work, "cuda")
    assert read()[0].open
    device.ended.set()
    deadline = time.monotonic() + 10
    while read()[0].open and time.monotonic() < deadline:
        time.sleep(0.01)
    assert read()[0].done is not None and read()[0].wait_from is None

    device.ended.clear()
    queued.given("0", post(log, queued), FakeWork(device.ended.is_set), "cuda")
    threading.Timer(0.2, device.ended.set).start()
    queued.finish()
    assert read()[1].done is not None and read()[1].wait_from is not None


class FakeWork:
    """A Work that can be referred to weakly, as torch's can; as of torch's, whoever has its method
    keeps it alive."""

    def __init__(self, ended):
        self.ended = ended

    def is_completed(self):
        return self.ended()


def test_the_members_of_a_batch_are_one_item_and_end_with_its_work(kept):
    log, queued, device, read = kept
    queued.start_batch("0")
    for _ in range(3):
        # would block if it were an op of its own
        queued.given("0", post(log, queued), None, "cuda")
    queued.given("0", queued.end_batch("0"), FakeWork(device.ended.is_set), "cuda")
    assert post(log, queued).number == 1
    assert [e.item for e in read()] == [0, 0, 0, 1] and all(e.open for e in read())
    device.ended.set()
    queued.finish()
    assert [e.open for e in read()] == [False, False, False, True]


def test_works_are_freed_once_they_have_ended_and_nobody_else_has_them(kept):
    """NCCL's Work holds its outputs: what a job reduces would pile up in a GPU's memory
    until the job ends."""
    log, queued, _, _ = kept
    alive = []
    for _ in range(50):
        work = FakeWork(lambda: True)
        alive.append(weakref.ref(work))
        queued.given("0", post(log, queued), work, "cuda")
        queued.wait(work, lambda work: None, (), {})
    deadline = time.monotonic() + 10
    while queued.waiting and time.monotonic() < deadline:
        time.sleep(0.01)
    del work
    gc.collect()
    assert sum(ref() is not None for ref in alive) <= 1, (
        "the last one is kept until C++ has handed it to Python"
    )
    assert len(queued.live) <= 1
    queued.close()
    gc.collect()
    assert not any(ref() for ref in alive), (
        "after the run nothing may hold its tensors, or a GPU's memory is not as it was before"
    )


def test_on_gloo_the_last_work_is_freed_when_the_run_has_ended():
    blocking = Blocking(SimpleNamespace())
    work = FakeWork(lambda: True)
    last = weakref.ref(work)
    blocking.given(work, 0, None, True)
    del work
    assert last() is not None, "it is kept until C++ has handed it to Python"
    blocking.close()
    gc.collect()
    assert last() is None and not blocking.live


def test_a_call_that_may_block_is_a_wait_until_it_returns(kept):
    log, queued, _, read = kept
    item = post(log, queued)
    with queued.calling("0", item):
        assert read()[0].wait_from is None, "most calls return at once, and the program goes on"
    item.blocks = True
    with queued.calling("0", item):
        assert read()[0].wait_from is not None and read()[0].threads >= 1
    assert read()[0].wait_from is None
    with contextlib.suppress(RuntimeError), queued.calling("0", item):
        raise RuntimeError("the program may catch it, and go on")
    assert read()[0].wait_from is None


def test_the_first_message_of_two_ranks_in_a_direction_is_known(kept):
    _, queued, _, _ = kept
    messages = [
        ("0", "send", 1),
        ("0", "recv", 1),
        ("0", "send", 2),
        ("1", "send", 1),
        ("0", "send", 1),
    ]
    assert [queued.is_first(*message) for message in messages] == [True, True, True, True, False]


def test_without_frames_of_the_user_the_main_threads_line_counts():
    """A thread that C begins has no frames below what it calls, as autograd's on a GPU."""
    seen, done = [], threading.Lock()
    done.acquire()
    line = sys._getframe().f_lineno
    _thread.start_new_thread(
        seen.extend, (map(operator.call, [lambda: locate(None), done.release]),)
    )
    done.acquire()
    (file, at, function), via = seen[0]
    assert (file, function, via) == (
        __file__,
        "test_without_frames_of_the_user_the_main_threads_line_counts",
        "",
    )
    assert line < at <= line + 4  # where the thread begins, or where the main thread waits


def test_of_ops_that_nobody_waited_for_the_lowest_rank_is_named_whoever_posted_first():
    posted = {0: 2.0, 1: 1.0}
    logs = both(
        lambda rank, other: [
            dataclasses.replace(entry(rank, "send", -1, other), posted=posted[rank], owed=True)
        ]
    )
    (found,) = never_waited_for(Ledger(logs, None, [0, 0]))
    assert found.text.startswith("rank 0: send to rank 1 of") and "(on rank 1, too)" in found.text
