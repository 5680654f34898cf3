"""Lab 0, section 5: ring_all_gather(chunk, group, out), after which every rank holds all chunks, in
rank order."""

import torch

from lib.check import symptoms as s
from lib.check.cases import ALONE, GROUPS_SAY, WORLD, Case, own
from lib.check.lab0 import by_messages as by
from lib.check.left_out import BUILT
from lib.check.side_by_side import SideBySide
from lib.check.traffic import ring
from lib.collectives.ring import ring_all_gather

NO_OUT, WITH_OUT = "no out", "out given"
UNWRITTEN = -7  # what `out` holds before the call
F64, I64 = torch.float64, torch.int64
CASES = by.cases_of(
    lambda N: [(2 * N, F64, NO_OUT), (2 * N, F64, WITH_OUT), (7, F64, WITH_OUT)][:: 1 + (N > 2)],
    *(Case(by.FOUR, n, dtype, what) for n, dtype, what in (
        (12, I64, NO_OUT), (1, F64, WITH_OUT), (1000, F64, WITH_OUT), (0, F64, WITH_OUT),
    )),
    Case(ALONE, 3, F64, NO_OUT), Case(ALONE, 3, F64, WITH_OUT),
)  # fmt: skip


def script(make, case, group, show):
    rank, out = show.place, None
    sizes = [len(chunk) for chunk in torch.zeros(case.n).tensor_split(case.world_size)]
    chunk = show.give("chunk", own(rank, sizes[rank], case.dtype))
    if case.what == WITH_OUT:
        out = torch.full((case.n,), UNWRITTEN, dtype=case.dtype)
    y = by.called(show, make, group, chunk, out=out)
    by.result(show, "the full tensor", y)
    if out is not None:
        show("out", out)
        show("what is returned", "" if y is out else "returned another tensor, expected `out`")


MEASURE = SideBySide(script, ring_all_gather, CASES, excused=by.EXCUSED)
EXERCISE = MEASURE.exercise(
    ("every chunk, in rank order", 6, f"{GROUPS_SAY}; n = 0 to 1000; with and without out",
     by.told(MEASURE, "the full tensor", by.whose), "the full tensor", "out",
     "what is returned", *by.PROBES),
    ("elements on the wire", 2, "(N-1)n over all ranks, none padded",
     by.on_the_wire(CASES, lambda N, n: (N - 1) * n, "(N-1)n")),
    ("only neighbours talk", 2, "N-1 rounds, rank r sends to rank r+1",
     ring(CASES, lambda N: N - 1)),
    hints=by.hints_of_a_ring("ring_all_gather"), worlds=(WORLD,), may_call=s.P2P, leaves_out=BUILT,
)  # fmt: skip
