"""`make test-gpu` without a GPU: the plan is sound, a step that hangs is ended, the table
says how each went."""

import datetime
import os
import pathlib
import signal
import subprocess
import sys
import time

import own_processes
import pytest

from tests.gpu import __main__ as command
from tests.gpu import plan, processes, report
from tests.gpu.pretended import machine
from tests.gpu.processes import run_limited

ROOT = pathlib.Path(__file__).parents[1]


@pytest.mark.parametrize("steps", [plan.ON_ONE, plan.ON_TWO])
def test_the_steps_for_one_gpu_and_those_for_two_fit_into_ten_minutes_and_the_probe_is_the_first(
    steps,
):
    assert (
        sum(step.seconds for step in steps) <= 600
        and steps[0] is plan.PROBE
        and plan.PROBE.seconds <= 60
    )


def test_on_one_gpu_all_ends_after_ten_minutes_and_on_several_what_is_for_two_comes_first():
    assert (
        plan.steps(1) == plan.ON_ONE + plan.IF_TIME_IS_LEFT
        and plan.minutes(1) == 10
        and plan.minutes(2) is None
    )
    assert plan.steps(8) == plan.steps(2) and plan.steps(2)[: len(plan.ON_TWO)] == plan.ON_TWO
    assert {step.name for step in plan.steps(1)} < {step.name for step in plan.steps(2)}


def test_every_step_has_a_name_of_its_own_and_a_command_whose_files_exist():
    names = [step.name for step in plan.steps(8)]
    assert len(set(names)) == len(names)
    for step in plan.steps(8)[1:]:
        for gpus in (1, 2, 8):
            python, flag, module, *rest = step.argv("python", gpus)
            assert (python, flag) == ("python", "-m") and not any("{" in word for word in rest)
            files = (
                [f"{module.replace('.', '/')}.py"]
                if module != "pytest"
                else [w for w in rest if "/" in w]
            )
            assert files and all((ROOT / file).exists() for file in files), files
        assert all(need.split()[0] in ("gpus", "ranks", "shared", "module") for need in step.needs)


def test_the_readme_names_every_step():
    readme = (ROOT / "tests" / "gpu" / "README.md").read_text()
    assert [step.name for step in plan.steps(8) if step.name.split("-")[0] not in readme] == []


def test_two_ranks_share_the_only_gpu_and_get_one_each_where_there_are_two():
    zero = next(step for step in plan.ON_ONE if step.name == "zero")
    assert [zero.argv("python", gpus)[-1] for gpus in (1, 2, 8)] == ["nccl-shared", "nccl", "nccl"]
    soaked = next(step for step in plan.ON_MANY if step.name == "soak-eager-32")
    assert "--ranks 5" in " ".join(soaked.argv("python", 5))
    assert soaked.env == {"CUDA_MODULE_LOADING": "EAGER", "CUDA_DEVICE_MAX_CONNECTIONS": "32"}


MARKED = {own_processes.MARK: own_processes.new_mark()}  # the environment of what these tests start
HANGS = "import subprocess, sys, time\nprint('began', flush=True)\n{start}\ntime.sleep(100)"
CHILD = (
    "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(100)'], "
    "start_new_session={own})"
)


@pytest.mark.slow
@pytest.mark.parametrize("own", [False, True])
def test_a_step_that_hangs_is_ended_in_time_with_its_children_also_those_in_a_session_of_their_own(
    tmp_path, own
):
    began = time.monotonic()
    program = HANGS.format(start=CHILD.format(own=own))
    ended = run_limited([sys.executable, "-c", program], 5.0, tmp_path / "log", env=MARKED)
    assert ended.code is None and ended.unkillable == 0 and time.monotonic() - began < 20
    assert report.showed(tmp_path / "log") == "began"
    assert own_processes.running(MARKED[own_processes.MARK]) == [], "a process is left"


def test_what_a_step_leaves_behind_is_counted_and_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "GRACE", 0.3)
    program = f"import subprocess, sys\n{CHILD.format(own=True)}\nprint('done')"
    ended = run_limited([sys.executable, "-c", program], 30.0, tmp_path / "log", env=MARKED)
    assert (ended.code, ended.left, ended.unkillable) == (0, 1, 0)
    assert own_processes.running(MARKED[own_processes.MARK]) == []


def step(name, program, seconds=20, **more):
    return plan.Step(name, f"what {name} runs", seconds, ("-c", program), **more)


