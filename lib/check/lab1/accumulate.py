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
from lib.check.framework import Claim, Exercise, Hint, Problem
from lib.check.lab0.cases import called, in_step, number, seen
from lib.check.lab1 import models
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

    return in_step(CASES, lambda cases: dict.fromkeys(cases), one)


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


def _value(fits):
    return lambda p: p.kind == "value" and bool(fits(p.facts))


def _all(share):
    """Fits if each micro-batch's share is this one, a function of k."""
    return _value(lambda f: f["shares"] and not f["local"] and all(c == share(f["k"]) for c in f["shares"]))


def _events(fits):
    return lambda p: p.kind == "events" and fits(p.facts)


def _lost(p):
    """Fits if the loss is a number, but the wrong one."""
    return p.kind == "loss" and isinstance(p.facts["got"], float)


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
    hints=(
        Hint(
            "called what it builds",
            lambda p: p.kind == "built-in",
            "build it from the model's `no_sync` and `average_gradients`.",
        ),
        Hint(
            "not averaged over ranks",
            _value(lambda f: f["absent"] or f["local"]),
            "each rank still has its own gradient: call model.average_gradients() after the last backward.",
        ),
        Hint(
            "not divided by k",
            _all(lambda k: 1),
            "gradients of micro-batches add up. The batch's loss is the mean of theirs: loss / k before backward.",
        ),
        Hint(
            "divided twice",
            _all(lambda k: Fraction(1, k * k)),
            "divide by k once, the loss or the gradient. loss_fn gives the mean over a micro-batch already.",
        ),
        Hint(
            "divided by the number of ranks too",
            _all(lambda k: Fraction(1, k * WORLD)),
            "average_gradients() divides by the number of ranks. Here divide by k, the number of micro-batches, only.",
        ),
        Hint(
            "gradients thrown away",
            _value(lambda f: f["shares"] and not any(f["shares"][:-1]) and f["shares"][-1]),
            "only the last micro-batch is left. backward adds to .grad: no zero_grad between micro-batches.",
        ),
        Hint(
            "a micro-batch is missing",
            _value(lambda f: f["shares"] and not all(f["shares"])),
            "every micro-batch needs its backward, the last one too, and all before average_gradients().",
        ),
        Hint(
            "unequal shares",
            _value(lambda f: True),
            "every micro-batch counts alike, 1/k: average over the ranks once, when all gradients have been added.",
        ),
        Hint(
            "nothing returned",
            lambda p: p.kind == "loss" and p.facts["got"] is None,
            "end with `return` of the mean loss.",
        ),
        Hint(
            "the sum of the losses",
            lambda p: _lost(p) and p.facts["got"] == sum(p.facts["losses"]),
            "that is the sum over micro-batches: divide by k, so that losses can be compared whatever k is.",
        ),
        Hint(
            "the last loss only",
            lambda p: _lost(p) and p.facts["got"] in (p.facts["losses"][-1], p.facts["losses"][-1] / p.facts["k"]),
            "that is the last micro-batch's. Add up the losses of all k.",
        ),
        Hint(
            "another loss",
            lambda p: p.kind == "loss",
            "return one number, the mean of this rank's k losses; nothing has to be sent for it.",
        ),
        Hint(
            "a loss with its graph",
            lambda p: p.kind == "attached",
            "it keeps every micro-batch's graph alive. Add up loss.detach().",
        ),
        Hint(
            "one backward at the end",
            _events(lambda f: f["backward"] + f["backward alone"] < f["k"]),
            "summing losses first keeps the activations of all k micro-batches. Call backward after each forward.",
        ),
        Hint(
            "an average in every micro-batch",
            _events(lambda f: f["average"] > 1),
            "k exchanges instead of one. Call average_gradients() after the loop.",
        ),
        Hint(
            "no_sync for the last one too",
            _events(lambda f: f["backward"] == 0),
            "in no_sync no bucket can leave during backward. The last micro-batch runs outside of it.",
        ),
        Hint(
            "every micro-batch sends",
            _events(lambda f: f["backward"] > 1),
            "a bucket that leaves in an earlier backward misses the gradients still to come: run all micro-batches "
            "but the last, forward and backward, inside `with model.no_sync():`.",
        ),
        Hint(
            "computed twice",
            _events(lambda f: f["forward"] > f["k"]),
            "loss_fn runs the forward pass. Call it once per micro-batch, and keep the loss.",
        ),
    ),
)
