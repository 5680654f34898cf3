"""Whatever goes wrong on a rank: one clear error with rank, line, values, no process left, and the
next run works."""

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import faults
import pytest
import slow_but_right
import torch
import torch.distributed as dist
from programs import eventually, no_rank_is_left
from sweeps import first_quick

from lib import launch, linux
from lib.launch import agent, cpu_time, warm, watch
from lib.ledger.log import RAISED, LogReader

# tests/gpu/hangs.py tries faults under NCCL, where they end otherwise
pytestmark = pytest.mark.usefixtures("on_gloo")


def world_sum():
    x = torch.ones(1)
    dist.all_reduce(x)
    return x.item()


FAULTS = [
    # fn, how many ranks, kind, what the message must name
    ("raises_on_one", 3, "raised", ["rank 1 raised ValueError: the loss is nan", "faults.py:",
                                    "where loss = nan"]),
    ("raises_on_all", 3, "raised", ["all 3 ranks raised ZeroDivisionError", "return 1 / scale",
                                    "where scale = 0"]),
    ("raises_on_all_in_turn", 3, "raised", ["all 3 ranks raised ZeroDivisionError",
                                            "return 1 / scale"]),
    ("sys_exit_on_one", 3, "exited", ["rank 1 called sys.exit(0)", "sys.exit(0)",
                                      "return from the function instead"]),
    ("os_exit_on_one", 3, "died", ["rank 1 left with exit code 3",
                                   "last op of rank 1: all_reduce #0", "faults.py:"]),
    ("os_exit_zero", 3, "died", ["rank 2 left with exit code 0", "had not communicated yet"]),
    ("killed", 3, "died", ["rank 1 was ended by SIGKILL", "the last op of rank 1: all_reduce #0"]),
    ("segfault", 3, "died", ["rank 1 was ended by SIGSEGV", "was at faults.py:", "string_at(0)",
                             "all_reduce #0"]),
    ("raises_what_has_no_text", 2, "raised",
    ["raised Unspeakable: (its text cannot be had: __str__", "faults.py:"]),
    ("raises_two_megabytes", 2, "raised", ["raised ValueError: xxxx",
                                           "xxxx ... (2,000,000 characters)", "faults.py:"]),
    ("unequal_shapes", 3, "mismatch", ["differ in the shape", "float32 (1000,)",
                                       "SUM of float32 (400"]),
    ("ring_of_receives", 3, "deadlock", ["a cycle: rank 0 -> rank 2 -> rank 1 -> rank 0",
                                         "waits in recv from rank 2"]),
    ("both_send_first", 2, "deadlock", ["a cycle: rank 0 -> rank 1 -> rank 0",
                                        "waits in send to rank 1"]),
    ("returns_early", 3, "deadlock", ["rank 2 returned while others", "all_reduce #1",
                                      "rank 2 has not called it"]),
    ("different_ops", 3, "mismatch", ["differ in the op", "rank 1: broadcast #0 with root 0",
                                      "all_reduce #0 SUM"]),
    ("different_reduce_ops", 3, "mismatch", ["differ in the reduce op", "rank 1: all_reduce #0 MAX",
                                             "#0 SUM"]),
    ("different_dtypes", 3, "mismatch", ["differ in the dtype", "int32", "float32"]),
    ("larger_receive", 2, "mismatch", ["rank 0 sent 3 x float32 to rank 1", "8 x float32",
                                       "last 5 elements"]),
    ("receive_of_another_dtype", 2, "mismatch", ["rank 0 sent 4 x float32 to rank 1", "4 x int32"]),
    ("returns_a_lock", 2, "raised", ["the function returned a lock", "cannot be sent back"]),
    ("wrong_group", 4, "mismatch", ["a cycle", "all_reduce #0", "has not called it"]),
]  # fmt: skip


