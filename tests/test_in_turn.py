"""`make test` runs all of its commands and reports each of them, whatever became of
the one before."""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).parents[1]
CODES = "import sys; print('ran', *sys.argv[1:]); sys.exit(int(sys.argv[1]))"


def command(*parts):
    words = []
    for name, *arguments in parts:
        words += ["--then"] * bool(words) + [name, sys.executable, "-S", "-c", *arguments]
    return [sys.executable, "-S", "-m", "tests.in_turn", *words]


@pytest.mark.parametrize(("codes", "code"), [((0, 0), 0), ((3, 0), 3), ((0, 4), 4), ((3, 4), 3)])
def test_all_run_all_are_reported_and_the_first_that_failed_gives_the_exit_code(codes, code):
    ended = subprocess.run(
        command(*((f"part{n}", CODES, str(each)) for n, each in enumerate(codes))),
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert ended.returncode == code, ended.stdout + ended.stderr
    assert re.findall("^ran .*", ended.stdout, re.MULTILINE) == [f"ran {each}" for each in codes]
    went = [f"failed with exit code {each}" if each else "passed" for each in codes]
    lines = [
        re.sub(r"\d+:\d\d$", "m:ss", line) for line in ended.stdout.splitlines()[-len(codes) :]
    ]
    assert lines == [f"part{n}: {how}, after m:ss" for n, how in enumerate(went)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_or_sigterm_ends_what_runs_and_starts_nothing_more(number, tmp_path):
    """Also if the command, as pytest does, catches the interrupt and then exits
    with a code of its own."""
    catches = f"""if True:
        import pathlib, signal, time
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            pathlib.Path({str(tmp_path / "began")!r}).touch()
            while True:  # a signal just before a sleep is noticed when that ends
                time.sleep(0.05)
        except KeyboardInterrupt:
            raise SystemExit(2)"""
    second = f"import pathlib; pathlib.Path({str(tmp_path / 'second')!r}).touch()"
    process = subprocess.Popen(
        command(("first", catches), ("second", second)), cwd=ROOT, stdout=subprocess.PIPE,
        text=True,
        start_new_session=True, preexec_fn=lambda: signal.signal(signal.SIGINT,
            signal.default_int_handler),
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while not (tmp_path / "began").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as a terminal does
    else:
        process.send_signal(number)  # as make does
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 128 + number and "after" not in out
    assert not (tmp_path / "second").exists()


@pytest.mark.skipif(shutil.which("make") is None, reason="not run: there is no make")
def test_make_test_runs_validate_after_tests_that_fail(tmp_path):
    """make's own recipe, with a Python that says what it was asked for, and fails
    as pytest does."""
    stub = tmp_path / "bin" / "python"
    stub.parent.mkdir()
    stub.write_text(
        f"#!{sys.executable}\nimport os, sys\n"
        "if sys.argv[1:3] == ['-m', 'tests.in_turn']:\n"
        f"    os.execv({sys.executable!r}, [{sys.executable!r}, *sys.argv[1:]])\n"
        "print('asked:', *sys.argv[1:5], flush=True)\n"
        "sys.exit(1 if sys.argv[2] == 'pytest' else 0)\n"
    )
    for name in ("ruff", "mypy"):
        (stub.parent / name).write_text(f"#!/bin/sh\necho {name}\n")
    for file in stub.parent.iterdir():
        file.chmod(0o755)
    # make may have run us
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    for target, validate in (
        ("test", "lib.course validate"),
        ("test-all", "lib.course validate --whole"),
    ):
        make = ["make", "-o", "setup", f"ENV={tmp_path}", target]
        ended = subprocess.run(make, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)
        assert ended.returncode != 0, ended.stdout + ended.stderr
        lines = ended.stdout.splitlines()
        asked = [line.removeprefix("asked: ") for line in lines if line.startswith("asked: ")]
        assert [line.split()[1] for line in asked] == ["pytest", "lib.course"], ended.stdout
        assert lines.index("ruff") < lines.index(f"asked: {asked[0]}") and asked[1].endswith(
            validate
        ), ended.stdout
        results = [line for line in lines if " after " in line]
        assert results[0].startswith("tests: failed with exit code 1, after 0:0")
        assert results[1].startswith("validate: passed, after 0:0") and len(results) == 2
