"""Lab 0, section 5, bonus: all_to_all(tensor, group, send_counts, recv_counts), pairwise."""

from dataclasses import replace

import torch

from lib.check import symptoms as s
from lib.check.cases import ALONE, FINE, GROUPS, GROUPS_SAY, WORLD, Case, seen
from lib.check.exercise import Exercise, Problem
from lib.check.lab0 import by_messages as by
from lib.check.left_out import BUILT
from lib.check.shown import claims
from lib.check.side_by_side import SideBySide
from lib.check.traffic import sent
from lib.collectives.pairwise import all_to_all

EQUAL, UNEVEN = "equal blocks", "uneven blocks"
ROWS, EQUAL_ROWS = "uneven blocks of rows of 3", "equal blocks of rows"
NOTHING = "rank 0 sends nothing, the last receives nothing"
F64, I64 = torch.float64, torch.int64


def count(case, i, j):
    """Rows that rank i has for rank j: some blocks are empty."""
    if case.what == NOTHING and (i == 0 or j == case.world_size - 1):
        return 0
    return 2 if case.what in (EQUAL, EQUAL_ROWS) else (i + 2 * j) % 3 + (i == j)


def sized(case):
    ranks = range(case.world_size)
    return replace(case, n=sum(count(case, i, j) for i in ranks for j in ranks))


CASES = tuple(map(sized, by.cases_of(
    lambda N: [(0, F64, EQUAL), (0, F64, UNEVEN)],
    *(Case(by.FOUR, 0, *one) for one in ((I64, UNEVEN), (F64, NOTHING))),
    Case(GROUPS[0], 0, F64, ROWS), Case(GROUPS[1], 0, F64, EQUAL_ROWS),
    Case(ALONE, 0, F64, EQUAL), Case(ALONE, 0, I64, UNEVEN),
)))  # fmt: skip


def block(case, i, j):
    """Rank i's rows for rank j; row k has 1000 (i+1) + 100 (j+1) + k."""
    rows = 1000 * (i + 1) + 100 * (j + 1) + torch.arange(count(case, i, j), device="cpu")
    if case.what in (ROWS, EQUAL_ROWS):
        rows = rows[:, None] + 10000 * torch.arange(3, device="cpu")
    return rows.to(case.dtype) * FINE[case.dtype]


def script(make, case, group, show):
    rank, ranks = show.place, range(case.world_size)
    tensor = show.give("tensor", torch.cat([block(case, rank, j) for j in ranks]))
    counts = [count(case, rank, j) for j in ranks], [count(case, i, rank) for i in ranks]
    send, receive = (None, None) if case.what in (EQUAL, EQUAL_ROWS) else counts
    y = by.called(show, make, group, tensor, send_counts=send, recv_counts=receive)
    by.result(show, "the blocks", y)


def explain(wrong):
    """facts: block, (from, to, row) of the first wrong row, or None; same_rows: all are there, in
    another order."""
    got, want = (t.reshape(len(t), -1) for t in (wrong.got, wrong.want))
    row = int((got != want).any(1).nonzero()[0])
    lies, right = (of(t[row, 0].item(), wrong.case) for t in (got, want))
    same_rows = sorted(got[:, 0].tolist()) == sorted(want[:, 0].tolist())
    text = f"{wrong.where}, row {row}: expected {told(right)}, got {told(lies)}"
    return text, {"block": lies, "same_rows": same_rows}


def of(value, case):
    """(from, to, row) of a value, or None if no rank has it."""
    value /= FINE[case.dtype]
    if not 1000 <= value < 1000 * (case.world_size + 1):
        return None
    i, j, row = int(value) // 1000 - 1, int(value) // 100 % 10 - 1, int(value) % 100
    return (i, j, row) if 0 <= j < case.world_size else None


def told(block):
    return (
        f"row {block[2]} of rank {block[0]}'s block for rank {block[1]}"
        if block
        else "what no rank has sent"
    )


def travels_once(runs):
    """A judge: rank i sends rank j its block, and itself nothing."""
    for run, case, _ in seen(runs, CASES):
        for i, mine in enumerate(sent(run, case)):
            for j in range(case.world_size):
                got = sum(numel for to, numel in mine if to == j)
                want = 0 if i == j else block(case, i, j).numel()
                if got != want:
                    text = f"{case.name}: {case.rank(i)} sent {got} elements to rank {j}, expected "
                    return Problem("elements", f"{text}{want}, its block", {"case": case})
    return None


def pairwise(runs):
    """A judge: in each round every rank hears from one. Where all blocks are alike, the n-th
    message of every rank is round n's."""
    for run, case, _ in seen(runs, CASES):
        for step in range(case.world_size - 1 if case.what == EQUAL else 0):
            logs = sent(run, case)
            to = [mine[step][0] if step < len(mine) else None for mine in logs]
            crowded = max(to, key=to.count)
            if to.count(crowded) > 1:
                text = (
                    f"{case.name}: in round {step} {to.count(crowded)} ranks send to rank "
                    f"{crowded}, expected 1 to each rank\nRanks 0, 1, ... send to {to}."
                )
                return Problem("rounds", text, {"case": case})
    return None


def another_ranks(p):
    return p.fact("block") and p.facts["block"][1] != p.facts["rank"]


def in_case(what, *kinds):
    return s.in_case(CASES, lambda case: case.what == what, *kinds)


MEASURE = SideBySide(script, all_to_all, CASES, excused=by.EXCUSED)
EXERCISE = Exercise(
    name="all_to_all", reference=all_to_all, measure=MEASURE, worlds=(WORLD,), may_call=s.P2P,
    bonus=True, leaves_out=BUILT,
    claims=claims(
        MEASURE,
        ("blocks change places", 4,
         f"1 rank, {GROUPS_SAY}; equal and uneven blocks, empty ones, rows",
         by.told(MEASURE, "the blocks", explain), "the blocks", *by.PROBES),
        ("every element travels once", 2, "rank i sends rank j its block; nothing to itself",
         travels_once),
        ("pairwise", 2, "N-1 rounds; in each, every rank sends to one and hears from one",
         pairwise),
    ),
    hints=by.hints_of(
        "all_to_all", CASES,
        nothing_for_a_rank=in_case(NOTHING, *s.SHAPES),
        elements_for_rows=in_case(EQUAL_ROWS, *s.SHAPES),
        powers_of_two_only=s.both(
            in_case(EQUAL, "raised"), s.in_case(CASES, lambda case: case.world_size == 3)
        ),
        the_counts_are_not_used=s.kind("mismatch", "raised", "form"),
        order_of_arrival=s.fact("same_rows"),
        a_block_for_another_rank=another_ranks,
        a_block_is_missing=lambda p: "block" in p.facts and p.facts["block"] is None,
        more_than_the_block=s.kind("elements"),
        all_to_one_at_a_time=s.kind("rounds"),
    ),
)  # fmt: skip
