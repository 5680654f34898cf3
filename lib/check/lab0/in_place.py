"""An all-reduce in place: the measurement and the value claim that the ring's and the hierarchical one share."""

import torch
import torch.distributed as dist

from lib import backend
from lib.check.framework import Hint, Problem
from lib.check.lab0.cases import called, in_step, is_a, part, seen, total
from lib.check.lab0.sums import is_own, read_sum, who


def measured(cases, groups_of, call):
    """call(tensor, the case's group or groups) -> what the student's function returns; `tensor` is what counts."""

    def one(case, group):
        rank = case.members.index(dist.get_rank())
        want = total(case.world_size, case.n, case.dtype)
        tensor = part(rank, case.n, case.dtype).to(backend.device())
        returned = called(case, call, tensor, group)
        returned = returned.detach().cpu() if type(returned) is torch.Tensor else None
        out = tensor.cpu()
        return {"ok": is_a(out, want), "out": out, "returned_it": is_a(returned, want)}

    return in_step(cases, groups_of, one)


def sums(cases):
    """The claim: after the call every rank's tensor holds the sum."""

    def judge(runs):
        for _, case, records in seen(runs, cases):
            wrong = [rank for rank, record in enumerate(records) if not record["ok"]]
            if wrong:
                return _what_is_wrong(case, wrong, records[wrong[0]])
        return None

    return judge


def _what_is_wrong(case, wrong, record):
    rank, out = wrong[0], record["out"]
    right = [r for r in range(case.world_size) if r not in wrong]
    if record["returned_it"] and is_own(case, rank, out):
        text = f"{case.name}: {case.rank(rank)} returned the sum, but its tensor still holds what it held before"
        return Problem("in place", text, {"case": case})
    text, facts = read_sum(case, rank, out)
    if right:
        text += f"\nOnly {who(right)} {'has' if len(right) == 1 else 'have'} the sum everywhere."
    want = total(case.world_size, case.n, case.dtype)
    chunks = zip(out.tensor_split(case.world_size), want.tensor_split(case.world_size), strict=True)
    facts["finished"] = [c for c, (got, expected) in enumerate(chunks) if torch.equal(got, expected)]
    return Problem("value", text, {**facts, "right": right})


def value(p, fact):
    """For hints: is it about a wrong sum, and is that said of it?"""
    return p.kind == "value" and bool(p.facts[fact])


IN_PLACE = Hint(
    "not in place",
    lambda p: p.kind == "in place",
    "the caller's tensor must hold the sum: write into it, tensor.copy_(result). `tensor = result` only gives the name "
    "to another tensor.",
)
DIVIDED = Hint(
    "divided by N", lambda p: value(p, "divided"), "all-reduce sums here. Whoever wants the mean divides afterwards."
)
NOTHING_ADDED = Hint(
    "unsummed",
    lambda p: value(p, "own") and not p.facts["finished"],
    "the tensor holds what it held before. Does the sum go to another tensor that is forgotten?",
)
