"""What an answer is given to communicate with: it notes every call, and talks on a group that no answer knows.

    the answer    all_reduce(x, group)     noted: all_reduce, forward, 10 elements
    Wired         on the wire              another group of the same ranks

So the ranks' books tell what the answer sends by itself from what it was given to send; and a call for the wrong group
does not hang.
"""

import torch.distributed as dist

from lib import collectives
from lib.check.framework import Hint, Problem
from lib.check.lab0.cases import seen
from lib.check.lab1.wire import COLLECTIVES
from lib.check.lab3.groups import WAYS, way_of
from lib.tensor_parallel import mappings

NAMES = ("all_reduce", "all_gather", "reduce_scatter", "leave")
# What the ledger may call what an answer calls. Other collectives too: that they are not the given ones is a claim.
MAY_CALL = (
    *(f"wired.{name}" for name in NAMES), "mappings.copy_to_group", "mappings.reduce_from_group",
    "mappings.split_to_group", "mappings.gather_from_group", "shards.whole", *COLLECTIVES,
)  # fmt: skip


class Wired:
    """One rank's collectives for one case. calls: (name, way, elements, reduce op) of each, in order."""

    def __init__(self, group, wire):
        self.group, self.wire, self.way = group, wire, "forward"
        self.calls, self.stray = [], None

    def all_reduce(self, tensor, group=None, op=dist.ReduceOp.SUM):
        self._note("all_reduce", tensor, group, op)
        return collectives.all_reduce(tensor, self.wire, op)

    def all_gather(self, chunk, group=None):
        self._note("all_gather", chunk, group)
        return collectives.all_gather(chunk, self.wire)

    def reduce_scatter(self, tensor, group=None, op=dist.ReduceOp.SUM):
        self._note("reduce_scatter", tensor, group, op)
        return collectives.reduce_scatter(tensor, self.wire, op)

    def leave(self, partial, group=None):
        self._note("leave", partial, group)
        return mappings.reduce_from_group(partial, self.wire)

    def _note(self, name, tensor, group, op=dist.ReduceOp.SUM):
        self.calls.append((name, self.way, tensor.numel(), "max" if op == dist.ReduceOp.MAX else "sum"))
        ranks = dist.get_process_group_ranks(group)
        if ranks != dist.get_process_group_ranks(self.group):
            self.stray = self.stray or (name, ranks)

    def record(self, case, where, **problems):
        """What the claims want to know of this rank. problems: {claim: its Problem, or None}, with a "value"."""
        if self.stray:
            text = f"{where} called {self.stray[0]} on ranks {self.stray[1]}, expected {[*case.members]}"
            problems = {claim: Problem("group", text) for claim in problems}
        for problem in filter(None, problems.values()):
            problem.facts |= {"case": case}
        return {"ok": problems["value"] is None, "calls": self.calls, "wire": self.wire.group_name, **problems}


def only_calls(cases, expected):
    """The claim: each rank made just these calls, and sent nothing by itself. expected(N): [(name, way, elements)]."""

    def judge(runs):
        for run, case, records in seen(runs, cases):
            if problem := sent_otherwise(run, case, records):
                return problem
            want = expected(case.world_size)
            for rank, record in enumerate(records):
                got = [call[:3] for call in record["calls"]]
                if got != want:
                    text = f"{case.where}: {case.rank(rank)} called {_listed(got)}\nexpected {_listed(want)}"
                    return Problem("calls", text, {"case": case, "got": got, "want": want})
        return None

    return judge


def sent_otherwise(run, case, records):
    """A Problem if a rank communicated by something that it was not given."""
    for way in WAYS:
        section = way_of(case, way).name
        if section not in run.ledger.marks:
            continue
        book = run.ledger.section(section)
        for rank, (member, record) in enumerate(zip(case.members, records, strict=True)):
            stranger = next((e for e in book.of(member) if e.group != record["wire"]), None)
            if stranger is not None:
                called = stranger.via or stranger.op
                text = f"{case.where}, {way}: {case.rank(rank)} called {called}, which it was not given"
                return Problem("another way", text, {"case": case, "called": called, "way": way})
    return None


def _listed(calls):
    return "; ".join(f"{name} ({way}, {n} elements)" for name, way, n in calls) or "nothing"


def members_of(problem):
    """The global ranks of the case that went wrong; () if it is not known."""
    failed = problem.facts.get("failed")
    if failed:
        return failed.members if failed.case else ()
    return problem.facts["case"].members if "case" in problem.facts else ()


BY_RANKS = ("value", "form", "raised", "mismatch", "deadlock", "no progress", "died")
CALLS_LIB = Hint("called lib's", lambda p: p.kind == "built-in", "build it from what the function is given.")
WRONG_GROUP = Hint(
    "the group is not passed on", lambda p: p.kind == "group", "give `group` on to everything that you call."
)
WHOSE_RANKS = Hint(
    "ranks of the world, not of the group",
    lambda p: p.kind in BY_RANKS and members_of(p) == (1, 3),
    "groups of ranks 0, 1, 2, ... were right. Ranks are counted within the group: dist.get_rank(group) and "
    "dist.get_world_size(group).",
)
TWO_ONLY = Hint(
    "right on two ranks only",
    lambda p: p.kind in BY_RANKS and len(members_of(p)) > 2,
    "two ranks were right. With more there is a rank that is neither the first nor the last: write it for rank r of N.",
)
OTHERWISE = Hint(
    "not what it was given",
    lambda p: p.kind == "another way",
    "whoever calls your function chooses how the ranks communicate: call the argument, not what you imported.",
)
