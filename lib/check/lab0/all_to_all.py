"""Lab 0, section 5, bonus: all_to_all(tensor, group, send_counts, recv_counts), pairwise."""

import torch
import torch.distributed as dist

from lib import backend
from lib.check.framework import Claim, Exercise, Hint, Problem
from lib.check.lab0 import mistakes, wire
from lib.check.lab0.cases import GROUPS, GROUPS_SAY, WORLD, Case, called, form_of, groups_of, in_step, is_a, seen
from lib.collectives import pairwise

EQUAL, UNEVEN, ROWS = "equal blocks", "uneven blocks", "uneven blocks of rows of 3"


def _count(case, i, j):
    """Rows that rank i has for rank j: some blocks are empty."""
    return 2 if case.what == EQUAL else (i + 2 * j) % 3 + (i == j)


def _case(members, what, dtype):
    case = Case(members, 0, dtype, what)
    ranks = range(len(members))
    return Case(members, sum(_count(case, i, j) for i in ranks for j in ranks), dtype, what)


CASES = [
    _case(members, what, dtype)
    for members in GROUPS
    for what, dtype in ((EQUAL, torch.float32), (UNEVEN, torch.float32), (UNEVEN, torch.int64), (ROWS, torch.float64))
]


def _blocks(case, pairs):
    """The blocks of these (from, to), one below the other. Row k of i's block for j: 1000 (i+1) + 100 (j+1) + k."""
    rows = [1000 * (i + 1) + 100 * (j + 1) + k for i, j in pairs for k in range(_count(case, i, j))]
    line = torch.tensor(rows, dtype=case.dtype, device="cpu")  # (rows,)
    return line[:, None] + 10000 * torch.arange(3, dtype=case.dtype, device="cpu") if case.what == ROWS else line


def _expected(case, rank):
    return _blocks(case, [(i, rank) for i in range(case.world_size)])


def _measure(fn):
    def one(case, group):
        rank, ranks = dist.get_rank(group), range(case.world_size)
        tensor = _blocks(case, [(rank, j) for j in ranks]).to(backend.device())
        before, given = tensor.clone(), {"group": group} if group else {}
        if case.what != EQUAL:
            given["send_counts"] = [_count(case, rank, j) for j in ranks]
            given["recv_counts"] = [_count(case, i, rank) for i in ranks]
        out = called(case, fn, tensor, **given)
        out = out.detach().cpu() if type(out) is torch.Tensor else form_of(out)
        return {"ok": is_a(out, _expected(case, rank)), "out": out, "unchanged": torch.equal(tensor, before)}

    return in_step(CASES, groups_of, one)


def _what_arrives(runs):
    for _, case, records in seen(runs, CASES):
        for rank, record in enumerate(records):
            if not record["ok"]:
                return _what_is_wrong(case, rank, record["out"])
            if not record["unchanged"]:
                return Problem("input", f"{case.name}: {case.rank(rank)}'s own tensor was overwritten", {"case": case})
    return None


def _what_is_wrong(case, rank, out):
    want, where = _expected(case, rank), f"{case.name}: {case.rank(rank)}"
    if type(out) is str:
        return Problem("returned", f"{where} returned {out}, expected {form_of(want)}")
    if out.shape != want.shape or out.dtype != want.dtype:
        facts = {"case": case, "dtype": out.shape == want.shape}
        return Problem("form", f"{where} returned {form_of(out)}, expected {form_of(want)}", facts)
    got, expected = out.reshape(len(out), -1)[:, 0], want.reshape(len(want), -1)[:, 0]
    row = int((out != want).reshape(len(out), -1).any(1).nonzero()[0])
    blocks = [_block(value, case.world_size) for value in got]
    same_rows = sorted(got.tolist()) == sorted(expected.tolist())
    facts = {"case": case, "rank": rank, "block": blocks[row], "same_rows": same_rows}
    text = f"{where}, row {row}: expected {_say(_block(expected[row], case.world_size))}, got {_say(blocks[row])}"
    return Problem("value", text, facts)


