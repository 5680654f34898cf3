"""Lab 0, section 5, bonus: all_to_all(tensor, group, send_counts, recv_counts), pairwise."""

from dataclasses import replace

import torch

from lib.check import symptoms as s
from lib.check.calls import Calls
from lib.check.cases import ALONE, FINE, GROUPS, GROUPS_SAY, WORLD, Case, seen
from lib.check.claims import claim, kept, left_alone, new, values
from lib.check.exercise import Exercise, Hint, Problem
from lib.check.explain import narrowed, rounded_words
from lib.check.left_out import BUILT
from lib.check.traffic import sent
from lib.collectives.pairwise import all_to_all

EQUAL, UNEVEN, ROWS, EQUAL_ROWS = (
    "equal blocks",
    "uneven blocks",
    "uneven blocks of rows of 3",
    "equal blocks of rows",
)
NOTHING = "rank 0 sends nothing, the last receives nothing"
F32, F64, I64 = torch.float32, torch.float64, torch.int64


def _count(case, i, j):
    """Rows that rank i has for rank j: some blocks are empty."""
    if case.what == NOTHING and (i == 0 or j == case.world_size - 1):
        return 0
    return 2 if case.what in (EQUAL, EQUAL_ROWS) else (i + 2 * j) % 3 + (i == j)


def _case(members, what, dtype):
    case = Case(members, 0, dtype, what)
    ranks = range(len(members))
    return replace(case, n=sum(_count(case, i, j) for i in ranks for j in ranks))


CASES = (
    *(_case(group, *what) for group in GROUPS
      for what in ((EQUAL, F32), (UNEVEN, F32), (UNEVEN, I64), (ROWS, F64))),
    _case(ALONE, EQUAL, F64), _case(ALONE, UNEVEN, I64), _case(GROUPS[2], NOTHING, F32),
    _case(GROUPS[1], EQUAL_ROWS, F32),
)  # fmt: skip
CASES += (replace(CASES[0], again=1),)


def _blocks(case, pairs):
    """The blocks of these (from, to), one below the other. Row k of i's block for j: 1000 (i+1) +
    100 (j+1) + k."""
    rows = [1000 * (i + 1) + 100 * (j + 1) + k for i, j in pairs for k in range(_count(case, i, j))]
    line = torch.tensor(rows, dtype=case.dtype, device="cpu")  # (rows,)
    if case.what in (ROWS, EQUAL_ROWS):
        line = line[:, None] + 10000 * torch.arange(3, dtype=case.dtype, device="cpu")
    return line * FINE.get(case.dtype, 1)


def _give(case, rank):
    ranks = range(case.world_size)
    counts = [[_count(case, rank, j) for j in ranks], [_count(case, i, rank) for i in ranks]]
    counts = [None, None] if case.what in (EQUAL, EQUAL_ROWS) else counts
    tensor = _blocks(case, [(rank, j) for j in ranks])
    return {"tensor": tensor, "send_counts": counts[0], "recv_counts": counts[1]}


CALLS = Calls(
    CASES,
    give=_give,
    want=lambda case, rank: _blocks(case, [(i, rank) for i in range(case.world_size)]),
    by_name=("send_counts", "recv_counts"),
)


def _explain(case, rank, out, want, records):
    """facts: block, (from, to, row) of the first wrong row, or None; same_rows: all are there, in
    another order."""
    if type(out) is str or out.shape != want.shape or out.dtype != want.dtype:
        return None
    row = int((out != want).reshape(len(out), -1).any(1).nonzero()[0])
    if narrowed(out, want):
        text = f"{case.name}: {case.rank(rank)}, row {row}\n{rounded_words(case.dtype)}"
        return Problem("value", text, {"narrowed": True, "block": None, "same_rows": False})
    got, expected = out.reshape(len(out), -1)[:, 0], want.reshape(len(want), -1)[:, 0]
    block, right = _block(got[row], case), _block(expected[row], case)
    same_rows = sorted(got.tolist()) == sorted(expected.tolist())
    text = f"{case.name}: {case.rank(rank)}, row {row}: expected {_say(right)}, got {_say(block)}"
    return Problem("value", text, {"block": block, "same_rows": same_rows})


def _block(value, case):
    """(from, to, row) of a value, or None if no rank has it."""
    whole = value.item() / FINE.get(case.dtype, 1)
    if not 1000 <= whole < 1000 * (case.world_size + 1):
        return None
    i, j, row = int(whole) // 1000 - 1, int(whole) // 100 % 10 - 1, int(whole) % 100
    return (i, j, row) if 0 <= j < case.world_size else None


