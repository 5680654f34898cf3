"""Lab 1, section 6: accumulate(model, microbatches, loss_fn), k micro-batches and one exchange of gradients.

The model is a wrapper that notes what happens to it, in order; for k = 3, as it should be:

    forward  backward alone  forward  backward alone  forward  backward  average
             (in no_sync)             (in no_sync)             ^ its buckets leave
"""

import contextlib
from fractions import Fraction

import torch
import torch.distributed as dist
from torch import nn

from lib import backend
from lib.check.framework import Claim, Exercise, Problem
from lib.check.lab0.cases import called, in_step, number, seen
from lib.check.lab1 import models
from lib.check.lab1.accumulate_hints import HINTS
from lib.check.lab1.cases import GROUPS, WORLD, Case
from lib.check.lab1.wire import COLLECTIVES
from lib.data_parallel import accumulate

NAME = "accumulate"
KS = {"1 micro-batch": 1, "2 micro-batches": 2, "4 micro-batches": 4}
CASES = [Case(NAME, GROUPS[0], what) for what in KS]


class Noting(nn.Module):
    """The small model, its gradients averaged over all ranks one by one, and `events`."""

    def __init__(self):
        super().__init__()
        self.module, self.events, self.alone = models.Small(0).to(backend.device()), [], False
        self.module.leave.bias.register_post_accumulate_grad_hook(self._backward_ran)

    def forward(self, *inputs):
        self.events.append("forward")
        return self.module(*inputs)

    def _backward_ran(self, _):
        self.events.append("backward alone" if self.alone else "backward")

    @contextlib.contextmanager
    def no_sync(self):
        before, self.alone = self.alone, True
        try:
            yield
        finally:
            self.alone = before

    def average_gradients(self):
        self.events.append("average")
        for parameter in self.module.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()


def _measure(fn):
    def one(case, _):
        model, rank = Noting(), dist.get_rank()
        shards = [models.shard(rank, i) for i in range(KS[case.what])]
        shards = [(x.to(backend.device()), y.to(backend.device()), with_branch) for x, y, with_branch in shards]
        returned = called(case, fn, model, shards, models.loss_of)
        tensor = isinstance(returned, torch.Tensor)
        record = {
            "gradients": models.gradients(model.module), "events": model.events,
            "loss": float(returned.detach()) if tensor and returned.numel() == 1 else returned,
            "attached": tensor and returned.requires_grad,
        }  # fmt: skip
        return {"ok": True, **record}

    return in_step(CASES, dict.fromkeys, one, wire=dist.new_group())


def _of_micro_batches(k):
    """[the mean over ranks of the gradient of micro-batch i alone, ...] and each rank's own [[{name: gradient}]]."""
    own = [models.of_each_rank([[models.shard(rank, i)] for rank in range(WORLD)]) for i in range(k)]
    return [{name: sum(part[name] for part in parts) / WORLD for name in parts[0]} for parts in own], own


def _gradients(runs):
    for _, case, records in seen(runs, CASES):
        k = KS[case.what]
        means, own = _of_micro_batches(k)
        for rank, record in enumerate(records):
            for name in means[0]:
                want, got = sum(mean[name] for mean in means) / k, record["gradients"][name]
                if got is not None and models.equal(got, want):
                    continue
                facts = {"k": k, "absent": got is None, "shares": None, "local": False}
                text = f"{case.where}: rank {rank}, {name}"
                if got is None:
                    return Problem("value", f"{text}: .grad is None, expected the mean over ranks", facts)
                element = tuple((got != want).nonzero()[0].tolist())
                text += f", element {element[0] if len(element) == 1 else element}: "
                text += f"expected {number(want[element])}, got {number(got[element])}"
                facts["shares"] = _shares(record["gradients"], means)
                if facts["shares"] is None:
                    facts["shares"] = _shares(record["gradients"], [parts[rank] for parts in own])
                    facts["local"] = facts["shares"] is not None
                return Problem("value", f"{text}\n{_say(facts)}", facts)
    return None


def _shares(gradients, parts):
    """[c_i] with gradients = sum_i c_i parts[i], over all parameters together, or None."""
    names = [name for name in parts[0] if gradients[name] is not None]
    flat = lambda named: torch.cat([named[name].flatten() for name in names])
    columns, out = torch.stack([flat(part) for part in parts], 1), flat(gradients)  # (n, k), (n,)
    found = torch.linalg.lstsq(columns, out[:, None]).solution[:, 0]  # (k,)
    if not models.equal(columns @ found, out):
        return None
    return [Fraction(c).limit_denominator(256) for c in found.tolist()]


def _say(facts):
    if facts["shares"] is None:
        return "It is no sum of the micro-batches' gradients."
    whose = "this rank's own gradients" if facts["local"] else "the gradients"
    terms = ", ".join(f"{share} of micro-batch {i}" for i, share in enumerate(facts["shares"]) if share) or "nothing"
    return f"In it are, of {whose}: {terms}; expected {Fraction(1, facts['k'])} of each, averaged over the ranks."


def _loss(runs):
    for _, case, records in seen(runs, CASES):
        k = KS[case.what]
        for rank, record in enumerate(records):
            losses = [models.loss_of(models.Small(0), models.shard(rank, i)).item() for i in range(k)]
            want, got = sum(losses) / k, record["loss"]
            text = f"{case.where}: rank {rank} returned {got}, expected {want}, the mean of {[*losses]}"
            facts = {"k": k, "got": got, "want": want, "losses": losses}
            if not isinstance(got, float) or abs(got - want) > 1e-9 * max(1, abs(want)):
                return Problem("loss", text, facts)
            if record["attached"]:
                return Problem("attached", f"{case.where}: rank {rank} returned a loss that requires grad")
    return None


def _one_exchange(runs):
    for _, case, records in seen(runs, CASES):
        k = KS[case.what]
        for rank, record in enumerate(records):
            events = record["events"]
            expected = ["forward", "backward alone"] * (k - 1) + ["forward", "backward", "average"]
            if events != expected:
                text = f"{case.where}: rank {rank} did {', '.join(events)}; expected {', '.join(expected)}"
                return Problem("events", text, {"k": k, **{e: events.count(e) for e in (*expected, "backward alone")}})
    return None


EXERCISE = Exercise(
    name=NAME,
    reference=accumulate,
    measure=_measure,
    worlds=(WORLD,),
    may_call=(*COLLECTIVES, "accumulate.average_gradients"),
    claims=(
        Claim("gradient of the whole batch", 5, "4 ranks; k = 1, 2, 4 micro-batches", _gradients),
        Claim("the mean loss", 2, "over the rank's micro-batches, detached", _loss),
        Claim("one exchange, whatever k", 3, "no_sync for the first k-1; average_gradients once", _one_exchange),
    ),
    hints=HINTS,
)
