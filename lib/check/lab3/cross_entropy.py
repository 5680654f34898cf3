"""Lab 3, section 5: vocab_parallel_cross_entropy(logits, targets, group, all_reduce).

Two sorts of logits. Plain ones are small, so that the loss is right without taking off the largest, too. Of the large
ones a token has its own range: exp(1000) is inf, exp(-1000) is 0, and where the ranks' parts lie far from each other
only the largest of all keeps both away.

    token   0            1              2                                 3
            about 1000   about -1000    one rank 1000, the others -1000   -1000 to 1000
"""

from functools import partial

import torch
import torch.nn.functional as F

from lib import backend
from lib.check.framework import Claim, Exercise, Problem
from lib.check.lab0.cases import seen
from lib.check.lab3.compare import wrong
from lib.check.lab3.cross_entropy_hints import HINTS
from lib.check.lab3.cross_entropy_known import gradients, losses
from lib.check.lab3.groups import GROUPS, GROUPS_SAY, WORLD, Case, agreed, backward, draw, forward, found, measured
from lib.check.lab3.wired import MAY_CALL, Wired, sent_otherwise
from lib.tensor_parallel import loss

V, B, T = 12, 2, 6
PLAIN = [Case("vocab_parallel_cross_entropy", members) for members in GROUPS]
LARGE = [Case("vocab_parallel_cross_entropy", members, "large logits") for members in GROUPS[:3]]
CASES = PLAIN + LARGE
GRAD = 0.5  # what reaches the loss from above


def _data(case):
    """logits (B, T, V) and targets (B, T), every word of the vocabulary once."""
    N, logits = case.world_size, draw(3, B, T, V)
    if case in LARGE:
        near, far, half = 1000.0, -1000.0, logits.view(B * T, V)
        half[0::4] += near
        half[1::4] += far
        one_rank = half[2::4].view(-1, N, V // N)
        one_rank += far
        for token in range(len(one_rank)):
            one_rank[token, token % N] += near - far
        half[3::4] *= 1000.0 / half[3::4].abs().max()
    targets = torch.tensor([7, 0, 5, 11, 3, 8, 6, 2, 9, 1, 10, 4], device=backend.device()).view(B, T)
    return logits, targets


def _measure(fn):
    def one(case, rank, group, wire):
        (whole, targets), N = _data(case), case.world_size
        where, given = f"{case.where}: {case.rank(rank)}", Wired(group, wire)
        whole.requires_grad_()
        want = F.cross_entropy(whole.view(B * T, V), targets.view(-1))
        (GRAD * want).backward()
        logits = whole.detach().chunk(N, -1)[rank].clone().requires_grad_()
        theirs, before = targets.clone(), logits.detach().clone()
        got = forward(case, partial(fn, all_reduce=given.all_reduce), logits, theirs, group)
        z = whole.detach()
        known = losses(z, targets, rank, N) if case in PLAIN else {}
        value, gradient, touched = wrong(f"{where}: the loss", got, want.detach(), known), None, None
        if value:
            value.facts["large"] = case in LARGE
            value.facts["max"] = [call[3] for call in given.calls].count("max")
            value.facts["calls"] = len(given.calls)
        if not (torch.equal(theirs, targets) and torch.equal(logits.detach(), before)):
            touched = Problem("touched", f"{where}: logits or targets have changed, which the function was given")
        if agreed(value is None, wire):
            given.way = "backward"
            if got.requires_grad:
                backward(case, GRAD * got)
            known = gradients(z, targets, rank, N, GRAD)
            gradient = wrong(f"{where}: logits.grad", logits.grad, whole.grad.chunk(N, -1)[rank], known)
            if gradient:
                gradient.kind = "gradient"
        return given.record(case, where, value=value, gradient=gradient, touched=touched)

    return measured(CASES, one)


def _at_most_three_numbers_per_token(runs):
    for run, case, records in seen(runs, CASES):
        if problem := sent_otherwise(run, case, records):
            return problem
        for rank, record in enumerate(records):
            back = [call for call in record["calls"] if call[1] == "backward"]
            where = f"{case.where}: {case.rank(rank)}"
            if back:
                n = sum(call[2] for call in back)
                return Problem("backward", f"{where} all-reduced {n} elements in backward, expected nothing")
            n = sum(call[2] for call in record["calls"])
            if n > 3 * B * T:
                text = f"{where} all-reduced {n} elements, expected at most 3 BT = {3 * B * T}: three numbers per token"
                return Problem("elements", text, {"whole": n >= B * T * V})
    return None


EXERCISE = Exercise(
    name="vocab_parallel_cross_entropy",
    reference=loss.vocab_parallel_cross_entropy,
    measure=_measure,
    worlds=(WORLD,),
    may_call=MAY_CALL,
    claims=(
        Claim("the mean of -log p(target)", 5, f"{GROUPS_SAY}; every target", found(PLAIN, "value")),
        Claim("large logits", 3, "near 1000, near -1000, and far apart", found(CASES, "value")),
        Claim("the gradient of the logits", 3, "p, less 1 at the target, over BT", found(CASES, "gradient")),
        Claim("three numbers per token", 2, "whatever V is; backward nothing", _at_most_three_numbers_per_token),
        Claim("logits and targets left alone", 1, "", found(CASES, "touched")),
    ),
    hints=HINTS,
)
