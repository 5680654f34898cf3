"""No right program is blamed, or warned of, whatever it does and however busy the machine is."""

import subprocess
import sys

import healthy
import pytest

from lib import launch

pytestmark = pytest.mark.usefixtures("on_gloo")
PROGRAMS = 200


@pytest.fixture
def load():
    """Four processes that take what they can get of the processors."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    yield
    for process in busy:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_right_programs_are_never_blamed_next_to_load(load):
    blamed, seen = [], set()
    for seed in range(PROGRAMS):
        try:
            results = launch.capture(healthy.program, seed, nproc=2 + seed % 3, timeout=300)
            seen.update(results[0])
            blamed += [(seed, results[0], warning) for warning in results.warnings]
        except launch.RankError as error:
            blamed.append((seed, str(error)))
    assert blamed == []
    assert seen == {piece.__name__ for piece in healthy.LIGHT + healthy.HEAVY}
