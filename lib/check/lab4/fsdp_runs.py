"""A training by an FSDP on a group of ranks, its units watched, against one process.

    AdamW                     4 ranks            units that fill with NaN what they should free
    SGD, 2 micro-batches      ranks 0 1 2        the same
    memory is freed           ranks 1 3          units that free it

(In the check of Unit the units are the answer's, everywhere.)
"""

from dataclasses import replace

import torch
import torch.distributed as dist

from lib.buckets import slots
from lib.check.framework import Problem
from lib.check.lab0.cases import called
from lib.check.lab1.cases import Case
from lib.check.lab3.compare import wrong
from lib.check.lab3.groups import agreed
from lib.check.lab4 import fsdp_models as models
from lib.check.lab4.fsdp_given import Given
from lib.check.lab4.fsdp_models import ADAMW, MICROBATCHES, OPTIMIZERS, SGD, STEPS
from lib.check.lab4.fsdp_watched import FreedUnit, WatchedUnit

FREED = "memory is freed"
WRAPPED = "the model is wrapped"
UNIT_OF = {ADAMW: WatchedUnit, SGD: WatchedUnit, FREED: FreedUnit}
GROUPS_SAY = "4 ranks, groups of 3 and 2"


def cases_of(function):
    return [Case(function, (0, 1, 2, 3), ADAMW), Case(function, (0, 1, 2), SGD), Case(function, (1, 3), FREED)]


def optimizer_of(case):
    return ADAMW if case.what == FREED else case.what


def made(case, kind, rank, given):
    """kind(module, units, ...), and its module: the ranks' modules differ until rank 0's counts."""
    net = models.Net(seed=rank)
    return kind(net, net.layers, given.group, None, given.reduce_scatter, given.all_gather), net


def trained(case, kind, rank, group, wire, watch=None):
    """Up to the first step that is wrong on any rank: {"ok", "value", "memory", "sent", ...: None, or the Problem}."""
    given = Given(group, wire)
    fsdp, net = called(replace(case, what=f"{case.what}, {WRAPPED}"), made, case, kind, rank, given)
    if watch:
        watch.watches(fsdp, given)

    optimizer, problem = OPTIMIZERS[optimizer_of(case)](fsdp.groups), None
    for step in range(STEPS):
        if agreed(problem is None, wire):
            problem = _step(case, step, fsdp, net, optimizer, rank, given, watch)
    if agreed(problem is None, wire):
        problem = _evaluated(case, fsdp, net, rank, watch)
    given.end()
    problem = given.wrong_group(f"{case.where}: {case.rank(rank)}") or problem
    broken = watch.broken if watch else {}
    return {**broken, "ok": agreed(problem is None, wire), "wire": wire.group_name, "value": problem}


def _step(case, step, fsdp, net, optimizer, rank, given, watch):
    """One optimizer step; the Problem that it has, or None."""
    optimizer.zero_grad()
    where, k = f"{case.where}: {case.rank(rank)}, step {step + 1}", MICROBATCHES[optimizer_of(case)]

    def backward(number):
        (models.loss_of(net, rank, number) / k).backward()
        fsdp.average_gradients()

    problem = None
    for number in models.numbers(step, k):
        called(replace(case, what=f"{case.what}, backward {number + 1}"), backward, number)
        given.end()
        left = next((name for name, p in net.named_parameters() if p.grad is not None), None)
        if left and not problem:
            problem = Problem("unreduced", f"{where}: {left} still has its gradient after average_gradients()")
        if watch:
            watch.backward_is_over()
    optimizer.step()
    if watch:
        watch.optimizer_stepped()
        problem = watch.broken.get("value") or problem
    want = models.one_process(case.world_size, optimizer_of(case))[step]
    for name, got in whole_parameters(fsdp, net, given.wire).items():  # on all ranks, whatever one of them has found
        if not problem and (problem := wrong(f"{where}: {name}", got, want[name], {})):
            problem.facts["step"] = step
    return problem


def _evaluated(case, fsdp, net, rank, watch):
    """A forward without a graph, after the last step: the Problem that it has, or None."""
    x, _, with_branch = models.batch(0, 0)
    alone = models.Net(seed=0)
    alone.load_state_dict(models.one_process(case.world_size, optimizer_of(case))[-1])
    if watch:
        watch.evaluates = True
    with torch.no_grad():
        want = alone(x, with_branch)
        got = called(replace(case, what=f"{case.what}, evaluation"), net, x, with_branch)
    problem = wrong(f"{case.where}: {case.rank(rank)}: the output after {STEPS} steps", got, want, {})
    if watch:
        watch.nothing_is_left()
        problem = watch.broken.get("value") or problem
    return problem


def whole_parameters(fsdp, net, wire):
    """{name: parameter}, from all ranks' shards."""
    names = {p: name for name, p in net.named_parameters()}
    found = {}
    for flat in fsdp.flats:
        shards = [torch.empty_like(flat.shard) for _ in range(dist.get_world_size(wire))]
        dist.all_gather(shards, flat.shard.detach(), group=wire)
        pieces = slots(torch.cat(shards)[: flat.n].detach(), flat.slots)
        found |= {names[p]: piece for p, piece in zip(flat.parameters, pieces, strict=True)}
    return found
