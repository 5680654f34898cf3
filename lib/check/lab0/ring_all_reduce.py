"""Lab 0, section 5: ring_all_reduce(tensor, group), in place, from reduce-scatter and all-gather."""

from math import ceil

from lib.check.framework import Claim, Exercise, Hint
from lib.check.lab0 import mistakes, wire
from lib.check.lab0.cases import CASES, GROUPS_SAY, SIZES_SAY, WORLD, groups_of
from lib.check.lab0.in_place import DIVIDED, IN_PLACE, NOTHING_ADDED, measured, sums, value
from lib.collectives import ring


def _measure(fn):
    return measured(CASES, groups_of, lambda tensor, group: fn(tensor, group) if group else fn(tensor))


def _most(N, n):
    return 2 * (N - 1) * ceil(n / N)


def _elements(runs):
    return wire.elements(runs, CASES, lambda N, n: 2 * (N - 1) * n, "2(N-1)n", _most, "2(N-1) * ceil(n/N)")


def _ring(runs):
    return wire.ring(runs, CASES, lambda N: 2 * (N - 1))


def _whole_tensors(p):
    return p.kind == "elements" and p.facts["sent"] >= p.facts["case"].n * p.facts["case"].world_size


EXERCISE = Exercise(
    name="ring_all_reduce",
    reference=ring.ring_all_reduce,
    measure=_measure,
    worlds=(WORLD,),
    # A notebook may stand on lib's two halves where the student's own are not right yet: use(ring_reduce_scatter).
    may_call=(*mistakes.P2P, "ring.ring_reduce_scatter", "ring.ring_all_gather"),
    claims=(
        Claim("sum on every rank", 5, f"{GROUPS_SAY}; {SIZES_SAY}", sums(CASES)),
        Claim("elements on the wire", 3, "2(N-1)n over all ranks, at most 2(N-1)*ceil(n/N) by one", _elements),
        Claim("only neighbours talk", 2, "N-1 + N-1 rounds, rank r sends to rank r+1", _ring),
    ),
    hints=(
        mistakes.BUILT_IN,
        mistakes.WHOSE_RANKS,
        mistakes.ALL_SEND_FIRST,
        mistakes.WRONG_DTYPE,
        IN_PLACE,
        DIVIDED,
        Hint(
            "the group is not passed on",
            lambda p: p.kind == "raised" and "shape" in p.text and len(mistakes.where(p)[0]) < WORLD,
            "one half cut the tensor for another number of ranks. Give `group` to both, else they work on all ranks.",
        ),
        mistakes.REMAINDER,
        Hint(
            "only one rank has it",
            lambda p: value(p, "right") and len(p.facts["right"]) == 1,
            "one rank has the sum and the others do not: that is a reduce. The second pass brings it to everybody.",
        ),
        Hint(
            "the second pass adds",
            lambda p: value(p, "doubled") or value(p, "factor"),
            "a chunk is counted more than once. The first pass adds what arrives; the second replaces by it.",
        ),
        Hint(
            "the second pass is missing",
            lambda p: p.kind == "value" and len(p.facts["finished"]) == 1 and p.facts["case"].world_size > 1,
            "each rank has one finished chunk, as reduce-scatter leaves it. All-gather takes the finished chunks "
            "round.",
        ),
        NOTHING_ADDED,
        Hint(
            "a round too few",
            lambda p: value(p, "absent"),
            "N-2 rounds of reduce-scatter instead of N-1, or the last round's sum not added.",
        ),
        Hint(
            "chunks in the wrong places",
            lambda p: p.kind in ("value", "mismatch"),
            "after reduce-scatter rank r holds chunk r, and all-gather begins there. Write down for N = 3 which chunk "
            "leaves and which comes in each round.",
        ),
        mistakes.NOT_PAIRED,
        Hint(
            "one rank carries it all",
            lambda p: p.kind == "one rank",
            "a star: everything goes through one rank. In the ring all send alike, about 2n whatever N is.",
        ),
        mistakes.PADDED,
        Hint(
            "whole tensors in the ring",
            _whole_tensors,
            "each message is one chunk of n/N elements. Whole tensors round the ring send N(N-1)n.",
        ),
        Hint(
            "not a ring",
            lambda p: p.kind in ("neighbours", "rounds"),
            "each rank sends to its right neighbour only, one chunk in each of 2(N-1) rounds.",
        ),
    ),
)
