"""A graded check: run the student's function on ranks, measure, and judge claim by claim.

    Exercise  =  what to run on each rank  +  claims  +  hints
    Claim     =  a name, a measurement (made on the ranks), and a verdict: None, or the Problem
    Hint      =  the mistake that usually causes such a problem, in a sentence

Claims are judged in order, values first, and judging stops at the first that fails; its points and all later ones are
lost, the earlier ones kept. What is printed is the same on every run: no times, no addresses.
"""

import json
import os
import textwrap
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lib import launch
from lib.ledger.read import Ledger
from lib.ledger.source import place

TIMEOUT = 20  # seconds a student's function may take on one world size
WIDTH = 30  # characters of a claim's name


class CheckFailed(AssertionError):
    """The answer is not right yet. The message is the first claim that failed; the details were printed above it."""

    def _render_traceback_(self):  # in a notebook: one line instead of the frames of lib
        return [f"CheckFailed: {self}"]


@dataclass
class Run:
    """The student's function on one world size: what each rank measured, and the ranks' books."""

    world_size: int
    results: list[Any]
    ledger: Ledger | None


@dataclass
class Problem:
    """What is wrong, in words. kind: which sort, for the hints; facts: numbers that hints may look at."""

    kind: str
    text: str
    facts: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Claim:
    name: str
    points: int
    says: str  # over which cases, in a few words
    judge: Callable[[list[Run]], Problem | None]


@dataclass(frozen=True)
class Hint:
    name: str  # the mistake, in a word or two; tests name it
    fits: Callable[[Problem], bool]
    text: str


@dataclass(frozen=True)
class Exercise:
    """One graded exercise.

    measure: measure(student's function) -> what was seen (plain data and tensors). It runs on every rank, and puts
        `ledger.mark(label)` before and `ledger.mark("")` after each call of the student's function.
    worlds: the numbers of ranks it runs on; () for a function that needs no ranks: `measure` runs here, as world 0.
    may_call: the ops of torch ("send") and the functions of lib ("p2p.send_recv") that an answer may be built from.
    reference: lib's function of the same name and signature, for `use`.
    """

    name: str
    measure: Callable
    worlds: tuple[int, ...]
    claims: tuple[Claim, ...]
    hints: tuple[Hint, ...]
    may_call: tuple[str, ...] = ()
    reference: Callable | None = None

    @property
    def points(self) -> int:
        return sum(claim.points for claim in self.claims)


@dataclass
class Outcome:
    """How a check ended. hint: the name of the hint that was given, or None."""

    points: int
    max_points: int
    lines: list[str]
    message: str
    hint: str | None = None

    @property
    def passed(self) -> bool:
        return self.points == self.max_points


def evaluate(exercise: Exercise, fn: Callable) -> Outcome:
    """Run and judge, without printing or raising."""
    if not exercise.worlds:
        return _evaluate_here(exercise, fn)
    runs, problem = [], None
    for nproc in exercise.worlds:
        try:
            results = launch.capture(exercise.measure, fn, nproc=nproc, timeout=TIMEOUT)
        except launch.RankError as error:
            if error.kind == "raised" and "raised NotImplementedError" in str(error):
                return _not_written(exercise)
            facts = {"world_size": nproc, "waiting": len(error.waits), "ledger": error.ledger}
            problem = Problem(error.kind, f"{_ranks(nproc)}: {error}", facts)
            break
        except TypeError as error:
            problem = Problem("cannot be sent", str(error))
            break
        runs.append(Run(nproc, list(results), results.ledger))
    problem = _forbidden_call(exercise, runs, problem) or problem
    return _judge(exercise, runs, problem)


def _evaluate_here(exercise, fn):
    try:
        seen = exercise.measure(fn)
    except Exception as error:
        if type(error) is NotImplementedError:  # not a subclass: input() in a kernel without a keyboard raises one
            return _not_written(exercise)
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error}\n  {place(where.filename, where.lineno, where.name)}"
        return _judge(exercise, [], Problem("raised", text))
    return _judge(exercise, [Run(0, [seen], None)], None)


def _judge(exercise, runs, problem):
    lines, points = [exercise.name], 0
    for claim in exercise.claims:
        found = problem or claim.judge(runs)
        if found is None:
            points += claim.points
            lines.append(f"  ok  {claim.name:<{WIDTH}} {claim.says}")
            continue
        lines.append(f"  --  {claim.name}")
        for line in found.text.splitlines():
            lines += _wrapped(line)
        hint = next((h for h in exercise.hints if h.fits(found)), None)
        if hint:
            lines += _wrapped(f"Usual cause: {hint.text}")
        lines.append(f"{points} of {exercise.points} points")
        message = f"{claim.name}: {found.text.splitlines()[0]}"
        return Outcome(points, exercise.points, lines, message, hint.name if hint else None)
    lines.append(f"{points} of {exercise.points} points")
    return Outcome(points, exercise.points, lines, "passed")


def _wrapped(line):
    """A line at the width of a notebook's output, its indentation kept."""
    indent = " " * (6 + len(line) - len(line.lstrip()))
    return textwrap.wrap(line.lstrip(), 96, initial_indent=indent, subsequent_indent=indent + "  ")


def _not_written(exercise):
    lines = [exercise.name, "  --  not written yet: the body still raises NotImplementedError"]
    return Outcome(0, exercise.points, [*lines, f"0 of {exercise.points} points"], "not written yet", "not written")


def _forbidden_call(exercise, runs, problem):
    """Does the answer call what it is meant to build? The ledger knows the op, the lib function and the line."""
    books = [run.ledger for run in runs] + ([problem.facts["ledger"]] if problem and problem.facts.get("ledger") else [])
    for book in books:
        inside = {rank: False for rank in range(book.world_size)}
        for rank in range(book.world_size):
            for entry in book.of(rank):
                if entry.op == "mark":
                    inside[rank] = entry.file != ""
                elif inside[rank] and (called := entry.via or entry.op) not in exercise.may_call:
                    where = place(entry.file, entry.line, entry.function)
                    return Problem("built-in", f"{where}\ncalls {called}, which is what this exercise builds", {})
    return None


def check(exercise: Exercise, fn: Callable) -> None:
    """Judge `fn`, print the verdict, note the points; raise CheckFailed if a claim fails."""
    if not callable(fn):
        raise CheckFailed(f"{exercise.name}: give the check your function, as in check.{exercise.name}({exercise.name})")
    outcome = evaluate(exercise, fn)
    print("\n".join(outcome.lines))
    _report(exercise, outcome)
    if not outcome.passed:
        raise CheckFailed(outcome.message)
    _passed[exercise.name] = fn


def _report(exercise, outcome):
    path = os.environ.get("LAB_REPORT")
    if path:
        facts = {
            "id": exercise.name, "points": outcome.points, "max_points": outcome.max_points, "message": outcome.message,
        }  # fmt: skip
        with open(path, "a") as file:
            file.write(json.dumps(facts) + "\n")


_passed: dict[str, Callable] = {}  # in this kernel: exercise -> the student's function that passed


def stand_in(exercise: Exercise, fn: Callable) -> Callable:
    """`fn` once it has passed its check in this kernel; until then lib's, and a line that says so."""
    if _passed.get(exercise.name) is fn:
        return fn
    print(f"(running lib's {exercise.name}: yours has not passed its check yet)")
    return exercise.reference


def _ranks(n):
    return "1 rank" if n == 1 else f"{n} ranks"
