"""A claim holds, is refuted, or could not be measured; noise and busy machines never refute; one
measures at a time."""

import contextlib
import math
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from lib import launch, linux
from lib.launch import alone
from lib.measuring import rounds as measure
from lib.measuring.rounds import Claim, Refuted

ROOT = Path(__file__).parents[1]
FASTER = Claim(
    "the star takes {:.1f} times as long as the ring", lambda t: t["star"] / t["ring"], at_least=1.5
)
CLOSE = Claim(
    "the formula is {:.2f} of it", lambda t: t["star"] / t["ring"], at_least=0.9, at_most=1.1
)


@pytest.fixture(autouse=True)
def locks_of_its_own(monkeypatch, tmp_path):
    """No other test's ranks stand in the way."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("LAB_CLAIMS", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def the_machine_is(monkeypatch, *looks):
    """What is seen of others, try by try; the last one stays."""
    left = list(looks)
    monkeypatch.setattr(measure, "SHORTEST", 0.0)
    monkeypatch.setattr(
        measure, "_between", lambda before, after: left.pop(0) if len(left) > 1 else left[0]
    )


QUIET, BUSY = (0.0, 0.9), (0.48, 0.0)


@pytest.fixture
def quiet(monkeypatch):
    the_machine_is(monkeypatch, QUIET)


@pytest.fixture
def busy(monkeypatch):
    the_machine_is(monkeypatch, BUSY)


def rounds_of(ratio, noise=0.02, n=5, seed=0):
    """A run(): its times differ from call to call, and from round to round the whole machine is up
    to twice as slow."""
    draw = np.random.default_rng(seed)

    def run():
        machine = draw.uniform(1, 2, n)
        return {
            "star": ratio * machine * draw.lognormal(0, noise, n),
            "ring": machine * draw.lognormal(0, noise, n),
        }

    return run


def test_what_holds_is_told_with_its_number_interval_and_bound(quiet, capsys):
    found = measure.measure(rounds_of(3.0, noise=0.001), FASTER)
    assert found["star"].shape == (5,)
    told = capsys.readouterr().out
    assert told == (
        "holds after 5 rounds: the star takes 3.0 times as long as the ring (range of 5 "
        "rounds\n    3.0 to 3.0; claimed: at least 1.5)\n"
    )


@pytest.mark.parametrize("n", range(6, 40))
def test_an_interval_encloses_the_median_as_often_as_it_says(n):
    """Its bounds are order statistics: counted over all halves that a value may be in, and one
    further in would be too narrow."""
    values = np.random.default_rng(n).permutation(n)
    low, high = measure.interval(values)[1:3]
    k = round(low) + 1
    inside = lambda k: sum(math.comb(n, above) for above in range(k, n - k + 1)) / 2**n
    assert low + high == n - 1 and inside(k) >= 0.95 > inside(k + 1)


def test_fewer_than_six_rounds_have_a_range_and_no_interval():
    assert measure.interval([3.0, 1.0, 2.0]) == (2.0, 1.0, 3.0, 3)
    told = Claim("{:.0%} of it", lambda t: t, at_most=0.9).told(measure.interval([0.83, 0.8, 0.85]))
    assert told == "83% of it (range of 3 rounds 80% to 85%; claimed: at most 90%)"
    seen = measure.interval([0.83, 0.8, 0.85] * 2)
    told = Claim("{:.3f} of it", lambda t: t, at_most=0.9).told(seen)
    assert told == "0.830 of it (95% interval 0.800 to 0.850; claimed: at most 0.9)"


def test_what_is_false_is_refuted_after_a_second_look(quiet):
    tries = []
    run = rounds_of(1.0)
    with pytest.raises(
        Refuted,
        match=r"refuted after 10 rounds: the star takes 1\.0 .*claimed: at least 1\.5",
    ):
        measure.measure(lambda: tries.append(1) or run(), FASTER)
    assert len(tries) == 2


@pytest.mark.parametrize("ratio", [0.7, 1.4])
def test_both_bounds_are_bounds(quiet, ratio):
    measure.measure(rounds_of(1.0, noise=0.005), CLOSE)
    with pytest.raises(Refuted, match=r"claimed: at least 0\.9 and at most 1\.1"):
        measure.measure(rounds_of(ratio), CLOSE)


def test_a_busy_machine_refutes_nothing_and_has_no_result(busy, capsys):
    assert measure.measure(rounds_of(1.0), FASTER, patience=0.2) is None
    told = " ".join(capsys.readouterr().out.split())
    assert told.startswith("could not be measured in ") and "the star takes 1.0 times" in told
    assert "48% of the processors" in told
    assert "run this cell again" in told


def test_what_holds_on_a_busy_machine_holds(busy, capsys):
    assert measure.measure(rounds_of(3.0), FASTER)
    assert "holds" in capsys.readouterr().out


def test_rounds_beside_others_are_left_out_once_it_is_quiet(monkeypatch):
    the_machine_is(monkeypatch, BUSY, QUIET)
    times = iter(
        [{"star": np.ones(3), "ring": np.ones(3)}, {"star": 3 * np.ones(4), "ring": np.ones(4)}]
    )
    assert measure.measure(lambda: next(times), FASTER)["star"].tolist() == [3.0] * 4


def test_more_rounds_are_taken_until_the_interval_is_inside(quiet):
    close = CLOSE._replace(at_least=0.93, at_most=1.07)
    found = measure.measure(rounds_of(1.0, noise=0.15, seed=3), close, patience=60)
    assert len(found["star"]) > 20 and len(found["star"]) % 5 == 0


def test_where_every_claim_has_to_hold_not_knowing_is_not_enough(busy, monkeypatch):
    monkeypatch.setenv("LAB_CLAIMS", "hold")
    with pytest.raises(Refuted, match="could not be measured"):
        measure.measure(rounds_of(1.0), FASTER, patience=0.1)


def test_one_try_is_no_refutation_and_waits_for_nobody(quiet, monkeypatch, capsys):
    monkeypatch.setenv("LAB_CLAIMS", "once")
    monkeypatch.setattr(measure, "alone", None)
    assert measure.measure(rounds_of(1.0), FASTER) is None
    assert "could not be measured" in capsys.readouterr().out


def test_noise_alone_never_decides(quiet):
    """Of a true ratio on the very bound neither verdict is told more often than its
    interval allows."""
    run = [rounds_of(1.5, noise=0.1, n=9, seed=seed)() for seed in range(200)]
    outcomes = [FASTER.judge(found)[0] for found in run]
    assert outcomes.count("holds") < 20 and outcomes.count("refuted") < 20


def test_several_claims_of_one_measurement_are_told_one_by_one(quiet, capsys):
    slower = Claim(
        "the ring takes {:.1f} of the star", lambda t: t["ring"] / t["star"], at_most=0.5
    )
    measure.measure(rounds_of(3.0), FASTER, slower)
    told = capsys.readouterr().out
    assert told.count("holds after 5 rounds: the") == 2


@pytest.mark.parametrize(
    "found",
    [{"star": [1.0], "ring": [1.0]}, {"star": np.ones(3), "ring": np.array([1, np.nan, 1])}],
)
def test_rounds_that_say_nothing_are_refused(quiet, found):
    with pytest.raises(ValueError, match=r"3 rounds or more|finite values"):
        measure.measure(lambda: found, FASTER)


def test_in_turns_takes_every_side_once_a_round_every_other_round_backwards():
    called = []
    found = measure.in_turns(
        {side: lambda side=side: called.append(side) or time.sleep(0.002) for side in "ab"}, 4
    )
    assert called == list("abbaabba")
    assert all(times.shape == (4,) and (times > 0.001).all() for times in found.values())


# --- others on the machine ------------------------------------------------------------------------


def turn():
    while True:
        pass


@contextlib.contextmanager
def busy_loops(number):
    """Programs that are none of ours: started by a process that has ended."""
    start = (
        "subprocess.Popen([sys.executable, '-c', 'while True: pass'], stdout=subprocess.DEVNULL)"
    )
    command = [
        sys.executable,
        "-c",
        f"import subprocess, sys; [print({start}.pid) for _ in range({number})]",
    ]
    told = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    try:
        yield
    finally:
        for pid in map(int, told.split()):
            os.kill(pid, 9)


def seen_in(seconds, work):
    before = measure._used()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        work()
    return measure._between(before, measure._used())


def test_other_programs_are_seen_by_what_they_use():
    with busy_loops(2 * len(linux.processors())):
        time.sleep(0.2)
        others, idle = seen_in(1.0, lambda: time.sleep(0.01))
    assert others > 0.5 and idle < measure.IDLE


def test_what_a_process_that_we_have_started_uses_is_ours():
    before = measure._used()
    worker = multiprocessing.get_context("fork").Process(target=turn)
    worker.start()
    try:
        seen_in(1.0, lambda: time.sleep(0.01))
        used = sum(psutil.Process(worker.pid).cpu_times()[:2])
        assert 0 < used <= measure._used().ours - before.ours + 0.02
    finally:
        worker.kill()
        worker.join()
    assert used <= measure._used().ours - before.ours + 0.02  # also when it has ended


def test_beside_busy_loops_equal_sides_are_not_told_to_differ():
    def run():
        return measure.in_turns(
            {"star": lambda: sum(range(20_000)), "ring": lambda: sum(range(20_000))}, 5
        )

    with busy_loops(2 * len(linux.processors())):
        assert measure.measure(run, FASTER, patience=1.0) is None


# --- one at a time --------------------------------------------------------------------------------

MEASURES = """
import sys, time
from lib.launch.alone import alone
with alone():
    print("in", flush=True)
    sys.stdin.readline()
