"""Lab 1, section 11, bonus: LossScaler(scale, growth, backoff, growth_interval), scale_loss(loss),
step(optimizer, ...)."""

import math
from contextlib import suppress

import torch
import torch.distributed as dist

from lib import backend
from lib.check import symptoms as s
from lib.check.cases import called, groups_and_control, in_step, number, seen
from lib.check.claims import claim
from lib.check.comm import MAY_CALL, Clash, Recorder
from lib.check.exercise import Exercise, Hint, Problem
from lib.check.lab1.loss_scaler_runs import (
    AFTER,
    ALL,
    CASES,
    GOOD,
    INTERVAL,
    OVERFLOW,
    SCALE,
    STEPS,
    Noting,
    copied,
    gradients_of,
)  # fmt: skip
from lib.check.lab1.means import GROUPS_SAY, WORLD
from lib.check.traffic import only_calls
from lib.training.precision import loss_scaler


def _measure(fn):
    # a wrong run spoils no other: all are run
    one = lambda case, groups: {"ok": True, **_run(case, fn, *groups)}
    return in_step(CASES, groups_and_control, one, wire=dist.new_group())


def _run(case, fn, group, control):
    """All steps of a case, up to the first that is wrong on any rank."""
    rank, recorder = dist.get_rank(control), Recorder(control, [case.members])
    scaler = None if _is_libs(fn) else called(case, fn, 8.0, 4.0, 0.25, INTERVAL[case.what])
    if scaler is None or _is_libs(type(scaler)):
        return {"steps": [], "libs": True} | recorder.record()
    parameters = [
        torch.ones_like(g, device=backend.device()).requires_grad_() for g in gradients_of(rank, 0)
    ]
    # never used: its .grad stays None
    parameters.append(torch.ones(2, device=backend.device()).requires_grad_())
    optimizer, steps = Noting(parameters), []
    for i, overflow in enumerate(STEPS[case.what]):
        recorder.phase = f"step {i + 1}"
        step = _step(case, i, overflow, scaler, optimizer, recorder, group)
        problem = recorder.clash or _wrong_step(case, rank, i, step)
        # What is not needed any more stays here: thousands of small tensors would take a second to
        # be sent.
        steps.append({"scale": step["scale"], "problem": problem, "asked": len(step["asked"])})
        wanted = AFTER[i] if case.what == SCALE else step["scale"]
        if not recorder.agreed(problem is None and not recorder.stray and step["scale"] == wanted):
            break
    return {"steps": steps, "libs": False} | recorder.record()


def _is_libs(kind):
    """Is it lib's or torch's scaler, or a child of one?"""
    classes = getattr(kind, "__mro__", ())
    return any(
        c.__module__.startswith(("lib.training.precision", "torch.amp", "torch.cuda"))
        for c in classes
    )


def _step(case, i, overflow, scaler, optimizer, recorder, group):
    rank, parameters = recorder.place, optimizer.parameters
    for p in parameters:
        p.grad = None
    before, asked, used = optimizer.everything(), len(optimizer.steps), _scale_of(scaler)
    loss = sum(
        (p * g.to(p.device)).sum() for p, g in zip(parameters, gradients_of(rank, i), strict=False)
    )
    step = {
        "loss": loss.item(),
        "scaled": None,
        "backward": None,
        "returned": None,
        "used": used,
        "before": before,
    }

    def given(tensor, group=None):
        return recorder.all_reduce(tensor, group)

    def scaled_backward_and_step():
        scaled = scaler.scale_loss(loss)
        if torch.is_tensor(scaled) and scaled.requires_grad:
            scaled.backward()
            step["scaled"], step["backward"] = scaled.item(), [copied(p.grad) for p in parameters]
            # the loss itself is finite, as it is when fp16 overflows
            if overflow and overflow.on(rank, recorder.N):
                parameters[overflow.parameter].grad.view(-1)[-1] = overflow.value
            step["returned"] = scaler.step(optimizer, group, given)

    with suppress(Clash):  # it is in the recorder
        called(case, scaled_backward_and_step)
    recorder.end()
    return step | {
        "scale": _scale_of(scaler),
        "asked": optimizer.steps[asked:],
        "after": optimizer.everything(),
    }


