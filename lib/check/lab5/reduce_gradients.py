"""Lab 5, section 7: reduce_gradients(model, expert_dp_group, world, all_reduce), on W = dp ep ranks.

First gradients are made by hand, so that a wrong one tells whose it is the sum of; then those of a real backward, beside
one process that takes the mean of all ranks' losses.
"""

from functools import partial

import torch
import torch.distributed as dist

from lib.check.framework import Claim, Exercise, Problem
from lib.check.lab0.cases import called, in_step, seen
from lib.check.lab1.cases import WORLD
from lib.check.lab1.wire import COLLECTIVES
from lib.check.lab5.here import Told, first_wrong
from lib.check.lab5.reduce_given import Clash, Given, of_error
from lib.check.lab5.reduce_hints import HINTS
from lib.check.lab5.reduce_models import (
    CASES,
    REAL,
    Net,
    degree,
    groups_of,
    holders,
    known_sums,
    loss_of,
    made_up,
    mean_loss,
    of_rank,
    right_mean,
)
from lib.moe import ExpertParallelMoE, expert_parameters
from lib.moe import gradients as libs


def _measure(fn):
    return in_step(CASES, groups_of, partial(_one, fn), wire=dist.new_group())


def _one(fn, case, groups):
    rank, where = case.members.index(dist.get_rank()), None
    where = f"{case.where}: {case.rank(rank)}"
    net = of_rank(Net(degree(case)), groups.ep)
    given = Given(groups)
    if case.what == REAL:
        loss_of(net, rank).backward()
    else:
        for name, parameter in net.named_parameters():
            parameter.grad = made_up(name, parameter, rank)
            parameter.data += rank  # or nobody would see that the parameters are averaged instead
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    problem = None
    try:
        called(case, partial(fn, all_reduce=given.all_reduce), net, groups.holders, groups.world)
    except Exception as error:
        if type(error) is NotImplementedError:  # not written yet, on no rank
            raise
        problem = of_error(where, error)
    given.end()
    touched = next((name for name, p in net.named_parameters() if not torch.equal(p.detach(), before[name])), None)
    problem = given.wrong_group(where) or problem
    problem = problem or _frozen(where, net) or first_wrong(_tolds(case, where, rank, net))
    if problem:
        problem.facts |= {"case": case, "touched": touched is not None, "calls": given.calls}
    sizes = _sizes(net)
    return {
        "ok": problem is None, "value": problem, "calls": given.calls, "wires": groups.wires(), "sizes": sizes,
        "touched": touched and Problem("touched", f"{where}: {touched} itself has changed, not its gradient"),
    }  # fmt: skip


def _frozen(where, net):
    """A Problem if a frozen parameter has a gradient."""
    name = next((name for name, p in net.named_parameters() if not p.requires_grad and p.grad is not None), None)
    text = f"{where}: {name}.grad is a tensor, expected None: it is not trained"
    return Problem("frozen", text, {"name": name}) if name else None


def _tolds(case, where, rank, net):
    right = mean_loss(case) if case.what == REAL else None
    for name, parameter in net.named_parameters():
        if parameter.requires_grad:
            want = right[name] if right else right_mean(case, name, parameter, rank)
            known = list if right else partial(known_sums, case, name, parameter, rank)
            yield Told(where, f"{name}.grad", parameter.grad, want, known)


def _sizes(net):
    """(elements of the dense gradients, of the experts')."""
    experts = {id(p) for p in expert_parameters(net)}
    trained = [p for p in net.parameters() if p.requires_grad]
    return tuple(sum(p.numel() for p in trained if (id(p) in experts) == is_expert) for is_expert in (False, True))


def _found(kind, real):
    """The claim that no rank has noted a problem of this kind, in the real step or in the others."""

    def judge(runs):
        for _, case, records in seen(runs, CASES):
            problems = [record[kind] for record in records if record[kind]]
            if problems and (real is None or (case.what == REAL) == real):
                return min(problems, key=lambda problem: problem.kind == "unlike")
        return None

    return judge


def _sent(runs):
    for run, case, records in seen(runs, CASES):
        for rank, (member, record) in enumerate(zip(case.members, records, strict=True)):
            where = f"{case.where}: {case.rank(rank)}"
            section = run.ledger.section(case.name)
            stranger = next((e for e in section.of(member) if e.group not in record["wires"]), None)
            if stranger is not None:
                text = f"{where} called {stranger.via or stranger.op}, which it was not given"
                return Problem("another way", text, {"case": case})
            dense, experts = record["sizes"]
            want = sorted([(case.members, dense), (holders(case, rank), experts)])
            got, want = (sorted(c for c in calls if len(c[0]) > 1 and c[1]) for calls in (record["calls"], want))
            if got != want:
                text = f"{where} called all_reduce for {_listed(got)}\nexpected {_listed(want)}"
                return Problem("calls", text, {"case": case, "got": got, "want": want})
    return None


def _listed(calls):
    return "; ".join(f"{n} elements over ranks {[*ranks]}" for ranks, n in calls) or "nothing"


EXERCISE = Exercise(
    name="reduce_gradients",
    reference=libs.reduce_gradients,
    measure=_measure,
    worlds=(WORLD,),
    may_call=(*COLLECTIVES, "reduce_given.all_reduce", "framework._measure_all"),
    claims=(
        Claim("the mean over all ranks", 8, "dp and ep of 1, 2, 4; tied, unused, frozen ones", _found("value", False)),
        Claim("as one process", 3, "a real backward, dp 2, ep 2", _found("value", True)),
        Claim("one all-reduce of each kind", 4, "experts over their copies, the others over all", _sent),
        Claim("parameters left alone", 1, "only .grad changes", _found("touched", None)),
    ),
    hints=HINTS,
)
assert Clash and ExpertParallelMoE
