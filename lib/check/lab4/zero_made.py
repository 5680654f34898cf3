"""What became of an answer's optimizer and gradients on one rank: its shard, the state kept for it, what was sent.

What make_optimizer is given is the rank's shard, whatever the answer calls it.
"""

from math import isclose

import torch

from lib.check.framework import Problem
from lib.check.lab0.cases import seen
from lib.check.lab4.zero2_models import make_optimizer, squares_of_mean
from lib.check.lab4.zero_given import CODES

NAMES = {0: "nothing"} | {code: f"{name} of " for name, code in CODES.items()}
MOMENTS = {"SGD": 1, "AdamW": 2}  # numbers of state for each parameter


class Made:
    """make_optimizer, and what came of it: `count` optimizers, the last of which is `optimizer`."""

    def __init__(self, setup):
        self.setup, self.count, self.optimizer = setup, 0, None

    def __call__(self, parameters):
        self.count += 1
        self.optimizer = make_optimizer(self.setup.optimizer, parameters)
        return self.optimizer

    @property
    def shards(self):
        return [p for group in self.optimizer.param_groups for p in group["params"]] if self.optimizer else []

    @property
    def state(self):
        """How many numbers it keeps; a count of steps is none of them."""
        kept = [t for of in self.optimizer.state.values() for t in of.values() if torch.is_tensor(t) and t.dim()]
        return sum(tensor.numel() for tensor in kept)

    @property
    def has_gradients(self):
        return bool(self.shards) and all(shard.grad is not None for shard in self.shards)


def take_left(model, made):
    """The names of the parameters that still have a gradient; afterwards none has, but for what the optimizer steps."""
    left = {name: p for name, p in model.named_parameters() if p.grad is not None}
    for parameter in left.values():
        if all(parameter is not shard for shard in made.shards):
            parameter.grad = None
    return [*left]


def wrong_mean(where, left, made, given, parts):
    """A Problem unless the parameters' gradients are gone, and the mean is in the shards'. On all ranks."""
    got = given.sum_of_squares([shard.grad for shard in made.shards if shard.grad is not None])
    want, where = squares_of_mean(parts), f"{where}, after average_gradients()"
    if left:
        return Problem("left", f"{where}: .grad is still there of {', '.join(left)}")
    if not made.has_gradients:
        return Problem("no mean", f"{where}: the shard's .grad is None")
    if not isclose(got, want, rel_tol=1e-9):
        text = f"{where}: the shards' .grad, all ranks' together, has the norm {got**0.5:g}, expected {want**0.5:g}"
        return Problem("no mean", text)
    return None


def wrong_state(where, made, padded, N):
    """A Problem unless the optimizer has a shard of `padded` elements and its state, and no more."""
    given, want, name = sum(shard.numel() for shard in made.shards), padded // N, made.setup.optimizer
    facts = {"given": given, "whole": given >= made.setup.parameters, "sharded": given == want}
    if given != want:
        text = f"{where}: make_optimizer was given {given} elements, expected a shard: {padded}/{N} = {want}"
        return Problem("kept", text, facts)
    if made.state != MOMENTS[name] * want:
        text = f"{where}: {name} keeps {made.state} elements of state, expected {MOMENTS[name]} x {want}"
        return Problem("kept", text, facts)
    return None


def wrong_calls(where, parts):
    """A Problem if one of `parts`, as `Given.end` returns them, has a call for other ranks, or ranks that differ."""
    for part in parts:
        if part["stray"]:
            name, ranks = part["stray"]
            return Problem("group", f"{where} called {name} on ranks {ranks}, expected those of its group")
        if part["early"]:
            return Problem("early", f"{where} came back from average_gradients() while a reduce_scatter was under way")
        if part["clash"]:
            told = part["clash"][1]
            each = ", ".join(f"rank {rank} {NAMES[code]}{n or ''}" for rank, (code, n) in enumerate(told))
            return Problem("unlike", f"{where}: the ranks' calls differ: {each}", {"told": told})
    return None


def sent_otherwise(run, case, sections, records):
    """A Problem if a rank communicated by something that it was not given. sections: names in the ledger."""
    for section in (name for name in sections if name in run.ledger.marks):
        book = run.ledger.section(section)
        for rank, (member, record) in enumerate(zip(case.members, records, strict=True)):
            stranger = next((e for e in book.of(member) if e.group != record["wire"]), None)
            if stranger is not None:
                called = stranger.via or stranger.op
                text = f"{case.where}: {case.rank(rank)} called {called}, which it was not given"
                return Problem("another way", text, {"called": called})
    return None


def found(cases, kind):
    """The claim that no rank has noted a problem of this kind: the first one's otherwise."""

    def judge(runs):
        for _, _, records in seen(runs, cases):
            if problem := next((record[kind] for record in records if record.get(kind)), None):
                return problem
        return None

    return judge


def listed(calls):
    return "; ".join(f"{name} of {n}" for name, n in calls) or "nothing"


def as_one_process(name, cases, what):
    """The claim that values are those of one process, over those of `cases` that are called one of `what`."""

    def judge(runs):
        for _, case, records in seen(runs, cases):
            if any(record["libs"] for record in records):
                return Problem("built-in", f"the answer is lib's {name}, or a child of it")
            problem = next((record["value"] for record in records if record["value"]), None)
            if problem and case.what in what:
                return problem
        return None

    return judge
