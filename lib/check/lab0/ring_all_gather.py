"""Lab 0, section 5: ring_all_gather(chunk, group, out), after which every rank holds all chunks, in rank order."""

import torch
import torch.distributed as dist

from lib import backend
from lib.check.framework import Claim, Exercise, Hint, Problem
from lib.check.lab0 import mistakes, wire
from lib.check.lab0.cases import (
    GROUPS,
    GROUPS_SAY,
    WORLD,
    Case,
    called,
    form_of,
    groups_of,
    in_step,
    is_a,
    number,
    seen,
)
from lib.collectives import ring

UNWRITTEN = -7  # what `out` holds before the call
NO_OUT, WITH_OUT = "no out", "out given"
CASES = [
    Case(members, n, dtype, what)
    for members in GROUPS
    for n, dtype, what in (
        (2 * len(members), torch.float32, NO_OUT), (3 * len(members), torch.int64, NO_OUT),
        (2 * len(members), torch.float32, WITH_OUT), (7, torch.float32, WITH_OUT), (1, torch.float32, WITH_OUT),
        (1000, torch.float64, WITH_OUT),
    )
]  # fmt: skip


def _whole(case):
    """Rank r's chunk holds 1000 (r+1) + 0, 1, 2, ...  (n,)"""
    chunks = torch.zeros(case.n, device="cpu").tensor_split(case.world_size)
    values = [1000 * (r + 1) + torch.arange(len(chunk), device="cpu") for r, chunk in enumerate(chunks)]
    return torch.cat(values).to(case.dtype)


def _measure(fn):
    def one(case, group):
        rank, whole = dist.get_rank(group), _whole(case)
        chunk = whole.tensor_split(case.world_size)[rank].to(backend.device(), copy=True)
        before, given = chunk.clone(), {"group": group} if group else {}
        out = torch.full((case.n,), UNWRITTEN, dtype=case.dtype, device=backend.device())
        if case.what == WITH_OUT:
            given["out"] = out
        returned = called(case, fn, chunk, **given)
        returned = returned.detach().cpu() if type(returned) is torch.Tensor else form_of(returned)
        filled = case.what == NO_OUT or is_a(out.cpu(), whole)
        unchanged = torch.equal(chunk, before)
        return {"ok": is_a(returned, whole) and filled, "returned": returned, "unchanged": unchanged}

    return in_step(CASES, groups_of, one)


def _chunks(runs):
    for _, case, records in seen(runs, CASES):
        for rank, record in enumerate(records):
            if not record["ok"]:
                return _what_is_wrong(case, rank, record)
            if not record["unchanged"]:
                text = f"{case.name}: {case.rank(rank)}'s own chunk was overwritten"
                return Problem("input", text, {"case": case})
    return None


def _what_is_wrong(case, rank, record):
    got, want, where = record["returned"], _whole(case), f"{case.name}: {case.rank(rank)}"
    if type(got) is str:
        return Problem("returned", f"{where} returned {got}, expected the whole, {form_of(want)}")
    if got.shape != want.shape or got.dtype != want.dtype:
        facts = {"case": case, "dtype": got.shape == want.shape}
        return Problem("form", f"{where} returned {form_of(got)}, expected the whole, {form_of(want)}", facts)
    if torch.equal(got, want):
        return Problem("out", f"{where} returned the whole, but `out` does not hold it", {"case": case})

    element = int((got != want).nonzero()[0])
    place, source = _owner(want[element], case), _owner(got[element], case)
    owners = [_owner(chunk[0], case) if len(chunk) else None for chunk in got.tensor_split(case.world_size)]
    facts = {"case": case, "rank": rank, "owners": owners}
    line = f"{where}, element {element}: expected {number(want[element])}"
    if source is None:
        return Problem("value", f"{line}, got what no rank sent\nRank {place}'s chunk was never written there.", facts)
    line += f", got {number(got[element])}"
    return Problem("value", f"{line}\nIn the place of rank {place}'s chunk lies rank {source}'s.", facts)


def _owner(value, case):
    """The rank whose chunk has this value, or None."""
    value = value.item()
    return int(value) // 1000 - 1 if 1000 <= value < 1000 * (case.world_size + 1) else None


def _elements(runs):
    return wire.elements(runs, CASES, lambda N, n: (N - 1) * n, "(N-1)n")


def _ring(runs):
    return wire.ring(runs, CASES, lambda N: N - 1)


def _owners(p, fits):
    """Is it about whose chunks lie where? Then ask fits(owners, the rank, N)."""
    if p.kind != "value":
        return False
    return fits(p.facts["owners"], p.facts["rank"], p.facts["case"].world_size)


EXERCISE = Exercise(
    name="ring_all_gather",
    reference=ring.ring_all_gather,
    measure=_measure,
    worlds=(WORLD,),
    may_call=mistakes.P2P,
    claims=(
        Claim("every chunk, in rank order", 6, f"{GROUPS_SAY}; n = 1, 7, 1000; with and without out", _chunks),
        Claim("elements on the wire", 2, "(N-1)n over all ranks, none padded", _elements),
        Claim("only neighbours talk", 2, "N-1 rounds, rank r sends to rank r+1", _ring),
    ),
    hints=(
        mistakes.BUILT_IN,
        mistakes.NOT_A_TENSOR,
        mistakes.WHOSE_RANKS,
        mistakes.ALL_SEND_FIRST,
        mistakes.WRONG_DTYPE,
        Hint(
            "out not filled",
            lambda p: p.kind == "out",
            "when `out` is given, the chunks belong into it; return `out` itself. Only for out=None make a new tensor.",
        ),
        Hint(
            "one buffer for all",
            lambda p: _owners(p, lambda o, r, n: n > 2 and {x for i, x in enumerate(o) if i != r} == {(r + 1) % n}),
            "in all the others' places lies the chunk that came last: you receive into one buffer again and again "
            "and keep references to it. Receive each chunk into its own place in `out`.",
        ),
        Hint(
            "order of arrival",
            lambda p: _owners(p, lambda o, r, n: sorted(map(str, o)) == sorted(map(str, range(n)))),
            "all chunks are there, in the order in which they came. What arrives in round s is chunk (r - 1 - s) mod "
            "N.",
        ),
        mistakes.REMAINDER,
        Hint(
            "a round too few",
            lambda p: _owners(p, lambda o, r, n: None in o),
            "a chunk travels N-1 steps to reach everybody. Is your own chunk copied into its place, are there N-1 "
            "rounds, and does what comes in the last one land?",
        ),
        Hint(
            "the same chunk every round",
            lambda p: p.kind == "value",
            "in round s pass on what arrived in round s-1, chunk (r - s) mod N, and not your own again.",
        ),
        mistakes.NOT_PAIRED,
        Hint(
            "the parcel is the input",
            lambda p: p.kind == "input",
            "you receive into the chunk that you were given. The caller still needs it.",
        ),
        Hint(
            "all that it has, every round",
            lambda p: p.kind == "elements",
            "each message holds one chunk, the one that came last; what you had before, your neighbour has had too.",
        ),
        Hint(
            "not a ring",
            lambda p: p.kind == "neighbours",
            "sending your chunk to everybody yourself costs as many elements, but uses every link; a ring passes it "
            "on.",
        ),
    ),
)