def _scale_of(scaler):
    scale = getattr(scaler, "scale", None)
    return None if scale is None or callable(scale) else float(scale)


def _wrong_step(case, rank, i, step):
    """The first thing that is wrong with a step on this rank, but for the scale; or None."""
    overflow, S, g = STEPS[case.what][i], step["used"], gradients_of(rank, i)
    where, facts = (
        f"{case.name}, step {i + 1}: {case.rank(rank)}",
        {"overflow": overflow, "returned": step["returned"]},
    )
    if S is None:
        return Problem("attribute", f"{where}: the scaler has no number in its attribute `scale`")
    if step["scaled"] != S * step["loss"] or not _are(step["backward"], [S * one for one in g]):
        text = (
            f"{where}: scale_loss({step['loss']:g}) gave {step['scaled']}, expected S * loss = "
            f"{S * step['loss']:g}"
        )
        return Problem("scaled", f"{text}, from which backward can start")
    if overflow and step["asked"]:
        return Problem(
            "stepped",
            f"{where} called optimizer.step(), expected a skipped step: {overflow}",
            facts,
        )
    unmoved = len(step["before"]) == len(step["after"]) and all(
        map(torch.equal, step["before"], step["after"])
    )
    if overflow and not unmoved:
        return Problem(
            "touched", f"{where} skipped the step, but changed parameters or optimizer state", facts
        )
    if not overflow and len(step["asked"]) != 1:
        text = (
            f"{where} called optimizer.step() {len(step['asked'])} times, expected once: every "
            f"gradient is finite"
        )
        return Problem("skipped", text, facts)
    if not overflow and not _are(step["asked"][0], g):
        return _wrong_gradient(where, S, g, step, facts)
    if step["returned"] is not (overflow is None):
        text = f"{where}: step returned {step['returned']!r:.40}, expected {overflow is None}"
        return Problem("returned", text, facts)
    return None


def _are(got, expected):
    """Are these the gradients expected, up to the rounding of a division? (What was never used is
    not looked at.)"""
    if got is None or any(a is None for a in got[: len(expected)]):
        return False
    return all(torch.allclose(a, b, rtol=1e-6, atol=0) for a, b in zip(got, expected, strict=False))


def _wrong_gradient(where, S, gradients, step, facts):
    place = next(i for i, want in enumerate(gradients) if not _are([step["asked"][0][i]], [want]))
    got, want = step["asked"][0][place], gradients[place]
    factor = None if got is None else (got.view(-1)[0] / want.view(-1)[0]).item()
    text = f"{where}, gradient of parameter {place}, element 0: the optimizer got "
    text += (
        f"{'None' if got is None else number(got.view(-1)[0])}, expected {number(want.view(-1)[0])}"
    )
    if factor:
        text += f"\nIt is {factor:g} x expected; S was {S:g}, and is {step['scale']:g} now."
    facts |= {"factor": factor and factor / S, "twice": factor and factor * S, "group": place == 2}
    return Problem("gradient", text, facts, [place, factor, S])


