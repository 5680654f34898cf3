"""Lab 1, section 8: LossScaler(scale, growth, backoff, growth_interval), scale_loss(loss), step(optimizer, ...)."""

import torch
import torch.distributed as dist

from lib import backend
from lib.check.framework import Claim, Exercise, Problem
from lib.check.lab0.cases import called, in_step, number, seen
from lib.check.lab1.cases import GROUPS, GROUPS_SAY, WORLD, Case
from lib.check.lab1.loss_scaler_hints import HINTS, MAY_CALL
from lib.check.lab1.loss_scaler_runs import AFTER, GOOD, OVERFLOW, SCALE, SCALER, STEPS, Noting, copied, gradients_of
from lib.check.lab1.watched import Watched, groups_with_wires
from lib.precision import loss_scaler

NAME = "LossScaler"
CASES = [Case(NAME, members, what) for what in STEPS for members in (GROUPS if what == OVERFLOW else GROUPS[:1])]


def _measure(fn):
    one = lambda case, groups: {"ok": True, **_run(case, fn, *groups)}  # a wrong run spoils no other: all are run
    return in_step(CASES, groups_with_wires, one, wire=dist.new_group())


def _run(case, fn, group, wire):
    """All steps of a case, up to the first that is wrong on any rank."""
    if _is_libs(fn):
        return {"steps": [], "libs": True}
    rank, watched = dist.get_rank(wire), Watched(group, wire)
    scaler = called(case, fn, *SCALER[case.what])
    parameters = [torch.ones_like(g, device=backend.device()).requires_grad_() for g in gradients_of(rank, 0)]
    parameters.append(torch.ones(2, device=backend.device()).requires_grad_())  # never used: its .grad stays None
    optimizer, steps = Noting(parameters), []
    for i, overflow in enumerate(STEPS[case.what]):
        step = _step(case, i, overflow, scaler, optimizer, watched)
        problem = _wrong_step(case, rank, i, step)
        # What is not needed any more stays here: thousands of small tensors would take a second to be sent.
        kept = {fact: step[fact] for fact in ("used", "scale", "elements", "stray", "clash")}
        steps.append({**kept, "problem": problem, "asked": len(step["asked"])})
        expected_scale = AFTER[i] if case.what == SCALE else step["scale"]
        if not watched.all_ranks(problem is None and step["scale"] == expected_scale):
            break
    return {"steps": steps, "libs": _is_libs(type(scaler))}


def _is_libs(kind):
    """Is it lib's or torch's scaler, or a child of one?"""
    return any(
        c.__module__.startswith(("lib.precision", "torch.amp", "torch.cuda")) for c in getattr(kind, "__mro__", ())
    )


def _step(case, i, overflow, scaler, optimizer, watched):
    rank, world_size = dist.get_rank(watched.wire), dist.get_world_size(watched.wire)
    parameters = optimizer.param_groups[0]["params"]
    gradients = [g.to(backend.device()) for g in gradients_of(rank, i)]
    for p in parameters:
        p.grad = None
    watched.begin()
    before, asked, used = optimizer.everything(), len(optimizer.steps), float(scaler.scale)
    loss = sum((p * g).sum() for p, g in zip(parameters, gradients, strict=False))

    def scaled_backward_and_step():
        scaled = scaler.scale_loss(loss)
        if not isinstance(scaled, torch.Tensor):
            return scaled, None, None
        scaled.backward()
        backward = [copied(p.grad) for p in parameters]
        if overflow and overflow.on(rank, world_size):  # the loss itself is finite, as it is when fp16 overflows
            parameters[overflow.parameter].grad.view(-1)[-1] = overflow.value
        return scaled.item(), backward, scaler.step(optimizer, watched.group, watched.given_all_reduce)

    scaled, backward, returned = called(case, scaled_backward_and_step)
    after = optimizer.everything()
    return {
        "loss": loss.item(), "scaled": scaled, "backward": backward, "returned": returned, "used": used,
        "scale": float(scaler.scale), "asked": optimizer.steps[asked:], "before": before, "after": after,
        **watched.end(),
    }  # fmt: skip


def _same(a, b):
    """Are these two copies of parameters and state the same bits?"""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    return len(a) == len(b) and all(map(_same, a, b)) if isinstance(a, list | tuple) else a == b


def _wrong_step(case, rank, i, step):
    """The first thing that is wrong with a step on this rank, but for the scale; or None."""
    overflow = STEPS[case.what][i]
    where = f"{case.where}, step {i + 1}: {case.rank(rank)}"
    S, g = step["used"], gradients_of(rank, i)
    if (
        step["scaled"] is None
        or step["scaled"] != S * step["loss"]
        or not _are(step["backward"], [S * one for one in g])
    ):
        text = f"{where}: scale_loss({step['loss']:g}) gave {step['scaled']}, expected S * loss = {S * step['loss']:g}"
        return Problem("scaled", text)
    facts = {"overflow": overflow, "returned": step["returned"]}
    if overflow:
        if step["asked"]:
            text = f"{where} called optimizer.step(), expected a skipped step: {overflow}"
            return Problem("stepped", text, facts)
        if not _same(step["before"], step["after"]):
            return Problem("touched", f"{where} skipped the step, but changed parameters or optimizer state", facts)
    else:
        if len(step["asked"]) != 1:
            text = (
                f"{where} called optimizer.step() {len(step['asked'])} times, expected once: every gradient is finite"
            )
            return Problem("skipped", text, facts)
        if not _are(step["asked"][0], g):
            return _wrong_gradient(where, S, g, step, facts)
    if step["returned"] is not (overflow is None):
        text = f"{where}: step returned {step['returned']!r:.40}, expected {overflow is None}"
        return Problem("returned", text, facts)
    return None


