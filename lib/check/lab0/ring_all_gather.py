"""Lab 0, section 5: ring_all_gather(chunk, group, out), after which every rank holds all
chunks, in rank order."""

from dataclasses import replace

import torch

from lib.check import symptoms as s
from lib.check.calls import Calls
from lib.check.cases import ALONE, GROUPS, GROUPS_SAY, WORLD, Case, own, owner
from lib.check.claims import claim, each, kept, left_alone, new, values
from lib.check.exercise import Exercise, Hint, Problem
from lib.check.explain import narrowed, rounded_words, two
from lib.check.left_out import BUILT
from lib.check.traffic import elements, ring, sent
from lib.collectives.ring import ring_all_gather

UNWRITTEN = -7  # what `out` holds before the call
NO_OUT, WITH_OUT = "no out", "out given"
F32, F64, I64 = torch.float32, torch.float64, torch.int64
CASES = tuple(
    Case(members, n, dtype, what)
    for members in GROUPS
    for n, dtype, what in (
        (2 * len(members), F32, NO_OUT), (3 * len(members), I64, NO_OUT),
        (2 * len(members), F32, WITH_OUT),
        (7, F32, WITH_OUT), (1, F32, WITH_OUT), (1000, F64, WITH_OUT),
    )
) + (
    Case(ALONE, 3, F64, NO_OUT), Case(ALONE, 3, F32, WITH_OUT), Case(GROUPS[2], 0, F32, WITH_OUT),
)  # fmt: skip
CASES += (replace(CASES[0], again=1),)


def _whole(case, rank=None):
    """All ranks' chunks. (n,)"""
    sizes = [len(chunk) for chunk in torch.zeros(case.n).tensor_split(case.world_size)]
    return torch.cat([own(r, size, case.dtype) for r, size in enumerate(sizes)])


def _give(case, rank):
    out = torch.full((case.n,), UNWRITTEN, dtype=case.dtype) if case.what == WITH_OUT else None
    return {"chunk": _whole(case).tensor_split(case.world_size)[rank], "out": out}


def _explain(case, rank, got, want, records):
    """facts: owners, whose chunk lies in each place."""
    if type(got) is str or got.shape != want.shape or got.dtype != want.dtype:
        return None
    where = f"{case.name}: {case.rank(rank)}"
    if torch.equal(got, want):
        return Problem("out", f"{where} returned the whole, but `out` does not hold it")
    element = int((got != want).nonzero()[0])
    place, source = (owner(t[element], case.world_size) for t in (want, got))
    owners = [
        owner(c[0], case.world_size) if len(c) else None for c in got.tensor_split(case.world_size)
    ]
    facts = {"owners": owners, "narrowed": narrowed(got, want)}
    x, y = two(want[element], got[element])
    line = f"{where}, element {element}: expected {x}"
    if facts["narrowed"]:
        return Problem("value", f"{line}, got {y}\n{rounded_words(case.dtype)}", facts)
    if source is None:
        return Problem(
            "value",
            f"{line}, got what no rank sent\nRank {place}'s chunk was never written there.",
            facts,
        )
    text = f"{line}, got {y}\nIn the place of rank {place}'s chunk lies rank {source}'s."
    return Problem("value", text, facts)


def _returns_out(case, rank, record):
    if case.what == NO_OUT or (type(record["returned"]) is str and record["returned"] == "it"):
        return None
    text = f"{case.name}: {case.rank(rank)} returned another tensor, expected `out` itself"
    return Problem("out", text, {"case": case})


def _owners(fits):
    """Is it about whose chunks lie where? Then fits(owners, the rank, N)."""
    return lambda p: (
        p.kind == "value" and fits(p.facts["owners"], p.facts["rank"], p.facts["case"].world_size)
    )


def _elements(runs):
    found = elements(CASES, lambda N, n: (N - 1) * n, "(N-1)n")(runs)
    if found:  # how many messages a rank sent, too
        found.facts["rounds"] = max(len(mine) for mine in sent(runs[0], found.facts["case"]))
    return found


def _one_more_round(p):
    return (
        p.kind == "elements"
        and p.facts["rounds"] == p.facts["case"].world_size
        and p.facts["sent"] == (p.facts["case"].world_size * p.facts["case"].n)
    )


CALLS = Calls(CASES, _give, _whole, fills="out", by_name=("out",))
EXERCISE = Exercise(
    name="ring_all_gather", reference=ring_all_gather, measure=CALLS, worlds=(WORLD,),
    may_call=s.P2P, leaves_out=BUILT,
    claims=(
        claim("every chunk, in rank order", 6, f"{GROUPS_SAY}; n = 0 to 1000; with and without out",
              values(CALLS, _explain, "the whole"), left_alone(CASES, "chunk"),
              each(CASES, _returns_out), new(CASES),
              kept(CASES)),
        claim("elements on the wire", 2, "(N-1)n over all ranks, none padded",
              _elements),
        claim("only neighbours talk", 2, "N-1 rounds, rank r sends to rank r+1",
              ring(CASES, lambda N: N - 1)),
    ),
    hints=(
        s.BUILT_IN, s.RETURNED_NONE, s.WHOSE_RANKS, s.ALL_SEND_FIRST, s.NARROW, s.WRONG_DTYPE,
        s.nothing_there(CASES),
        Hint("out not filled", s.kind("out"),
             "when `out` is given, the chunks belong in it; return `out` itself. Only for out=None "
             "make a new tensor."),
        Hint("one buffer for all",
             _owners(lambda o, r, n: n > 2 and {x for i,
                 x in enumerate(o) if i != r} == {(r + 1) % n}),
             "in all the others' places lies the chunk that came last: you receive into one buffer "
             "again and again and keep references to it. Receive each chunk into its own place in "
             "`out`."),
        Hint("order of arrival", _owners(lambda o, r, n: sorted(map(str, o)) == sorted(map(str,
            range(n)))),
             "all chunks are there, in the order in which they came. What arrives in round s is "
             "chunk (r - 1 - s) mod N."),
        s.remainder_hint(CASES),
        Hint("a round too few", _owners(lambda o, r, n: None in o),
             "a chunk needs N-1 rounds to reach every rank. Is your own chunk copied to its "
             "position, are there N-1 rounds, and is the chunk of the last one stored?"),
        Hint("the same chunk every round", s.kind("value"),
             "in round s pass on what arrived in round s-1, chunk (r - s) mod N, and not your own "
             "again."),
        s.NOT_PAIRED,
        Hint("the parcel is the input", s.kind("input"),
             "you receive into the chunk that you were given. The caller still needs it."),
        Hint("a round too many", _one_more_round,
             "after N-1 rounds every chunk has been everywhere: range(N - 1)."),
        Hint("all that it has, every round", s.kind("elements"),
             "each message holds one chunk, the one that came last; what you had before, your "
             "neighbour has had too."),
        s.OTHER_WAY_ROUND,
        Hint("not a ring", s.kind("neighbours"),
             "sending your chunk to every rank yourself costs as many elements, but uses every "
             "link. In a ring each rank forwards it to its right neighbour."),
        s.alone(CASES), s.SHARED, s.NOT_KEPT, *s.ANYWHERE,
    ),
)  # fmt: skip