def _say(block):
    return (
        f"row {block[2]} of rank {block[0]}'s block for rank {block[1]}"
        if block
        else "what no rank has sent"
    )


def _travels_once(runs):
    for run, case, _ in seen(runs, CASES):
        for i, mine in enumerate(sent(run, case)):
            for j in range(case.world_size):
                got = sum(numel for to, numel in mine if to == j)
                expected = 0 if i == j else _blocks(case, [(i, j)]).numel()
                if got != expected:
                    text = (
                        f"{case.name}: {case.rank(i)} sent {got} elements to rank {j}, expected "
                        f"{expected}"
                    )
                    return Problem("elements", f"{text}, its block", {"case": case})
    return None


def _pairwise(runs):
    for run, case, _ in seen(runs, CASES):
        # where all blocks are alike the n-th message of every rank is round n's
        if case.what != EQUAL:
            continue
        logs = sent(run, case)
        for step in range(case.world_size - 1):
            receivers = [mine[step][0] if step < len(mine) else None for mine in logs]
            crowded = max(receivers, key=receivers.count)
            if receivers.count(crowded) > 1:
                senders = receivers.count(crowded)
                text = (
                    f"{case.name}: in round {step} {senders} ranks send to rank {crowded}, "
                    f"expected 1 to each rank"
                )
                return Problem(
                    "rounds", f"{text}\nRanks 0, 1, ... send to {receivers}.", {"case": case}
                )
    return None


EXERCISE = Exercise(
    name="all_to_all", reference=all_to_all, measure=CALLS, worlds=(WORLD,), may_call=s.P2P,
    bonus=True,
    leaves_out=BUILT,
    claims=(
        claim("blocks change places", 4,
              f"1 rank, {GROUPS_SAY}; equal and uneven blocks, empty ones, rows",
              values(CALLS, _explain), left_alone(CASES), new(CASES), kept(CASES)),
        claim("every element travels once", 2, "rank i sends rank j its block; nothing to itself",
              _travels_once),
        claim("pairwise", 2, "N-1 rounds; in each, every rank sends to one and hears from one",
              _pairwise),
    ),
    hints=(
        s.BUILT_IN, s.RETURNED_NONE, s.WHOSE_RANKS, s.ALL_SEND_FIRST, s.NARROW, s.WRONG_DTYPE,
        Hint("nothing for a rank", s.in_case(CASES, lambda case: case.what == NOTHING, *s.SHAPES),
             "a rank may have nothing to send, or get nothing: it takes part in every round all "
             "the same, and returns an empty tensor of the right shape and dtype."),
        Hint("elements for rows", s.in_case(CASES, lambda case: case.what == EQUAL_ROWS, *s.SHAPES),
             "without counts every block has len(tensor) // N rows, of whatever shape a row is."),
        Hint("powers of two only", s.in_case(CASES,
            lambda case: case.what == EQUAL and case.world_size == 3, "raised"),
             "right on 2 ranks, and here are 3: in round s send to (rank + s) % N and receive from "
             "(rank - s) % N."),
        Hint("the counts are not used", s.kind("mismatch", "raised", "form"),
             "tensor.split(send_counts) are the blocks to send, and what comes from rank i has "
             "recv_counts[i] rows. Some blocks are empty, and rows may be longer than 1: "
             "tensor.new_empty(rows, *tensor.shape[1:])."),
        Hint("order of arrival", s.kind("value", same_rows=True),
             "the right blocks in another order. The block of rank i belongs at place i, whenever "
             "it comes."),
        Hint("a block for somebody else",
             lambda p: p.kind == "value" and p.facts["block"]
             and p.facts["block"][1] != p.facts["rank"],
             "send rank j the j-th block, and keep your own: out's block r is your block r."),
        Hint("a block is missing", s.kind("value"),
             "some block was not received: N-1 rounds, and your own block is copied."),
        s.NOT_PAIRED,
        Hint("more than the block", s.kind("elements"),
             "rank j needs only its own block of your tensor; send it that one alone."),
        Hint("all to one at a time", s.kind("rounds"),
             "several ranks send to the same one, and the others wait. In round s send to rank r+s "
             "and receive from r-s."),
        s.SHARED, s.OVERWRITTEN, s.NOT_KEPT, *s.ANYWHERE,
    ),
)  # fmt: skip
