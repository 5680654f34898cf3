"""Lab 5, section 7: reduce_gradients(model, expert_dp_group, world, all_reduce), on W = dp ep ranks.

First the gradients are made by hand, so that a wrong one tells whose sum it is; then they are those of a real backward,
beside one process that takes the mean of all ranks' losses.
"""

from functools import partial

import torch
import torch.distributed as dist

from lib import ledger
from lib.check.framework import Claim, Exercise, Problem
from lib.check.lab0.cases import called, in_step, seen
from lib.check.lab1.cases import WORLD
from lib.check.lab1.wire import COLLECTIVES
from lib.check.lab5.ep_given import found, of_error
from lib.check.lab5.here import Told, first_wrong
from lib.check.lab5.reduce_given import Given
from lib.check.lab5.reduce_hints import HINTS
from lib.check.lab5.reduce_models import (
    CASES,
    NAME,
    NO_EXPERTS,
    REAL,
    Net,
    groups_of,
    known_sums,
    made_up,
    mean_loss,
    right_mean,
)
from lib.moe import expert_parameters
from lib.moe import gradients as libs

_means = partial(found, CASES, "value")  # _means(cases): the claim over these


def _measure(fn):
    return in_step(CASES, groups_of, partial(_one, fn), wire=dist.new_group())


def _one(fn, case, groups):
    rank = case.members.index(dist.get_rank())
    where, given, net = f"{case.where}: {case.rank(rank)}", Given(groups), Net(case.what != NO_EXPERTS).over(groups.ep)
    if case.what == REAL:
        net.loss(rank).backward()
    for name, parameter in net.named_parameters():
        if case.what != REAL:
            parameter.grad = made_up(name, parameter, rank)
        parameter.data += rank  # or nobody would see that the parameters are averaged instead
    before, problem = {name: p.detach().clone() for name, p in net.named_parameters()}, None
    try:
        called(case, partial(fn, all_reduce=given.all_reduce), net, groups.expert_dp, groups.world)
    except Exception as error:
        if type(error) is NotImplementedError:  # not written yet, on no rank
            raise
        ledger.mark("")
        problem = of_error(where, error)
    given.end()
    name = next((name for name, p in net.named_parameters() if not torch.equal(p.detach(), before[name])), None)
    touched = name and Problem("touched", f"{where}: {name} itself has changed, not its gradient")
    problem = given.wrong_group(where) or problem or _frozen(where, net)
    wrong = (first_wrong([told]) for told in _tolds(case, where, rank, net))
    problem = problem or next(filter(None, wrong), None)
    if problem:
        problem.facts |= {"case": case, "touched": bool(touched), "calls": given.calls}
    return {
        "ok": problem is None, "value": problem, "touched": touched, "calls": given.calls, "wires": groups.wires(),
        "want": [(groups.members, _size(net, False)), (groups.copies, _size(net, True))],
    }  # fmt: skip


def _frozen(where, net):
    """A Problem if a frozen parameter has a gradient."""
    name = next((name for name, p in net.named_parameters() if not p.requires_grad and p.grad is not None), None)
    return Problem("frozen", f"{where}: {name}.grad is a tensor, expected None: it is not trained") if name else None


def _tolds(case, where, rank, net):
    right = mean_loss(case) if case.what == REAL else None
    for name, parameter in net.named_parameters():
        if parameter.requires_grad:
            want = right[name] if right else right_mean(case, name, parameter, rank)
            known = list if right else partial(known_sums, case, name, parameter, rank)
            yield Told(where, f"{name}.grad", parameter.grad, want, known)


def _size(net, of_experts):
    """Elements of the gradients, of experts or of all else."""
    experts = {id(p) for p in expert_parameters(net)}
    return sum(p.numel() for p in net.parameters() if p.requires_grad and (id(p) in experts) == of_experts)


def _sent(runs):
    for run, case, records in seen(runs, CASES):
        section = run.ledger.section(case.name)
        for rank, (member, record) in enumerate(zip(case.members, records, strict=True)):
            where = f"{case.where}: {case.rank(rank)}"
            stranger = next((e for e in section.of(member) if e.group not in record["wires"]), None)
            if stranger is not None:
                text = f"{where} called {stranger.via or stranger.op}, which it was not given"
                return Problem("another way", text)
            # Over one rank, or of nothing: it may be called or not.
            got, want = (sorted((r, n) for r, n in record[key] if len(r) > 1 and n) for key in ("calls", "want"))
            if got != want:
                text = f"{where} called all_reduce for {_listed(got)}\nexpected {_listed(want)}"
                return Problem("calls", text, {"got": got, "want": want})
    return None


def _listed(calls):
    if len(calls) > 4:
        return f"{_listed(calls[:2])}; and {len(calls) - 2} more"
    return "; ".join(f"{n} elements over ranks {[*ranks]}" for ranks, n in calls) or "nothing"


def _untouched(runs):
    records = (record for _, _, records in seen(runs, CASES) for record in records)
    return next((record["touched"] for record in records if record["touched"]), None)


EXERCISE = Exercise(
    name=NAME,
    reference=libs.reduce_gradients,
    measure=_measure,
    worlds=(WORLD,),
    may_call=(*COLLECTIVES, "reduce_given.all_reduce", "framework._measure_all"),
    claims=(
        Claim("the mean over all ranks", 8, "dp, ep of 1 to 4; tied, unused, frozen ones", _means(CASES[:-1])),
        Claim("as one process", 3, "a real backward, dp 2, ep 2", _means(CASES[-1:])),
        Claim("one all-reduce of each kind", 4, "the experts' over their copies, all else over all", _sent),
        Claim("parameters left alone", 1, "only .grad changes", _untouched),
    ),
    hints=HINTS,
)
