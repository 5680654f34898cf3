"""Lab 3, section 5: vocab_parallel_embedding(tokens, weight, group, leave).

Rank r has rows r V/N to (r+1) V/N - 1 of the table. Every row is asked for, the first and the last of each rank too,
and two of them twice. The loss is the same on all ranks, as behind g.
"""

import torch

from lib import backend
from lib.check.framework import Claim, Exercise, Problem
from lib.check.lab3.compare import multiples, wrong
from lib.check.lab3.embedding_hints import HINTS, LEAK, MIXED, NOT_SUMMED, OTHER_ROWS
from lib.check.lab3.groups import GROUPS, GROUPS_SAY, WORLD, Case, agreed, backward, forward, found, measured
from lib.check.lab3.wired import MAY_CALL, Wired, only_calls
from lib.tensor_parallel import embedding

V, D = 12, 3
TOKENS = ((3, 0, 7, 11, 6, 2, 8), (5, 9, 1, 7, 10, 4, 0))  # (B, T)
CASES = [Case("vocab_parallel_embedding", members) for members in GROUPS]


def _data():
    """tokens (B, T), the table (V, D) and the output's gradient (B, T, D): whole numbers, no two rows alike."""
    tokens = torch.tensor(TOKENS, device=backend.device())
    table = torch.arange(1.0, V * D + 1, device=tokens.device, dtype=torch.float64).view(V, D) ** 2
    dy = torch.arange(1.0, tokens.numel() * D + 1, device=tokens.device, dtype=torch.float64).view(*tokens.shape, D)
    return tokens, table, dy


def _known(tokens, table, rank, N):
    """What usual mistakes return. {words: (B, T, D)}"""
    if N == 1:
        return {}
    rows, want = V // N, table[tokens]
    parts = [table[r * rows : (r + 1) * rows] for r in range(N)]
    local = [tokens - r * rows for r in range(N)]
    mine = [(row >= 0) & (row < rows) for row in local]
    mixed = {
        "row 0": sum(p[torch.where(m, row, 0)] for p, row, m in zip(parts, local, mine, strict=True)),
        "clamped": sum(p[row.clamp(0, rows - 1)] for p, row in zip(parts, local, strict=True)),
        "modulo": sum(p[tokens % rows] for p in parts),
    }
    return {
        NOT_SUMMED: torch.where(mine[rank][..., None], want, 0),
        **{f"{MIXED} ({how})": y for how, y in mixed.items()},
        f"{OTHER_ROWS} as if the last rank had the first rows": torch.cat(parts[::-1])[tokens],
        f"{OTHER_ROWS} as if token t were row t // N of rank t % N": torch.cat(parts)[
            (tokens % N) * rows + tokens // N
        ],
        **multiples(want, N),
    }


def _measure(fn):
    def one(case, rank, group, wire):
        (tokens, table, dy), N = _data(), case.world_size
        rows, where, given = V // N, f"{case.where}: {case.rank(rank)}", Wired(group, wire)
        weight = table[rank * rows : (rank + 1) * rows].clone().requires_grad_()
        theirs, before = tokens.clone(), weight.detach().clone()
        y = forward(case, fn, theirs, weight, group, given.leave)
        value, gradient, touched = wrong(f"{where}: y", y, table[tokens], _known(tokens, table, rank, N)), None, None
        if value and value.kind == "value":
            off = tokens[(y.detach() != table[tokens]).any(-1)]  # the tokens that are wrong
            value.facts["edge"] = bool((off % rows == 0).all() or (off % rows == rows - 1).all())
        if not (torch.equal(theirs, tokens) and torch.equal(weight.detach(), before)):
            touched = Problem("touched", f"{where}: tokens or weight have changed, which the function was given")
        if agreed(value is None, wire):
            given.way = "backward"
            gradient = _gradient(case, where, y, weight, tokens, dy, rank, N)
        return given.record(case, where, value=value, gradient=gradient, touched=touched)

    return measured(CASES, one)


def _gradient(case, where, y, weight, tokens, dy, rank, N):
    if y.requires_grad:
        backward(case, (y * dy).sum())
    rows, table = V // N, torch.zeros(V, D, dtype=dy.dtype, device=dy.device, requires_grad=True)
    (table[tokens] * dy).sum().backward()
    want = table.grad[rank * rows : (rank + 1) * rows]
    leaked = want.clone()
    leaked[0] += dy.view(-1, D).sum(0) - want.sum(0)
    known = {LEAK: leaked, "zeros": 0 * want, **multiples(want, N)}
    problem = wrong(f"{where}: weight.grad", weight.grad, want, known if N > 1 else {})
    if problem:
        problem.kind = "gradient"
    return problem


EXERCISE = Exercise(
    name="vocab_parallel_embedding",
    reference=embedding.vocab_parallel_embedding,
    measure=_measure,
    worlds=(WORLD,),
    may_call=MAY_CALL,
    claims=(
        Claim("each token's vector", 4, f"{GROUPS_SAY}; each rank's first and last row", found(CASES, "value")),
        Claim("each row's gradient", 2, "of its own tokens, twice for a token that is there twice",
              found(CASES, "gradient")),
        Claim("one g, of (B, T, D)", 1, "backward sends nothing",
              only_calls(CASES, lambda N: [("leave", "forward", 2 * 7 * D)])),
        Claim("tokens and weight left alone", 1, "", found(CASES, "touched")),
    ),
    hints=HINTS,
)  # fmt: skip