@pytest.mark.parametrize("earlier", [0, 2])
@pytest.mark.parametrize(("name", "nproc", "kind", "says"), FAULTS, ids=[row[0] for row in FAULTS])
def test_a_fault_is_named_and_leaves_nothing(name, nproc, kind, says, earlier):
    """In the first run of its ranks, and in the third."""
    for _ in range(earlier):
        assert launch.capture(world_sum, nproc=nproc) == [float(nproc)] * nproc
    with pytest.raises(launch.RankError) as caught:
        launch.capture(getattr(faults, name), nproc=nproc, timeout=30, fresh=not earlier)
    message = str(caught.value)
    print(message)
    assert caught.value.kind == kind, message
    for text in says:
        assert text in message, f"{text!r} is not in:\n{message}"
    assert no_rank_is_left()
    assert launch.capture(world_sum, nproc=2) == [2.0, 2.0]


OPS = ["send", "isend", "recv", "irecv", "broadcast", "reduce", "gather", "scatter"]


@pytest.mark.parametrize(
    ("how", "peer", "group", "ledger"),
    [(how, 2, None, ledger) for how in OPS for ledger in (True, False)]
    + [(how, *where, False) for how in ("send", "broadcast") for where in ((-1, None), (1, [0]))],
)
def test_a_rank_that_does_not_exist_is_named_at_once(how, peer, group, ledger):
    with pytest.raises(launch.RankError) as caught:
        launch.capture(faults.talks_to_nobody, how, peer, group, nproc=2, timeout=30, ledger=ledger)
    message = str(caught.value)
    there = "only rank 0" if group else "ranks 0 to 1"
    assert f"rank {peer}: the group has {there}. Round a ring" in message, message
    assert "faults.py:" in message and f'"{how}": lambda' in message, message


def test_different_ops_that_hang_are_named_at_once():
    """On three ranks gloo may abort or hang; on two, a broadcast root that only sends leaves the
    other waiting."""
    with pytest.raises(launch.RankError) as caught:
        launch.capture(faults.different_roots, nproc=2, timeout=30)
    assert "differ in the root" in str(caught.value)


def test_swapped_collectives_warn_with_both_lines():
    results = launch.capture(faults.swapped_collectives, nproc=3)
    text = results.warnings[0]
    assert "called from different lines" in text
    assert "dist.all_reduce(accuracy)" in text and "dist.all_reduce(loss)" in text


def test_one_line_in_a_loop_does_not_warn():
    assert launch.capture(slow_but_right.one_op_in_a_loop_over_two_tensors, nproc=3).warnings == []


def test_an_endless_loop_is_named_at_the_timeout():
    with pytest.raises(launch.RankError) as caught:
        launch.capture(faults.endless_loop, nproc=4, timeout=2)
    message = str(caught.value)
    assert caught.value.kind == "timeout"
    assert "rank 3 computes and waits for no rank: faults.py:" in message
    assert "while rank == 3" in message or "count += 1" in message  # either line of the loop
    assert "rank 0 waits in all_reduce #1" in message and "rank 3 has not called it" in message
    assert no_rank_is_left()


def slow_start(monkeypatch, seconds):
    """Ranks begin so much later; none is there already."""
    warm.end_all()
    at_once = agent.Agent._run
    monkeypatch.setattr(agent.Agent, "_run", lambda self: [time.sleep(seconds), at_once(self)])


def test_the_time_is_counted_from_when_all_ranks_have_begun(monkeypatch):
    slow_start(monkeypatch, 3)
    assert launch.capture(world_sum, nproc=2, timeout=2) == [2.0, 2.0]


def test_ranks_that_do_not_begin_are_told_and_ended(monkeypatch):
    slow_start(monkeypatch, 3)
    monkeypatch.setattr(watch, "START", 0.5)
    with pytest.raises(
        launch.RankError, match=r"no start within 0\.5 s: ranks 0 and 1 had not begun"
    ) as caught:
        launch.capture(world_sum, nproc=2)
    assert caught.value.kind == "no start" and "This is not your function's doing" in str(
        caught.value
    )
    assert no_rank_is_left()


