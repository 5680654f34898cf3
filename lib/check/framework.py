"""A graded check: run the student's function on ranks, measure, and judge claim by claim.

    Exercise  =  what to run on each rank  +  claims  +  hints
    Bundle    =  a few exercises of one short function each, checked together
    Claim     =  a name, a measurement (made on the ranks), and a verdict: None, or the Problem
    Hint      =  the mistake that usually causes such a problem, in a sentence

Claims are judged in order, values first, and judging stops at the first that fails; its points and all later ones are
lost, the earlier ones kept. What is printed is the same on every run: no times, no addresses.
"""

import json
import os
import tempfile
import textwrap
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist

from lib import launch, ledger
from lib.check.failure import BEGINS, in_its_case
from lib.launch import groups, warm
from lib.ledger import audit
from lib.ledger.read import Ledger
from lib.ledger.source import place

BACKEND = "gloo"  # what a check's ranks talk over: it judges values and messages, and on GPUs would judge no better
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
    bonus: its points come on top of the lab's 100 (the notebook tags the check's cell "bonus").
    """

    name: str
    measure: Callable
    worlds: tuple[int, ...]
    claims: tuple[Claim, ...]
    hints: tuple[Hint, ...]
    may_call: tuple[str, ...] = ()
    reference: Callable | None = None
    bonus: bool = False

    @property
    def points(self) -> int:
        return sum(claim.points for claim in self.claims)

    @property
    def parts(self) -> tuple["Exercise", ...]:
        return (self,)


@dataclass(frozen=True)
class Bundle:
    """Several short functions that belong together. Each is judged by itself: one that fails costs only its own points.

    parts: in the order in which the check takes the functions; a part has the name of its function.
    """

    name: str
    parts: tuple[Exercise, ...]
    bonus: bool = False

    @property
    def points(self) -> int:
        return sum(part.points for part in self.parts)

    @property
    def hints(self) -> tuple[Hint, ...]:
        return tuple(hint for part in self.parts for hint in part.hints)


@dataclass
class Outcome:
    """How a check ended. hint: the name of the hint that was given, or None; parts: a Bundle's, one by one."""

    points: int
    max_points: int
    lines: list[str]
    message: str
    hint: str | None = None
    parts: list["Outcome"] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return self.points == self.max_points


def evaluate(exercise: Exercise | Bundle, fn: Callable | tuple[Callable, ...]) -> Outcome:
    """Run and judge, without printing or raising. fn: the student's function; for a Bundle, a tuple of them."""
    fns = fn if isinstance(exercise, Bundle) else (fn,)
    answers = list(zip(exercise.parts, fns, strict=True))
    if warm.GRADED:
        warm.end_all()  # what an earlier answer did to its ranks counts for nothing
    outcomes = {}
    for worlds in dict.fromkeys(part.worlds for part in exercise.parts):
        alike = [(part, f) for part, f in answers if part.worlds == worlds]
        outcomes |= _evaluate_on_ranks(worlds, alike) if worlds else {p.name: _evaluate_here(p, f) for p, f in alike}
    in_order = [outcomes[part.name] for part in exercise.parts]
    return _together(exercise, in_order) if isinstance(exercise, Bundle) else in_order[0]


