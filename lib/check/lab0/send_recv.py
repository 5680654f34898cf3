"""Lab 0, section 4: send_recv(tensor, to, frm, group, out), an exchange that does not deadlock."""

import torch

from lib.check.cases import Case, own
from lib.check.causes import hints
from lib.check.lab0 import by_messages as by
from lib.check.left_out import BUILT
from lib.check.side_by_side import SideBySide
from lib.collectives.p2p import send_recv

WORLD = 5
RIGHT, LEFT, TWO = "to the right neighbour", "to the left neighbour", "two to the right"
REVERSED = "reversed, 0 with N-1"
# name -> a function of (rank, N) that returns (the rank to send to, the rank to receive from); the
# name of a case begins with that of its pattern
PATTERNS = {
    RIGHT: lambda r, n: ((r + 1) % n, (r - 1) % n),
    LEFT: lambda r, n: ((r - 1) % n, (r + 1) % n),
    TWO: lambda r, n: ((r + 2) % n, (r - 2) % n),
    REVERSED: lambda r, n: (n - 1 - r, n - 1 - r),
}
OUT, UNEQUAL = f"{RIGHT}, out given", f"{RIGHT}, chunks of other sizes"
TO_ITSELF = f"{TWO}, out given"  # with two ranks, each sends to itself
WITH_OUT = (OUT, UNEQUAL, TO_ITSELF)
UNWRITTEN = -7  # what `out` holds before the call
SHAPES = {6: (2, 3), 5: (5,), 1: (), 0: (0,)}  # elements -> the tensor's shape
F64, I64 = torch.float64, torch.int64
ALL, SUBGROUP = tuple(range(WORLD)), (1, 3, 4)
CASES = tuple(Case(ranks, n, dtype, what) for ranks, n, dtype, names in (
    ((0, 1), 6, F64, (RIGHT, TWO)), ((0, 1, 2), 6, F64, (RIGHT, LEFT, REVERSED)),
    ((0, 1, 2, 3), 6, F64, PATTERNS), (ALL, 6, F64, PATTERNS), (ALL, 5, I64, (RIGHT,)),
    (ALL, 1, F64, (RIGHT,)), (ALL, 0, F64, (REVERSED,)), (ALL, 5, F64, (OUT, UNEQUAL)),
    ((0, 1), 5, F64, (TO_ITSELF,)),
    # the subgroup comes last, so an answer that is wrong without a group fails in an earlier case
    (SUBGROUP, 6, F64, (RIGHT, REVERSED)), (SUBGROUP, 5, F64, (UNEQUAL,)),
) for what in names)  # fmt: skip


def own_of(rank, case):
    if case.what == UNEQUAL:
        return own(rank, case.n + rank, case.dtype)
    return own(rank, case.n, case.dtype).reshape(SHAPES[case.n])


def peers(rank, case):
    """(to, frm)"""
    pattern = next(name for name in PATTERNS if case.what.startswith(name))
    return PATTERNS[pattern](rank, case.world_size)


def script(make, case, group, show):
    to, frm = peers(show.place, case)
    tensor = show.give("tensor", own_of(show.place, case))
    out = torch.full_like(own_of(frm, case), UNWRITTEN) if case.what in WITH_OUT else None
    by.result(show, "what arrived", by.called(show, make, group, tensor, to, frm, out=out))
    if out is not None:
        show("out", out)


def messages(case, rank):
    to = peers(rank, case)[0]
    return [(to, own_of(rank, case).numel())] if to != rank else []


MEASURE = SideBySide(script, send_recv, CASES, excused=by.EXCUSED)
EXERCISE = MEASURE.exercise(
    ("what arrives is what was sent", 10,
     "2, 3, 4, 5 ranks, a subgroup; neighbours, two away, reversed; out",
     by.told(MEASURE, "what arrived", by.whose), "what arrived", "out"),
    ("one message per rank", 3, "as many elements as the tensor has; none to itself",
     by.messages(CASES, messages)),
    ("your own tensor is left alone", 3, "the result is a new tensor, or out"),
    hints=hints("lab0", "send_recv"), worlds=(WORLD,), may_call=("send", "recv"),
    leaves_out=BUILT | {"alone": "on one rank there is no other; to itself is a case"},
)  # fmt: skip
