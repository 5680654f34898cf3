"""`python -m tests.steady`: an interrupted proof goes on where it was, names what failed,
and ends its zoo."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import own_processes
import pytest

from tests.steady import __main__ as steady
from tests.steady.zoo import ANIMALS, LOOPS, zoo

ROOT = pathlib.Path(__file__).parents[1]

pytestmark = pytest.mark.skipif(
    not os.path.exists("/bin/sh"), reason="not run: there is no /bin/sh"
)


def test_the_zoo_lives_while_the_block_runs_and_ends_with_it():
    mark = own_processes.new_mark()
    with zoo(**{own_processes.MARK: mark}) as told:
        living = own_processes.running(mark)
        shown = [process.cmdline() for process in living]
        assert len(shown) >= len(ANIMALS) + LOOPS and told[0] == "2 busy loops"
        assert any("" in words for words in shown) and any(
            words[:1] == ["torchrun"] for words in shown
        )
        spaces = [
            name for name in os.listdir("/run/netns")
            if name.startswith(f"two-nodes-{os.getpid()}-")
        ] if os.path.isdir("/run/netns") else []  # fmt: skip
    # they have been killed; on a busy machine they take a moment to be gone
    assert own_processes.left(mark) == []
    assert not any(os.path.exists(f"/run/netns/{name}") for name in spaces)


@pytest.fixture
def stubbed(monkeypatch, tmp_path):
    """main() with runs of pytest that are only noted; `ends` says how each of them goes."""
    monkeypatch.setattr(steady.zoo, "zoo", lambda: steady.contextlib.nullcontext(["no zoo"]))
    monkeypatch.setattr(steady.zoo, "small_shm", list)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    ran, ends = [], []

    def run(options, in_front, folder):
        if (ended := ends.pop(0)) is None:
            raise KeyboardInterrupt
        ran.append(options)
        return {"passed": 5, "skipped": 1, "failed": ended, "seconds": 60}

    monkeypatch.setattr(steady, "run", run)
    words = [
        "--kinds",
        "30",
        "--alone",
        "1",
        "--beside",
        "2",
        "--out",
        str(tmp_path / "state.json"),
    ]
    return lambda *then: (ends.clear(), ends.extend(then), steady.main(words))[-1], ran, words


def test_an_interrupted_proof_goes_on_and_names_what_failed(stubbed, tmp_path, capsys):
    main, ran, words = stubbed
    assert main([], ["test_a::test_b"], None) == 128 + signal.SIGINT
    assert "stopped; the same command goes on here" in capsys.readouterr().out and len(ran) == 2
    assert main([], [], [], [], []) == 1  # the failure of the first call counts
    assert len(ran) == 7 and len({tuple(options) for options in ran}) == 7, "each once"
    out = capsys.readouterr().out
    assert "failed: processes 1: test_a::test_b" in out and "--times 5" in out
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if " of " in line}
    assert rows["beside"] == ["2", "of", "2", "10", "2", "0", "2.0"] and rows["processes"][5] == "1"
    seeds = [options[options.index("--shuffle") + 1] for options in ran if "--shuffle" in options]
    assert len(set(seeds)) == 3
    assert main() == 1 and len(ran) == 7  # all is done
    with pytest.raises(
        SystemExit, match=r"has results for .*: move it away, or give another --out"
    ):
        steady.main([*words, "--seed", "another"])


@pytest.mark.parametrize(
    ("report", "code", "outcome"),
    [
        (
            '<testcase classname="a" name="b"/><testcase classname="a" '
            'name="c"><skipped/></testcase>',
            0,
            (1, 1, []),
        ),
        ('<testcase classname="a" name="b"><failure/></testcase>', 1, (0, 0, ["a::b"])),
        ('<testcase classname="a" name="b"><error/></testcase>', 1, (0, 0, ["a::b"])),
        ('<testcase classname="a" name="b"/>', 3, (1, 0, ["pytest ended with exit code 3"])),
        (None, -9, (0, 0, ["pytest ended with exit code -9"])),
    ],
)
def test_a_run_that_did_not_end_well_is_never_counted_as_green(tmp_path, report, code, outcome):
    if report is not None:
        (tmp_path / "report.xml").write_text(
            f"<testsuites><testsuite>{report}</testsuite></testsuites>"
        )
    assert tuple(steady.outcome(tmp_path / "report.xml", code).values()) == outcome


def test_it_runs_what_make_test_runs_and_tests_that_exist():
    assert steady.side_by_side()[:2] == ["-n", "4"]
    for test in (test for tests in steady.KINDS.values() for test in tests):
        file, name = test.split("::")
        assert f"\ndef {name}(" in (ROOT / file).read_text() and "[" not in name


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_when_it_is_told_to_stop_it_ends_its_tests_and_its_zoo(number, tmp_path):
    mark = own_processes.new_mark()
    command = [
        sys.executable,
        "-u",
        "-m",
        "tests.steady",
        "--kinds",
        "200",
        "--alone",
        "0",
        "--beside",
        "0",
    ]
    command += ["--out", str(tmp_path / "state.json")]
    env = {**os.environ, "LAB_TEST_OF": mark}
    process = subprocess.Popen(
        command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    while "-m pytest" not in (line := process.stdout.readline()):
        assert line, "it has ended"
    assert len(own_processes.running(mark)) > len(ANIMALS)
    process.send_signal(number)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 128 + number and "0 of 8" in out, out
    assert own_processes.left(mark) == []
    assert (
        not (tmp_path / "state.json").exists()
        or json.loads((tmp_path / "state.json").read_text())["runs"] == []
    )
