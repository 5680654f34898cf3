"""Lab 1, section 10, bonus: parameter_server_step(parameters, optimizer, backward, group), rank 0
holds the model.

Steps with momentum. Ranks begin with different parameters: what rank 0 has counts, and only through
the pull do the others learn what it has. The gradients of the first step are still in `.grad` when
the second begins. In the third the last rank has no rows, and no gradient.
"""

from functools import partial

import torch
import torch.distributed as dist

from lib import backend
from lib.check import symptoms as s
from lib.check.cases import Setting, called, groups_of, in_step, seen
from lib.check.claims import claim, element
from lib.check.exercise import Exercise, Hint, Problem
from lib.check.lab1 import models
from lib.check.lab1.means import ALONE, GROUPS, GROUPS_SAY, WORLD, scaled
from lib.check.traffic import sent
from lib.data_parallel import parameter_server


def _trained(model):
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


N_TRAINED = sum(p.numel() for p in _trained(models.Small()).values())
STEPS = {"step 1": 1, "step 2": 2, "step 3, no rows on the last rank": 3}
CASES = (
    *(Setting(members, N_TRAINED, what=step) for members in GROUPS for step in [*STEPS][:2]),
    Setting(ALONE, N_TRAINED, what="step 1"),
    Setting(GROUPS[0], N_TRAINED, what=[*STEPS][2]),
)


def _optimizer(parameters):
    """Small steps: the second gradient is no larger than the first."""
    return torch.optim.SGD(parameters, lr=2**-14, momentum=0.5)


def _model(rank):
    """Rank 0's model, but what is trained has this rank's own values: frozen parameters do not
    travel in a step."""
    model = models.Small(0, models.FINE).to(backend.device())
    for mine, own in zip(
        _trained(model).values(), _trained(models.Small(rank, models.FINE)).values(), strict=True
    ):
        mine.data.copy_(own)
    return model


def _backward(model, world_size, rank, step):
    if step == 3 and rank == world_size - 1:
        return
    x, y, with_branch = models.shard(rank, step)
    models.loss_of(model, (x.to(backend.device()), y.to(backend.device()), with_branch)).backward()


def _values(model):
    return {name: p.detach().cpu().clone() for name, p in _trained(model).items()}


def _measure(fn):
    kept = {}  # by group: the model and rank 0's optimizer, from step to step

    def one(case, group):
        rank = case.members.index(dist.get_rank())
        if case.members not in kept:
            model = _model(rank)
            kept[case.members] = model, _optimizer(_trained(model).values()) if rank == 0 else None
        model, optimizer = kept[case.members]
        ran = []

        def backward():
            ran.append(_values(model))
            _backward(model, case.world_size, rank, STEPS[case.what])

        called(
            case,
            fn,
            list(model.parameters()),
            optimizer,
            backward,
            *([] if group is None else [group]),
        )
        problem = _wrong(case, rank, ran, model)
        return {"ok": problem is None, "problem": problem}

    return in_step(CASES, groups_of, one)


def _one_process(world_size, last):
    """The last of these steps with the mean gradient: (parameters before it, what each rank
    contributes, after it)."""
    model = _model(0)
    optimizer = _optimizer(_trained(model).values())
    for step in range(1, last + 1):
        before, parts = _values(model), []
        for rank in range(world_size):
            model.zero_grad()
            _backward(model, world_size, rank, step)
            of = {
                name: torch.zeros_like(p) if p.grad is None else p.grad
                for name, p in _trained(model).items()
            }
            parts.append({name: gradient.cpu() for name, gradient in of.items()})
        for name, p in _trained(model).items():
            p.grad = (sum(part[name] for part in parts) / world_size).to(p.device)
        optimizer.step()
    return before, parts, _values(model)


def _wrong(case, rank, ran, model):
    """What is wrong on this rank, or None."""
    before, parts, after = _one_process(case.world_size, STEPS[case.what])
    where = f"{case.name}: {case.rank(rank)}"
    if len(ran) != 1:
        return Problem("backward", f"{where} called backward {len(ran)} times, expected once")
    said = f"{where} ran backward with other parameters than rank 0 has: "
    if found := _differs("pulled", said, ran[0], before):
        own = rank > 0 and models.equal(
            ran[0]["enter.weight"], _values(_model(rank))["enter.weight"]
        )
        found.facts |= {"own": own, "case": case}
        return found
    if rank > 0:
        return None
    got = models.gradients(model)
    if found := models.wrong_gradient(where, 0, {name: got[name] for name in parts[0]}, parts):
        found.facts["case"] = case
        return found
    if found := _differs("updated", f"{where} after the update: ", _values(model), after):
        found.facts |= {"unchanged": _differs("", "", _values(model), before) is None, "case": case}
    return found


def _differs(kind, said, got, want):
    for name in want:
        if not models.equal(got[name], want[name]):
            found = element(
                f"{said}{name}", got[name], want[name], partial(torch.isclose, rtol=1e-9, atol=0)
            )
            return Problem(kind, found.text, found.facts)
    return None


def _as_one_process(runs):
    for _, _, records in seen(runs, CASES):
        problems = [record["problem"] for record in records if record["problem"]]
        if problems:  # what goes wrong before backward on any rank is the cause of what comes after
            return min(problems, key=lambda problem: problem.kind not in ("backward", "pulled"))
    return None


