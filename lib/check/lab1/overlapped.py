"""Lab 1, section 5: OverlappedDataParallel(module, group, all_reduce, capacity), buckets that leave during backward.

The wrapper is given `watched.given_all_reduce`. Two models: the small one of `models.py`, and a chain of four layers
whose backward stops before the first layer until a bucket is under way.
"""

from dataclasses import replace

import torch
import torch.distributed as dist

from lib import backend
from lib.check.framework import Claim, Exercise, Problem
from lib.check.lab0.cases import called, in_step, seen
from lib.check.lab1 import models
from lib.check.lab1.cases import GROUPS, GROUPS_SAY, WORLD, Case
from lib.check.lab1.chain import Chain
from lib.check.lab1.overlapped_hints import CHAIN, FORWARD_ORDER, HINTS, MAY_CALL
from lib.check.lab1.watched import Watched, groups_with_wires
from lib.data_parallel import overlapped
from lib.data_parallel.replicate import Replicated

NAME = "OverlappedDataParallel"
SMALL, NO_SYNC = "unused parameters", "no_sync"
STEPS = {CHAIN: [[0], [1]], SMALL: [[0], [1]], NO_SYNC: [[0, 1, 2], [3]]}  # the micro-batches of each step
CASES = [
    Case(NAME, GROUPS[0], CHAIN),
    *(Case(NAME, members, SMALL) for members in GROUPS),
    Case(NAME, GROUPS[0], NO_SYNC),
]
CAPACITY = {CHAIN: 49, SMALL: 21, NO_SYNC: 49}  # in float64 numbers: several buckets, some of several parameters


def _loss(case, model, rank, number):
    """Of micro-batch `number` of this rank. ()"""
    x, y, with_branch = (t.to(backend.device()) if torch.is_tensor(t) else t for t in models.shard(rank, number))
    if case.what == SMALL:
        return models.loss_of(model, (x, y, with_branch))
    return (model(x) * torch.cat([y, y[:, :2]], 1)).sum(1).mean()  # y (B, 5), the chain's output (B, 7)


def _parts(case, numbers):
    """What each rank contributes, the sum over its micro-batches. [{name: gradient}, ...]"""
    parts = []
    for rank in range(case.world_size):
        model = _model(case, 0)
        sum(_loss(case, model, rank, number) for number in numbers).backward()
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        parts.append({n: (torch.zeros_like(p) if p.grad is None else p.grad).cpu() for n, p in trained.items()})
    return parts


def _model(case, seed, watched=None):
    model = models.Small(seed) if case.what == SMALL else Chain(seed, watched)
    return model.to(backend.device())


def _measure(fn):
    one = lambda case, groups: _run(case, fn, *groups)
    return in_step(CASES, groups_with_wires, one, wire=dist.new_group())


def _run(case, fn, group, wire):
    """All steps of a case, up to the first that is wrong on any rank."""
    if _is_libs(fn):
        return {"ok": False, "libs": True, "steps": [], "problem": None}
    rank, watched = dist.get_rank(wire), Watched(group, wire)
    module = _model(case, rank, watched)
    model = called(case, fn, module, group, watched.given_all_reduce, 8 * CAPACITY[case.what])
    record = {
        "libs": _is_libs(type(model)), "weights": _unlike_rank_0(case, module), "steps": [], "problem": None,
        "has_no_sync": hasattr(model, "no_sync"),
    }  # fmt: skip
    record["ok"] = watched.all_ranks(not record["libs"] and record["weights"] is None)
    for step, numbers in enumerate(STEPS[case.what]):
        if not record["ok"] or (case.what == NO_SYNC and not record["has_no_sync"]):
            break
        watched.begin(slow=case.what == CHAIN and step == 0)
        record["steps"].append(_step(case, step, model, module, watched))
        where = f"{case.where}, step {step + 1}: {case.rank(rank)}"
        problem = models.wrong_gradient(where, rank, record["steps"][-1]["gradients"], _parts(case, numbers))
        if problem is not None:
            problem.facts["step"] = step
            record["problem"] = problem
        record["ok"] = watched.all_ranks(problem is None)
    return record


def _step(case, step, model, module, watched):
    """One step, all micro-batches but its last inside no_sync: the gradients it leaves, and what it sent."""
    numbers, rank = STEPS[case.what][step], dist.get_rank(watched.wire)
    for parameter in module.parameters():
        parameter.grad = None

    def backward_and_average():
        for number in numbers[:-1]:
            with model.no_sync():
                _loss(case, model, rank, number).backward()
        sent_alone = len(watched.elements)
        _loss(case, model, rank, numbers[-1]).backward()
        watched.backward_ended.set()
        model.average_gradients()
        return {"sent_alone": sent_alone, "gradients": models.gradients(module)}

    section = replace(case, what=f"{case.what}, step {step + 1}")
    return {**called(section, backward_and_average), **watched.end()}


def _is_libs(kind):
    """Is it one of lib's wrappers, or a child of one? (`Replicated` alone does nothing of this exercise.)"""
    classes = set(getattr(kind, "__mro__", ())) - {Replicated}
    return any(c.__module__.startswith("lib.data_parallel") for c in classes)


