"""exchange_rows(rows, send_counts, receive_counts, group, all_to_all) on ranks: rows, gradients, and what is sent.

    rank i's row k for rank j     100 i + 10 j + k, and 1000 more in each further column
    its gradient                  10000 more than the row, whoever has it

So every number that is not in its place says from where it is, to where it should have gone, and which row it is of.
"A second exchange" sends the rows home again before backward begins: two exchanges are under way, with other counts.
"""

from functools import partial

import torch

from lib import backend
from lib.check.framework import Claim, Exercise, Problem
from lib.check.lab1.cases import WORLD, Case
from lib.check.lab3.groups import GROUPS, GROUPS_SAY, agreed, measured
from lib.check.lab5.ep_exchange_hints import HINTS
from lib.check.lab5.ep_given import MAY_CALL, Given, attempted, found, only_these
from lib.check.lab5.here import Told, first_wrong
from lib.moe import exchange as libs

D = 3
NAME, HOME = "exchange_rows", "a second exchange, home"
EVERYWHERE = tuple(range(WORLD))
# rows from rank i to rank j, where the group has so many ranks
UNEVEN = [[2, 3, 1, 2], [1, 4, 2, 0], [0, 0, 0, 0], [5, 1, 0, 3]]
COUNTS = {
    "": UNEVEN,
    "all to rank 0": [[3, 0, 0, 0], [2, 0, 0, 0], [1, 0, 0, 0], [4, 0, 0, 0]],
    HOME: UNEVEN,
    "no rows": [[0] * WORLD] * WORLD,
}
CASES = [
    *(Case(NAME, members) for members in GROUPS),
    *(Case(NAME, EVERYWHERE, what) for what in COUNTS if what),
]  # fmt: skip


def _rows(case, pairs):
    """The rows of the (sender, receiver) pairs, end to end: (rows, D)."""
    firsts = [100.0 * i + 10 * j + k for i, j in pairs for k in range(COUNTS[case.what][i][j])]
    firsts = torch.tensor(firsts, dtype=torch.float64, device=backend.device())
    return firsts[:, None] + 1000 * torch.arange(D, device=backend.device())


def _measure(fn):
    return measured(CASES, partial(_one, fn))


def _one(fn, case, rank, group, wire):
    where, given, ranks = f"{case.where}: {case.rank(rank)}", Given(group, wire), range(case.world_size)
    record = {"calls": given.calls, "wire": wire.group_name, "gradient": None, "touched": None}
    sent, received = _rows(case, [(rank, j) for j in ranks]), _rows(case, [(i, rank) for i in ranks])
    send = [COUNTS[case.what][rank][j] for j in ranks]
    receive = [COUNTS[case.what][i][rank] for i in ranks]
    leaf, there, home = sent.clone().requires_grad_(), ([*send], [*receive]), ([*receive], [*send])

    def exchange():
        y = fn(leaf, *there, group, given.all_to_all)
        return fn(y, *home, group, given.all_to_all) if case.what == HOME else y

    y, problem = attempted(case, "forward", where, given, exchange)
    want = sent if case.what == HOME else received
    known = lambda: _known_rows(case, rank, sent)
    out = y.detach() if torch.is_tensor(y) else y
    record["value"] = problem or first_wrong([Told(where, "what arrived", out, want, known)])
    if problem is None and (there != (send, receive) or not torch.equal(leaf.detach(), sent)):
        record["touched"] = Problem("touched", f"{where}: rows or a list of counts has changed, which were given")
    right = agreed(record["value"] is None, wire)
    if right and not y.requires_grad:
        record["gradient"] = Problem("no graph", f"{where}: what arrived has no gradient: autograd knows no way back")
    if right and agreed(record["gradient"] is None, wire):
        loss = (y * (want + 10000)).sum()
        _, problem = attempted(case, "backward", where, given, loss.backward)
        known = lambda: _known_gradients(case, sent, want + 10000)
        told = Told(where, "the gradient of rows", leaf.grad, sent + 10000, known)
        record["gradient"] = problem or first_wrong([told])
        if record["gradient"]:
            record["gradient"].facts |= {"way": "backward", "calls": len(given.calls["backward"])}
    record["ok"] = record["value"] is None and record["gradient"] is None
    return record


def _known_rows(case, rank, sent):
    ranks = range(case.world_size)
    return [
        ("what this rank sent", sent),
        ("the rows in another order", _rows(case, [(i, rank) for i in reversed(ranks)])),
        ("the rows in another order", _rows(case, sorted([(i, rank) for i in ranks], key=lambda p: p[0] != rank))),
        ("without this rank's own", _rows(case, [(i, rank) for i in ranks if i != rank])),
    ]


def _known_gradients(case, sent, dy):
    N = case.world_size
    return [
        ("zeros", 0 * sent),
        ("dy, as it came", dy),
        ("divided by the number of ranks", (sent + 10000) / N),
        ("multiplied by the number of ranks", (sent + 10000) * N),
    ]


def _elements(case, rank):
    """Those that leave the rank, forward and backward."""
    counts, others = COUNTS[case.what], [r for r in range(case.world_size) if r != rank]
    there, back = (D * sum(rows) for rows in ([counts[rank][j] for j in others], [counts[i][rank] for i in others]))
    if case.what == HOME:
        there = back = there + back
    return {"forward": (0, there), "backward": (0, back)}


EXCHANGE_ROWS = Exercise(
    name=NAME,
    reference=libs.exchange_rows,
    measure=_measure,
    worlds=(WORLD,),
    may_call=MAY_CALL,
    claims=(
        Claim("rows to their ranks", 3, f"{GROUPS_SAY}; uneven, none", found(CASES, "value")),
        Claim("gradients the same way back", 4, "also through two exchanges", found(CASES, "gradient")),
        Claim("each row once, each way", 2, "elements, by the all_to_all it was given", only_these(CASES, _elements)),
        Claim("rows and counts left alone", 1, "", found(CASES, "touched")),
    ),
    hints=HINTS,
)
