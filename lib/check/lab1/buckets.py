"""Lab 1, section 4: plan_buckets(parameters, capacity) and reduce_bucket(parameters, group, all_reduce)."""

from functools import partial

import torch
from torch import nn

from lib.check.framework import Bundle, Claim, Exercise, Hint, Problem
from lib.check.lab0.cases import name_of, seen
from lib.check.lab0.mistakes import hung
from lib.check.lab1 import averaging, plan_buckets
from lib.check.lab1.cases import GROUPS, GROUPS_SAY, WORLD, Case
from lib.check.lab1.models import Small
from lib.check.lab1.wire import COLLECTIVES
from lib.data_parallel import bucketed

CASES = [Case("reduce_bucket", members) for members in GROUPS]
ODD = "leave.weight"  # a parameter whose elements do not lie in memory in their order


def _model():
    model = Small()
    model.leave.weight = nn.Parameter(model.leave.weight.detach().T.contiguous().T)
    return model


def _bucket(model):
    return [p for p in model.parameters() if p.requires_grad][::-1]


def _one_flat_tensor(runs):
    n, dtype = sum(p.numel() for p in _bucket(Small())), torch.float64
    for run, case, records in seen(runs, CASES):
        problem = averaging.another_way(run, case)
        if problem:
            return problem
        for rank, record in enumerate(records):
            where, calls = f"{case.where}: {case.rank(rank)}", record["calls"]
            if len(calls) != 1:
                return Problem("calls", f"{where} called all_reduce {len(calls)} times, expected once")
            ((shape, got),) = calls
            if got != dtype or tuple(shape) != (n,):
                words = f"all-reduced {name_of(got)} {tuple(shape)}, expected {name_of(dtype)} ({n},)"
                return Problem("flat", f"{where} {words}, the bucket's elements end to end")
    return None


REDUCE_BUCKET = Exercise(
    name="reduce_bucket",
    reference=bucketed.reduce_bucket,
    measure=partial(averaging.measured, CASES, _model, _bucket),
    worlds=(WORLD,),
    may_call=(averaging.GIVEN, *COLLECTIVES),
    claims=(
        Claim("the mean in every .grad", 6, f"{GROUPS_SAY}; unused, not contiguous ones", averaging.means(CASES)),
        Claim("one all-reduce per bucket", 3, "of one flat tensor of exactly n elements", _one_flat_tensor),
        Claim("parameters left alone", 1, "only .grad changes", averaging.untouched(CASES)),
    ),
    hints=(
        *averaging.MISTAKES,
        averaging.RETURNED_NOTHING,
        Hint(
            "a copy of a gradient that is not contiguous",
            lambda p: (
                (averaging.value(p, lambda f: f["own"] and f["name"] == ODD))
                or (p.kind == "raised" and "view size is not compatible" in p.text)
            ),
            "a transposed gradient has no flat view: .view fails, and .reshape(-1) or .flatten() is a copy, so that "
            "what is written there is lost. Write back with p.grad.copy_(piece.view_as(p.grad)).",
        ),
        Hint(
            "never written back",
            lambda p: averaging.value(p, lambda f: f["own"]),
            "the flat tensor is a copy: after the all-reduce each piece must be copied back, p.grad.copy_(piece).",
        ),
        averaging.NO_GRADIENT,
        Hint(
            "sizes that differ between ranks",
            lambda p: hung(p) or p.kind in ("mismatch", "died"),
            "the flat tensor must have the same size on every rank. A parameter whose p.grad is None keeps its place, "
            "with zeros.",
        ),
        Hint(
            "pieces in the wrong places",
            lambda p: p.kind == "value" or (p.kind == "raised" and "size" in p.text),
            "write back in the order in which you flattened: each parameter's piece begins where the one before it "
            "ends, and has p.numel() elements.",
        ),
        averaging.ANOTHER_WAY,
        Hint(
            "one message per parameter",
            lambda p: p.kind == "calls",
            "that is the naive way: put all gradients into one flat tensor, and all-reduce that.",
        ),
        Hint(
            "another flat tensor",
            lambda p: p.kind == "flat",
            "end to end, without padding, in the gradients' dtype: torch.cat([g.reshape(-1) for g in gradients]).",
        ),
    ),
)
EXERCISE = Bundle("buckets", (plan_buckets.EXERCISE, REDUCE_BUCKET))
