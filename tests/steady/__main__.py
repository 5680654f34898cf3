"""Is the suite green anywhere? Mended tests many times, the quick suite alone and beside a zoo.

    python -m tests.steady           200 times each mended test, the suite 3 times alone, 2 in a zoo
    python -m tests.steady --kinds 20 --alone 0 --beside 1

    part    what                                                     beside
    kinds   the tests that once failed by what others did, 25 times  the zoo: busy loops, processes
            in a process                                             and namespaces with names like
                                                                     ours, a nearly full /dev/shm
    alone   what `make test` tests, files shuffled                   nothing that we started
    beside  the same                                                 the zoo (zoo.py)

Each run has a seed, which is printed: `pytest --shuffle SEED` repeats its order of files. What has
ended is noted in results/steady.json, so an interrupted call, started again, runs what is left. The
last lines are a table and the names of all tests that failed. Ctrl-C and SIGTERM end what runs, and
the zoo. The exit code is 1 if any test failed.
"""

import argparse
import contextlib
import json
import os
import pathlib
import random
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from xml.etree import ElementTree

from tests import own_processes
from tests.steady import zoo

ROOT = pathlib.Path(__file__).parents[2]
EACH = 25  # times that one process repeats the tests of a kind
GRACE = 60  # seconds that pytest has to take down what it made
# The first asks which processes were left behind. Of the second, two patch what a thread between
# two runs reads, too, so each of them follows a test whose run fails, after which that thread
# prepares other ranks. None has parameters, for --times changes the names of those that have.
KINDS = {
    "processes": [
        "tests/test_two_nodes.py::test_a_wrong_rate_says_what_tc_said_and_leaves_no_namespace"
    ],
    "threads": [
        "tests/launch/test_faults.py::test_an_error_about_a_tensor_does_not_print_it_whole",
        "tests/launch/test_warm.py::test_the_set_that_rested_longest_ends_when_memory_gets_short",
        "tests/launch/test_faults.py::test_a_tensor_inside_of_what_the_failing_line_reads_is_told_by_its_form",
        "tests/launch/test_warm.py::test_on_gpus_there_is_one_set_at_a_time",
    ],
}


def side_by_side() -> list[str]:
    """How `make test` runs the tests."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return shlex.split(re.search(r"^SIDE_BY_SIDE := (.*)$", text, re.MULTILINE)[1])


def wanted(kinds: int, alone: int, beside: int, seed: str) -> list[dict]:
    """All runs, in order: part, number, what pytest is told, beside the zoo or not, how
    many times each test."""
    runs = []
    for kind, tests in KINDS.items():
        for number, done in enumerate(range(0, kinds, EACH)):
            times = min(EACH, kinds - done)
            options = ["--times", str(times), "-p", "no:nbval", *tests]
            runs.append(
                {"part": kind, "number": number, "options": options, "zoo": True, "times": times}
            )
    for part, count in (("alone", alone), ("beside", beside)):
        for number in range(count):
            drawn = str(random.Random(f"{seed} {part} {number}").randrange(10**6))
            options = ["-m", "not slow and not gpu", *side_by_side(), "--shuffle", drawn]
            runs.append(
                {
                    "part": part,
                    "number": number,
                    "options": options,
                    "zoo": part == "beside",
                    "times": 1,
                }
            )
    return runs


def run(options: list[str], in_front: list[str], folder: pathlib.Path) -> dict:
    """Run pytest, with its temporary files in `folder`: how many passed, were skipped, failed; in
    how many seconds."""
    mark, begun, report = own_processes.new_mark(), time.monotonic(), folder / "report.xml"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--junitxml",
        str(report),
        *options,
    ]
    print(shlex.join(command[1:]), flush=True)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder), own_processes.MARK: mark}
    process = subprocess.Popen([*in_front, *command], cwd=ROOT, env=env, start_new_session=True)
    try:
        code = process.wait()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE)
        for left in own_processes.left(mark, seconds=GRACE if process.poll() is not None else 0):
            with contextlib.suppress(own_processes.psutil.NoSuchProcess):
                left.kill()
        process.wait()
    return {**outcome(report, code), "seconds": round(time.monotonic() - begun)}


def outcome(report: pathlib.Path, code: int) -> dict:
    """What a report of pytest says. Where there is none, or nothing failed though pytest says so,
    the run failed."""
    passed, skipped, failed = 0, 0, []
    cases = ElementTree.parse(report).getroot().iter("testcase") if report.exists() else []
    for case in cases:
        name = f"{case.get('classname')}::{case.get('name')}"
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(name)
        elif case.find("skipped") is not None:
            skipped += 1
        else:
            passed += 1
    if code and not failed:
        failed = [f"pytest ended with exit code {code}"]
    return {"passed": passed, "skipped": skipped, "failed": failed}


def version() -> str:
    """The commit, and "+" where files differ from it."""
    git = lambda *words: subprocess.run(
        ["git", *words], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    return git("rev-parse", "--short", "HEAD") + "+" * bool(
        git("status", "--porcelain", "--untracked-files=no")
    )


def read(path: pathlib.Path, settings: dict) -> dict:
    """The state of a call with the same settings, or a new one. A state of other settings
    is not overwritten."""
    if not path.exists():
        return {"settings": settings, "runs": []}
    state = json.loads(path.read_text(encoding="utf-8"))
    if state["settings"] != settings:
        sys.exit(
            f"{path} has results for {state['settings']}, not for {settings}: move it away, or "
            f"give another --out"
        )
    return state


def write(path: pathlib.Path, state: dict) -> None:
    """In one step: an interrupt leaves the old state or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
    part.replace(path)


