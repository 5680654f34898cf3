"""Benchmarks find a slower side, let equal ones pass, are not moved by noise, and leave
table, JSON and figure."""

import contextlib
import json
import math
import pathlib
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch.distributed as dist

from lib import launch, linux
from lib.collectives import cost
from lib.measuring.rounds import Interval, interleave, interval
from tests.benchmarks import __main__ as runner
from tests.benchmarks import alpha_beta, bench_collectives, bench_launch, report, thresholds
from tests.benchmarks.measure import Bar, Comparison, compare
from tests.benchmarks.rounds import Side, timed

ROOT = pathlib.Path(__file__).parent.parent

NOT_SLOWER, HALF = Bar(None, "why"), Bar(0.5, "why")


def rounds(factor, seed, n=31, noise=0.3):
    """Three sides' times: each call has its own noise, the machine slows down threefold half way,
    ours is `factor`."""
    rng = np.random.default_rng(seed)
    # alike for the sides of a round
    machine = np.where(np.arange(n) < n // 2, 1.0, 3.0) * rng.lognormal(0, 0.5, n)
    ours, theirs, again = (machine * rng.lognormal(0, noise, n) for _ in range(3))
    return compare(factor * ours, theirs, again)


# --- the statistic --------------------------------------------------------------------------------


def test_a_side_that_takes_twice_as_long_is_always_found():
    for seed in range(100):
        found = rounds(2.0, seed)
        assert found.ratio.low > 1.25 and not NOT_SLOWER.met(found)


def test_equal_sides_pass_whatever_the_noise():
    passed = [
        NOT_SLOWER.met(rounds(1.0, seed, noise=noise))
        for seed in range(100)
        for noise in (0.05, 0.3, 0.8)
    ]
    assert np.mean(passed) > 0.97


@pytest.mark.parametrize("noise", [0.05, 0.3])
def test_noise_flips_no_verdict_on_what_is_clearly_inside_or_outside_a_bar(noise):
    for seed in range(100):
        assert HALF.met(rounds(0.25, seed, noise=noise))
        assert not HALF.met(rounds(0.6, seed, noise=noise))


def test_the_interval_holds_the_true_ratio_in_about_95_of_100():
    held = [f.ratio.low <= 0.7 <= f.ratio.high for f in (rounds(0.7, seed) for seed in range(300))]
    assert 0.9 < np.mean(held) <= 1


def test_pairing_takes_the_machines_slow_half_out():
    found = rounds(0.7, 0, noise=0.01)
    assert found.ratio == pytest.approx((0.7, 0.7, 0.7, 31), abs=0.02)
    assert found.control == pytest.approx((1, 1, 1, 31), abs=0.02)


def test_the_same_times_give_the_same_interval():
    values = np.random.default_rng(5).lognormal(size=31)
    assert interval(values) == interval(list(values))
    assert (
        interval(values).low < interval(values).median == np.median(values) < interval(values).high
    )


def test_bars_say_what_they_compare():
    of = lambda ratio, control: Comparison(
        1.0, 1.0, Interval(1.0, *ratio, 31), Interval(1.0, *control, 31), 31
    )
    # a control below 1 is no reason to ask for more than 1
    assert NOT_SLOWER.met(of((1.00, 1.5), (0.5, 0.9)))
    assert NOT_SLOWER.met(of((1.10, 1.5), (0.8, 1.1)))
    assert not NOT_SLOWER.met(of((1.11, 1.5), (0.8, 1.1)))
    assert HALF.met(of((0.1, 0.5), (1.0, 1.0))) and not HALF.met(of((0.1, 0.501), (1.0, 1.0)))
    assert (str(NOT_SLOWER), str(HALF)) == ("not slower", "at most 0.5")


def test_rounds_alternate_and_both_pairs_are_neighbours():
    called = []
    clocks = [lambda side=side: called.append(side) or float(len(called)) for side in "OTA"]
    seconds = interleave(clocks, 4)
    assert "".join(called) == "OTA" + "ATO" + "OTA" + "ATO"
    assert seconds.tolist() == [[1, 2, 3], [6, 5, 4], [7, 8, 9], [12, 11, 10]]


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [[1.0], [2.0]]])
def test_what_is_no_line_of_numbers_is_refused(values):
    with pytest.raises(ValueError, match="finite values of shape"):
        interval(values)


def test_unpaired_sides_are_refused():
    with pytest.raises(ValueError, match="31, 30, 31 rounds"):
        compare(np.ones(31), np.ones(30), np.ones(31))


# --- rounds on ranks ------------------------------------------------------------------------------


