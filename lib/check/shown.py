"""Compares what an answer shows with what lib's own function shows (side_by_side.py), and judges
it.

    claims=claims(
        MEASURE,                                name, points, cases in words, what it is about
        ("the sum", 8, "2, 3, 4 ranks", "y"),                       shown under the name "y"
        ("nothing to sum", 1, "n = 0", ("y", EMPTY), "graph"),      "y" in these cases; a probe
        ("one rank", 2, "", (("y", "x"), ALONE)),                   both in these cases
        ("on the wire", 3, "(N-1)n", calls(MEASURE)),               a judge
    )

A claim reports its first difference, values before probes. Names that no claim lists, including
most probes, count towards the last claim.

The kind of a Problem is one of those of `tensors.compared`, or "number", or "said" if a property
does not hold; the shown string then says how. Its facts include: case; name; time, which is n for
the n-th value that was shown under this name; and nothing, which is true if a call returned None
where lib's own returned something.
"""

from functools import partial

import torch

from lib.check import probes, whose
from lib.check.cases import form_of, seen
from lib.check.claims import claim
from lib.check.exercise import Problem
from lib.check.explain import fraction, narrowed, two
from lib.check.tensors import compared
from lib.check.traffic import astray, beside

# the names under which `Show.refused` and `Show.returned` show their values
ERROR, RETURNED = "the error raised", "something is returned"
SAMPLE = 12  # how many elements of each wrong tensor are in a trace


def differences(case, got, want, excused, slack) -> dict[str, Problem]:
    """{name: Problem} for every name, unless excused, under which two Shows differ."""
    shown = want.shown
    if got.stopped:
        shown = {key: value for key, value in shown.items() if key in got.shown}
    found = compared_with(case, got.shown, shown, excused, slack)
    calls = zip(got.returned_none, want.returned_none, strict=False)
    nothing = any(mine and not libs for mine, libs in calls)
    for problem in found.values():
        problem.facts["nothing"] = nothing
    return found


def compared_with(case, got, want, excused=(), slack=None) -> dict[str, Problem]:
    """{name: Problem} for the first difference from the reference under each name. got, want:
    {(name, time): Value}"""
    found = {}
    for order, key in enumerate(dict.fromkeys([*want, *got])):
        name, time = key
        if name in found or probes.named(name) in excused:
            continue
        b, a = want.get(key), got.get(key)
        part = (b or a).part
        where = f"{case.name}{', ' * bool(part)}{part}"
        for inner, right in (b.values if b else {"": ""}).items():
            full_name, mine = f"{name} {inner}".strip(), a.values.get(inner) if a else None
            if probes.as_right(case, full_name, mine, right, slack or {}):
                continue
            problem = different(where, full_name, mine, right, b, (a or b).names)
            if problem:
                problem.facts |= {"case": case, "name": name, "time": time, "order": order}
                problem.facts["key"] = (name, time, inner)
                problem.text += f"\n{a.beside}" if a and a.beside else ""
                found[name] = problem
                break
    return found


def different(where, name, got, want, how, names=()) -> Problem | None:
    """The Problem of a value that differs from lib's, or None. how: the Value that says how to
    compare, or None. names: those of the arguments of the call that the value is about."""
    if torch.is_tensor(want):
        problem = compared(where, name, got, want)
        if isinstance(got, str):  # autograd's message instead of a gradient
            text = f"{where}: {name}: expected {form_of(want)}, got none: {got}"
            return Problem("form", text, problem.facts | {"got": got})
        if problem and problem.kind == "value":
            problem.facts["values"] = whose.kept(got, want)
            several = want.numel() > 1  # a single number may be near by chance
            problem.facts["narrowed"] |= several and narrowed(got, want)
            problem.facts["factor"] = factor = factor_of(got, want)
            if factor is not None and not problem.facts["narrowed"]:
                of = "of" if abs(factor) < 1 else "times"
                problem.text += f"\nAll elements are {fraction(factor)} {of} the expected values."
        return problem
    at_most = bool(how and how.at_most)
    numbers = isinstance(want, (int, float)) and isinstance(got, (int, float))
    if numbers:
        room = ((how and how.tolerance) or 1e-9) * max(abs(want), 1e-300)
        if (at_most and got <= want + room) or abs(got - want) <= room:
            return None
    elif type(got) is type(want) and got == want:
        return None
    property_ = want == "" and got
    got = form_of(got) if torch.is_tensor(got) else got
    facts = {"got": got, "want": want}
    if numbers and not isinstance(got, bool):
        want, got = two(want, got)
    text = (
        probes.words(name, facts["got"], facts["want"], names)
        or (_of_an_error(facts["got"], facts["want"]) if name == ERROR else "")
        or (f"{got}" if property_ else "")
        or f"{name}: expected {'at most ' * at_most}{want}, got {got}"
    )
    return Problem("said" if property_ else "number", f"{where}: {text}", facts)


def _of_an_error(got, want) -> str:
    """A sentence for the wrong error: "[ValueError]" is expected and "[]" is shown, or the reverse,
    or both are errors."""
    kind = lambda said: said.strip("[]") if isinstance(said, str) else ""
    if not kind(want):
        return f"{kind(got)} was raised, but nothing should be raised here"
    raised = f"{kind(got)} was" if kind(got) else "nothing was"
    return f"{kind(want)} should be raised, but {raised}"


def factor_of(got, want) -> float | None:
    """The factor by which all elements of a wrong tensor differ from the expected ones, or None if
    there is no such factor."""
    got, want = got.detach().double(), want.detach().double()
    if want.numel() < 2 or not want.any() or not got.isfinite().all():
        return None
    factor = ((got * want).sum() / want.square().sum()).item()
    near = (got - factor * want).abs().max() <= 1e-6 * abs(factor) * want.abs().max()
    return factor if near and abs(factor) > 1e-9 else None