def test_a_step_that_fails_or_hangs_or_cannot_run_does_not_stop_the_next(
    tmp_path, capsys, monkeypatch
):
    steps = (
        plan.PROBE,
        step("breaks", "raise SystemExit('bad luck')"),
        step("hangs", "import time; print('so far', flush=True); time.sleep(100)", seconds=3),
        step("two", "print('never')", needs=("gpus 2",)),
        step("module", "print('never')", needs=("module no_such_module",)),
        step("sees",
             "import os; print('sees', os.environ['CUDA_VISIBLE_DEVICES'], os.environ['A'])",
             visible=1,
             env={"A": "b"}),
        step("fine", "print('3 | 4')"),
    )  # fmt: skip
    out = tmp_path / "gpu.md"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    code = command.main(["--out", str(out)], collect=machine, steps=lambda gpus: steps)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    assert code == 1
    text = out.read_text()
    rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in text.splitlines()
        if " | " in line
    ]
    rows = {name: cells for name, *cells in rows}
    assert rows["breaks"][1] == "bad luck" and rows["breaks"][3] == "**failed**"
    # Twice its time, for so much was left over by those before it.
    assert rows["hangs"][1] == "ended after 6 s, at: so far" and rows["hangs"][3] == "**timeout**"
    assert rows["two"][1:] == ["needs 2 GPUs, and there are 1", "-", "**not run**"]
    assert rows["module"][1] == "needs no_such_module, which is not installed"
    assert (
        rows["sees"][1] == "sees 0 b"
        and rows["fine"][-1] == "passed"
        and rows["probe"][-1] == "passed"
    )
    assert "1 x NVIDIA H200, driver 580.159.03, torch 2.11.0+cu130, NCCL 2.28.9" in text
    assert "3 passed, 1 failed, 1 timeout, 2 not run." in text
    assert "next move" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "first", "second"),
    [
        ([], "passed", "**not run**"),  # on one GPU there are ten minutes
        (["--minutes", "30"], "passed", "passed"),
        (["--minutes", "0.05"], "**not run**", "**not run**"),
        (["--steps", "short,long"], "passed", "passed"),  # what was asked for by name has no end
    ],
)
def test_a_step_whose_time_does_not_fit_any_more_is_not_run_and_the_next_that_fits_is(
    tmp_path, options, first, second
):
    steps = (
        plan.PROBE,
        step("long", "print('ran')", seconds=700),
        step("short", "print('ran')", seconds=20),
    )
    out = tmp_path / "gpu.md"
    assert (
        command.main(["--out", str(out), *options], collect=machine, steps=lambda gpus: steps) == 0
    )
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    found = {
        line.split(" | ")[0].strip("| "): line
        for line in out.read_text().splitlines()
        if " | " in line
    }
    assert found["short"].endswith(f"{first} |") and found["long"].endswith(f"{second} |")
    if second == "**not run**":
        assert "may take 700 s, and " in found["long"] and "--steps long" in found["long"]


def test_minutes_that_are_none_are_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        command.main(["--minutes", "0", "--out", str(tmp_path / "x.md")], collect=machine)
    assert "--minutes 0: give the minutes" in capsys.readouterr().err


def test_the_table_is_markdown_whatever_a_step_printed():
    row = report.Row("a", "b", "x | y\nz", 61.6, "passed")
    text = report.table(
        "1 x GPU", [row, report.Row("c", "d", "", None, "not run")], datetime.date(2026, 1, 2)
    )
    assert text == (
        "**2026-01-02**: 1 x GPU\n\n| step | what ran | what it showed | seconds | result "
        "|\n|---|---|---|---|---|\n"
        "| a | b | x \\| y z | 62 | passed |\n| c | d | - | - | **not run** |\n\n1 passed, 1 not "
        "run.\n"
    )


@pytest.mark.parametrize(
    ("printed", "showed"),
    [
        ("a\nshowed: 4 of 5\nW: a helper has ended\n", "4 of 5"),
        ("FAILED a.py::test_b[c] - no\n=== 1 failed, 2 passed in 3.2s ===\n",
         "1 failed, 2 passed in 3.2s; test_b[c]"),
        ("3 passed in 61.20s (0:01:01)\n[W1122 NCCL.cpp] later\n", "3 passed in 61.20s (0:01:01)"),
        ("so far\n[rank1]:[E nccl.cpp]\n\n", "so far"),
        ("", "nothing"),
    ],
)  # fmt: skip
def test_what_a_step_showed_is_found_whatever_else_was_printed(tmp_path, printed, showed):
    (tmp_path / "log").write_text(printed)
    assert report.showed(tmp_path / "log") == showed


def test_tests_that_were_all_skipped_are_no_pass(tmp_path):
    skips = plan.Step("skips", "", 60, ("-c", "print('5 skipped in 0.1s')", "pytest"))
    assert command.run(skips, 1, tmp_path / "log", 60).result == "failed"
    runs = plan.Step("runs", "", 60, ("-c", "print('==== 5 passed in 0.1s ====')", "pytest"))
    assert command.run(runs, 1, tmp_path / "log", 60) == report.Row(
        "runs", "", "5 passed in 0.1s", pytest.approx(1, abs=5), "passed"
    )


def test_without_a_gpu_it_says_so_with_the_next_move_and_is_no_pass(tmp_path):
    run, hidden = (
        [sys.executable, "-m", "tests.gpu", "--out", str(tmp_path / "gpu.md")],
        {"CUDA_VISIBLE_DEVICES": ""},
    )
    done = subprocess.run(
        run, cwd=ROOT, capture_output=True, text=True, env={**os.environ, **hidden}
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert "next move: " in done.stdout and "this is not a pass" in done.stdout
    assert (
        "| probe |" in (tmp_path / "gpu.md").read_text()
        and "**failed**" in (tmp_path / "gpu.md").read_text()
    )


def test_a_step_that_there_is_not_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        command.main(["--steps", "zero,nonsense", "--out", str(tmp_path / "x.md")], collect=machine)
    assert "there is no step nonsense" in capsys.readouterr().err
