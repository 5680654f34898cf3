"""Graded checks on GPUs, with lib's functions as a student's answers: all those whose ranks this
machine can carry.

A check runs on gloo everywhere else. Here `framework.BACKEND` says NCCL: do the same values, wires
and claims come out? With two ranks on one GPU these are the five functions that are also checked on
two ranks; with eight GPUs all of them.
"""

import argparse
import dataclasses
import importlib
import sys
import time
from pathlib import Path

from lib.check import framework
from lib.check.exercises import FUNCTIONS

# pytest puts the folders of the tests that it collects on the path; a step is no test of theirs
sys.path.append(str(Path(__file__).parents[1] / "check"))
answers = importlib.import_module("as_an_answer")


def fitting(ranks: int) -> list[framework.Exercise]:
    """The functions that are checked on so many ranks or fewer, each on those worlds alone."""
    found = []
    for exercise in FUNCTIONS.values():
        worlds = tuple(n for n in exercise.worlds if n <= ranks)
        if worlds:
            found.append(dataclasses.replace(exercise, worlds=worlds))
    return found


def run(backend: str, ranks: int) -> dict[str, framework.Outcome]:
    """{function: the verdict}. Each alone, so that one that hangs costs the others nothing."""
    before, framework.BACKEND, seen = framework.BACKEND, backend, {}
    try:
        for exercise in fitting(ranks):
            began = time.monotonic()
            outcome = seen[exercise.name] = framework.evaluate(
                exercise, answers.as_an_answer(exercise.reference)
            )
            print(
                "\n".join(outcome.lines),
                f"   {time.monotonic() - began:.1f} s",
                sep="\n",
                flush=True,
            )
    finally:
        framework.BACKEND = before
    return seen


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.checks")
    parser.add_argument("--backend", default="nccl-shared")
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args(argv)
    seen = run(options.backend, max(2, options.ranks))
    failed = {name: outcome.message for name, outcome in seen.items() if not outcome.passed}
    wrong = "".join(f"; {name}: {message}" for name, message in failed.items())
    print(
        f"showed: {len(seen) - len(failed)} of {len(seen)} checks passed ({', '.join(seen)}){wrong}"
    )
    return 1 if failed or not seen else 0


if __name__ == "__main__":
    sys.exit(main())
