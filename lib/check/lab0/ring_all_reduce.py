"""Lab 0, section 5: ring_all_reduce(tensor, group), an in-place all-reduce that consists of a
reduce-scatter and an all-gather."""

from math import ceil

from lib.check import symptoms as s
from lib.check.cases import GROUPS_SAY, SIZES_SAY, WORLD, part
from lib.check.lab0 import by_messages as by
from lib.check.left_out import BUILT, IN_PLACE
from lib.check.side_by_side import SideBySide
from lib.check.traffic import ring
from lib.collectives.ring import ring_all_reduce

CASES = by.SUMS


def script(make, case, group, show):
    tensor = show.give("tensor", part(show.place, case.n, case.dtype))
    by.called(show, make, group, tensor)
    by.result(show, "the sum", tensor)


ALL = (lambda N, n: 2 * (N - 1) * n), "2(N-1)n"
ONE = (lambda N, n: 2 * (N - 1) * ceil(n / N)), "2(N-1) * ceil(n/N)"
MEASURE = SideBySide(script, ring_all_reduce, CASES, excused=by.IN_PLACE)
EXERCISE = MEASURE.exercise(
    ("sum on every rank", 5, f"{GROUPS_SAY}; {SIZES_SAY}",
     by.told(MEASURE, "the sum", by.sum_of_chunks), "the sum", *by.PROBES),
    ("elements on the wire", 3, "2(N-1)n over all ranks, at most 2(N-1)*ceil(n/N) by one",
     by.on_the_wire(CASES, *ALL, *ONE)),
    ("only neighbours talk", 2, "N-1 + N-1 rounds, rank r sends to rank r+1",
     ring(CASES, lambda N: 2 * (N - 1))),
    hints=by.hints_of_a_ring("ring_all_reduce"), worlds=(WORLD,),
    # an answer may use lib's two halves, in case the student's own have not passed yet
    may_call=(*s.P2P, "ring.ring_reduce_scatter", "ring.ring_all_gather"),
    leaves_out=BUILT | IN_PLACE,
)  # fmt: skip