def table(runs: list[dict], state: dict) -> list[str]:
    """A row for each part, then the failures."""
    lines = [f"{'part':10} {'runs':>9} {'passed':>8} {'skipped':>8} {'failed':>7} {'minutes':>8}"]
    for part in dict.fromkeys(run["part"] for run in runs):
        want = sum(run["part"] == part for run in runs)
        done = [run for run in state["runs"] if run["part"] == part]
        passed, skipped = (sum(run[what] for run in done) for what in ("passed", "skipped"))
        failed, minutes = (
            sum(len(run["failed"]) for run in done),
            sum(run["seconds"] for run in done) / 60,
        )
        lines.append(
            f"{part:10} {f'{len(done)} of {want}':>9} {passed:8} {skipped:8} {failed:7} "
            f"{minutes:8.1f}"
        )
    for done in state["runs"]:
        lines += [f"failed: {done['part']} {done['number']}: {name}" for name in done["failed"]]
        if done["failed"]:
            lines.append(f"  again: python -m pytest {shlex.join(done['options'])}")
    return lines


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.steady", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--kinds", type=int, default=200, help="times that each mended test runs")
    parser.add_argument("--alone", type=int, default=3, help="runs of the suite beside nothing")
    parser.add_argument("--beside", type=int, default=2, help="runs of the suite beside the zoo")
    parser.add_argument("--seed", default="steady", help="draws the orders of files")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "results" / "steady.json")
    asked = parser.parse_args(words)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    # a shell starts background commands with it ignored
    signal.signal(signal.SIGINT, signal.default_int_handler)
    settings = {key: value for key, value in vars(asked).items() if key != "out"} | {
        "version": version()
    }
    runs, state = (
        wanted(asked.kinds, asked.alone, asked.beside, asked.seed),
        read(asked.out, settings),
    )
    done = {(one["part"], one["number"]) for one in state["runs"]}
    try:
        for one in [one for one in runs if (one["part"], one["number"]) not in done]:
            print(f"\n{one['part']} {one['number']}", flush=True)
            with contextlib.ExitStack() as stack:
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="steady-"))
                in_front = []
                if one["zoo"]:
                    print(*stack.enter_context(zoo.zoo()), sep="; ", flush=True)
                    in_front = zoo.small_shm()
                os.chmod(folder, 0o755)  # notebooks are graded as another user
                ended = run(one["options"], in_front, pathlib.Path(folder))
            state["runs"].append({**one, **ended})
            write(asked.out, state)
    except KeyboardInterrupt:
        print("\nstopped; the same command goes on here")
        return 128 + signal.SIGINT
    finally:
        print("", *table(runs, state), sep="\n", flush=True)
    return int(any(one["failed"] for one in state["runs"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
