"""Lab 6, section 2: norm_over_mesh(sets, mesh, all_reduce), on 8 ranks.

First the gradients are made by hand, so that a wrong norm tells whose squares are in it; then they are those of a real
step, a GPT's on pp=2 dp=2 tp=2, beside one process.
"""

from functools import partial

import torch
import torch.distributed as dist

from lib import hybrid, ledger
from lib.check.framework import Claim, Exercise, Problem
from lib.check.lab0.cases import called, in_step, seen
from lib.check.lab5.ep_given import Clash, found, of_error
from lib.check.lab6.norm_over_mesh_hints import HINTS
from lib.check.lab6.over_cases import WORLD, cases, places_of
from lib.check.lab6.over_given import MAY_CALL, Given, listed, these_sums
from lib.check.lab6.over_sets import Before, one_process, real_step, sets_by_hand
from lib.check.lab6.over_squares import made_up, norm_by_hand, wrong_norm
from lib.mesh import axes_of

NAME = "norm_over_mesh"
CASES = cases(NAME, first=[(2, 2, 2)])  # where a rank alone lacks parts of both kinds
MOST = 3  # numbers over a group: one of each set


_norms = partial(found, CASES, "value")  # _norms(cases): the claim over these


def _measure(fn):
    return in_step(CASES, places_of, partial(_one, fn), wire=dist.new_group())


def _one(fn, case, place):
    mesh, _, wire = place
    rank, given, got, problem = dist.get_rank(), Given(case, wire), None, None
    if real := case is CASES[-1]:
        step = real_step(mesh, average=hybrid.average_over_mesh)
        sets, want = step.sets, one_process(step)[1].item()
    else:
        sets = sets_by_hand(mesh, lambda name, i, shape: made_up(case, mesh.here, name, shape))
        want = norm_by_hand(case)
    where, before = f"{case.where}: {case.rank(rank)}", Before(sets)
    try:
        got = called(case, fn, sets, mesh, given.all_reduce)
    except Exception as error:
        if type(error) is NotImplementedError:  # not written yet, on no rank
            raise
        ledger.mark("")
        problem = of_error(case.where if isinstance(error, Clash) else where, error)
    given.end()
    touched = before.changed(where, gradients=True)
    problem = problem or wrong_norm(case, rank, got, want, by_hand=not real)
    if problem:
        problem.facts |= {"touched": touched and touched.facts["what"]}
        problem.facts |= {"all": any(len(ranks) == WORLD for ranks, _ in given.calls)}
    return {
        "ok": problem is None, "value": problem, "touched": touched, "sums": given.sums(), "wire": wire.group_name,
        "got": got.detach().cpu() if torch.is_tensor(got) else None,
    }  # fmt: skip


def _wrong_sums(case, rank, record):
    """A Problem unless a number or a few were summed along tp, and along pp, and no more."""
    for ranks, n in record["sums"].items():
        along = axes_of(ranks, case.sizes)
        if along not in (("tp",), ("pp",)) or n > MOST:
            text = f"{case.where}: {case.rank(rank)} summed {listed(case, record['sums'])}"
            text += "\nexpected one number along tp and one along pp, or one of each set"
            return Problem("calls", text, {"along": along, "many": n > MOST})
    return None


def _same_bits(runs):
    for _, case, records in seen(runs, CASES):
        first, *others = (record["got"] for record in records)
        for rank, other in enumerate(others, 1):
            if not torch.equal(first, other):
                text = f"{case.where}: {case.rank(rank)} has {other.item()!r}, rank 0 {first.item()!r}"
                return Problem("bits", text)
    return None


def _untouched(runs):
    records = (record for _, _, records in seen(runs, CASES) for record in records)
    return next((record["touched"] for record in records if record["touched"]), None)


EXERCISE = Exercise(
    name=NAME,
    reference=hybrid.norm_over_mesh,
    measure=_measure,
    worlds=(WORLD,),
    may_call=MAY_CALL,
    claims=(
        Claim("the norm of the whole model", 8, "5 meshes of 8 ranks; pp, dp, tp of 1 to 4", _norms(CASES[:-1])),
        Claim("as one process", 3, "a GPT's gradients on pp=2 dp=2 tp=2", _norms(CASES[-1:])),
        Claim("numbers alone travel", 2, "one or a few, along tp and along pp", these_sums(CASES, _wrong_sums)),
        Claim("the same bits on every rank", 1, "or ranks clip apart", _same_bits),
        Claim("gradients left alone", 2, "and parameters, and the lists", _untouched),
    ),
    hints=HINTS,
)