def _evaluate_on_ranks(worlds, answers):
    """{exercise's name: Outcome} of answers that run on the same numbers of ranks: one launch per number for all.

    A run that fails is the fault of one answer. It is judged by that; those that the run did not finish run again.
    """
    outcomes, runs = {}, {exercise.name: [] for exercise, _ in answers}
    for nproc in worlds:
        waiting = [(e, fn) for e, fn in answers if e.name not in outcomes]
        while waiting:
            with tempfile.TemporaryDirectory(prefix="check-") as folder:
                measures = {exercise.name: exercise.measure for exercise, _ in waiting}
                try:
                    results = launch.capture(
                        _measure_all, *(fn for _, fn in waiting), measures, folder,
                        nproc=nproc, backend=BACKEND, timeout=TIMEOUT,
                    )  # fmt: skip
                    seen = {name: [result[i] for result in results] for i, name in enumerate(measures)}
                    book = results.ledger
                except launch.RankError as error:
                    if error.kind == "no start":  # not the answer's fault
                        raise
                    book = error.ledger
                    begun = _begun(book) or list(measures)[:1]
                    odd = next((name for name in begun[:-1] if _at_odds(book, name)), None)
                    finished = begun[: begun.index(odd)] if odd else begun[:-1]
                    seen = {name: _saved(folder, list(measures).index(name), nproc) for name in finished}
                    guilty = odd or begun[-1]
                    exercise, fn = next((e, fn) for e, fn in waiting if e.name == guilty)
                    if odd:  # what it left behind may be the fault of all that came after it
                        outcomes |= _evaluate_on_ranks(worlds, [(exercise, fn)])
                    elif error.kind == "raised" and "raised NotImplementedError" in str(error):
                        outcomes[guilty] = _not_written(exercise)
                    else:
                        outcomes[guilty] = _judge_runs(exercise, runs[guilty], _of_failure(exercise, nproc, error))
                except TypeError as error:  # a function that cannot be sent to the ranks
                    if len(waiting) > 1:
                        alone = {e.name: _evaluate_on_ranks(worlds, [(e, fn)])[e.name] for e, fn in waiting}
                        return outcomes | alone
                    exercise = waiting[0][0]
                    seen, outcomes[exercise.name] = {}, _judge_runs(exercise, [], Problem("cannot be sent", str(error)))
            for name in seen:
                runs[name].append(Run(nproc, seen[name], _of_exercise(book, name)))
            waiting = [(e, fn) for e, fn in waiting if e.name not in outcomes and e.name not in seen]
    return {e.name: outcomes.get(e.name) or _judge_runs(e, runs[e.name], None) for e, _ in answers}


def _measure_all(*fns_measures_folder):
    """On every rank: what the measure of each exercise saw, given the student's functions and {name: measure}.

    Of several, each is also left in `folder` as it is finished, in case a later one fails.
    """
    *fns, measures, folder = fns_measures_folder
    seen = []
    for number, (fn, (name, measure)) in enumerate(zip(fns, measures.items(), strict=True)):
        ledger.mark(BEGINS + name)
        with groups.kept_for_checks():
            seen.append(measure(fn))
        ledger.mark("")
        if len(fns) > 1:
            torch.save(seen[-1], f"{folder}/{number}-{dist.get_rank()}", pickle_module=cloudpickle)
            dist.barrier()  # no rank is in the next exercise while another is still in this one
    return seen


def _begun(book):
    """The names of the exercises that the ranks have begun; see `_measure_all`: none is further than one other."""
    return [label.removeprefix(BEGINS) for label in book.marks if label.startswith(BEGINS)] if book else []


def _at_odds(book, name):
    """Do the ranks' calls in this exercise not match, though all of them have finished it?"""
    return any(finding.certain for finding in audit(_of_exercise(book, name)))


def _saved(folder, number, nproc):
    """[what rank 0 saw in the exercise of this number, ...]; see `_measure_all`."""
    paths = [f"{folder}/{number}-{rank}" for rank in range(nproc)]
    return [torch.load(path, map_location="cpu", weights_only=False) for path in paths]


def _of_exercise(book, name):
    """The part of every rank's book that was written during this exercise, with its marks."""
    parts = []
    for rank in range(book.world_size):
        inside, part = False, []
        for entry in book.of(rank):
            if entry.op == "mark" and entry.file.startswith(BEGINS):
                inside = entry.file == BEGINS + name
            elif inside:
                part.append(entry)
        parts.append(part)
    return Ledger(parts, None, [0] * book.world_size)


def _judge_runs(exercise, runs, problem):
    return _judge(exercise, runs, _forbidden_call(exercise, runs, problem) or problem)


