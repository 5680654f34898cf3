"""NCCL's rules on ranks without a GPU: each rule lets right code pass and names wrong code; so do
mistakes in lib's.

The suites under the rules: `python -m tests.emulation strict tests`, or the slow test here.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lib import launch
from tests.emulation import planted, strict_cases, strict_excluded, strict_works

ROOT = Path(__file__).parents[2]

SLOW = {  # those whose rule others show, too
    "later_messages_do_not", "both_receive_at_first_contact", "ddp_then_item_against_a_receive-0",
    "swap_connected-2",
    "a paced rank sleeps before its input has come", "paced_after_a_message-2",
}  # fmt: skip
LEDGER = "lib.ledger"
REASON = strict_works.missing()
# slow: the first of them compiles C++ for a minute
pytestmark = [pytest.mark.slow, pytest.mark.skipif(REASON is not None, reason=str(REASON))]


def case(name, *values):
    return pytest.param(*values, id=name, marks=pytest.mark.slow if name in SLOW else ())


@pytest.fixture(scope="session", autouse=True)
def compiled():
    if REASON is None:
        strict_works.path()


def under_the_rules(use, threshold="inf", nproc=2, ledger=False, planted_in=(), timeout=20):
    """None, or what was said: the kind of error for a hang, its text otherwise."""
    try:
        launch.capture(
            planted.run,
            use,
            threshold,
            *planted_in,
            nproc=nproc,
            backend="gloo",
            ledger=ledger,
            timeout=timeout,
        )
    except launch.RankError as error:
        print(error)
        return f"{error.kind}: {error}"
    return None


# --- each rule


@pytest.mark.parametrize("use", [case(use.__name__, use) for use in strict_cases.RIGHT])
def test_right_code_passes(use):
    assert under_the_rules(use) is None


@pytest.mark.parametrize(
    ("use", "says"), [case(wrong[0].__name__, *wrong) for wrong in strict_cases.WRONG]
)
def test_a_broken_rule_is_named(use, says):
    assert says in (under_the_rules(use) or "nothing")


@pytest.mark.parametrize(
    ("use", "threshold", "says"),
    [case(f"{hang[0].__name__}-{hang[1]}", *hang) for hang in strict_cases.HANGS],
)
def test_a_hang_is_told_as_on_gloo(use, threshold, says):
    """Before the time is over, which the launcher counts from when all ranks have begun."""
    assert (under_the_rules(use, threshold, ledger=True, timeout=15) or "nothing").startswith(says)


@pytest.mark.slow
def test_a_hang_whose_host_spins_is_told():
    said = (
        under_the_rules(strict_cases.the_same_with_a_host_that_spins, "0", ledger=True, timeout=45)
        or "nothing"
    )
    assert said.startswith("no progress: no progress for 10 s: each waits for the next")
    assert "rank 0 waits in all_reduce" in said and "rank 1 waits in recv from rank 0" in said


def test_the_ledgers_own_waits_are_not_the_programs():
    assert under_the_rules(strict_cases.what_is_never_waited_for_stays_owed, ledger=True) is None


def test_with_buffers_both_may_send_first():
    assert under_the_rules(strict_cases.both_send_first, "inf") is None


@pytest.mark.slow
@pytest.mark.skipif(
    not hasattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this torch lets no device be made in Python",
)
def test_backward_under_the_rules_is_as_on_a_device_with_a_thread_of_its_own():
    """No frame, unknown to `threading`, the caller's modes. And a stage recomputed there leaves all
    weights for W."""
    command = [sys.executable, "-m", "tests.emulation.own_device"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    facts = json.loads(printed.splitlines()[-1])
    assert facts["emulated"] == facts["engine"] and facts["engine"][0][:2] == [True, False]
    assert facts["kept"] == facts["recomputed"] == [2, 0], (
        "(what I leaves for W, gradients of weights that it made)"
    )


# --- mistakes in copies of lib's code


@pytest.mark.parametrize("mistake", [case(mistake.name, mistake) for mistake in planted.MISTAKES])
def test_a_planted_mistake_is_named(mistake):
    hang = mistake.says == planted.HANG
    said = under_the_rules(
        getattr(planted, mistake.use), mistake.threshold, mistake.nproc,
        ledger=hang or LEDGER in mistake.module,
        planted_in=(mistake.module, mistake.line, mistake.instead),
    )  # fmt: skip
    assert mistake.says in (said or "nothing")


@pytest.mark.parametrize(
    ("module", "use", "nproc"), [case(f"{use[1]}-{use[2]}", *use) for use in planted.USES]
)
def test_the_same_code_without_the_mistake_passes(module, use, nproc):
    assert (
        under_the_rules(getattr(planted, use), "0", nproc, LEDGER in module, planted_in=(module,))
        is None
    )


# --- the suites


def suite(threshold, *options):
    command = [
        sys.executable,
        "-m",
        "tests.emulation",
        "strict",
        "tests",
        "--threshold",
        threshold,
        *options,
    ]
    ended = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True
    )
    print(ended.stdout[-5000:], ended.stderr[-2000:])
    return ended


@pytest.mark.slow
def test_a_test_file_runs_under_the_rules():
    ended = suite(
        "0", "tests/collectives/test_p2p.py", "-k", "arrives and 3", "-q", "-p", "no:cacheprovider"
    )
    assert ended.returncode == 0


def test_every_exclusion_is_of_a_test_and_has_a_reason():
    for name, reason in (strict_excluded.EXCLUDED | strict_excluded.EXCLUDED_WITH_BUFFERS).items():
        assert (ROOT / name.split("::")[0]).exists() and len(reason) > 20, name


@pytest.mark.slow
@pytest.mark.parametrize("threshold", ["0", "inf"])
def test_all_suites_run_under_the_rules(threshold):
    assert suite(threshold, "-q", "-m", "not slow", "-p", "no:cacheprovider").returncode == 0