def _unlike_rank_0(case, module):
    """The name of a parameter or buffer that is not rank 0's, or None."""
    mine, first = module.state_dict(), _model(case, 0).state_dict()
    return next((name for name in first if not torch.equal(mine[name], first[name])), None)


def _weights(runs):
    for _, case, records in seen(runs, CASES):
        for rank, record in enumerate(records):
            if record["libs"]:
                return Problem("built-in", f"the answer is lib's {NAME}, or a child of it")
            if record["weights"] is not None:
                return Problem("weights", f"{case.where}: {record['weights']} on {case.rank(rank)} is not rank 0's")
    return None


def _gradients(runs):
    for _, case, records in seen(runs, CASES):
        if case.what == NO_SYNC:
            continue
        for number, steps in enumerate(zip(*(record["steps"] for record in records), strict=True)):
            problem = _wrong_messages(f"{case.where}, step {number + 1}", case, steps)
            if problem:
                return problem
        if problem := _wrong_gradient(records):
            return problem
    return None


def _wrong_gradient(records):
    return next((record["problem"] for record in records if record["problem"]), None)


def _wrong_messages(where, case, steps):
    """What is wrong with the messages of a step, one record per rank, whatever the gradients are."""
    for rank, step in enumerate(steps):
        if step["early"]:
            text = f"{where}: {case.rank(rank)} came back from average_gradients() while an all-reduce was under way"
            return Problem("early", text)
        if step["stray"]:
            return Problem("group", f"{where}: {case.rank(rank)} called all_reduce for another group than its own")
    if steps[0]["clash"]:
        message, told = steps[0]["clash"]
        ranks = ", ".join(f"rank {rank} {n or 'nothing'}" for rank, n in enumerate(told))
        text = f"{where}: the ranks' message {message} differs, in elements: {ranks}"
        return Problem("unlike", text, {"told": told, "sent": [sum(step["elements"]) for step in steps]})
    return None


def _messages(runs):
    for _, case, records in seen(runs, CASES):
        sizes = [parameter.numel() for parameter in _model(case, 0).parameters() if parameter.requires_grad]
        most = max(CAPACITY[case.what], *sizes)
        for rank, record in enumerate(records if case.what != NO_SYNC else []):
            for number, step in enumerate(record["steps"]):
                got = step["elements"]
                facts = {"elements": got, "sizes": sizes}
                text = f"{case.where}, step {number + 1}: {case.rank(rank)} "
                text += f"sent messages of {got} elements" if got else "never called the all_reduce that it was given"
                if sum(got) != sum(sizes):
                    text += f"\nThat is {sum(got)}; the {len(sizes)} trained parameters have {sum(sizes)} elements."
                    return Problem("elements", text, facts)
                if max(got) > most or len(got) >= len(sizes):
                    text += f"\nExpected fewer messages than the {len(sizes)} parameters, none above {most} elements"
                    return Problem("messages", f"{text}: capacity={8 * CAPACITY[case.what]} bytes.", facts)
    return None


def _overlap(runs):
    for _, case, records in seen(runs, CASES):
        for rank, record in enumerate(records if case.what == CHAIN else []):
            step, where = record["steps"][0], f"{case.where}: {case.rank(rank)}"
            if not step["begun_in_backward"]:
                text = f"{where} had started no all-reduce when only the first layer's gradients were still missing"
                text += f"\nIts messages, in elements: {step['elements']}"
                return Problem("late", text, {"forward": step["elements"] == FORWARD_ORDER})
            if step["stuck"]:
                return Problem("stuck", f"{where}: backward stood still until the first all-reduce had ended")
    return None


def _no_sync(runs):
    for _, case, records in seen(runs, CASES):
        for rank, record in enumerate(records if case.what == NO_SYNC else []):
            where = f"{case.where}: {case.rank(rank)}"
            if not record["has_no_sync"]:
                return Problem("no no_sync", f"{where}: the model has no method no_sync")
            first = record["steps"][0]
            if first["sent_alone"]:
                elements = first["elements"][: first["sent_alone"]]
                return Problem("sent alone", f"{where} sent messages of {elements} elements inside no_sync")
            if problem := _wrong_gradient(records):
                text = f"{problem.text}\nIn step 1, two micro-batches of three are in no_sync."
                return Problem("not accumulated", text)
    return None


EXERCISE = Exercise(
    name=NAME,
    reference=overlapped.OverlappedDataParallel,
    measure=_measure,
    worlds=(WORLD,),
    may_call=MAY_CALL,
    claims=(
        Claim("rank 0's weights everywhere", 2, "parameters and buffers", _weights),
        Claim("the mean gradient everywhere", 8, f"{GROUPS_SAY}; tied, frozen, unused; 2 steps", _gradients),
        Claim("buckets on the wire", 3, "every gradient once, at most `capacity` bytes a message", _messages),
        Claim("sent before backward ends", 4, "the first bucket, while backward goes on", _overlap),
        Claim("no_sync", 3, "sends nothing; the next backward sends the sum", _no_sync),
    ),
    hints=HINTS,
)