"""


@contextlib.contextmanager
def another_that_measures():
    """A process that says "in" when it has the machine for itself, and keeps it."""
    process = subprocess.Popen(
        [sys.executable, "-c", MEASURES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def seconds_until(how):
    begin = time.monotonic()
    with how():
        return time.monotonic() - begin


def test_a_run_waits_until_another_process_has_measured_or_is_killed(monkeypatch):
    with another_that_measures() as process:
        assert process.stdout.readline() == "in\n"
        monkeypatch.setattr(alone, "PATIENCE", 0.2)
        assert seconds_until(alone.among_others) >= 0.2  # and then goes on
        monkeypatch.setattr(alone, "PATIENCE", 60.0)
        process.kill()
        assert seconds_until(alone.among_others) < 30
        assert launch.capture(lambda: 1, nproc=2) == [1, 1]


def test_a_measurement_waits_for_the_runs_of_others_and_new_ones_wait_for_it(monkeypatch, tmp_path):
    with alone.among_others(), another_that_measures(), open(tmp_path / alone.GATE) as gate:
        deadline = time.monotonic() + 300
        while alone._try(gate, alone.fcntl.LOCK_SH):  # it has not come to the gate yet
            alone.fcntl.flock(gate, alone.fcntl.LOCK_UN)
            assert time.monotonic() < deadline
            time.sleep(0.01)
        monkeypatch.setattr(alone, "PATIENCE", 0.1)
        assert seconds_until(alone.among_others) >= 0.1


def test_what_a_measurement_starts_itself_does_not_wait():
    def run():
        return {"star": np.array(launch.capture(times, nproc=2)[0]), "ring": np.ones(3)}

    with alone.alone():
        assert seconds_until(alone.alone) < 1
        assert measure.measure(run, CLOSE._replace(at_least=0.0, at_most=60.0))


def times():
    return [1.0, 1.0, 1.0]


def test_where_no_file_can_be_locked_it_goes_on(monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/proc/nothing")
    assert seconds_until(alone.alone) < 1 and seconds_until(alone.among_others) < 1
