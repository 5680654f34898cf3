"""Lab 0, section 5: ring_all_gather(chunk, group, out), after which every rank holds all chunks, in
rank order."""

import torch

from lib.check import symptoms as s
from lib.check.cases import ALONE, GROUPS_SAY, WORLD, Case, own, owner
from lib.check.causes import of_name
from lib.check.exercise import Exercise
from lib.check.explain import two
from lib.check.lab0 import by_messages as by
from lib.check.left_out import BUILT
from lib.check.shown import claims
from lib.check.side_by_side import SideBySide
from lib.check.traffic import elements, ring, sent
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


def explain(wrong):
    """facts: owners, the rank whose chunk lies in each place."""
    N, got, want = wrong.case.world_size, wrong.got, wrong.want
    element = int((got != want).nonzero()[0])
    x, y = two(want[element], got[element])
    place, source = owner(want[element], N), owner(got[element], N)
    text = (
        f"The chunk of rank {place} was never written there."
        if source is None
        else f"In the place of rank {place}'s chunk is that of rank {source}."
    )
    owners = [owner(chunk[0], N) if len(chunk) else None for chunk in got.tensor_split(N)]
    text = f"{wrong.where}, element {element}: expected {x}, got {y}\n{text}"
    return text, {"owners": owners}


def on_the_wire(runs):
    """A judge: elements, and how many messages a rank sent."""
    found = elements(CASES, lambda N, n: (N - 1) * n, "(N-1)n")(runs)
    if found:
        found.facts["rounds"] = max(len(mine) for mine in sent(runs[0], found.facts["case"]))
    return found


def owners(fits):
    """Is it about whose chunks lie where? Then fits(owners, the rank, N)."""
    return lambda p: (
        p.fact("owners") and fits(p.facts["owners"], p.facts["rank"], p.facts["case"].world_size)
    )


def the_last_everywhere(found, rank, N):
    return N > 2 and {r for i, r in enumerate(found) if i != rank} == {(rank + 1) % N}


MEASURE = SideBySide(script, ring_all_gather, CASES, excused=by.EXCUSED)
EXERCISE = Exercise(
    name="ring_all_gather", reference=ring_all_gather, measure=MEASURE, worlds=(WORLD,),
    may_call=s.P2P, leaves_out=BUILT,
    claims=claims(
        MEASURE,
        ("every chunk, in rank order", 6, f"{GROUPS_SAY}; n = 0 to 1000; with and without out",
         by.told(MEASURE, "the full tensor", explain), "the full tensor", "out",
         "what is returned", *by.PROBES),
        ("elements on the wire", 2, "(N-1)n over all ranks, none padded", on_the_wire),
        ("only neighbours talk", 2, "N-1 rounds, rank r sends to rank r+1",
         ring(CASES, lambda N: N - 1)),
    ),
    hints=by.hints_of(
        "ring_all_gather", CASES, "chunks", "rings",
        one_rank_alone=s.in_case(CASES, lambda case: case.world_size == 1),
        out_not_filled=of_name("out", "what is returned"),
        one_buffer_for_all=owners(the_last_everywhere),
        order_of_arrival=owners(lambda found, rank, N: {*found} == {*range(N)}),
        a_round_too_few=owners(lambda found, rank, N: None in found),
        the_parcel_is_the_input=of_name("arguments"),
        a_round_too_many=lambda p: p.fact("rounds", 0) == getattr(p.fact("case"), "world_size", 1),
    ),
)  # fmt: skip