def one_rank_sleeps():
    """The last rank sleeps in every call; the first does nothing, and enters a
    context that is not timed."""
    begun, last = [], dist.get_rank() == dist.get_world_size() - 1

    @contextlib.contextmanager
    def slow_to_enter():
        begun.append(time.sleep(0.2))
        yield

    sides = {
        "ours": Side(lambda: time.sleep(0.02 * last), slow_to_enter),
        "theirs": Side(lambda: time.sleep(0.01 * last)),
        "again": Side(lambda: time.sleep(0.01 * last)),
    }
    return timed(sides, rounds=5), len(begun)


def test_on_ranks_the_slowest_rank_counts_and_entering_a_side_does_not():
    (first, begun), (last, _) = launch.capture(
        one_rank_sleeps, nproc=2, backend="gloo", ledger=False
    )
    assert all((first[side] == last[side]).all() for side in ("ours", "theirs", "again"))
    assert begun > 5  # it was entered in every round
    assert 0.02 < np.median(first["ours"]) < 0.2  # seconds per call, the 0.2 of entering left out
    assert compare(**first).ratio.median == pytest.approx(2, rel=0.3)


# --- the model and the thresholds -----------------------------------------------------------------


def test_alpha_and_beta_are_found_again():
    link = {m: 5e-5 + m / 2e9 for m in (64, 4096, 1 << 20, 1 << 26)}
    assert alpha_beta.fit(link) == pytest.approx((5e-5, 1 / 2e9))


def test_the_crossing_is_where_the_model_puts_it():
    alpha, beta, sizes = 1e-4, 1e-9, [1 << bits for bits in range(10, 27)]
    times = {
        a: alpha_beta.predict(a, sizes, 4, alpha, beta)
        for a in ("star", "ring", "recursive_doubling")
    }
    # 2 (alpha + n beta) = 6 (alpha + n/4 beta)
    assert alpha_beta.overtaken(times["recursive_doubling"], times["ring"]) == pytest.approx(
        8 * alpha / beta, rel=0.05
    )
    assert alpha_beta.overtaken(times["star"], times["ring"]) == 0
    assert alpha_beta.overtaken(times["ring"], times["star"]) == math.inf
    assert (
        alpha_beta.one_by_one("ring", 4096, 4, beta) == cost.COST["ring"].total(1024, 4) * 4 * beta
    )


def test_thresholds_change_only_for_what_is_clearly_faster(tmp_path):
    rng = np.random.default_rng(0)
    measured = lambda seconds: seconds * rng.lognormal(0, 0.02, 31)
    times = {
        "short": {1 << 10: measured(1.0), 1 << 14: measured(1.0), 1 << 18: measured(9.0)},
        "twin": {1 << 10: measured(1.001), 1 << 14: measured(0.999), 1 << 18: measured(9.0)},
        "long": {1 << 10: measured(4.0), 1 << 14: measured(4.0), 1 << 18: measured(4.0)},
    }
    first = min(("short", "twin"), key=lambda name: np.median(times[name][1 << 10]))
    path = tmp_path / "thresholds.json"
    thresholds.write({8: times, 4: times}, path)
    written = json.loads(path.read_text())["all_reduce"]
    assert written == {
        "4": [[1 << 16, first], [None, "long"]],
        "8": [[1 << 16, first], [None, "long"]],
    }


def test_the_thresholds_in_use_are_in_that_form():
    text = thresholds.FILE.read_text()
    names = {name for rows in json.loads(text)["all_reduce"].values() for _, name in rows}
    assert names <= set(cost.COST)


# --- the runner -----------------------------------------------------------------------------------


def test_every_bench_file_is_found_and_says_what_it_is():
    found = runner.discover()
    assert {"algorithms", "collectives", "launch", "ledger"} <= set(found)
    assert len(found) == len(list((ROOT / "tests" / "benchmarks").glob("bench_*.py")))
    for name, module in found.items():
        assert callable(module.run), name
        assert 20 < len(runner.title(module)) < 120


def test_bars_are_the_promised_ones():
    bar = bench_collectives.bar_for
    assert [bar(8, 1 << 10).at_most, bar(8, 1 << 16).at_most, bar(4, 1 << 16).at_most] == [
        0.25,
        0.25,
        0.5,
    ]
    assert [bar(8, (1 << 16) + 1).at_most, bar(4, 1 << 20).at_most, bar(2, 1 << 10).at_most] == [
        None,
        None,
        None,
    ]
    judged = {which: bar.at_most for which, bar in bench_launch.BARS.items() if bar is not None}
    assert judged == {"warm": 0.005, "first": 0.5} and bench_launch.AT_MOST == {4: 0.020, 8: 0.040}


