"""Lab 0, section 5: ring_reduce_scatter(tensor, group), after which rank r holds chunk r of the
sum."""

from lib.check import symptoms as s
from lib.check.cases import GROUPS_SAY, SIZES_SAY, WORLD, part
from lib.check.explain import chunk_of_the_sum, read_sum
from lib.check.lab0 import by_messages as by
from lib.check.left_out import BUILT
from lib.check.side_by_side import SideBySide
from lib.check.traffic import ring
from lib.collectives.ring import ring_reduce_scatter

CASES = by.SUMS


def script(make, case, group, show):
    tensor = show.give("tensor", part(show.place, case.n, case.dtype))
    by.result(show, "the chunk", by.called(show, make, group, tensor))


def explain(case, rank, got, want):
    """For `told`: explains a wrong chunk. facts: "another chunk" if it is the finished chunk of
    another rank, else those of read_sum."""
    owner = chunk_of_the_sum(case, got)
    if owner is not None:
        text = f"returned chunk {owner} of the sum, expected chunk {rank}"
        return f"{case.name}: {case.rank(rank)} {text}", {"another chunk": True}
    chunks = part(0, case.n, case.dtype).tensor_split(case.world_size)
    return read_sum(case, rank, got, sum(map(len, chunks[:rank])))


MEASURE = SideBySide(script, ring_reduce_scatter, CASES, excused=by.EXCUSED)
EXERCISE = MEASURE.exercise(
    ("chunk r of the sum on rank r", 8, f"{GROUPS_SAY}; {SIZES_SAY}",
     by.told(MEASURE, "the chunk", explain), "the chunk"),
    ("your own tensor is left alone", 2, "the sums go to buffers of their own", *by.PROBES),
    ("elements on the wire", 3, "(N-1)n over all ranks, none padded",
     by.on_the_wire(CASES, lambda N, n: (N - 1) * n, "(N-1)n")),
    ("only neighbours talk", 3, "N-1 rounds, rank r sends to rank r+1",
     ring(CASES, lambda N: N - 1)),
    hints=by.hints_of_a_ring("ring_reduce_scatter"), worlds=(WORLD,), may_call=s.P2P,
    leaves_out=BUILT,
)  # fmt: skip
