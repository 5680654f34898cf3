"""The usual claims. Each is a judge, (runs) -> None or the Problem; `claim(name, points, says,
judge, ...)` takes many.

    values      the right result on every rank            kind "value", "form", "returned"
    left_alone  arguments are as they were                "input"
    new         the result has memory of its own          "shared"
    kept        later calls change no earlier result      "not kept"
    elements    what all ranks send together, and one     "elements", "one rank"
    ring        to the right neighbour only, and rounds   "neighbours", "rounds"
    only_calls  the calls of what the answer is given     "calls", "group", "another way",
                                                          "wire dtype", "clash"
    noted       what the measure itself has found wrong   as there

elements, ring and only_calls are in traffic.py.

facts: case, rank, want, got (in what form), and what `explain` found. Records are those of
`calls.py`, or have the keys that a claim names.
"""

from math import isfinite
from numbers import Real

import torch

from lib.check.cases import form_of, seen
from lib.check.exercise import Claim, Problem
from lib.check.explain import narrowed, rounded_words, two


def claim(name, points, says, *judges) -> Claim:
    """One claim of several judges: the first Problem counts."""

    def judge(runs):
        return next((found for one in judges if (found := one(runs))), None)

    return Claim(name, points, says, judge)


def without_ranks(judge):
    """judge(what the measure returned), as the judge of a claim on a function without ranks."""

    def of(runs):
        ((seen,),) = (run.results for run in runs)
        return judge(seen)

    return of


def each(cases, problem):
    """A judge: the first Problem of problem(case, rank, record), case by case, rank by rank."""

    def judge(runs):
        for _, case, records in seen(runs, cases):
            for rank, record in enumerate(records):
                if found := problem(case, rank, record):
                    return found
        return None

    return judge


def values(calls, explain=None, what="the result"):
    """explain(case, rank, got, want, records) -> Problem, or None: then the form or the first wrong
    element is told."""

    def judge(runs):
        for _, case, records in seen(runs, calls.cases):
            wrong = [rank for rank, record in enumerate(records) if not record["ok"]]
            if not wrong:
                continue
            rank, want = wrong[0], calls.want(case, wrong[0])
            found = form(f"{case.name}: {case.rank(rank)}", records[rank]["got"], want, what)
            explained = (
                explain(case, rank, records[rank]["got"], want, records) if explain else None
            )
            if explained is None or (found and found.kind == "returned"):
                explained = found or element(
                    f"{case.name}: {case.rank(rank)}", records[rank]["got"], want
                )
            right = [r for r in range(case.world_size) if r not in wrong]
            explained.facts = {
                "case": case,
                "rank": rank,
                "wrong": wrong,
                "right": right,
            } | explained.facts
            explained.trace = [
                case.name,
                explained.kind,
                [_ratios(r["got"], calls.want(case, i)) for i, r in enumerate(records)],
            ]
            return explained
        return None

    return judge


def form(where, got, want, what="the result"):
    """A Problem unless `got` is a tensor of the shape and dtype of `want`."""
    facts = {
        "dtype": False,
        "got": form_of(got) if torch.is_tensor(got) else got,
        "want": form_of(want),
    }
    if not torch.is_tensor(got):
        return Problem(
            "returned", f"{where} returned {got}, expected {what}, {form_of(want)}", facts
        )
    if got.shape != want.shape or got.dtype != want.dtype:
        facts |= {"dtype": got.shape == want.shape, "numel": got.numel()}
        return Problem(
            "form", f"{where} returned {form_of(got)}, expected {what}, {form_of(want)}", facts
        )
    return None


def element(where, got, want, close=torch.eq):
    """The Problem of the first wrong element of a tensor of the right form."""
    index = tuple((~close(got, want)).nonzero()[0].tolist())
    at = f", element {index[0] if len(index) == 1 else index}" if index else ""
    x, y = two(want[index], got[index])
    facts = {"index": index, "narrowed": narrowed(got, want)}
    said = f"\n{rounded_words(want.dtype)}" if facts["narrowed"] else ""
    return Problem("value", f"{where}{at}: expected {x}, got {y}{said}", facts)


def left_alone(cases, *names):
    """No argument has changed; names: only these."""

    def problem(case, rank, record):
        changed = [name for name in record["changed"] if not names or name in names]
        if not changed:
            return None
        text = f"{case.name}: {case.rank(rank)}'s own {changed[0]} was overwritten"
        return Problem("input", text, {"case": case, "rank": rank, "names": changed})

    return each(cases, problem)


