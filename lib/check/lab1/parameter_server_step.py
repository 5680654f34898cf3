"""Lab 1, section 1, bonus: parameter_server_step(parameters, optimizer, backward, group), rank 0 holds the model.

Two steps with momentum. Ranks begin with different parameters: what rank 0 has counts, and only through the pull do the
others learn what it has. The gradients of the first step are still in `.grad` when the second begins.
"""

import torch
import torch.distributed as dist

from lib import backend
from lib.check.framework import Claim, Exercise, Problem
from lib.check.lab0 import mistakes, wire
from lib.check.lab0.cases import called, groups_of, in_step, number, seen
from lib.check.lab1 import models
from lib.check.lab1.cases import GROUPS, GROUPS_SAY, WORLD, Case, group_argument
from lib.check.lab1.parameter_server_hints import HINTS
from lib.data_parallel import parameter_server

NAME = "parameter_server_step"
CASES = [Case(NAME, members, f"step {step}") for members in GROUPS for step in (1, 2)]


def _optimizer(parameters):
    return torch.optim.SGD(
        parameters, lr=2**-14, momentum=0.5
    )  # small steps: the second gradient is no larger than the first


def _trained(model):
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def _begun_apart(rank):
    """Rank 0's model, but what is trained has this rank's own values: frozen parameters do not travel in a step."""
    model = models.Small(0).to(backend.device())
    for mine, own in zip(_trained(model).values(), _trained(models.Small(rank)).values(), strict=True):
        mine.data.copy_(own)
    return model


def _backward(model, rank, step):
    x, y, with_branch = (t.to(backend.device()) if torch.is_tensor(t) else t for t in models.shard(rank, step))
    models.loss_of(model, (x, y, with_branch)).backward()


def _measure(fn):
    kept = {}  # by group: the model and rank 0's optimizer, from step 1 to step 2

    def one(case, group):
        rank = case.members.index(dist.get_rank())
        if case.members not in kept:
            model = _begun_apart(rank)
            kept[case.members] = model, _optimizer(_trained(model).values()) if rank == 0 else None
        model, optimizer = kept[case.members]
        step = int(case.what.removeprefix("step "))
        parameters, ran = list(_trained(model).values()), []

        def backward():
            ran.append({name: p.detach().cpu().clone() for name, p in _trained(model).items()})
            _backward(model, rank, step)

        called(case, fn, parameters, optimizer, backward, *group_argument(group))
        record = {"ran": ran, "gradients": models.gradients(model)}
        record["parameters"] = {name: p.detach().cpu().clone() for name, p in _trained(model).items()}
        problem = _wrong(case, rank, record, *_single_process(case.world_size, step))
        return {"ok": problem is None, "problem": problem}

    return in_step(CASES, groups_of, one)


def _single_process(world_size, last):
    """The last of these steps with the mean gradient: (parameters before it, what each rank contributes, after it)."""
    model = models.Small(0).to(backend.device())
    optimizer = _optimizer(_trained(model).values())
    for step in range(1, last + 1):
        before = {name: p.detach().cpu().clone() for name, p in _trained(model).items()}
        parts = []
        for rank in range(world_size):
            model.zero_grad()
            _backward(model, rank, step)
            of = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in _trained(model).items()}
            parts.append({name: gradient.cpu() for name, gradient in of.items()})
        for name, p in _trained(model).items():
            p.grad = (sum(part[name] for part in parts) / world_size).to(p.device)
        optimizer.step()
    return before, parts, {name: p.detach().cpu().clone() for name, p in _trained(model).items()}


def _wrong(case, rank, record, before, parts, after):
    """What is wrong on this rank, or None."""
    where = f"{case.where}: {case.rank(rank)}"
    if len(record["ran"]) != 1:
        return Problem("backward", f"{where} called backward {len(record['ran'])} times, expected once")
    if wrong := _unequal(record["ran"][0], before):
        text = f"{where} ran backward with other parameters than rank 0 has: {wrong}"
        own = rank > 0 and models.equal(
            record["ran"][0]["enter.weight"], _trained(models.Small(rank))["enter.weight"].cpu()
        )
        return Problem("pulled", text, {"own": own, "case": case})
    if rank > 0:
        return None
    problem = models.wrong_gradient(where, 0, {name: record["gradients"][name] for name in parts[0]}, parts)
    if problem:
        problem.facts["case"] = case
        return problem
    if wrong := _unequal(record["parameters"], after):
        unchanged = _unequal(record["parameters"], before) is None
        return Problem("updated", f"{where} after the update: {wrong}", {"unchanged": unchanged, "case": case})
    return None


def _unequal(got, want):
    """Where the first difference is, in words; or None."""
    for name in want:
        if not models.equal(got[name], want[name]):
            element = tuple((got[name] != want[name]).nonzero()[0].tolist())
            return (
                f"{name}, element {element}: expected {number(want[name][element])}, got {number(got[name][element])}"
            )
    return None


def _values(runs):
    for _, _, records in seen(runs, CASES):
        problems = [record["problem"] for record in records if record["problem"]]
        if problems:  # what goes wrong before backward on any rank is the cause of what comes after
            return min(problems, key=lambda problem: problem.kind not in ("backward", "pulled"))
    return None


def _elements(runs):
    n = sum(p.numel() for p in _trained(models.Small(0)).values())
    for run, case, _ in seen(runs, CASES):
        sent = [[numel for _, numel in mine] for mine in wire.sent(run, case)]
        N, by_rank = case.world_size, [sum(mine) for mine in sent]
        if by_rank != [(N - 1) * n] + [n] * (N - 1):
            text = f"{case.where}: the ranks sent {by_rank} elements; expected {(N - 1) * n} = (N-1)n by rank 0, and "
            return Problem("elements", f"{text}{n} by each other", {"got": by_rank, "n": n, "case": case})
    return None


def _through_rank_0(runs):
    for run, case, _ in seen(runs, CASES):
        for rank, mine in enumerate(wire.sent(run, case)):
            stranger = next((to for to, _ in mine if rank > 0 and to > 0), None)
            if stranger is not None:
                return Problem(
                    "talk", f"{case.where}: {case.rank(rank)} sends to rank {stranger}, expected to rank 0 only"
                )
    return None


EXERCISE = Exercise(
    name=NAME,
    reference=parameter_server.parameter_server_step,
    measure=_measure,
    worlds=(WORLD,),
    may_call=mistakes.P2P,
    bonus=True,
    claims=(
        Claim("one process's parameters", 3, f"on rank 0, after two steps; {GROUPS_SAY}", _values),
        Claim("elements on the wire", 2, "(N-1)n out of rank 0, n out of each other", _elements),
        Claim("only rank 0 talks to all", 1, "the others send to rank 0", _through_rank_0),
    ),
    hints=HINTS,
)
