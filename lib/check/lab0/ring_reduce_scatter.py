"""Lab 0, section 5: ring_reduce_scatter(tensor, group), after which rank r holds
chunk r of the sum."""

from lib.check import symptoms as s
from lib.check.calls import Calls
from lib.check.cases import GROUPS_SAY, SIZES_SAY, WORLD, collective_cases, form_of, part, total
from lib.check.claims import claim, kept, left_alone, values
from lib.check.exercise import Exercise, Hint, Problem
from lib.check.explain import chunk_of_the_sum, read_sum
from lib.check.left_out import BUILT, MAY_BE_A_VIEW
from lib.check.traffic import elements, ring
from lib.collectives.ring import ring_reduce_scatter

CASES = collective_cases()


def _chunk(case, rank):
    """Chunk r of the sum."""
    return total(case.world_size, case.n, case.dtype).tensor_split(case.world_size)[rank]


def _explain(case, rank, got, want, records):
    if type(got) is str:
        return None
    owner = chunk_of_the_sum(case, got)
    if owner not in (None, rank) and got.dtype == want.dtype:
        text = (
            f"{case.name}: {case.rank(rank)} returned chunk {owner} of the sum, expected chunk "
            f"{rank}"
        )
        return Problem("owner", text)
    if got.shape != want.shape or got.dtype != want.dtype:
        text = (
            f"{case.name}: {case.rank(rank)} returned {form_of(got)}, expected chunk {rank}, "
            f"{form_of(want)}"
        )
        return Problem(
            "form", text, {"dtype": got.shape == want.shape, "whole": got.numel() == case.n}
        )
    start = sum(len(_chunk(case, r)) for r in range(rank))
    return Problem("value", *read_sum(case, rank, got, start))


CALLS = Calls(CASES, lambda case, rank: {"tensor": part(rank, case.n, case.dtype)}, _chunk)
EXERCISE = Exercise(
    name="ring_reduce_scatter", reference=ring_reduce_scatter, measure=CALLS, worlds=(WORLD,),
    may_call=s.P2P,
    leaves_out=BUILT | MAY_BE_A_VIEW,
    claims=(
        claim("chunk r of the sum on rank r", 8, f"{GROUPS_SAY}; {SIZES_SAY}",
              values(CALLS, _explain, "its chunk")),
        claim("your own tensor is left alone", 2, "the sums go to buffers of their own",
              left_alone(CASES),
              kept(CASES)),
        claim("elements on the wire", 3, "(N-1)n over all ranks, none padded",
              elements(CASES, lambda N, n: (N - 1) * n, "(N-1)n")),
        claim("only neighbours talk", 3, "N-1 rounds, rank r sends to rank r+1",
              ring(CASES, lambda N: N - 1)),
    ),
    hints=(
        s.BUILT_IN,
        s.RETURNED_NONE,
        s.WHOSE_RANKS,
        s.ALL_SEND_FIRST,
        s.NARROW,
        s.WRONG_DTYPE,
        s.nothing_there(CASES),
        Hint("the whole tensor", s.kind("form", whole=True),
             "return this rank's finished chunk alone, not the tensor that it lies in."),
        Hint("another rank's chunk", s.kind("owner"),
             "the textbook's ring lets rank r begin with chunk r and end with chunk r+1. Here rank "
             "r must end with chunk r, so begin one chunk earlier: in round s = 0, 1, ... send "
             "chunk (r - 1 - s) mod N."),
        Hint("divided by N", s.fact("divided"),
             "reduce-scatter sums. If you want the mean, divide afterwards."),
        Hint("nothing was added", s.fact("own"),
             "add what you received to your own chunk of the same number, and send that sum on in "
             "the next round."),
        Hint("counted twice", s.fact("doubled"),
             "a rank's own chunk is added once, when the partial sum passes by. It is also in what "
             "you start from, or you add it again at the end."),
        s.remainder_hint(CASES),
        Hint("a round too few", s.fact("absent"),
             "N-2 rounds instead of N-1, or the last round's sum not added, or your own chunk is "
             "passed on instead of the partial sum. A chunk must visit all N ranks, which takes "
             "N-1 steps."),
        Hint("chunk numbers out of step", s.kind("value", "mismatch"),
             "the chunk that you add to is not the one that your left neighbour sent. What it "
             "sends in round s is, for you, chunk (r - 2 - s) mod N: write the numbers down for N "
             "= 3."),
        s.NOT_PAIRED,
        Hint("the input as a buffer", s.kind("input"),
             "`chunk += received` writes into the tensor that the chunk is a view of. Add into the "
             "received buffer, or clone first."),
        s.NOT_KEPT,
        s.PADDED,
        Hint("whole tensors in the ring",
             lambda p: p.kind == "elements"
             and p.facts["sent"] >= p.facts["expected"] * p.facts["case"].world_size,
             "a message holds one chunk, n/N elements, not all n."),
        s.OTHER_WAY_ROUND,
        Hint("not a ring", s.kind("neighbours"),
             "sending each chunk straight to its owner gives the same sums, but a ring uses N "
             "links only, each rank's to its right neighbour."),
        *s.ANYWHERE,
    ),
)  # fmt: skip