def traced(wrong, shows) -> dict:
    """{name: the values that are wrong}. The same mistake has the same trace, however it is
    written in code."""
    found = {}
    for name, problem in wrong.items():
        if not name:
            found[name] = problem.trace
            continue
        given = [show.shown.get((name, problem.fact("time"))) for show in shows]
        # bytes, and states of generators, are not recorded as numbers
        no_numbers = name.startswith((*probes.OF_A_SCRIPT, "generators"))
        values = [[k, numbers(v)] for one in given if one for k, v in one.values.items()]
        found[name] = [problem.kind, problem.fact("time"), "more" if no_numbers else values]
    return found


def numbers(x):
    """The form and the first elements of a tensor, rounded so that they do not depend on the order
    of summation; other values as numbers or short strings."""
    if not torch.is_tensor(x):
        return x if isinstance(x, (float, int)) else str(x)[:200]
    digits = 9 if x.dtype == torch.float64 else 4
    return [form_of(x), [round(float(v), digits) + 0.0 for v in x.flatten()[:SAMPLE]]]


def claims(measure, *rows) -> tuple:
    """Claims from rows (name, points, says, *about). An element of `about` is a shown name, a
    judge, or a pair of a name (or a tuple of names) and a list of cases."""
    everywhere, taken, made = tuple(measure.runs()), set(), []
    for number, (name, points, says, *about) in enumerate(rows):
        pair = lambda one: one if isinstance(one, tuple) else (one, everywhere)
        pairs = [pair(one) for one in about if not callable(one)]
        several = lambda names: (names,) if isinstance(names, str) else names
        mine = {(what, case) for names, cases in pairs for what in several(names) for case in cases}
        taken |= mine
        asks = partial(_among, mine)
        if number == len(rows) - 1:
            asks = partial(_among_or_nowhere, mine, frozenset(taken))
        judges = filter(callable, about)
        made.append(claim(name, points, says, fitting(measure), *judges, shown(measure, asks)))
    return tuple(made)


def _among_or_nowhere(pairs, taken, name, case):
    return _among(pairs, name, case) or not _among(taken, name, case)


def _among(pairs, name, case):
    return (name, case) in pairs or (name.removeprefix("the gradient of "), case) in pairs


def shown(measure, asks):
    """A judge: every value for which asks(name, case) holds agrees with lib's, on every rank.

    An answer that raised fails here if some of these values had not been shown yet, or if no
    value of the case was left to show.
    """

    def judge(runs):
        for _, case, records in seen(runs, measure.of_world):
            asked = lambda name, case=case: asks(name, case)
            found = [one for record in records for one in record["wrong"].items()]
            wrong = [problem for name, problem in found if name and asked(name)]
            raised = [
                record["wrong"][""]
                for record in records
                if "" in record["wrong"]
                and (not record["unseen"] or any(map(asked, record["unseen"])))
            ]
            if wrong or raised:
                values_first = lambda p: (probes.is_probe(p.fact("name", "")), p.fact("order", 0))
                first = with_trace(min(wrong or raised, key=values_first), runs, measure)
                sentences, facts = whose.told(first, records)
                first.text = "\n".join(filter(None, [first.text, sentences]))
                first.facts |= facts
                return first
        return None

    return judge


def fitting(measure):
    """A judge: the ranks' calls match each other, and all are on the group of their case."""

    def judge(runs):
        for _, case, records in seen(runs, measure.of_world):
            for rank, record in enumerate(records):
                if "wire" in record and (
                    found := astray(f"{case.name}: {case.rank(rank)}", case, record)
                ):
                    return with_trace(found, runs, measure)
        return None

    return judge


def with_trace(problem, runs, measure) -> Problem:
    """The Problem with a trace of all wrong values in all cases. facts["narrower"] is the trace of
    the Problem's own name alone, which recognises a known mistake even if there are others
    (fingerprints.py)."""
    name = problem.fact("name", "")
    cases = [
        [case.name, [record["trace"] for record in records]]
        for _, case, records in seen(runs, measure.of_world)
        if any(record["trace"] for record in records)
    ]
    narrower = [
        [case, [trace.get(name) for trace in traces]]
        for case, traces in cases
        if any(name in trace for trace in traces)
    ]
    found = Problem(problem.kind, problem.text, dict(problem.facts))
    found.trace = [name, problem.kind, cases]
    found.facts["narrower"] = [name, problem.kind, narrower]
    return found


def calls(measure, nothing_else=True):
    """A judge: each rank makes the same calls as lib's own function, and sends nothing except
    through the collectives it was given. nothing_else=False: its calls may differ from lib's.

    Calls without elements do not count, because a rank that left one out while others made it would
    already have failed `fitting`.
    """

    def judge(runs):
        for run, case, records in seen(runs, measure.of_world):
            for rank, record in enumerate(records):
                if "calls" not in record:  # the answer is lib's own, which another judge reports
                    continue
                where = f"{case.name}: {case.rank(rank)}"
                if found := beside(run, case, where, rank, record):
                    return found
                got, want = ([c[:4] for c in record[k] if c.elements] for k in ("calls", "wanted"))
                if case.world_size > 1 and nothing_else and got != want:
                    text = f"{where} called {_listed(got)}\nexpected {_listed(want)}"
                    facts = {"case": case, "got": got, "want": want}
                    return Problem("calls", text, facts, [case.name, str(got)])
        return None

    return judge


def _listed(calls):
    """`reduce_scatter of 77 float64 in average_gradients(), ...`"""
    said = [
        f"{op} of {n} {str(dtype)[6:]}{' in ' * bool(part)}{part}" for op, part, n, dtype in calls
    ]
    return ", ".join(said) or "nothing"
