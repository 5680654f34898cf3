"""`python -m lib.check rules` prints what an exercise promises beside what its check claims."""

import subprocess
import sys

import pytest

from lib.check import rules
from lib.check.exercises import FUNCTIONS


def test_every_function_has_a_docstring_in_its_notebook():
    written = rules.written()
    assert [name for name in FUNCTIONS if not written.get(name)] == []
    assert any("flatten_gradients: " in text for text in written["Zero1"])


def test_docstring_claims_and_excused_probes_stand_together():
    told = rules.rules(["recompute"])
    assert told.startswith("== recompute\nrecompute: Return f(x)")
    assert "  5  keeps x alone: bytes that the graph has saved" in told
    assert "  bfloat16: f has the dtype of its weights" in told
    assert all(f"== {name}\n" in rules.rules([]) for name in FUNCTIONS)


def test_an_exercise_that_there_is_not_is_refused():
    with pytest.raises(SystemExit, match="there is no exercise ring_all_redcue"):
        rules.rules(["ring_all_redcue"])


@pytest.mark.slow
def test_the_command():
    run = subprocess.run(
        [sys.executable, "-m", "lib.check", "rules", "all_to_all"], capture_output=True, text=True
    )
    assert run.returncode == 0 and run.stdout.startswith("== all_to_all\n"), run.stderr