def test_a_comparison_leaves_table_json_and_figure(tmp_path, capsys):
    """A real one, small: lib's all_reduce against torch's on 2 ranks."""
    tiny = SimpleNamespace(
        __doc__="A tiny one.\n", run=lambda quick: bench_collectives.measured([2], [1024, 4096], 3)
    )
    out = tmp_path / "new" / "folder"
    assert runner.main(["tiny", "--quick", "--out", str(out)], {"tiny": tiny}) == 0
    assert sorted(path.name for path in out.iterdir()) == [
        "README-table.md",
        "tiny.json",
        "tiny.png",
    ]
    assert (out / "tiny.png").read_bytes().startswith(b"\x89PNG")

    printed = capsys.readouterr().out
    assert report.QUICK in printed
    header, *rows = (
        line for line in printed.splitlines() if line.startswith(("comparison", "all_reduce"))
    )
    assert (
        header.split("  ")[0] == "comparison"
        and len(rows) == 2
        and "1 KB" in rows[0]
        and "4 KB" in rows[1]
    )

    record = json.loads((out / "tiny.json").read_text())
    assert record["quick"] and record["machine"]["cores"] == len(linux.processors())
    assert {"cpu", "memory_gb", "os", "torch", "python", "date"} <= set(record["machine"])
    for row, size in zip(record["rows"], ("1024", "4096"), strict=True):
        sides = {side: np.array(seconds) for side, seconds in record["data"]["2"][size].items()}
        assert [len(seconds) for seconds in sides.values()] == [3, 3, 3]
        assert all((seconds > 0).all() for seconds in sides.values())
        again = compare(**sides)  # the JSON holds all that the verdict rests on
        assert (row["ours"], row["theirs"], row["rounds"]) == (again.ours, again.theirs, 3)
        assert (
            tuple(row["ratio"].values()) == again.ratio
            and tuple(row["control"].values()) == again.control
        )

    table = (out / "README-table.md").read_text()
    assert table.startswith(f"**{report.QUICK}**")
    assert "| all_reduce | 2 | 1 KB |" in table and record["machine"]["torch"] in table


def outcome(ratio):
    drawing = SimpleNamespace(save=lambda path: path.write_bytes(b"png"))
    same = np.ones(31)
    return report.Outcome(
        "gloo", drawing, [report.Row("x", 2, "-", compare(ratio * same, same, same), HALF)]
    )


def broken(quick):
    raise RuntimeError("no such machine")


@pytest.mark.parametrize(
    ("run", "options", "code", "says"),
    [
        (lambda quick: outcome(0.4), [], 0, "1 of 1 bars met"),
        (
            lambda quick: outcome(0.6),
            [],
            0,
            "missed: one, x, 2 ranks: at most 0.5, got 0.60 [0.60, 0.60]",
        ),
        (lambda quick: outcome(0.6), ["--strict"], 1, "0 of 1 bars met"),
        (lambda quick: outcome(0.4), ["--strict"], 0, "1 of 1 bars met"),
        (broken, [], 1, "broken: one"),
    ],
)
def test_a_missed_bar_is_a_result_and_a_broken_benchmark_an_error(
    run, options, code, says, tmp_path, capsys
):
    one = SimpleNamespace(__doc__="One.", run=run)
    assert runner.main([*options, "--out", str(tmp_path)], {"one": one}) == code
    assert says in capsys.readouterr().out


def test_after_a_broken_benchmark_the_others_still_run(tmp_path):
    both = {
        "one": SimpleNamespace(__doc__="1", run=broken),
        "two": SimpleNamespace(__doc__="2", run=lambda q: outcome(1)),
    }
    assert runner.main(["--out", str(tmp_path)], both) == 1
    assert (tmp_path / "two.json").exists() and not (tmp_path / "one.json").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["launchh"], "no benchmark is called launchh: there are"),
        (["--write-thresholds", "--quick"], "leave out --quick"),
        (["--write-thresholds", "launch"], "add its name"),
    ],
)
def test_a_wrong_command_line_says_what_to_do(arguments, says, capsys):
    with pytest.raises(SystemExit, match="2"):
        runner.main(arguments)
    assert says in capsys.readouterr().err


@pytest.mark.slow
def test_make_benchs_command_works_from_the_repository_root():
    command = [sys.executable, "-m", "tests.benchmarks", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and all(name in done.stdout for name in runner.discover()), (
        done.stderr
    )
