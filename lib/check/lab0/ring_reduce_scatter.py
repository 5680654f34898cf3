"""Lab 0, section 5: ring_reduce_scatter(tensor, group), after which rank r holds chunk r of the sum."""

import torch
import torch.distributed as dist

from lib import backend
from lib.check.framework import Claim, Exercise, Hint, Problem
from lib.check.lab0 import mistakes, wire
from lib.check.lab0.cases import (
    CASES,
    GROUPS_SAY,
    SIZES_SAY,
    WORLD,
    called,
    form_of,
    groups_of,
    in_step,
    is_a,
    part,
    seen,
    total,
)
from lib.check.lab0.sums import finished, read_sum
from lib.collectives import ring


def _chunk(case, rank):
    """Chunk r of the sum."""
    return total(case.world_size, case.n, case.dtype).tensor_split(case.world_size)[rank]


def _measure(fn):
    def one(case, group):
        rank = dist.get_rank(group)
        tensor = part(rank, case.n, case.dtype).to(backend.device())
        before = tensor.clone()
        out = called(case, fn, tensor, **({"group": group} if group else {}))
        out = out.detach().cpu() if type(out) is torch.Tensor else form_of(out)
        return {"ok": is_a(out, _chunk(case, rank)), "out": out, "unchanged": torch.equal(tensor, before)}

    return in_step(CASES, groups_of, one)


def _sums(runs):
    for _, case, records in seen(runs, CASES):
        for rank, record in enumerate(records):
            if not record["ok"]:
                return _what_is_wrong(case, rank, record["out"])
    return None


def _what_is_wrong(case, rank, out):
    want, where = _chunk(case, rank), f"{case.name}: {case.rank(rank)}"
    if type(out) is str:
        return Problem("returned", f"{where} returned {out}, expected its chunk, {form_of(want)}")
    owner = finished(case, out)
    if owner is not None and owner != rank and out.dtype == want.dtype:
        facts = {"case": case, "shift": (owner - rank) % case.world_size}
        return Problem("owner", f"{where} returned chunk {owner} of the sum, expected chunk {rank}", facts)
    if out.shape != want.shape or out.dtype != want.dtype:
        facts = {"case": case, "dtype": out.shape == want.shape, "whole": out.numel() == case.n}
        return Problem("form", f"{where} returned {form_of(out)}, expected chunk {rank}, {form_of(want)}", facts)
    start = sum(len(_chunk(case, r)) for r in range(rank))
    return Problem("value", *read_sum(case, rank, out, start))


def _elements(runs):
    return wire.elements(runs, CASES, lambda N, n: (N - 1) * n, "(N-1)n")


def _ring(runs):
    return wire.ring(runs, CASES, lambda N: N - 1)


def _left_alone(runs):
    for _, case, records in seen(runs, CASES):
        for rank, record in enumerate(records):
            if not record["unchanged"]:
                return Problem("input", f"{case.name}: {case.rank(rank)}'s own tensor was overwritten", {"case": case})
    return None


def _value(p, fact):
    return p.kind == "value" and p.facts[fact]


EXERCISE = Exercise(
    name="ring_reduce_scatter",
    reference=ring.ring_reduce_scatter,
    measure=_measure,
    worlds=(WORLD,),
    may_call=mistakes.P2P,
    claims=(
        Claim("chunk r of the sum on rank r", 8, f"{GROUPS_SAY}; {SIZES_SAY}", _sums),
        Claim("your own tensor is left alone", 2, "the sums go to buffers of their own", _left_alone),
        Claim("elements on the wire", 3, "(N-1)n over all ranks, none padded", _elements),
        Claim("only neighbours talk", 3, "N-1 rounds, rank r sends to rank r+1", _ring),
    ),
    hints=(
        mistakes.BUILT_IN,
        mistakes.NOT_A_TENSOR,
        mistakes.WHOSE_RANKS,
        mistakes.ALL_SEND_FIRST,
        mistakes.WRONG_DTYPE,
        Hint(
            "the whole tensor",
            lambda p: p.kind == "form" and p.facts["whole"],
            "return this rank's finished chunk alone, not the tensor that it lies in.",
        ),
        Hint(
            "another rank's chunk",
            lambda p: p.kind == "owner",
            "the textbook's ring lets rank r begin with chunk r and end with chunk r+1. Here rank r must end with "
            "chunk r, so begin one chunk earlier: in round s = 0, 1, ... send chunk (r - 1 - s) mod N.",
        ),
        Hint(
            "divided by N",
            lambda p: _value(p, "divided"),
            "reduce-scatter sums. Whoever wants the mean divides afterwards.",
        ),
        Hint(
            "nothing was added",
            lambda p: _value(p, "own"),
            "add what you received to your own chunk of the same number, and send that sum on in the next round.",
        ),
        Hint(
            "counted twice",
            lambda p: _value(p, "doubled"),
            "a rank's own chunk is added once, when the partial sum passes by. It is also in what you start from, or "
            "you add it again at the end.",
        ),
        mistakes.REMAINDER,
        Hint(
            "a round too few",
            lambda p: _value(p, "absent"),
            "N-2 rounds instead of N-1, or the last round's sum not added, or your own chunk is passed on instead of "
            "the partial sum. A chunk must visit all N ranks, which takes N-1 steps.",
        ),
        Hint(
            "chunk numbers out of step",
            lambda p: p.kind in ("value", "mismatch"),
            "the chunk that you add to is not the one that your left neighbour sent. What it sends in round s is, "
            "for you, chunk (r - 2 - s) mod N: write the numbers down for N = 3.",
        ),
        mistakes.NOT_PAIRED,
        Hint(
            "the input as a buffer",
            lambda p: p.kind == "input",
            "`chunk += received` writes into the tensor that the chunk is a view of. Add into the received buffer, or "
            "clone first.",
        ),
        mistakes.PADDED,
        Hint(
            "whole tensors in the ring",
            lambda p: p.kind == "elements" and p.facts["sent"] >= p.facts["expected"] * p.facts["case"].world_size,
            "a message holds one chunk, n/N elements, not all n.",
        ),
        Hint(
            "not a ring",
            lambda p: p.kind == "neighbours",
            "sending each chunk straight to its owner gives the same sums, but a ring uses N links only, each rank's "
            "to its right neighbour.",
        ),
    ),
)
