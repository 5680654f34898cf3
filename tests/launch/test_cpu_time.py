"""A busy machine is not the ranks' fault: what others kept from them is no idleness, and no
part of the timeout."""

import contextlib
import ctypes
import os
import platform
import subprocess
import sys
import time

import pytest

from lib import launch, linux
from lib.launch import cpu_time, errors

pytestmark = pytest.mark.skipif(
    not linux.counts_waiting(), reason="not run: only Linux counts waiting"
)
CORE = linux.processors()[0]


@pytest.mark.parametrize(
    ("ran", "waited", "processors", "seconds"),
    [
        (0.0, 0.0, 2, 0.0),  # all asleep
        (1.0, 0.0, 2, 0.0),  # one computes
        (0.2, 0.8, 2, 0.8),  # one computes, four others on its processor
        (0.0, 1.0, 2, 1.0),  # one computes, and does not get to it at all
        (2.0, 6.0, 2, 0.0),  # eight compute, in turns: nobody but they
        (0.5, 7.5, 2, 0.75),  # the same, and others have three quarters of both processors
        (0.01, 0.03, 2, 0.03),  # hardly awake
        (0.4, 1.6, 8, 0.8),  # two compute, on a fifth of a processor each
    ],
)
def test_what_others_kept_of_a_second(ran, waited, processors, seconds):
    assert cpu_time.kept(1.0, ran, waited, processors) == pytest.approx(seconds)


@contextlib.contextmanager
def others(number):
    """So many other processes that compute on processor CORE, each in a session of its own as other
    programs are.

    A rank is there before them: it need not start beside them.
    """
    launch.capture(os.getpid, nproc=1)
    loop = f"import os\nos.sched_setaffinity(0, [{CORE}])\nprint(flush=True)\nwhile True: pass"
    start = {"stdout": subprocess.PIPE, "start_new_session": True}
    processes = [
        subprocess.Popen([sys.executable, "-S", "-c", loop], **start) for _ in range(number)
    ]
    try:
        for process in processes:
            process.stdout.readline()
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()
            process.stdout.close()


def compute(core, seconds):
    """So many seconds of processor time on that core; returns how long it took."""
    os.sched_setaffinity(0, [core])
    start, end = time.monotonic(), time.thread_time() + seconds
    while time.thread_time() < end:
        pass
    return time.monotonic() - start


@pytest.mark.slow
def test_a_rank_that_hardly_gets_a_processor_is_not_out_of_time():
    for number in (4, 8, 16):  # until the machine was busy: else nothing was shown
        with others(number):
            (took,) = launch.capture(compute, CORE, 0.4, nproc=1, timeout=1)
        if took > 1.3:
            break
    assert took > 1.3


def test_a_wait_for_a_processor_counts_while_it_goes_on_and_not_again_when_it_is_booked(
    monkeypatch,
):
    clock, sleeps = [0.0], linux.Thread(1.0, 5.0, "S")
    monkeypatch.setattr(cpu_time, "now", lambda: clock[0])
    monkeypatch.setattr(cpu_time.linux, "threads", lambda pid: {"1234": threads.pop(0)})
    ready = sleeps._replace(state="R")
    threads = [
        sleeps,
        ready,
        ready,
        ready,
        linux.Thread(1.1, 5.9, "S"),
        linux.Thread(1.1, 5.9, "S"),
    ]
    looks, scheduled = cpu_time.CpuTime(), []
    while threads:
        clock[0] += 0.25
        scheduled.append(looks.sample({0: 1234}))
    # for 0.75 s ready; then 0.15 more of that wait, 0.1 on a processor; then asleep
    assert scheduled == pytest.approx([0.25, 0.0, 0.0, 0.0, 0.1, 0.25])


def test_a_thread_that_is_ready_by_chance_is_not_said_to_wait():
    """Of two hundred threads of gloo that wake a hundred times a second, some are always ready."""
    looks = cpu_time.CpuTime()
    before, after = linux.Thread(1.0, 5.0, "S"), linux.Thread(1.001, 5.0, "R")
    assert looks._since("1", before, after, 0.2) == (pytest.approx(0.001), 0.0)
    starved = linux.Thread(1.0, 5.0, "R")
    assert looks._since("2", before, starved, 0.2) == (0.0, 0.2)


def test_what_others_keep_from_a_rank_counts_while_another_rank_leaves(monkeypatch):
    """Else the last of several ranks that raise is given up before it has had the time to."""
    clock, ready, ranks = (
        [0.0],
        linux.Thread(1.0, 5.0, "R"),
        [{0: 10, 1: 11, 2: 12}, {1: 11, 2: 12}, {2: 12}],
    )
    monkeypatch.setattr(cpu_time, "now", lambda: clock[0])
    monkeypatch.setattr(cpu_time.linux, "threads", lambda pid: {str(pid): ready})
    looks, scheduled = cpu_time.CpuTime(), []
    for running in ranks:
        clock[0] += 0.4
        scheduled.append(looks.sample(running))
    # nothing is known of the time before the first look
    assert scheduled == pytest.approx([0.4, 0.0, 0.0])


@pytest.mark.slow
def test_beside_others_too_an_endless_loop_ends_at_the_timeout():
    began = time.monotonic()
    with others(3), pytest.raises(launch.RankError, match="timeout after 1 s") as caught:
        launch.capture(compute, CORE, 1e9, nproc=1, timeout=1)
    assert caught.value.kind == "timeout" and time.monotonic() - began < 200


def stand_still(seconds):
    """Be in state D, as a process is that waits for its disk: until a child ends that clone(2) has
    made with VFORK."""
    clone = {"x86_64": 56, "aarch64": 220}[platform.machine()]
    libc = ctypes.PyDLL(None)  # it keeps Python's lock, for the child too
    began = time.monotonic()
    if libc.syscall(clone, 0x4000 | 17, 0, 0, 0, 0) == 0:  # CLONE_VFORK | SIGCHLD
        time.sleep(seconds)
        os._exit(0)
    return time.monotonic() - began


def test_a_rank_that_waits_for_its_disk_is_not_out_of_time():
    (took,) = launch.capture(stand_still, 3.0, nproc=1, timeout=1)
    assert took > 2.9


@pytest.mark.parametrize("graded", [False, True])
def test_how_long_it_took_by_the_clock_is_said_but_to_a_graded_notebook(monkeypatch, graded):
    """A class that is graded twice gets the same words, whatever else the machine had to do."""
    monkeypatch.setattr(errors, "WELL_OVER", 0.5)
    monkeypatch.setattr(errors, "GRADED", graded)
    with pytest.raises(launch.RankError, match="timeout after 1 s") as caught:
        launch.capture(time.sleep, 60, nproc=1, timeout=1)
    assert ("by the clock" in str(caught.value)) != graded
