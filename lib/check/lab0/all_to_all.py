"""Lab 0, section 5, bonus: all_to_all(tensor, group, send_counts, recv_counts), pairwise."""

from dataclasses import replace

import torch

from lib.check import symptoms as s
from lib.check.cases import ALONE, GROUPS, GROUPS_SAY, WORLD, Case, own, seen
from lib.check.exercise import Problem
from lib.check.lab0 import by_messages as by
from lib.check.left_out import BUILT
from lib.check.side_by_side import SideBySide
from lib.check.traffic import sent
from lib.collectives.pairwise import all_to_all

EQUAL, UNEVEN = "equal blocks", "uneven blocks"
ROWS, EQUAL_ROWS = "uneven blocks of rows of 3", "equal blocks of rows"
NOTHING = "rank 0 sends nothing, the last receives nothing"
F64, I64 = torch.float64, torch.int64


def count(case, i, j):
    """The number of rows that rank i sends to rank j. Some blocks are empty."""
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


def blocks(case, i):
    """Rank i's rows, one block for each rank."""
    counts = [count(case, i, j) for j in range(case.world_size)]
    width = (3,) if case.what in (ROWS, EQUAL_ROWS) else ()
    rows = own(i, sum(counts) * (3 if width else 1), case.dtype).reshape(-1, *width)
    return rows.split(counts)


def script(make, case, group, show):
    rank, ranks = show.place, range(case.world_size)
    tensor = show.give("tensor", torch.cat(blocks(case, rank)))
    counts = [count(case, rank, j) for j in ranks], [count(case, i, rank) for i in ranks]
    send, receive = (None, None) if case.what in (EQUAL, EQUAL_ROWS) else counts
    y = by.called(show, make, group, tensor, send_counts=send, recv_counts=receive)
    by.result(show, "the blocks", y)


def messages(case, i):
    """Rank i sends every other rank its block."""
    return [(j, block.numel()) for j, block in enumerate(blocks(case, i)) if j != i]


def pairwise(runs):
    """A judge: in no round do two ranks send to the same rank. It looks only at the cases EQUAL, in
    which the n-th message of every rank belongs to round n."""
    for run, case, _ in seen(runs, CASES):
        rounds = zip(*sent(run, case), strict=False) if case.what == EQUAL else ()
        for step, messages_of_ranks in enumerate(rounds):
            to = [peer for peer, _ in messages_of_ranks]
            crowded = max(to, key=to.count)
            if to.count(crowded) > 1:
                text = (
                    f"{case.name}: in round {step} {to.count(crowded)} ranks send to rank "
                    f"{crowded}, expected 1 to each rank\nRanks 0, 1, ... send to {to}."
                )
                return Problem("rounds", text, {"case": case})
    return None


MEASURE = SideBySide(script, all_to_all, CASES, excused=by.EXCUSED)
EXERCISE = MEASURE.exercise(
    ("blocks change places", 4, f"1 rank, {GROUPS_SAY}; equal and uneven blocks, empty ones, rows",
     by.told(MEASURE, "the blocks", by.whose), "the blocks", *by.PROBES),
    ("every element travels once", 2, "rank i sends rank j its block; nothing to itself",
     by.messages(CASES, messages)),
    ("pairwise", 2, "N-1 rounds; in each, every rank sends to one and hears from one", pairwise),
    hints=by.hints_of("messages", "all_to_all", "unpaired"), worlds=(WORLD,), may_call=s.P2P,
    bonus=True, leaves_out=BUILT,
)  # fmt: skip
