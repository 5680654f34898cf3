"""In a student's bundle the hunt's jobs run, and are judged; what is wrong with them stands
in none of its files."""

import ast
import inspect
import os
import subprocess
import sys

import pytest

from lib.course.__main__ import main
from lib.course.notebook import ROOT
from lib.course.strip_solutions import marked
from lib.hybrid.hunt import detective, draw

IN_THE_BUNDLE = """
import lib
from lib.hybrid import hunt
from lib.check.framework import evaluate
from lib.check.lab6.findings import EXERCISE
from lib.hybrid.hunt.draw import drawn

if __name__ == "__main__":
    truth = [each for _, _, each in drawn(11)]
    wrong = next(n for n, each in enumerate(truth) if each != hunt.HEALTHY)
    e = hunt.job(11, wrong)
    first = truth[wrong]
    print(lib.__path__[0])
    print(any(any(e.off(first.step, kind, what)) for kind, what in e.quantities \
if kind == first.evidence))
    print(evaluate(EXERCISE, lambda: (11, dict(enumerate(truth)))).points)
    outcome = evaluate(EXERCISE, lambda: (11, dict(enumerate(truth)) | {wrong: hunt.HEALTHY}))
    print(outcome.points, outcome.hint)
"""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    out = tmp_path_factory.mktemp("release") / "bundle"
    assert main(["release", str(out), "--lab", "6"]) == 0
    return out


@pytest.mark.slow
def test_jobs_run_and_are_judged(bundle, tmp_path):
    script = tmp_path / "look.py"
    script.write_text(IN_THE_BUNDLE)
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")} | {
        "PYTHONPATH": str(bundle)
    }
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:4] == [str(bundle / "lib"), "True", "16", "8 called healthy"]


def test_what_is_wrong_stands_in_no_file(bundle):
    """No line of what draws the mistakes, nor of what finds them: of those that are long enough to
    say something."""
    shipped = "\n".join(path.read_text(encoding="utf-8") for path in bundle.rglob("*.py"))
    for module, names in (
        (draw, {"drawn", "_cases"}),
        (detective, {"findings", "_detect", "_off", "_named"}),
    ):
        source = inspect.getsource(module)
        assert {one.name for one in marked(source)} <= names
        for name in names:
            (made,) = ast.parse(inspect.getsource(getattr(module, name))).body
            lines = [
                line.strip() for part in made.body[1:] for line in ast.unparse(part).splitlines()
            ]
            lines += [
                line.strip()
                for line in inspect.getsource(getattr(module, name)).splitlines()[
                    made.body[1].lineno :
                ]
            ]
            assert [line for line in lines if len(line) > 50 and line in shipped] == [], name
    assert "jobs of a seed" in (bundle / "lib/hybrid/hunt/draw.py").read_text(encoding="utf-8")
    assert (ROOT / "lib/hybrid/hunt/draw.py").read_text(encoding="utf-8") != (
        bundle / "lib/hybrid/hunt/draw.py"
    ).read_text()
