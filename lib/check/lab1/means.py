"""The mean gradient over ranks of Lab 1's small models (models.py): what answers are judged
and hinted by."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from math import isclose

import torch
import torch.distributed as dist

from lib import backend
from lib.check import symptoms as s
from lib.check.cases import Case, called, groups_and_control, in_step
from lib.check.claims import each
from lib.check.comm import Clash, Recorder
from lib.check.exercise import Hint, Problem
from lib.check.lab1 import models

WORLD = 4
GROUPS = (tuple(range(WORLD)), (0, 1, 2), (1, 3))
GROUPS_SAY = "4 ranks, groups of 3 and 2"
ALONE = (2,)
IDLE = "rank 0 without gradients"


def scaled(by):
    """The right mean times by(N)."""

    exactly = lambda p: isclose(p.facts["factor"], by(p.facts["world_size"]), rel_tol=1e-9)
    return s.both(s.kind("value", factor=True), exactly)


def times(by):
    """The same of a shown tensor (shown.py): all of it is by(N) times what is expected."""

    def fits(p):
        factor = p.fact("factor")
        return factor is not None and isclose(factor, by(p.fact("case").world_size), rel_tol=1e-9)

    return fits


def as_found(cases):
    """A judge: the first record["problem"]."""
    return each(cases, lambda case, rank, record: record["problem"])


def _is_old(gradient, rank):
    return gradient is not None and bool((gradient == rank).all())


def state(model):
    """Every tensor but the gradients, and whether it wants one."""
    return [(t.detach().clone(), t.requires_grad) for t in [*model.parameters(), *model.buffers()]]


def same(before, now):
    return all(
        torch.equal(a, b) and asks == asked
        for (a, asks), (b, asked) in zip(before, now, strict=True)
    )


@dataclass(frozen=True)
class Averaging:
    """A measure: gradients of a model on every rank, averaged by an answer with the all_reduce that
    it is given.

    model: makes it. parameters: what the answer gets of it. fine: what the weights are times.
    A record: those of `Recorder.record`; problem, touched (a parameter has changed), shapes of what
    was sent, kept, ok.
    """

    cases: tuple[Case, ...]
    model: Callable
    parameters: Callable
    fine: float = 1

    def __call__(self, fn):
        held = []

        def one(case, groups):
            record, model, got = self._record(fn, case, *groups)
            held.append((record, model, got))
            return record

        records = in_step(self.cases, groups_and_control, one, dist.new_group())
        for record, model, got in held:
            now = models.gradients(model)
            record["kept"] = all(g is None or torch.equal(g, now[name]) for name, g in got.items())
        return records

    def _record(self, fn, case, group, control):
        rank, device, shapes = dist.get_rank(control), backend.device(), []
        recorder, model = Recorder(control, [case.members]), self.model().to(device)
        if case.what != IDLE or rank:
            x, y, with_branch = models.shard(rank, case.again)
            models.loss_of(model, (x.to(device), y.to(device), with_branch)).backward()
        with torch.no_grad():
            frozen = {name: p for name, p in model.named_parameters() if not p.requires_grad}
            for p in frozen.values():
                p.grad = torch.full_like(p, rank)  # an old one, of before it was frozen
            for p in model.parameters():
                p += rank  # or nobody would see that the parameters are averaged instead
        before = state(model)

        def given(tensor, group=None):
            """Sums in place and returns nothing, as torch's does."""
            shapes.append(tuple(tensor.shape))
            recorder.all_reduce(tensor, group)

        with suppress(Clash):  # it is in the record
            called(case, fn, self.parameters(model), group, given)
        recorder.end()
        got, touched, record = (
            models.gradients(model),
            not same(before, state(model)),
            recorder.record(),
        )
        where, changed = (
            f"{case.name}: {case.rank(rank)}",
            [n for n, p in frozen.items() if not _is_old(p.grad, rank)],
        )
        problem = models.wrong_gradient(where, rank, got | dict.fromkeys(frozen), self._parts(case))
        if changed:
            problem = Problem(
                "frozen", f"{where}, {changed[0]} is frozen, and its .grad has changed", {}
            )
        if problem:
            problem.facts |= {"touched": touched, "case": case, "silent": not record["calls"]}
        record |= {"problem": problem, "shapes": shapes, "touched": touched}
        record["ok"] = problem is None and record["stray"] is None
        return record, model, got

    def _parts(self, case):
        """What each rank contributes, [{name: gradient}]."""
        shards = [[models.shard(rank, case.again)] for rank in range(case.world_size)]
        parts = models.of_each_rank(shards, fine=self.fine)
        if case.what == IDLE:
            parts[0] = {name: torch.zeros_like(g) for name, g in parts[0].items()}
        return parts


def untouched(cases):
    """A judge: nothing but .grad has changed."""

    def judge(case, rank, record):
        if not record["touched"]:
            return None
        return Problem(
            "touched", f"{case.name}: {case.rank(rank)} changed a parameter, not only .grad"
        )

    return each(cases, judge)


NOT_DIVIDED = Hint("not divided", scaled(lambda N: N),
                   "all_reduce sums. The mean needs a division by the group's number of ranks, "
                   "dist.get_world_size(group).")  # fmt: skip
DIVIDED_TWICE = Hint("divided twice", scaled(lambda N: 1 / N),
                     "divide by N once, before the all-reduce or after it. (The loss is the mean "
                     "over the rank's own shard: leave it.)")  # fmt: skip
WORLD_SIZE = Hint("the world's size, not the group's", scaled(lambda N: N / WORLD),
                  "in a smaller group it is the group's ranks that are summed: divide by "
                  "dist.get_world_size(group).")  # fmt: skip
PARAMETER_CHANGED = Hint("the parameter, not its gradient",
                         s.either(s.kind("touched"), s.fact("touched")),
                         "a parameter itself has changed. Gradients are averaged, p.grad; it is "
                         "the optimizer that changes p.")  # fmt: skip
NO_GRADIENT = Hint("a parameter without gradient",
                   s.either(s.kind("value", absent=True), s.refused("None")),
                   "where this rank did not use a parameter, p.grad is None. It contributes zeros, "
                   "and must hold the mean afterwards, or the ranks' models part: p.grad = "
                   "torch.zeros_like(p).")  # fmt: skip
ANOTHER_DIVISOR = Hint("another divisor", s.kind("value", factor=True),
                       "the sum is right, but divided by another number than N, the group's number "
                       "of ranks.")  # fmt: skip
NO_OP = Hint("an op for all_reduce", s.raised("TypeError"),
             "the all_reduce that you are given takes (tensor, group) and sums. Divide "
             "yourself.")  # fmt: skip
NOT_GIVEN = Hint("not the all_reduce it was given", s.kind("another way"),
                 "whoever calls your function chooses the algorithm: call the argument "
                 "`all_reduce`, not one that you imported.")  # fmt: skip
UNLIKE = s.either(s.kind("clash", "mismatch", "died"), s.hung)
