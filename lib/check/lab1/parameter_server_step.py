"""Lab 1, section 1, bonus: parameter_server_step(parameters, optimizer, backward, group), rank 0 holds the model.

Two steps with momentum. Ranks begin with different parameters: what rank 0 has counts, and only through the pull do the
others learn what it has. The gradients of the first step are still in `.grad` when the second begins.
"""

import torch
import torch.distributed as dist

from lib import backend
from lib.check.framework import Claim, Exercise, Hint, Problem
from lib.check.lab0 import mistakes, wire
from lib.check.lab0.cases import called, groups_of, in_step, number, seen
from lib.check.lab1 import models
from lib.check.lab1.cases import GROUPS, GROUPS_SAY, WORLD, Case, group_argument
from lib.data_parallel import parameter_server

NAME = "parameter_server_step"
CASES = [Case(NAME, members, f"step {step}") for members in GROUPS for step in (1, 2)]


def _optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.25, momentum=0.5)


def _trained(model):
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def _backward(model, rank, step):
    x, y, with_branch = (t.to(backend.device()) if torch.is_tensor(t) else t for t in models.shard(rank, step))
    models.loss_of(model, (x, y, with_branch)).backward()


def _measure(fn):
    kept = {}  # by group: the model and rank 0's optimizer, from step 1 to step 2

    def one(case, group):
        rank = case.members.index(dist.get_rank())
        if case.members not in kept:
            model = models.Small(rank).to(backend.device())
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
        if problem := next((record["problem"] for record in records if record["problem"]), None):
            return problem
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


def _value(fits):
    return lambda p: p.kind == "value" and bool(fits(p.facts))


def _beyond_the_group(p):
    """Did a rank in a smaller group name one that is not in it?"""
    run = mistakes.failed(p)
    if run is None or len(run.members) == WORLD:
        return False
    strangers = run.book is not None and any(e.peer not in (-1, *run.members) for e in run.book.entries)
    return strangers or "the group has" in p.text


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
    hints=(
        mistakes.BUILT_IN,
        Hint(
            "only rank 0 updates",
            lambda p: p.kind == "raised" and "'step'" in p.text,
            "the optimizer is rank 0's, and None elsewhere. The others get the new parameters in the next pull.",
        ),
        Hint(
            "a parameter without gradient",
            lambda p: p.kind == "raised" and "None" in p.text,
            "p.grad is None where this rank did not use p. It sends zeros in its place.",
        ),
        Hint("ranks of the world, not of the group", _beyond_the_group, mistakes.WHOSE_RANKS.text),
        Hint(
            "a receive without its send",
            lambda p: mistakes.hung(p) or p.kind in ("mismatch", "died"),
            "rank 0 and each other rank must agree on every message: as many, in the same order, also for parameters "
            "that one of them did not use.",
        ),
        Hint(
            "backward, once",
            lambda p: p.kind == "backward",
            "every rank calls backward() once, rank 0 too: it trains as the others do.",
        ),
        Hint(
            "one update behind",
            lambda p: p.kind == "pulled" and not p.facts["own"],
            "this rank computes with the parameters of an earlier step. It pulls rank 0's at the beginning of each.",
        ),
        Hint(
            "not pulled",
            lambda p: p.kind == "pulled",
            "before backward every rank gets rank 0's parameters, in place: p.data, or under torch.no_grad().",
        ),
        Hint(
            "gradients of the step before",
            _value(lambda f: f["case"].what == "step 2"),
            "right in step 1. backward adds to .grad: set it to None first.",
        ),
        Hint(
            "not divided",
            _value(lambda f: f["factor"] and abs(f["factor"] - f["world_size"]) < 1e-9),
            "rank 0 has the sum over ranks. Divide by dist.get_world_size(group).",
        ),
        Hint(
            "another divisor",
            _value(lambda f: f["factor"]),
            "the sum is right, but it is divided by another number than N, the group's number of ranks.",
        ),
        Hint(
            "a gradient is missing",
            _value(lambda f: True),
            "rank 0's .grad must be the sum of all ranks' gradients, its own too, divided by N: add what you receive, "
            "into a buffer of its own.",
        ),
        Hint(
            "no update",
            lambda p: p.kind == "updated" and p.facts["unchanged"],
            "rank 0 calls optimizer.step() when it has the mean gradient.",
        ),
        Hint(
            "another update",
            lambda p: p.kind == "updated",
            "the gradient was right. Leave the update to optimizer.step(), once: the optimizer may have momentum.",
        ),
        Hint(
            "sent back as well",
            lambda p: p.kind == "elements" and p.facts["got"][0] > sum(p.facts["got"][1:]),
            "rank 0 sends its parameters once in a step. The pull of the next step brings the update.",
        ),
        Hint(
            "not a star",
            lambda p: p.kind == "elements",
            "a parameter server is a star: rank 0 sends every parameter to every other rank, and receives every "
            "gradient from each.",
        ),
        Hint(
            "the others talk",
            lambda p: p.kind == "talk",
            "the others know only rank 0. (A tree or a ring would spare it. That is what comes next.)",
        ),
    ),
)
