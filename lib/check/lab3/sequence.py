"""Lab 3, section 6: gather_sequence and scatter_sequence, G and S, and sum_gradients.

    G    forward    y = the ranks' tokens side by side            backward    dx_r = sum_s (dy_s, tokens of r)
    S    forward    y_r = sum_s (x_s, tokens of r)                backward    dx_s = the ranks' dy side by side

So there are two things, `joined` and `summed`, and each is one's forward and the other's backward. All that is added or
joined is another on every rank, also the gradients that come in.
"""

from functools import partial

import torch

from lib import backend
from lib.check.framework import Bundle, Claim, Exercise, Problem
from lib.check.lab3 import sum_gradients
from lib.check.lab3.compare import multiples, wrong
from lib.check.lab3.groups import GROUPS, GROUPS_SAY, WORLD, Case, agreed, backward, forward, found, measured
from lib.check.lab3.sequence_hints import GATHER_HINTS, NOT_SUMMED, ONLY_OWN, ORDER, SCATTER_HINTS, VIEWED, WHOLE
from lib.check.lab3.wired import MAY_CALL, Wired, only_calls
from lib.tensor_parallel import sequence

B, PART, D = 2, 3, 5  # T = 3 N tokens
G_CASES = [Case("gather_sequence", members) for members in GROUPS]
S_CASES = [Case("scatter_sequence", members) for members in GROUPS]


def _wholes(N, power):
    """A (B, T, D) for each rank, whole numbers, all different."""
    one = torch.arange(1.0, B * N * PART * D + 1, dtype=torch.float64, device=backend.device()).view(B, N * PART, D)
    return [one**power + 10_000 * r for r in range(N)]


def _joined(N, rank, power):
    """What is given, (B, T/N, D); what comes of it, (B, T, D); what mistakes make of it."""
    whole = _wholes(N, power)[0]
    parts = whole.chunk(N, 1)
    if N == 1:
        return whole, whole, {}
    alone = torch.zeros_like(whole)
    alone.chunk(N, 1)[rank].copy_(parts[rank])
    known = {
        VIEWED: torch.cat(parts).reshape(whole.shape),
        VIEWED + " ": torch.cat([part.transpose(0, 1) for part in parts]).reshape(whole.shape),
        WHOLE: torch.cat(parts),
        ONLY_OWN: alone,
        ORDER: torch.cat(parts[::-1], 1),
        ORDER + " ": torch.stack(parts, 2).reshape(whole.shape),
        ORDER + "  ": torch.cat([parts[(rank + r) % N] for r in range(N)], 1),
        **multiples(whole, N),
    }
    return parts[rank].clone(), whole, known


def _summed(N, rank, power):
    """What is given, (B, T, D), partial; what comes of it, (B, T/N, D); what mistakes make of it."""
    wholes = _wholes(N, power)
    total = sum(wholes)
    if N == 1:
        return wholes[0], total, {}
    mine = total.chunk(N, 1)[rank]
    turned = total.transpose(0, 1)
    known = {
        NOT_SUMMED: wholes[rank].chunk(N, 1)[rank],
        WHOLE: total,
        WHOLE + " ": total.tensor_split(N)[rank],
        VIEWED: total.reshape(turned.shape).chunk(N)[rank].transpose(0, 1),
        VIEWED + " ": total.reshape(turned.shape).chunk(N)[rank].reshape(mine.shape),
        VIEWED + "  ": turned.chunk(N)[rank].reshape(mine.shape),
        ORDER: total.chunk(N, 1)[N - 1 - rank],
        ORDER + " ": total[:, rank::N],
        ORDER + "  ": total.chunk(N, 1)[(rank + 1) % N],
        **multiples(mine, N),
    }
    return wholes[rank], mine, known


def _measure(cases, there, back, fn):
    """there(N, rank, power), back(...) -> what goes in, what comes out, {words: what mistakes make of it}."""

    def one(case, rank, group, wire):
        N, where, given = case.world_size, f"{case.where}: {case.rank(rank)}", Wired(group, wire)
        (x, want, known), (dy, want_dx, known_dx) = there(N, rank, 1), back(N, rank, 2)
        leaf, gradient, touched = x.clone().requires_grad_(), None, None
        y = forward(case, partial(fn, all_gather=given.all_gather, reduce_scatter=given.reduce_scatter), leaf, group)
        value = wrong(f"{where}: y", y, want, known)
        if not torch.equal(leaf.detach(), x):
            touched = Problem("touched", f"{where}: x itself has changed, which the function was given")
        if agreed(value is None, wire):
            given.way = "backward"
            if y.requires_grad:
                backward(case, (y * dy).sum())
            gradient = wrong(f"{where}: x.grad", leaf.grad, want_dx, known_dx)
            if gradient:
                gradient.kind = "gradient"
        return given.record(case, where, value=value, gradient=gradient, touched=touched)

    return measured(cases, one)


def _calls(there, back, N):
    n = {"all_gather": B * PART * D, "reduce_scatter": N * B * PART * D}
    return [(there, "forward", n[there]), (back, "backward", n[back])]


GATHER_SEQUENCE = Exercise(
    name="gather_sequence",
    reference=sequence.gather_sequence,
    measure=partial(_measure, G_CASES, _joined, _summed),
    worlds=(WORLD,),
    may_call=MAY_CALL,
    claims=(
        Claim("all tokens, in rank order", 2, f"{GROUPS_SAY}; 2 sequences", found(G_CASES, "value")),
        Claim("backward sums this rank's", 3, "gradients differ from rank to rank", found(G_CASES, "gradient")),
        Claim("one all-gather, one reduce-scatter", 1, "forward, backward; nothing else",
              only_calls(G_CASES, partial(_calls, "all_gather", "reduce_scatter"))),
        Claim("x left alone", 1, "", found(G_CASES, "touched")),
    ),
    hints=GATHER_HINTS,
)  # fmt: skip
SCATTER_SEQUENCE = Exercise(
    name="scatter_sequence",
    reference=sequence.scatter_sequence,
    measure=partial(_measure, S_CASES, _summed, _joined),
    worlds=(WORLD,),
    may_call=MAY_CALL,
    claims=(
        Claim("the sum, this rank's tokens", 2, f"{GROUPS_SAY}; 2 sequences", found(S_CASES, "value")),
        Claim("backward gathers", 2, "every token's gradient on every rank", found(S_CASES, "gradient")),
        Claim("one reduce-scatter, one all-gather", 1, "forward, backward; nothing else",
              only_calls(S_CASES, partial(_calls, "reduce_scatter", "all_gather"))),
        Claim("x left alone", 1, "", found(S_CASES, "touched")),
    ),
    hints=SCATTER_HINTS,
)  # fmt: skip
EXERCISE = Bundle("sequence", (GATHER_SEQUENCE, SCATTER_SEQUENCE, sum_gradients.EXERCISE))
