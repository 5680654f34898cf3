"""Lab 0, section 5, bonus: broadcast(tensor, src, group) down a binomial tree."""

import itertools

import torch

from lib.check import symptoms as s
from lib.check.cases import ALONE, GROUPS_SAY, WORLD, Case, own, seen
from lib.check.exercise import Problem
from lib.check.lab0 import by_messages as by
from lib.check.left_out import BUILT, IN_PLACE
from lib.check.side_by_side import SideBySide
from lib.check.traffic import sent
from lib.collectives.tree import broadcast

F64, I64 = torch.float64, torch.int64
CASES = by.cases_of(
    lambda N: [(7, F64, f"src={src}", src) for src in range(N)],
    Case(by.FOUR, 1, F64, "src=0", 0), Case(by.FOUR, 1000, I64, "src=3", 3),
    Case(by.FOUR, 0, F64, "src=1", 1), Case(ALONE, 3, F64, "src=0", 0),
)  # fmt: skip


def script(make, case, group, show):
    tensor = show.give("tensor", own(show.place, case.n, case.dtype))
    by.called(show, make, group, tensor, case.root)
    by.result(show, "the tensor", tensor)


def messages(runs):
    """A judge: every rank but the root receives the tensor once, and the root receives nothing."""
    for run, case, _ in seen(runs, CASES):
        got = [[] for _ in case.members]
        for to, numel in itertools.chain(*sent(run, case)):
            got[to] += [numel] if numel else []
        for rank, sizes in enumerate(got):
            expected = [case.n] if rank != case.root and case.n else []
            if sizes != expected:
                text = (
                    f"{case.name}: {case.rank(rank)} was sent {len(sizes)} messages, {sum(sizes)} "
                    f"elements, expected {len(expected)} of {case.n}\nTogether "
                    f"{sum(map(sum, got))} elements, expected (N-1)n = "
                    f"{(case.world_size - 1) * case.n}."
                )
                return Problem("elements", text, {"case": case})
    return None


def rounds(runs):
    """A judge: if a rank sends one message per round, every rank has the tensor after ceil(log2 N)
    rounds."""
    for run, case, _ in seen(runs, CASES):
        logs, least = sent(run, case), (case.world_size - 1).bit_length()
        came, holders = {case.root: 0}, [case.root]  # rank -> the round in which it got the tensor
        for holder in holders:
            for nth, (to, _) in enumerate(logs[holder], start=1):
                came[to] = came[holder] + nth
                holders.append(to)
        if max(came.values()) > least and case.n:  # an empty message need not be sent
            by_rank = [len(mine) for mine in logs]
            text = f"{case.name}: {max(came.values())} rounds, expected ceil(log2 N) = {least}"
            facts = {"case": case, "star": by_rank[case.root] == case.world_size - 1}
            return Problem("rounds", f"{text}\nMessages sent by rank: {by_rank}", facts)
    return None


MEASURE = SideBySide(script, broadcast, CASES, excused=by.IN_PLACE)
EXERCISE = MEASURE.exercise(
    ("the root's tensor everywhere", 6, f"{GROUPS_SAY}; every root; n = 0, 1, 7, 1000",
     by.told(MEASURE, "the tensor", by.whose), "the tensor", *by.PROBES),
    ("no rank receives twice", 3, "N-1 messages, (N-1)n elements in all", messages),
    ("holders double every round", 3, "ceil(log2 N) rounds", rounds),
    hints=by.hints_of("broadcast", "messages", "tree"), bonus=True, worlds=(WORLD,), may_call=s.P2P,
    leaves_out=BUILT | IN_PLACE,
)  # fmt: skip