def _right(*whats):
    """The claim: every step of these runs is done, or skipped, as it should be."""

    def judge(runs):
        for _, case, records in seen(runs, CASES):
            if any(record["libs"] for record in records):
                return Problem(
                    "built-in", "the answer is lib's or torch's scaler, or a child of it"
                )
            for i, steps in enumerate(zip(*(record["steps"] for record in records), strict=True)):
                found = [step["problem"] for step in steps if step["problem"]]
                strays = [record["stray"] for record in records if record["stray"]]
                if case.what not in whats or not (found or strays):
                    continue
                if strays:
                    text = (
                        f"{case.name}, step {i + 1}: all_reduce was called on ranks "
                        f"{[*strays[0][1]]}, expected "
                    )
                    return Problem("group", f"{text}{[*case.members]}")
                if clash := next((problem for problem in found if problem.kind == "clash"), None):
                    return Problem(
                        "clash",
                        f"{case.name}, step {i + 1}: {clash.text}",
                        clash.facts,
                        clash.trace,
                    )
                asked = [step["asked"] for step in steps]
                if len(set(asked)) > 1:
                    did = [
                        f"rank {rank} {'stepped' if n else 'skipped'}"
                        for rank, n in enumerate(asked)
                    ]
                    why = STEPS[case.what][i] or "no overflow"
                    return Problem(
                        "split", f"{case.name}, step {i + 1}: {', '.join(did)}; there is {why}"
                    )
                return found[0]
        return None

    return judge


def _scale(runs):
    problem = _right(SCALE)(runs)
    for _, case, records in seen(runs, CASES):
        for i, steps in enumerate(zip(*(record["steps"] for record in records), strict=True)):
            scales = [step["scale"] for step in steps]
            if (
                case.what == SCALE
                and set(scales) != {AFTER[i]}
                and (problem is None or problem.kind != "gradient")
            ):
                did = [
                    "good" if overflow is None else "overflow" for overflow in STEPS[SCALE][: i + 1]
                ]
                rank = next(rank for rank, scale in enumerate(scales) if scale != AFTER[i])
                text = f"S=8, growth=4, backoff=0.25, growth_interval=2: after {', '.join(did)}: "
                text += f"{case.rank(rank)} has S = {scales[rank]:g}, expected {AFTER[i]:g}"
                return Problem(
                    "scale", text, {"step": i, "apart": len(set(scales)) > 1}, [i, scales]
                )
    return problem


def _one_each(runs):
    steps = {
        (case, rank): len(r["steps"])
        for _, case, rs in seen(runs, CASES)
        for rank, r in enumerate(rs)
    }
    expected = lambda case, rank: [
        ("all_reduce", f"step {i + 1}", 1) for i in range(steps[case, rank])
    ]
    return only_calls(CASES, expected)(runs)


def _stepped(fits):
    """Fits if no rank skipped a step with this overflow."""
    return lambda p: (
        p.kind == "stepped" and p.facts["overflow"].who == ALL and fits(p.facts["overflow"])
    )


def _after(*steps):
    """Fits if S is wrong after one of these steps of the run, and was right before."""
    return lambda p: p.kind == "scale" and p.facts["step"] in steps


