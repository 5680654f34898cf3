"""Lab 6, section 2: average_over_mesh(sets, mesh, ends, all_reduce), on 8 ranks.

First the gradients are made by hand, so that a wrong one tells whose sum it is; then they are those of a real step, a
GPT's on pp=2 dp=2 tp=2, beside one process.
"""

from functools import partial

import torch.distributed as dist

from lib import hybrid, ledger
from lib.check.framework import Claim, Exercise, Problem
from lib.check.lab0.cases import called, in_step, seen
from lib.check.lab5.ep_given import Clash, found, of_error
from lib.check.lab5.here import Told, first_wrong
from lib.check.lab6.average_over_mesh_hints import HINTS
from lib.check.lab6.over_cases import WORLD, cases, places_of
from lib.check.lab6.over_given import MAY_CALL, Given, listed, these_sums
from lib.check.lab6.over_sets import Before, one_process, real_step, sets_by_hand
from lib.check.lab6.over_sums import made_up, wrong_mean

NAME = "average_over_mesh"
CASES = cases(NAME)


_means = partial(found, CASES, "value")  # _means(cases): the claim over these


def _measure(fn):
    return in_step(CASES, places_of, partial(_one, fn), wire=dist.new_group())


def _one(fn, case, place):
    mesh, ends, wire = place
    rank, given, right = dist.get_rank(), Given(case, wire), None
    if case is CASES[-1]:
        step = real_step(mesh, average=lambda sets, mesh, ends: None)
        sets, right = step.sets, one_process(step)[0]
    else:
        sets = sets_by_hand(mesh, lambda name, i, shape: made_up(rank, i, shape))
    where, before, problem = f"{case.where}: {case.rank(rank)}", Before(sets), None
    try:
        called(case, fn, sets, mesh, ends, given.all_reduce)
    except Exception as error:
        if type(error) is NotImplementedError:  # not written yet, on no rank
            raise
        ledger.mark("")
        problem = of_error(case.where if isinstance(error, Clash) else where, error)
    given.end()
    expected = _expected(before, mesh, ends)
    touched = before.changed(where, gradients=False)
    problem = _wrong_group(where, case, given, expected) or problem
    problem = problem or (_as_one_process(where, right, before) if right else wrong_mean(case, rank, before.all()))
    if problem:
        problem.facts |= {"case": case, "touched": touched and touched.facts["what"], "stuck": given.stuck}
    want = {ranks: n for ranks, n in expected.items() if len(ranks) > 1 and n}
    return {
        "ok": problem is None, "value": problem, "touched": touched, "sums": given.sums(), "want": want,
        "wire": wire.group_name,
    }  # fmt: skip


def _expected(before, mesh, ends):
    """{global ranks: elements} of each of the groups to sum over."""
    tied, whole, cut = (sum(p.numel() for p in before.lists[name]) for name in ("tied", "whole", "cut"))
    groups = [(mesh.group("tp"), whole), (mesh.group("dp"), cut + whole + tied)] + ([(ends, tied)] if ends else [])
    return {tuple(dist.get_process_group_ranks(group)): n for group, n in groups}


def _wrong_group(where, case, given, expected):
    """A Problem if it was called for other ranks than those of tp, dp or ends."""
    ranks = next((ranks for ranks in given.sums() if ranks not in expected), None)
    if ranks is None:
        return None
    text = f"{where} summed over {case.told(ranks)}\nexpected along tp, along dp and over the ends, and nothing else"
    return Problem("group", text, {"all": len(ranks) == WORLD})


def _as_one_process(where, right, before):
    """A Problem if a gradient is not one process's. right: {parameter: (its name, the gradient)}"""
    was = lambda p: [("this rank's own, as it was", before.was[p][1])]
    return first_wrong(
        [Told(where, f"{name}.grad", p.grad, want, partial(was, p)) for p, (name, want) in right.items()]
    )


def _wrong_sums(case, rank, record):
    got, want = record["sums"], record["want"]
    if got == want:
        return None
    text = f"{case.where}: {case.rank(rank)} summed {listed(case, got)}\nexpected {listed(case, want)}"
    return Problem("calls", text)


def _untouched(runs):
    records = (record for _, _, records in seen(runs, CASES) for record in records)
    return next((record["touched"] for record in records if record["touched"]), None)


EXERCISE = Exercise(
    name=NAME,
    reference=hybrid.average_over_mesh,
    measure=_measure,
    worlds=(WORLD,),
    may_call=MAY_CALL,
    claims=(
        Claim("the gradients of the mean loss", 10, "5 meshes of 8 ranks; pp, dp, tp of 1 to 4", _means(CASES[:-1])),
        Claim("as one process", 4, "a GPT's backward on pp=2 dp=2 tp=2", _means(CASES[-1:])),
        Claim("each set over its groups", 4, "elements: tied over ends, whole over tp, all over dp", these_sums(
            CASES, _wrong_sums)),
        Claim("parameters left alone", 2, "only .grad changes; the lists too stay as they were", _untouched),
    ),
    hints=HINTS,
)  # fmt: skip
