"""Lab 3, section 6: sum_gradients(parameters, group, all_reduce), for what every rank used on its own tokens only.

weight (4, 3)   used on every rank          expected    the sum over the ranks
bias (5,)       used on even ranks only                 the sum; None counts as zeros
unused (3,)     used nowhere                            zeros
frozen (2,)     wants no gradient                       None, and nothing is sent
"""

from functools import partial

import torch
from torch import nn

from lib import backend
from lib.check.framework import Claim, Exercise, Hint, Problem
from lib.check.lab0.mistakes import hung
from lib.check.lab3.compare import it_is, multiples, wrong
from lib.check.lab3.groups import GROUPS, GROUPS_SAY, WORLD, Case, forward, found, measured
from lib.check.lab3.wired import CALLS_LIB, MAY_CALL, OTHERWISE, WRONG_GROUP, Wired, only_calls
from lib.tensor_parallel import sequence

SHAPES = {"weight": (4, 3), "frozen": (2,), "bias": (5,), "unused": (3,)}
TRAINED = sum(torch.Size(shape).numel() for name, shape in SHAPES.items() if name != "frozen")
CASES = [Case("sum_gradients", members) for members in GROUPS]
OWN = "this rank's own gradient"


def _gradient(name, rank):
    """Of a rank, before the sum; None where it did not use the parameter."""
    if name in ("frozen", "unused") or (name == "bias" and rank % 2):
        return None
    n = torch.Size(SHAPES[name]).numel()
    return 4**rank * torch.arange(1.0, n + 1, dtype=torch.float64, device=backend.device()).view(SHAPES[name])


def _measure(fn):
    def one(case, rank, group, wire):
        N, where, given = case.world_size, f"{case.where}: {case.rank(rank)}", Wired(group, wire)
        like = {"dtype": torch.float64, "device": backend.device()}
        parameters = {name: nn.Parameter(torch.full(shape, 1.0 + rank, **like)) for name, shape in SHAPES.items()}
        parameters["frozen"].requires_grad_(False)
        for name, p in parameters.items():
            p.grad = _gradient(name, rank)
        forward(case, partial(fn, all_reduce=given.all_reduce), list(parameters.values()), group)
        value = next(filter(None, (_wrong(where, name, p, rank, N) for name, p in parameters.items())), None)
        changed = [name for name, p in parameters.items() if (p != 1.0 + rank).any()]
        touched = Problem("touched", f"{where}: {changed[0]} itself has changed, not its gradient") if changed else None
        if touched and value:
            value = touched
        return given.record(case, where, value=value, touched=touched)

    return measured(CASES, one)


def _wrong(where, name, parameter, rank, N):
    if name == "frozen":
        text = f"{where}: frozen.grad is a tensor, expected None: it is not trained"
        return None if parameter.grad is None else Problem("frozen", text)
    each = [_gradient(name, r) for r in range(N)]
    zeros = torch.zeros_like(parameter).detach()
    want = sum((g for g in each if g is not None), zeros)
    known = {OWN: zeros if each[rank] is None else each[rank], **multiples(want, N), "zeros": zeros} if N > 1 else {}
    problem = wrong(f"{where}: {name}.grad", parameter.grad, want, known)
    if problem:
        problem.facts |= {"none": parameter.grad is None}
    return problem


def _all_reduces(N):
    return [("all_reduce", "forward", TRAINED)]


def _sent(p):
    return [n for _, _, n in p.facts["got"]]


EXERCISE = Exercise(
    name="sum_gradients",
    reference=sequence.sum_gradients,
    measure=_measure,
    worlds=(WORLD,),
    may_call=MAY_CALL,
    claims=(
        Claim("the sum in every .grad", 3, f"{GROUPS_SAY}; unused, frozen ones", found(CASES, "value")),
        Claim("one all-reduce", 1, "of all of them, end to end", only_calls(CASES, _all_reduces)),
        Claim("parameters left alone", 1, "only .grad changes", found(CASES, "touched")),
    ),
    hints=(
        CALLS_LIB,
        WRONG_GROUP,
        Hint("the parameter, not its gradient", lambda p: p.kind == "touched", "sum p.grad; p itself stays."),
        Hint(
            "averaged",
            lambda p: p.kind == "value" and it_is("expected /")(p),
            "this is no mean over ranks. The loss is a mean over all tokens already, and each rank has the share of "
            "its own tokens: the shares add up.",
        ),
        Hint(
            "summed twice",
            lambda p: p.kind == "value" and it_is("x expected")(p),
            "one all-reduce is enough: what is the same on all ranks becomes N times as large.",
        ),
        Hint(
            "nothing written back",
            lambda p: p.kind == "value" and it_is(OWN)(p),
            "the flat tensor is a copy. After the all-reduce each piece must go back: p.grad.copy_(piece.view_as(p)).",
        ),
        Hint(
            "a parameter without gradient",
            lambda p: p.kind == "form" or (p.kind == "raised" and "NoneType" in p.text),
            "where this rank did not use a parameter, p.grad is None. It counts as zeros, and must hold the sum "
            "afterwards: p.grad = torch.zeros_like(p).",
        ),
        Hint(
            "sizes that differ between ranks",
            lambda p: hung(p) or p.kind in ("mismatch", "died"),
            "the ranks must all-reduce tensors of one size. A parameter that this rank did not use keeps its place, "
            "with zeros.",
        ),
        Hint(
            "frozen ones too",
            lambda p: (
                p.kind == "frozen" or (p.kind == "calls" and sum(_sent(p)) == TRAINED + SHAPES["frozen"][0])
            ),
            "a parameter with requires_grad False has no gradient: leave it alone, and do not send it.",
        ),
        Hint(
            "pieces in the wrong places",
            lambda p: p.kind == "value" or (p.kind == "raised" and ("size" in p.text or "shape" in p.text)),
            "write back in the order in which you flattened: each piece begins where the one before it ends, and has "
            "p.numel() elements.",
        ),
        OTHERWISE,
        Hint(
            "one message per parameter",
            lambda p: p.kind == "calls" and len(_sent(p)) > 1,
            "a norm's weight is small, and every message costs its latency: put all gradients end to end, and "
            "all-reduce that once.",
        ),
    ),
)  # fmt: skip
