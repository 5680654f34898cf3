"""Everything runs on tagged devices as on GPUs, and the tags catch what they are there to catch."""

import os
import subprocess
import sys

import pytest

from tests.emulation.tags_faults import FAULTS


def emulated(*arguments):
    """(exit code, the lines that `python -m tests.emulation tags ...` prints)"""
    command = [sys.executable, "-m", "tests.emulation", "tags", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    return done.returncode, done.stdout.splitlines() + done.stderr.splitlines()[-20:]


def passes(*arguments):
    code, lines = emulated(*arguments)
    assert code == 0, "\n".join(line for line in lines if not line.startswith("ok "))


@pytest.fixture(scope="module")
def faults():
    return emulated("faults")[1]


@pytest.mark.slow
def test_what_a_run_leaves_on_its_gpu_is_put_back_or_its_ranks_are_not_used_again():
    passes("reuse")


@pytest.mark.parametrize("name", FAULTS)
def test_a_mistake_with_devices_is_named_and_its_mended_twin_passes(faults, name):
    assert any(line.startswith(f"ok      {name}  ") for line in faults), "\n".join(faults)


@pytest.mark.slow
def test_a_check():
    passes("checks", "four_splits")


@pytest.mark.slow
def test_a_cell():
    passes("cells", "lab3/mappings-gradchecked")


@pytest.mark.slow
def test_a_test_of_lib():
    passes("tests")


@pytest.mark.slow
def test_what_fails_is_told_and_counted():
    code, lines = emulated("cells", "lab3/no-such-cell")
    assert (
        code == 1
        and "FAILED  lab3/no-such-cell" in lines[0]
        and lines[-1].startswith("cells: 0 of 1 ok")
    )


@pytest.mark.slow
def test_every_check():
    passes("checks")


@pytest.mark.slow
@pytest.mark.parametrize("lab", range(7))
def test_every_cell(lab):
    passes("cells", str(lab))