def new(cases):
    """The result has memory of its own: whoever changes it changes none of the caller's tensors."""

    def problem(case, rank, record):
        if not record["shared"]:
            return None
        text = (
            f"{case.name}: {case.rank(rank)} returned its own {record['shared'][0]}, or a view of "
            f"it: "
        )
        return Problem(
            "shared", text + "who changes the result changes that too", {"case": case, "rank": rank}
        )

    return each(cases, problem)


def kept(cases):
    """What a call returned is still the same after all later calls."""

    def problem(case, rank, record):
        if record["kept"]:
            return None
        text = (
            f"{case.name}: {case.rank(rank)}'s result was right, and has changed with a later call"
        )
        return Problem("not kept", text, {"case": case, "rank": rank})

    return each(cases, problem)


def is_number(got) -> bool:
    return isinstance(got, Real) and not isinstance(got, bool)


def _ratios(got, want):
    """For the trace: at most the first eight numbers of a result, as ratios, or with its form where
    that is wrong."""
    if not torch.is_tensor(got):
        return got
    first = got.flatten()[:8]
    if got.shape != want.shape or got.dtype != want.dtype:
        return [form_of(got), first.tolist()]
    if got.dtype.is_floating_point:
        return [float(x) for x in first.double() / want.double().flatten()[:8]]
    return first.tolist()


def off(where, got, want, tolerance=1e-12):
    """The Problem of a tensor that is not `want`, up to rounding: kind "form" or "value"; None
    where it is.

    tolerance: of the largest number in `want`, or of 1.
    """
    facts = {"got": form_of(got), "want": form_of(want), "dtype": False}
    if not torch.is_tensor(got) or got.shape != want.shape or got.dtype != want.dtype:
        facts["dtype"] = torch.is_tensor(got) and got.shape == want.shape
        return Problem("form", f"{where}: expected {facts['want']}, got {facts['got']}", facts)
    got, want = got.detach(), want.detach()
    most = tolerance * max(1.0, want.abs().max().item() if want.numel() else 0.0)
    close = lambda a, b: (a - b).abs() <= most
    if close(got, want).all():
        return None
    problem, first = (
        element(where, got, want, close),
        int((~close(got, want)).flatten().nonzero()[0]),
    )
    problem.trace = [
        where,
        first,
        problem.facts["narrowed"],
        [float(x) for x in got.flatten()[first : first + 8]],
    ]
    return problem


# one rank's error is what others' calls do not fit
CAUSES = {"raised": 0, "unreadable": 0, "group": 0, "clash": 1}


def noted(cases, key, among=None):
    """A Problem that the records have under this name; in one case the rank's of which the others
    came.

    among: only the Problems in these of the cases.
    """

    def judge(runs):
        for _, case, records in seen(runs, cases):
            problems = [record[key] for record in records if record.get(key)]
            if problems and case in (among or cases):
                first = min(problems, key=lambda problem: CAUSES.get(problem.kind, 2))
                first.facts |= {"case": case}
                return first
        return None

    return judge


def compared(where, got, want, tolerance=1e-12):
    """The Problem of a tensor that is not `want` up to rounding, of the largest number expected or
    of 1; None: it is.

    kinds "form", "value"; facts: narrowed, and factor: got = factor x expected everywhere, or None.
    """
    if not torch.is_tensor(got) or got.shape != want.shape or got.dtype != want.dtype:
        facts = {
            "dtype": torch.is_tensor(got) and got.shape == want.shape,
            "factor": None,
            "got": form_of(got),
        }
        return Problem(
            "form",
            f"{where}: expected {form_of(want)}, got {form_of(got)}",
            facts,
            [where, form_of(got)],
        )
    got, want = got.detach(), want.detach()
    largest = max(1.0, want.abs().max().item()) if want.numel() else 1.0
    within = lambda most, to: bool(((got - to).abs() <= most * largest).all())
    if within(tolerance, want):
        return None
    index = tuple((~((got - want).abs() <= tolerance * largest)).nonzero()[0].tolist())
    top = want.abs().argmax()
    factor = (got.flatten()[top] / want.flatten()[top]).item() if want.any() else 0.0
    facts = {"narrowed": want.dtype == torch.float64 and within(2.0**-22, want)}
    facts["factor"] = factor if isfinite(factor) and within(tolerance, factor * want) else None
    at = f", element {index[0] if len(index) == 1 else index}" if index else ""
    x, y = two(want[index], got[index])
    said = f"\n{rounded_words(want.dtype)}" if facts["narrowed"] else ""
    trace = [where, [round(float(x), 9) for x in got.flatten()[:8]]]
    return Problem("value", f"{where}{at}: expected {x}, got {y}{said}", facts, trace)