def _are(got, expected):
    """Are these the gradients expected, up to the rounding of a division? (What was never used is not looked at.)"""
    if got is None or any(a is None for a in got[: len(expected)]):
        return False
    return all(torch.allclose(a, b, rtol=1e-6, atol=0) for a, b in zip(got, expected, strict=False))


def _wrong_gradient(where, S, gradients, step, facts):
    for place, (got, want) in enumerate(zip(step["asked"][0], gradients, strict=False)):
        if not _are([got], [want]):
            factor = None if got is None else (got.view(-1)[0] / want.view(-1)[0]).item()
            value = "None" if got is None else number(got.view(-1)[0])
            text = f"{where}, gradient of parameter {place}, element 0: the optimizer got {value}, "
            text += f"expected {number(want.view(-1)[0])}"
            text += f"\nIt is {factor:g} x expected; S was {S:g}, and is {step['scale']:g} now." if factor else ""
            return Problem("gradient", text, {**facts, "factor": factor, "S": S, "now": step["scale"]})
    return None


def _wire_problem(case, i, records):
    """What is wrong with the messages of a step, whatever the step did; or None."""
    step, where = [record["steps"][i] for record in records], f"{case.where}, step {i + 1}"
    for rank, one in enumerate(step):
        if one["stray"]:
            return Problem("group", f"{where}: {case.rank(rank)} called all_reduce for another group than it was given")
    if step[0]["clash"]:
        _, told = step[0]["clash"]
        ranks = ", ".join(f"rank {rank} {n or 'nothing'}" for rank, n in enumerate(told))
        return Problem("unlike", f"{where}: the ranks' messages differ, in elements: {ranks}", {"told": told})
    return None


def _steps(runs, whats):
    """(case, records of its ranks, number of a step), in order."""
    for _, case, records in seen(runs, CASES):
        if case.what in whats:
            for i in range(len(records[0]["steps"])):
                yield case, records, i


def _right(*whats):
    """The claim: every step of these runs is done, or skipped, as it should be."""

    def judge(runs):
        if any(record["libs"] for _, _, records in seen(runs, CASES) for record in records):
            return Problem("built-in", "the answer is lib's or torch's scaler, or a child of it")
        for case, records, i in _steps(runs, whats):
            problem = next(filter(None, (record["steps"][i]["problem"] for record in records)), None)
            if wire := _wire_problem(case, i, records):
                return wire
            if problem is None:
                continue
            asked = [record["steps"][i]["asked"] for record in records]
            if len(set(asked)) > 1:
                did = [f"rank {rank} {'stepped' if n else 'skipped'}" for rank, n in enumerate(asked)]
                text = f"{case.where}, step {i + 1}: {', '.join(did)}; there is {STEPS[case.what][i] or 'no overflow'}"
                return Problem("split", text)
            return problem
        return None

    return judge


def _scale(runs):
    problem = _right(SCALE)(runs)
    for case, records, i in _steps(runs, [SCALE]):
        scales = [record["steps"][i]["scale"] for record in records]
        if set(scales) != {AFTER[i]}:
            S, growth, backoff, interval = SCALER[SCALE]
            did = ["good" if overflow is None else "overflow" for overflow in STEPS[SCALE][: i + 1]]
            rank = next(rank for rank, scale in enumerate(scales) if scale != AFTER[i])
            text = f"S={S:g}, growth={growth:g}, backoff={backoff:g}, growth_interval={interval}: "
            text += f"after {', '.join(did)}: {case.rank(rank)} has S = {scales[rank]:g}, expected {AFTER[i]:g}"
            facts = {"step": i, "before": records[rank]["steps"][i]["used"], "got": scales[rank], "scales": scales}
            if problem is None or problem.kind != "gradient":
                return Problem("scale", text, facts)
    return problem


def _one_number(runs):
    for case, records, i in _steps(runs, STEPS):
        for rank, record in enumerate(records):
            got = record["steps"][i]["elements"]
            if got != [1]:
                text = f"{case.where}, step {i + 1}: {case.rank(rank)} all-reduced {got or 'nothing'}, "
                text += "by the all_reduce that it was given; expected [1], one message of one element"
                return Problem("wire", text, {"got": got})
    return None


EXERCISE = Exercise(
    name=NAME,
    reference=loss_scaler.LossScaler,
    measure=_measure,
    worlds=(WORLD,),
    may_call=MAY_CALL,
    claims=(
        Claim("scaled, and unscaled once", 3, "the optimizer gets the loss's own gradients", _right(GOOD)),
        Claim("an overflow skips the step", 5, f"inf, nan; on every rank; {GROUPS_SAY}", _right(OVERFLOW)),
        Claim("the scale goes down and up", 4, "backoff on overflow, growth after growth_interval steps", _scale),
        Claim("one number on the wire", 2, "one all-reduce of one element a step", _one_number),
    ),
    hints=HINTS,
)