def _block(value, world_size):
    """(from, to, row) of a value, or None if no rank has it."""
    value = value.item()
    if not 1000 <= value < 1000 * (world_size + 1):
        return None
    i, j, row = int(value) // 1000 - 1, int(value) // 100 % 10 - 1, int(value) % 100
    return (i, j, row) if 0 <= j < world_size else None


def _say(block):
    return f"row {block[2]} of rank {block[0]}'s block for rank {block[1]}" if block else "what no rank has sent"


def _travels_once(runs):
    for run, case, _ in seen(runs, CASES):
        for i, mine in enumerate(wire.sent(run, case)):
            for j in range(case.world_size):
                got = sum(numel for to, numel in mine if to == j)
                expected = 0 if i == j else _blocks(case, [(i, j)]).numel()
                if got != expected:
                    text = (
                        f"{case.name}: {case.rank(i)} sent {got} elements to rank {j}, expected {expected}, its block"
                    )
                    return Problem("elements", text, {"case": case})
    return None


def _pairwise(runs):
    for run, case, _ in seen(runs, CASES):
        if case.what != EQUAL:  # where all blocks are alike the n-th message of every rank is round n's
            continue
        books = wire.sent(run, case)
        for step in range(case.world_size - 1):
            receivers = [mine[step][0] for mine in books]
            crowded = max(receivers, key=receivers.count)
            if receivers.count(crowded) > 1:
                senders = receivers.count(crowded)
                text = f"{case.name}: in round {step} {senders} ranks send to rank {crowded}, expected 1 to each rank"
                return Problem("rounds", f"{text}\nRanks 0, 1, ... send to {receivers}.", {"case": case})
    return None


EXERCISE = Exercise(
    name="all_to_all",
    reference=pairwise.all_to_all,
    measure=_measure,
    worlds=(WORLD,),
    may_call=mistakes.P2P,
    bonus=True,
    claims=(
        Claim("blocks change places", 4, f"{GROUPS_SAY}; equal and uneven blocks, empty ones, rows", _what_arrives),
        Claim("every element travels once", 2, "rank i sends rank j its block; nothing to itself", _travels_once),
        Claim("pairwise", 2, "N-1 rounds; in each, every rank sends to one and hears from one", _pairwise),
    ),
    hints=(
        mistakes.BUILT_IN,
        mistakes.NOT_A_TENSOR,
        mistakes.WHOSE_RANKS,
        mistakes.ALL_SEND_FIRST,
        mistakes.WRONG_DTYPE,
        Hint(
            "the counts are not used",
            lambda p: p.kind in ("mismatch", "raised", "form"),
            "tensor.split(send_counts) are the blocks to send, and what comes from rank i has recv_counts[i] rows. "
            "Some blocks are empty, and rows may be longer than 1: tensor.new_empty(rows, *tensor.shape[1:]).",
        ),
        Hint(
            "order of arrival",
            lambda p: p.kind == "value" and p.facts["same_rows"],
            "the right blocks in another order. The block of rank i belongs at place i, whenever it comes.",
        ),
        Hint(
            "a block for somebody else",
            lambda p: p.kind == "value" and p.facts["block"] and p.facts["block"][1] != p.facts["rank"],
            "send rank j the j-th block, and keep your own: out's block r is your block r.",
        ),
        Hint(
            "a block is missing",
            lambda p: p.kind == "value",
            "some block was not received: N-1 rounds, and your own block is copied.",
        ),
        mistakes.NOT_PAIRED,
        Hint(
            "more than the block",
            lambda p: p.kind == "elements",
            "rank j needs only its own block of your tensor; send it that one alone.",
        ),
        Hint(
            "all to one at a time",
            lambda p: p.kind == "rounds",
            "several ranks send to the same one, and the others wait. In round s send to rank r+s and receive from "
            "r-s.",
        ),
    ),
)