def _of_failure(exercise, nproc, error):
    error.ledger = _of_exercise(error.ledger, exercise.name)
    failed = in_its_case(error)
    # Where there is one world only, its cases run on groups of it and say on which.
    where = [failed.case] if failed.case and len(exercise.worlds) == 1 else [_ranks(nproc), failed.case]
    facts = {"world_size": nproc, "waiting": len(error.waits), "failed": failed}
    facts["ledger"] = error.ledger
    return Problem(failed.kind, f"{', '.join(filter(None, where))}: {failed.text}", facts)


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
        lines.append(_score(exercise, points))
        message = f"{claim.name}: {found.text.splitlines()[0]}"
        return Outcome(points, exercise.points, lines, message, hint.name if hint else None)
    lines.append(_score(exercise, points))
    return Outcome(points, exercise.points, lines, "passed")


def _wrapped(line):
    """A line at the width of a notebook's output, its indentation kept."""
    indent = " " * (6 + len(line) - len(line.lstrip()))
    return textwrap.wrap(line.lstrip(), 96, initial_indent=indent, subsequent_indent=indent + "  ")


def _not_written(exercise):
    lines = [exercise.name, "  --  not written yet: the body still raises NotImplementedError", _score(exercise, 0)]
    return Outcome(0, exercise.points, lines, "not written yet", "not written")


def _score(exercise, points):
    return f"{points} of {exercise.points} {'bonus ' if exercise.bonus else ''}points"


def _together(bundle, outcomes):
    """One verdict from the parts' verdicts: a line for each that passed, and what is wrong with each that did not."""
    if all(outcome.hint == "not written" for outcome in outcomes):
        return _not_written(bundle)
    lines, points = [bundle.name], sum(outcome.points for outcome in outcomes)
    for part, outcome in zip(bundle.parts, outcomes, strict=True):
        if outcome.passed:
            lines.append(f"  ok  {part.name:<{WIDTH}} {'; '.join(claim.name for claim in part.claims)}")
        else:
            lines += [f"  --  {part.name}", *("    " + line for line in outcome.lines[1:-1])]
    wrong = [(f"{p.name}: {o.message}", o.hint) for p, o in zip(bundle.parts, outcomes, strict=True) if not o.passed]
    message, hint = wrong[0] if wrong else ("passed", None)
    return Outcome(points, bundle.points, [*lines, _score(bundle, points)], message, hint, outcomes)


def _forbidden_call(exercise, runs, problem):
    """Does the answer call what it is meant to build? The ledger knows the op, the lib function and the line."""
    books = [run.ledger for run in runs] + (
        [problem.facts["ledger"]] if problem and problem.facts.get("ledger") else []
    )
    for book in books:
        inside = dict.fromkeys(range(book.world_size), False)
        for rank in range(book.world_size):
            for entry in book.of(rank):
                if entry.op == "mark":
                    inside[rank] = entry.file != ""
                elif inside[rank] and (called := entry.via or entry.op) not in exercise.may_call:
                    where = place(entry.file, entry.line, entry.function)
                    return Problem("built-in", f"{where}\ncalls {called}, which is what this exercise builds", {})
    return None


def check(exercise: Exercise | Bundle, *fns: Callable) -> None:
    """Judge `fns` (one function; as many as a Bundle has parts), print the verdict, note the points.

    Raises CheckFailed if a claim fails.
    """
    names = [part.name for part in exercise.parts]
    if len(fns) != len(names) or not all(callable(fn) for fn in fns):
        what = "your function" if len(names) == 1 else f"your {len(names)} functions"
        raise CheckFailed(f"{exercise.name}: give the check {what}, as in check.{exercise.name}({', '.join(names)})")
    outcome = evaluate(exercise, fns if isinstance(exercise, Bundle) else fns[0])
    print("\n".join(outcome.lines))
    _report(exercise, outcome)
    for name, fn, part in zip(names, fns, outcome.parts or [outcome], strict=False):
        if part.passed:
            _passed[name] = fn
    if not outcome.passed:
        raise CheckFailed(outcome.message)


def _report(exercise, outcome):
    path = os.environ.get("LAB_REPORT")
    if path:
        hint = next((hint.text for hint in exercise.hints if hint.name == outcome.hint), "")
        facts = {
            "id": exercise.name, "points": outcome.points, "max_points": outcome.max_points, "message": outcome.message,
            "hint": hint,
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
