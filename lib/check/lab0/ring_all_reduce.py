"""Lab 0, section 5: ring_all_reduce(tensor, group), in place, from reduce-scatter
and all-gather."""

from math import ceil

from lib.check import symptoms as s
from lib.check.calls import Calls
from lib.check.cases import GROUPS_SAY, SIZES_SAY, WORLD, collective_cases, part, total
from lib.check.claims import claim, kept, values
from lib.check.exercise import Exercise, Hint
from lib.check.explain import in_place_sum
from lib.check.left_out import BUILT, IN_PLACE
from lib.check.traffic import elements, ring
from lib.collectives.ring import ring_all_reduce

CASES = collective_cases()
CALLS = Calls(
    CASES,
    give=lambda case, rank: {"tensor": part(rank, case.n, case.dtype)},
    want=lambda case, rank: total(case.world_size, case.n, case.dtype),
    into="tensor",
)


def _most(N, n):
    return 2 * (N - 1) * ceil(n / N)


EXERCISE = Exercise(
    name="ring_all_reduce",
    reference=ring_all_reduce,
    measure=CALLS,
    worlds=(WORLD,),
    # A notebook may stand on lib's two halves where the student's own are not right yet:
    # use(ring_reduce_scatter).
    may_call=(*s.P2P, "ring.ring_reduce_scatter", "ring.ring_all_gather"),
    leaves_out=BUILT | IN_PLACE,
    claims=(
        claim("sum on every rank", 5, f"{GROUPS_SAY}; {SIZES_SAY}", values(CALLS, in_place_sum),
              kept(CASES)),
        claim("elements on the wire", 3, "2(N-1)n over all ranks, at most 2(N-1)*ceil(n/N) by one",
              elements(CASES, lambda N, n: 2 * (N - 1) * n, "2(N-1)n", _most,
                       "2(N-1) * ceil(n/N)")),
        claim("only neighbours talk", 2, "N-1 + N-1 rounds, rank r sends to rank r+1",
              ring(CASES, lambda N: 2 * (N - 1))),
    ),
    hints=(
        s.BUILT_IN, s.WHOSE_RANKS, s.ALL_SEND_FIRST, s.NARROW, s.WRONG_DTYPE, s.IN_PLACE, s.DIVIDED,
        Hint("the group is not passed on", s.both(s.refused("shape"),
            lambda p: len(s.members(p)) < WORLD),
             "one half cut the tensor for another number of ranks. Give `group` to both, else they "
             "work on all ranks."),
        s.nothing_there(CASES), s.remainder_hint(CASES),
        Hint("only one rank has it", lambda p: p.kind == "value" and len(p.facts["right"]) == 1,
             "one rank has the sum and the others do not: that is a reduce. The second pass "
             "copies it to every rank."),
        Hint("the second pass adds", s.either(s.fact("doubled"), s.fact("factor")),
             "a chunk is counted more than once. The first pass adds what arrives; the second "
             "replaces by it."),
        Hint("the second pass is missing",
             lambda p: p.kind == "value" and len(p.facts["finished"]) == 1,
             "each rank has one finished chunk, as reduce-scatter leaves it. All-gather takes the "
             "finished chunks round."),
        s.NOTHING_ADDED,
        Hint("a round too few", s.fact("absent"),
             "N-2 rounds of reduce-scatter instead of N-1, or the last round's sum not added."),
        Hint("chunks in the wrong places", s.kind("value", "mismatch"),
             "after reduce-scatter rank r holds chunk r, and all-gather begins there. Write down "
             "for N = 3 which chunk leaves and which comes in each round."),
        s.NOT_PAIRED,
        Hint("one rank carries it all", s.kind("one rank"),
             "a star: everything goes through one rank. In the ring all send alike, about 2n "
             "whatever N is."),
        s.PADDED,
        Hint("whole tensors in the ring",
             lambda p: p.kind == "elements"
             and p.facts["sent"] >= p.facts["case"].n * p.facts["case"].world_size,
             "each message is one chunk of n/N elements. Whole tensors round the ring send "
             "N(N-1)n."),
        s.OTHER_WAY_ROUND,
        Hint("not a ring", s.kind("neighbours", "rounds"),
             "each rank sends to its right neighbour only, one chunk in each of 2(N-1) rounds."),
        s.NOT_KEPT, *s.ANYWHERE,
    ),
)  # fmt: skip
