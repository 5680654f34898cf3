"""Lab 2, section 2: relay_step(stage, x, target, loss_fn, group), one batch forward through p ranks
and back.

What each stage takes is noted, and compared with what it takes in one process: so is every
gradient. The tensor that says which shape and dtype to receive is full of nan, and the target is
there on the last rank only: whoever computes with what it has not got is found out.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F

from lib.check import symptoms
from lib.check.cases import called, form_of, groups_of, in_step, number, seen
from lib.check.claims import claim
from lib.check.exercise import Exercise, Problem
from lib.check.explain import narrowed, rounded_words, shares
from lib.check.lab2.relay_cases import (
    CASES,
    GROUPS_SAY,
    REUSED,
    ROWS,
    WORLD,
    NoTarget,
    Step,
    batch,
    sends,
    stages,
    whole,
)
from lib.check.lab2.relay_hints import HINTS
from lib.check.traffic import sent
from lib.pipeline.relay_step import relay_step

TOLERANCE = 1e-12  # of a gradient's largest number


def _measure(fn):
    kept, given = {}, {}  # by group: this rank's stage, in all steps; the x of the latest

    def one(case, group):
        rank = case.members.index(dist.get_rank())
        stage = kept.setdefault(case.members, stages(case.world_size)[rank])
        x = given[case.members] = _x(case, rank, given.get(case.members))
        return _step(case, rank, fn, stage, x, group)

    return in_step(CASES, groups_of, one, wire=dist.new_group())


def _x(case, rank, before):
    """The batch on the first rank; elsewhere the room for what comes, in step REUSED that
    of the step before."""
    if rank == 0:
        return batch(case)[0]
    x = before.detach() if case.step == REUSED else torch.empty_like(whole(case).takes[rank])
    x.fill_(torch.nan)
    return before if case.step == REUSED else x


def _step(case, rank, fn, stage, x, group):
    p, (_, target) = case.world_size, batch(case)
    takes = whole(case).takes[rank]
    taken, losses = [], []

    def loss_fn(y, target):
        if target is None:
            raise NoTarget(
                "loss_fn was called with target None: the target is on the last rank alone"
            )
        losses.append(F.mse_loss(y, target))
        return losses[-1]

    hook = stage[0].register_forward_pre_hook(
        lambda _, inputs: taken.append(inputs[0].detach().clone())
    )
    loss = called(
        case,
        fn,
        stage,
        x,
        target if rank == p - 1 else None,
        loss_fn,
        *([] if group is None else [group]),
    )
    hook.remove()
    where = f"{case.name}: {case.rank(rank)}"
    problems = {
        "taken": _wrong_input(where, rank, taken, takes),
        "gradient": _wrong_gradient(
            where, case, rank, {n: q.grad for n, q in stage.named_parameters()}
        ),
        "loss": _wrong_loss(where, whole(case).loss if rank == p - 1 else None, loss, losses),
    }
    return {"ok": not any(problems.values()), **problems}


def _wrong_input(where, rank, taken, want):
    if not taken:
        return Problem("no forward", f"{where} never called its stage")
    if len(taken) > 1:
        return Problem("forwards", f"{where} called its stage {len(taken)} times, expected once")
    got, text = taken[0], f"{where}: its stage took"
    if got.shape != want.shape:
        return Problem("taken", f"{text} {form_of(got)}, expected {form_of(want)}")
    if torch.equal(got, want):
        return None
    if narrowed(got, want):
        return Problem(
            "taken", f"{text} rounded numbers\n{rounded_words(want.dtype)}", {"narrowed": True}
        )
    nan, whose = (
        bool(got.isnan().all()),
        "the batch" if rank == 0 else f"what rank {rank - 1}'s stage gave",
    )
    what = f"nan, which is in the x of {where.split(': ')[1]}" if nan else "other numbers"
    return Problem("taken", f"{text} {what}, expected {whose}", {"nan": nan})


def _wrong_gradient(where, case, rank, got):
    steps = [whole(Step(case.members, step=step)) for step in ROWS if step <= case.step]
    each = [step.gradients[rank] for step in steps]
    for name in each[0]:
        want, out = sum(gradients[name] for gradients in each), got[name]
        if out is not None and _equal(out, want):
            continue
        facts = {"case": case, "p": case.world_size, "absent": out is None}
        if out is None:
            return Problem(
                "gradient", f"{where}, {name}: .grad is None after step {case.step}", facts
            )
        element = tuple((out != want).nonzero()[0].tolist())
        facts["ones"] = _equal(out, sum(step.from_ones[rank][name] for step in steps))
        facts["shares"] = (
            shares(out.cpu(), [gradients[name].cpu() for gradients in each])
            if out.isfinite().all()
            else None
        )
        text = f"{where}, {name}, element {element[0] if len(element) == 1 else element}: "
        text += f"expected {number(want[element])}, got {number(out[element])}"
        if facts["ones"]:
            text += (
                "\nThat is the gradient of the sum of what this stage gives: backward began with "
                "ones."
            )
        if facts["shares"] is not None:
            got_of = [f"{share:g} x step {step + 1}'s" for step, share in facts["shares"].items()]
            of = [f"step {step + 1}'s" for step in range(len(each))]
            text += f"\nIt is {' and '.join(got_of) or 'zero'}; expected {' and '.join(of)}."
        return Problem("gradient", text, facts)
    return None


def _equal(a, b):
    return bool(((a - b).abs() <= TOLERANCE * b.abs().max()).all())


def _wrong_loss(where, want, got, losses):
    if want is None:
        text = f"{where} returned {form_of(got)}, expected None: only the last rank has the loss"
        return None if got is None else Problem("elsewhere", text)
    if not losses:
        return Problem("loss_fn", f"{where} never called the loss_fn that it was given")
    if not isinstance(got, torch.Tensor) or got.shape != () or not _equal(got.detach(), want):
        value = (
            f"{got.item():.6g}"
            if isinstance(got, torch.Tensor) and got.numel() == 1
            else form_of(got)
        )
        return Problem(
            "loss",
            f"{where} returned {value}, expected the batch's loss, {want.item():.6g}",
            {"got": got},
        )
    if got.requires_grad:
        return Problem(
            "attached", f"{where} returned a loss that requires grad, expected a detached one"
        )
    return None


def _first(what):
    """The claim: nothing is wrong with this anywhere; else what is, on the first
    rank where it is."""

    def judge(runs):
        for _, _, records in seen(runs, CASES):
            # gradients come from the last rank
            for record in records if what != "gradient" else reversed(records):
                if record[what]:
                    return record[what]
        return None

    return judge


def _messages(runs):
    for run, case, _ in seen(runs, CASES):
        for rank, (got, want) in enumerate(zip(sent(run, case), sends(case), strict=True)):
            if got != want:
                said = [
                    ", ".join(f"{n} elements to rank {to}" for to, n in some) or "nothing"
                    for some in (got, want)
                ]
                text = f"{case.name}: {case.rank(rank)} sent {said[0]}; expected {said[1]}"
                return Problem("messages", text, {"more": len(got) > len(want)})
    return None


EXERCISE = Exercise(
    name="relay_step", reference=relay_step, measure=_measure, worlds=(WORLD,),
    leaves_out={
        "under way": "a step is over when it returns",
        "empty rank": "every rank has a stage, and every batch rows",
        "generators": "no argument is an iterator",
        "memory": "it keeps nothing but gradients",
    },
    may_call=symptoms.P2P,
    claims=(
        claim("activations forward", 4, f"each stage takes what the previous gives; {GROUPS_SAY}",
              _first("taken")),
        claim("one process's gradients", 7,
              "every parameter's .grad, to 1e-12; added to what is there",
              _first("gradient")),
        claim("the loss on the last rank", 2, "detached; None elsewhere", _first("loss")),
        claim("2(p-1) messages", 3, "an activation to the next rank, a gradient to the previous",
              _messages),
    ),
    hints=HINTS,
)  # fmt: skip