EXERCISE = Exercise(
    name="LossScaler", reference=loss_scaler.LossScaler, measure=_measure, worlds=(WORLD,),
    bonus=True, may_call=(*MAY_CALL, "loss_scaler.given"),
    leaves_out={
        "precise": "powers of two, which no type rounds, and a flag on the wire",
        "under way": "a step returns when it is done, and has no backward",
        "empty rank": "after average_gradients all ranks have the same gradients; one that is None "
                      "everywhere is there",
        "generators": "no argument is an iterator",
        "memory": "it keeps a few numbers",
    },
    claims=(
        claim("scaled, and unscaled once", 3, "the optimizer gets the loss's own gradients",
              _right(GOOD)),
        claim("an overflow skips the step", 5, f"inf, nan; on every rank; {GROUPS_SAY}",
              _right(OVERFLOW)),
        claim("the scale goes down and up", 4,
              "backoff on overflow, growth after growth_interval steps", _scale),
        claim("one number on the wire", 2, "one all-reduce of one element a step", _one_each),
    ),
    hints=(
        s.BUILT_IN.saying(
            "build it yourself: multiply the loss, divide the gradients, all_reduce whether there "
            "was an overflow."),
        Hint("no scale", s.kind("attribute"),
             "keep the scale in self.scale: later cells, and a checkpoint, read it."),
        Hint("the loss is not scaled", s.kind("scaled"),
             "scale_loss returns the loss times self.scale, a tensor with its graph: backward "
             "starts from it."),
        Hint("a parameter without gradient", s.refused("None"),
             "p.grad is None where a parameter was not used: leave such parameters out."),
        s.NO_GROUP,
        Hint("only some ranks ask", s.kind("clash"),
             "every rank must take part in the all-reduce in every step, whatever its own "
             "gradients are."),
        Hint("the first parameter group only", s.kind("gradient", group=True, factor=1.0),
             "an optimizer may have several groups: loop over all of optimizer.param_groups."),
        Hint("not unscaled", s.kind("gradient", factor=1.0),
             "backward left S * g in .grad. Divide every gradient by the scale before "
             "optimizer.step()."),
        Hint("unscaled twice", s.kind("gradient", twice=1.0),
             "the gradients are divided by S once too often."),
        Hint("unscaled with the next scale", s.kind("gradient"),
             "the gradients carry the scale that the loss was multiplied by. Divide by it first, "
             "change self.scale last."),
        Hint("every rank for itself", s.kind("split"),
             "an overflow on one rank must skip the step on all, or the models part: all_reduce "
             "the flag before anyone decides."),
        Hint("steps in a skipped step",
             lambda p: p.kind == "stepped" and p.facts["returned"] is False,
             "a skipped step does not call the optimizer at all. On zeros its momentum would still "
             "move the parameters, and a step that is taken back has still been counted."),
        Hint("nan is not seen", _stepped(lambda o: math.isnan(o.value)),
             "nan compares unequal to everything, also to inf. gradient.isfinite() is False for "
             "both."),
        Hint("-inf is not seen", _stepped(lambda o: o.value < 0),
             "a gradient can overflow to minus infinity. gradient.isfinite() is False for it too."),
        Hint("not every gradient is looked at", _stepped(lambda o: o.parameter),
             "look at every parameter of every group in optimizer.param_groups, all its elements."),
        Hint("the loss is looked at", _stepped(lambda o: True),
             "the overflow is in the gradients; the loss may be finite. Look for inf and nan in "
             "every p.grad."),
        Hint("the votes are added up wrongly", s.kind("stepped", "skipped"),
             "all_reduce sums. Let each rank give 1 if it has an overflow, else 0: then the sum is "
             "0 if all are fine. (If each gives 1 where it is fine, the sum must be N.)"),
        Hint("a skipped step leaves traces", s.kind("touched"),
             "skip means: do not call the optimizer, and change neither parameters nor its state."),
        Hint("not whether it stepped", s.kind("returned"),
             "return True where the step was made, False where it was skipped: a bool, the same on "
             "every rank."),
        Hint("ranks with different scales", s.kind("scale", apart=True),
             "ranks must change the scale together: decide by the sum over ranks, not by the "
             "rank's own gradients."),
        Hint("grows in every step", _after(0),
             "count good steps, and multiply by growth only when there have been growth_interval "
             "of them."),
        Hint("a factor of its own", lambda p: _after(1)(p) and p.trace[1][0] != 8,
             "it has grown in time, but not by `growth`: use the numbers that the constructor was "
             "given."),
        Hint("does not grow in time", _after(1),
             "growth_interval good steps in a row, here 2, multiply the scale by growth; the "
             "second of them already."),
        Hint("the count goes on after growth", _after(2),
             "after the scale has grown, the count of good steps begins at 0 again."),
        Hint("not lowered", _after(3, 6, 7), "every overflow multiplies the scale by backoff."),
        Hint("the count goes on after an overflow", _after(4, 5, 8, 9),
             "good steps count in a row: an overflow sets the count to 0."),
        Hint("another all-reduce", s.kind("another way"),
             "use the argument `all_reduce`, so that your own can carry it."),
        Hint("more than one number", s.kind("calls"),
             "whether *any* gradient overflowed is one number: make one flag of all of them first, "
             "then all_reduce it."),
        *s.ANYWHERE,
    ),
)  # fmt: skip