@pytest.mark.parametrize("runs", [5, pytest.param(200, marks=pytest.mark.slow)])
def test_only_the_guilty_rank_is_blamed(runs):
    """torch ends the other ranks with SIGTERM as soon as it sees one gone, which may be
    before we look."""
    for _ in range(runs):
        with pytest.raises(launch.RankError) as caught:
            launch.capture(faults.kills_itself_before_a_barrier, nproc=2, timeout=30)
        assert str(caught.value).startswith("rank 1 was ended by SIGKILL"), str(caught.value)
        assert "SIGTERM" not in str(caught.value)


@pytest.mark.skipif(
    not os.path.exists("/proc/self/stat"), reason="not run: only Linux says what a process does"
)
def test_a_rank_that_ended_is_gone_before_anybody_waits_for_it():
    """On a busy machine the forkserver does so late, and the rank that lost the connection
    would be blamed."""
    child = subprocess.Popen(["sleep", "60"])
    assert agent.exists(child.pid)
    child.kill()
    assert eventually(lambda: not agent.exists(child.pid))
    assert child.wait() == -9


@pytest.mark.skipif(
    not os.path.exists("/proc/self/stat"), reason="not run: only Linux says what a process does"
)
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("sleeps_for_ever", "rank 1 sleeps, in no"),
        ("stands_still", "rank 1 is stopped by a signal"),
    ],
)
def test_a_rank_that_does_not_compute_is_not_said_to(name, says):
    with pytest.raises(launch.RankError, match=says) as caught:
        launch.capture(getattr(faults, name), nproc=2, timeout=2)
    assert caught.value.kind == "timeout" and no_rank_is_left()


@pytest.mark.skipif(
    not os.path.exists("/proc/self/stat"), reason="not run: only Linux says what a process does"
)
def test_a_rank_that_a_busy_machine_has_not_let_begin_is_waited_for_when_another_raises(
    monkeypatch,
):
    """2.5 seconds by the clock in which rank 1 gets no processor; 1 second is what it has
    while it could go on."""
    clock, ready, state = (
        [0.0],
        linux.Thread(1.0, 5.0, "R"),
        lambda: 0 if clock[0] < 2.5 else RAISED,
    )
    raised = SimpleNamespace(rank=0, state=RAISED, pid=10)
    logs = SimpleNamespace(heads=lambda: [raised, SimpleNamespace(rank=1, state=state(), pid=0)])
    agent = SimpleNamespace(pids=lambda: [10, 11], alive=lambda rank: True)

    def awake(pids, seconds):
        clock[0] += 0.25
        return bool(pids)

    monkeypatch.setattr(watch, "now", lambda: clock[0])
    monkeypatch.setattr(cpu_time, "now", lambda: clock[0])
    monkeypatch.setattr(cpu_time.linux, "threads", lambda pid: {str(pid): ready})
    monkeypatch.setattr(watch, "awake", awake)
    assert [head.state for head in watch._settled(agent, logs, cpu_time.CpuTime())] == [
        RAISED,
        RAISED,
    ]


def test_a_thread_left_behind_costs_neither_the_results_nor_a_process():
    assert launch.capture(slow_but_right.leaves_a_thread_behind, nproc=2) == [0, 1]
    assert launch.capture(slow_but_right.threads_here, nproc=2) == [0, 0]
    assert no_rank_is_left()


def test_a_loop_on_every_rank_is_told_from_a_deadlock():
    with pytest.raises(launch.RankError, match="the function itself does not end"):
        launch.capture(faults.all_loop, nproc=2, timeout=1)
    assert no_rank_is_left()