def _elements(runs):
    n, whole = N_TRAINED, sum(p.numel() for p in models.Small().parameters())
    for run, case, _ in seen(runs, CASES):
        N, by_rank = case.world_size, [sum(numel for _, numel in mine) for mine in sent(run, case)]
        if by_rank != [(N - 1) * n] + [n] * (N - 1):
            text = (
                f"{case.name}: the ranks sent {by_rank} elements; expected {(N - 1) * n} = (N-1)n "
                f"by rank 0, and "
            )
            facts = {
                "case": case,
                "back": by_rank[0] > sum(by_rank[1:]),
                "frozen": whole in by_rank,
            }
            return Problem("elements", f"{text}{n} by each other", facts)
    return None


def _through_rank_0(runs):
    for run, case, _ in seen(runs, CASES):
        for rank, mine in enumerate(sent(run, case)):
            stranger = next((to for to, _ in mine if rank > 0 and to > 0), None)
            if stranger is not None:
                text = (
                    f"{case.name}: {case.rank(rank)} sends to rank {stranger}, expected to rank 0 "
                    f"only"
                )
                return Problem("talk", text, {"case": case})
    return None


def _after_its_push(p):
    """Did None stop it when some rank but 0 had sent all its gradients?"""
    book = s.failed(p) and s.failed(p).book
    if not book or not s.refused("None")(p):
        return False
    return any(
        sum(e.numel for e in book.of(r) if e.op == "send") == N_TRAINED for r in s.members(p)[1:]
    )


EXERCISE = Exercise(
    name="parameter_server_step", reference=parameter_server.parameter_server_step,
    measure=_measure, worlds=(WORLD,),
    may_call=s.P2P, bonus=True,
    leaves_out={
        "under way": "a step is over when the function returns, its backward too",
        "generators": "the docstring gives it a list",
        "returned": "it returns nothing: parameters and `.grad` hold the result",
        "memory": "the docstring leaves open how much rank 0 receives at once",
    },
    claims=(
        claim("one process's parameters", 3, f"on rank 0, after two steps; {GROUPS_SAY}",
              _as_one_process),
        claim("elements on the wire", 2, "(N-1)n out of rank 0, n out of each other", _elements),
        claim("only rank 0 talks to all", 1, "the others send to rank 0", _through_rank_0),
    ),
    hints=(
        s.BUILT_IN,
        Hint("only rank 0 updates", _after_its_push,
             "the optimizer is rank 0's, and None elsewhere. The others get the new parameters in "
             "the next pull."),
        Hint("a parameter without gradient", s.refused("None"),
            "p.grad is None where this rank did not use p. It sends zeros in its place."),
        Hint("one rank alone", s.in_case(CASES, lambda case: case.world_size == 1),
             "here N is 1: rank 0 trains alone. There is no other rank to send to, and all "
             "else stays."),
        Hint("a rank without rows", s.in_case(CASES, lambda case: STEPS[case.what] == 3, *s.SHAPES),
             "here the last rank has no rows, and no gradient: it takes part all the same, with "
             "zeros, and N stays N."),
        Hint("ranks of the world, not of the group",
             s.either(lambda p: s.failed(p) and s.failed(p).beyond_the_group(),
                      s.refused("to itself")),
            s.WHOSE_RANKS.text),
        Hint("a receive without its send", s.either(s.hung, s.kind("mismatch", "died")),
             "rank 0 and each other rank must agree on every message: as many, in the same order, "
             "also for parameters that one of them did not use."),
        Hint("backward, once", s.kind("backward"),
            "every rank calls backward() once, rank 0 too: it trains as the others do."),
        s.NARROW,
        Hint("not pulled", s.kind("pulled", own=True),
             "before backward every rank gets rank 0's parameters, in place: p.data, or under "
             "torch.no_grad()."),
        Hint("one update behind", s.kind("pulled"),
             "this rank computes with the parameters of an earlier step. It pulls rank 0's at the "
             "beginning of each."),
        Hint("gradients of the step before",
             lambda p: p.kind == "value" and STEPS[p.facts["case"].what] == 2,
            "right in step 1. backward adds to .grad: set it to None first."),
        Hint("not divided", scaled(lambda N: N),
            "rank 0 has the sum over ranks. Divide by dist.get_world_size(group)."),
        Hint("another divisor", s.kind("value", factor=True),
             "the sum is right, but it is divided by another number than N, the group's number of "
             "ranks."),
        Hint("a gradient is missing", s.kind("value"),
             "rank 0's .grad must be the sum of all ranks' gradients, its own too, divided by N: "
             "add what you receive, into a buffer of its own."),
        Hint("no update", s.kind("updated", unchanged=True),
            "rank 0 calls optimizer.step() when it has the mean gradient."),
        Hint("another update", s.kind("updated"),
            "the gradient was right. Leave the update to optimizer.step(), once: the optimizer may "
            "have momentum."),
        Hint("frozen ones too", s.kind("elements", frozen=True),
             "a parameter with requires_grad False is not trained: leave it alone, and do not send "
             "it."),
        Hint("sent back as well", s.kind("elements", back=True),
             "rank 0 sends its parameters once in a step. The pull of the next step brings the "
             "update."),
        Hint("not a star", s.kind("elements"),
             "a parameter server is a star: rank 0 sends every parameter to every other rank, and "
             "receives every gradient from each."),
        Hint("the others talk", s.kind("talk"),
             "the others know only rank 0. (A tree or a ring would spare it. That is what comes "
             "next.)"),
        *s.ANYWHERE,
    ),
)  # fmt: skip
