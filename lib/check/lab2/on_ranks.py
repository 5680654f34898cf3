"""Executes a student's schedules on 2 and on 4 ranks of one launch, and compares the gradients with
those of the full batch.

    rank          0    1    2    3
    p = 4         stage 0, 1, 2, 3                one pipeline
    p = 2         stage 0, 1 | stage 0, 1         two identical pipelines

This is the last claim, so only schedules that have passed all other claims are executed. Their
lists already exist, and the ranks receive them as data. The stages are small, in float64, and the
last micro-batch has fewer rows than the others.
"""

from dataclasses import dataclass
from math import inf

import torch
import torch.nn.functional as F
from torch import nn

from lib import launch, ledger
from lib.check.exercise import Problem
from lib.check.framework import TIMEOUT
from lib.check.lab2.schedules import words
from lib.pipeline.actions import loop, messages
from lib.pipeline.links import connect
from lib.pipeline.stage import Pipeline

WORLD = 4
ROWS = 3  # of a micro-batch; the last micro-batch has one row less
WIDTH = 4  # elements per row of a stage's input and output


@dataclass(frozen=True)
class Executed:
    """The result on one rank. worst: the largest error of a gradient, relative to the gradient's
    largest element. name: the parameter with this error."""

    worst: float
    name: str


def gradients(measure, jobs, stages=1, placement=loop):
    """A judge of the gradients and the number of messages in these cases.

    jobs: the cases, (p, m) or (p, m, v), with p = 2 or 4.
    stages: the number of stages on a rank, if the cases have no v. placement: as for `validate`.
    """
    names = {words(*job): job for job in jobs}

    def judge(runs):
        (records,) = runs[0].results
        found = zip(measure.runs(), records, strict=True)
        lists = {names[case.what]: one["judged"] for case, one in found if case.what in names}
        return executed(lists, stages, placement)

    return judge


def executed(schedules, stages=1, placement=loop):
    """The first Problem in the execution of {case: its schedule}, or None."""
    try:
        results = launch.capture(
            _execute, schedules, stages, placement, nproc=WORLD, timeout=TIMEOUT
        )
    except launch.RankError as error:
        return Problem("ranks", str(error))
    for case, schedule in schedules.items():
        for rank, seen in enumerate(result[case] for result in results):
            if seen.worst > 1e-9:
                at = f"{words(*case)}: rank {rank % case[0]}, {seen.name}"
                text = (
                    f"{at}: its gradient differs from the whole batch's by {seen.worst:.1e} of "
                    f"its scale"
                )
                return Problem("gradient", text)
        sent = results.ledger.section(words(*case)).sent("messages")
        expected = len(messages(schedule)) * (WORLD // case[0])
        if sent != expected:
            text = f"{words(*case)}: the ranks sent {sent} messages, expected {expected}"
            return Problem("messages", text)
    return None


def _execute(schedules, stages, placement):
    """On every rank: {case: Executed}."""
    links, seen = {}, {}
    for p in sorted({case[0] for case in schedules}):
        links[p] = connect([range(first, first + p) for first in range(0, WORLD, p)])
    for case, schedule in schedules.items():
        p, m, v = (*case, stages)[:3]
        x, y = _batch(m)
        whole, split = _stages(v * p), _stages(v * p)
        pipeline = Pipeline(split, links[p], x.split(ROWS), placement)
        ledger.mark(words(*case))
        pipeline.run(schedule, x.split(ROWS), y.split(ROWS), F.mse_loss)
        ledger.mark("")
        F.mse_loss(nn.Sequential(*whole)(x), y).backward()
        seen[case] = max(
            (_error(whole[s], split[s], s) for s in pipeline.stages),
            key=lambda executed: executed.worst,
        )
    return seen


def _stages(n):
    draw = torch.Generator("cpu").manual_seed(0)
    stages = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()).double() for _ in range(n)]
    for parameter in nn.Sequential(*stages).parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=draw, device="cpu"))
    return stages


def _batch(m):
    """x, y (m * ROWS - 1, WIDTH) float64"""
    draw = torch.Generator("cpu").manual_seed(1)
    both = torch.randn(2, m * ROWS - 1, WIDTH, generator=draw, device="cpu", dtype=torch.float64)
    return both.to(torch.empty(0).device).unbind()


def _error(whole, split, stage):
    """The largest error over a stage's parameters. It is infinite if a parameter has no gradient,
    or one that is not finite."""
    errors = []
    for (name, a), b in zip(whole.named_parameters(), split.parameters(), strict=True):
        error = (
            float("nan")
            if b.grad is None
            else ((a.grad - b.grad).abs().max() / a.grad.abs().max()).item()
        )
        errors.append(Executed(error if error < inf else inf, f"stage {stage}, {name}"))
    return max(errors, key=lambda executed: executed.worst)