def test_a_hang_inside_ddps_reducer_is_found_before_the_timeout():
    with pytest.raises(launch.RankError) as caught:
        launch.capture(faults.ddp_on_all_but_one, nproc=3, timeout=300)
    assert caught.value.kind in ("no progress", "deadlock")
    assert "rank 2 returned while others still wait for it" in str(caught.value)


@pytest.mark.slow
def test_a_group_that_never_is_made_is_told_with_the_seconds_it_was_given(monkeypatch):
    monkeypatch.setattr(watch, "PATIENCE", 3.0)
    with pytest.raises(
        launch.RankError, match="no progress for 3 s: the ranks wait, and none can go on"
    ) as caught:
        launch.capture(faults.group_that_never_is, nproc=3, timeout=300)
    assert caught.value.kind == "no progress" and "rank 0 waits in recv from rank 1" in str(
        caught.value
    )
    assert no_rank_is_left()


@pytest.mark.parametrize(
    ("name", "nproc", "expected"),
    first_quick(
        [
            ("computes_for_long", 2, [2.0, 2.0]),
            ("another_thread_sends", 2, [True, True]),
            ("message_inside_async_collective", 3, [3.0, 3.0, 3.0]),
            ("receives_from_anyone", 4, [[1, 2, 3], None, None, None]),
            ("message_that_takes_long", 2, [1.0, 2.0]),
            ("group_that_takes_long", 3, [1.0, 0.0, 0.0]),
            ("sleeps_for_long", 2, [2.0, 4.0]),
        ],
        quick=5,
    ),
)
def test_slow_but_correct_programs_are_not_blamed(name, nproc, expected):
    if name == "sleeps_for_long":
        expected = [4.0, 4.0]
    results = launch.capture(getattr(slow_but_right, name), nproc=nproc)
    assert list(results) == expected
    assert results.warnings == [] or name == "message_inside_async_collective"


def test_a_log_that_changes_while_it_is_read_proves_no_deadlock(monkeypatch):
    """A busy machine may interrupt the reading: that rank 1 sent would be missed, and that it then
    waits be seen."""
    head, pauses = LogReader.head, []

    def then_a_pause(log):
        found = head(log)
        if sys._getframe(1).f_code.co_name == "entries" and log.rank == 1:
            pauses.append(time.sleep(1.0))
        return found

    monkeypatch.setattr(LogReader, "head", then_a_pause)
    launch.capture(slow_but_right.sends_between_a_receive_and_its_wait, nproc=2)
    assert pauses


def test_five_megabytes_of_prints_are_capped_with_a_note():
    results = launch.capture(faults.prints_five_megabytes, nproc=2)
    for rank in range(2):
        lines = [line for r, line in results.output if r == rank]
        assert lines[0] == "start" and "output capped" in lines[-1]
        assert sum(map(len, lines)) < 25_000
    assert list(results) == [0, 1]


def test_a_flood_without_a_newline_is_capped_too():
    results = launch.capture(faults.prints_without_newline, nproc=1)
    assert sum(len(line) for _, line in results.output) < 25_000
    assert "output capped" in results.output[-1][1]


class Holder:
    def __init__(self):
        self.weights = torch.ones(3)

    def __repr__(self):
        return f"Holder({self.weights})"


def fails_holding_a_tensor():
    holder = Holder()
    return holder.bias


def test_a_tensor_inside_of_what_the_failing_line_reads_is_told_by_its_form():
    """To read its values on a GPU would wait behind an op that hangs."""
    with pytest.raises(launch.RankError, match=r"where holder = Holder\(float32 \(3,\)\)"):
        launch.capture(fails_holding_a_tensor, nproc=1)


def looks_up_a_parameter():
    weight = torch.nn.Parameter(torch.ones(50, 50))
    return {}[weight]


def test_an_error_about_a_tensor_does_not_print_it_whole():
    with pytest.raises(launch.RankError, match=r"KeyError: float32 \(50, 50\)\n"):
        launch.capture(looks_up_a_parameter, nproc=1)
