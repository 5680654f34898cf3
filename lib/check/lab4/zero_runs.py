"""One answer to Zero1 or Zero2 on one rank, and the model that it trains beside one process.

What make_optimizer is given is the rank's shard, whatever the answer calls it: its size, its
gradient and the optimizer's state are looked at there. The parts of a step run on all ranks at
once: what one rank sends in another part than the others, or not at all, is a clash, and holds
nobody.
"""

from dataclasses import replace
from math import isclose

import torch
import torch.distributed as dist

from lib import backend, collectives
from lib.check import symptoms as s
from lib.check.cases import called, form_of
from lib.check.claims import each
from lib.check.exercise import Problem
from lib.check.lab4.zero_models import (
    Made,
    one_process,
    squares_of_mean,
    values,
    wrong_parameter,
)
from lib.check.traffic import in_words
from lib.zero import zero1, zero2

MOMENTS = {"SGD": 1, "AdamW": 2}  # numbers of state for each parameter


class Run:
    """value, mean: the first Problem of the parameters, and of the gradients in the shards; or
    None. halves: of a Zero1's flatten_gradients() and add_gradient().

    ready() is called just before the answer's class is.
    """

    def __init__(self, case, setup, fn, group, recorder, model=None, ready=lambda: None, **named):
        self.case, self.setup, self.recorder, self.rank = case, setup, recorder, recorder.place
        self.model, self.made = model or setup.model(), Made(setup.optimizer)
        self.expected = one_process(setup, case.world_size)
        self.value = self.mean = self.before = self.halves = None
        self.early = False  # was a call under way when average_gradients() had returned?
        making = replace(case, what=f"{case.what}, __init__")
        given = values(self.model)
        ready()
        ways = {"reduce_scatter": recorder.reduce_scatter, "all_gather": recorder.all_gather}
        self.answer = called(making, fn, self.model.parameters(), self.made, group, **ways, **named)
        for name, got in values(self.model).items():
            if got.dtype != case.dtype:
                text = f"{making.name}: {name} is {form_of(got)}, expected {form_of(given[name])}"
                self.value = Problem("form", text, {"case": case, "dtype": True})
            elif not torch.equal(got, given[name]):
                self.value = Problem(
                    "lost", f"{making.name}: {name} has other numbers than before", {"case": case}
                )

    def part(self, step, name, call):
        """Run a part of a step; then what the answer has left in the background,
        here and elsewhere."""
        self.recorder.phase = f"step {step + 1}, {name}"
        called(self.case, call)
        drain()
        self.recorder.end()

    def backward(self, step):
        for batch in self.setup.batches(self.rank, step):
            if batch is not None:
                self.setup.loss(self.model, batch).backward()

    def averaged(self, step):
        """After average_gradients(): are the parameters' gradients gone, and is the
        mean in the shards'?"""
        where, shards = f"{self.where(step)}, after average_gradients()", self.made.shards
        left = {name: p for name, p in self.model.named_parameters() if p.grad is not None}
        for parameter in left.values():
            if all(parameter is not shard for shard in shards):
                parameter.grad = None
        got = self._sum_of_squares([shard.grad for shard in shards if shard.grad is not None])
        want = squares_of_mean(self.expected[step].parts)
        self.before = values(self.model)
        self.facts = {"case": self.case, "has_gradients": self.made.has_gradients, "left": [*left]}
        self.facts |= {"zeros": self.made.has_gradients and got == 0}
        if self.mean:
            return
        if left:
            self.mean = Problem(
                "left", f"{where}: .grad is still there of {', '.join(left)}", self.facts
            )
        elif not self.made.has_gradients:
            self.mean = Problem("no mean", f"{where}: the shard's .grad is None")
        elif not isclose(got, want, rel_tol=1e-9):
            norms = f"has the norm {got**0.5:.10g}, expected {want**0.5:.10g}"
            self.mean = Problem(
                "no mean", f"{where}: the shards' .grad, all ranks' together, {norms}"
            )

    def updated(self, step, **facts):
        """After step(): are the parameters one process's?"""
        where = self.where(step)
        self.value = self._called_wrongly(where) or wrong_parameter(
            where, self.setup, step, self.before, values(self.model), self.expected[step]
        )
        if self.value:
            narrow = any(
                call.dtype.itemsize < self.case.dtype.itemsize for call in self.recorder.calls
            )
            self.value.facts |= (
                self.facts
                | facts
                | {"made": self.made.count, "step": step, "state": self.made.state}
            )
            self.value.facts["narrowed"] = narrow or self.value.fact("narrowed")
        self.made.optimizer.zero_grad()
        self.before = None

    def where(self, step):
        return f"{self.case.name}, step {step + 1}: {self.case.rank(self.rank)}"

    def _called_wrongly(self, where):
        if self.recorder.stray:
            name, ranks = self.recorder.stray
            return Problem(
                "group", f"{where} called {name} on ranks {[*ranks]}, expected those of its group"
            )
        if self.early:
            return Problem(
                "early",
                f"{where} came back from average_gradients() while a reduce_scatter was under way",
            )
        clash = self.recorder.clash
        return clash and Problem("clash", in_words(where, clash), {**clash.facts}, clash.trace)

    def _sum_of_squares(self, tensors):
        """Over all ranks, of all their numbers."""
        total = torch.zeros((), dtype=torch.float64, device=backend.device())
        for tensor in tensors:
            total += tensor.detach().double().square().sum()
        dist.all_reduce(total, group=self.recorder.control)
        return total.item()


def drain():
    """Until the communication thread has nothing to do."""
    collectives.start(lambda: None).wait()


def is_libs(kind, of):
    """Is it, or does it inherit, lib's class of this name?"""
    modules = {"Zero1": (zero1.__name__, zero2.__name__), "Zero2": (zero2.__name__,)}[of]
    return any(c.__module__ in modules for c in getattr(kind, "__mro__", ()))


def built_in(name):
    return Problem("built-in", f"the answer is lib's {name}, or a child of it")


def first(cases, kind, of=lambda case: True):
    """A judge: the first Problem noted as record[kind], in those of `cases` that pass this test."""
    return each(cases, lambda case, rank, record: record.get(kind) if of(case) else None)


# What hints look at.


def value(fits=lambda facts: True):
    return lambda p: p.kind == "value" and fits(p.facts)


def by(factor):
    """Is the gradient right but for this factor, a function of N?"""
    return value(
        lambda f: (
            f["factor"] is not None and isclose(f["factor"], factor(f["world_size"]), rel_tol=1e-9)
        )
    )


def numbers(p):
    return p.kind in (*s.SHAPES, "clash")


def in_case(cases, test):
    """Did it go wrong in a case that passes this test, or as the class was made for one?"""

    def fits(p):
        label = s.failed(p).case.replace(", __init__", "") if s.failed(p) else ""
        case = p.fact("case") or next((case for case in cases if case.name == label), None)
        return case is not None and bool(test(case))

    return fits
