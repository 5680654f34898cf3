"""The all_to_all that an answer is given: it does as lib's, notes every call, and never hangs.

    rank 0    all_to_all(rows, send [2 3], receive [2 1])
    rank 1    all_to_all(rows, send [4 1], receive [3 1])     4 rows for rank 0, which expects 1: a clash

Before each call every rank tells the others what it is about to send and to receive. Where they do not agree, all of
them raise a Clash, and nothing is sent. A rank whose part is over tells zeros until all ranks do. They talk on a group
of their own, which no answer knows: a call for the wrong group is noted and does not hang.
"""

import os
import traceback

import torch
import torch.distributed as dist

import lib
from lib import backend, collectives, ledger
from lib.check.framework import Problem
from lib.check.lab0.cases import called, seen
from lib.check.lab1.wire import COLLECTIVES
from lib.check.lab3.groups import WAYS, way_of
from lib.check.lab3.wired import sent_otherwise
from lib.ledger.source import place

# As the ledger names it; what autograd calls of lib's own has no line of the answer's. Other collectives may be called:
# that they are not the given one is a claim.
MAY_CALL = (*COLLECTIVES, "ep_given.all_to_all", "framework._measure_all")
NOT_THE_ANSWER_S = tuple(os.path.dirname(module.__file__) + os.sep for module in (lib, torch))


class Clash(Exception):
    """The ranks' calls do not fit together."""


class Given:
    """One rank's all_to_all for one case. Make it on every rank of the group."""

    def __init__(self, group, wire):
        """group: the answer's; wire: the same ranks, for the notes."""
        self.members, self.wire = dist.get_process_group_ranks(group), wire
        self.rank, self.N, self.way = dist.get_rank(wire), dist.get_world_size(wire), "forward"
        self.calls = {way: [] for way in WAYS}  # {"counts": whole numbers?, "elements": to others}
        self.stray = None  # the ranks of the first call for another group

    def all_to_all(self, tensor, group=None, send_counts=None, recv_counts=None):
        """As lib's: what was received, by sender."""
        ranks = dist.get_process_group_ranks(group)
        self.stray = self.stray or (ranks if ranks != self.members else None)
        each = torch.Size(tensor.shape[1:]).numel()  # elements of a row
        note = {"counts": not tensor.is_floating_point(), "elements": 0}
        self.calls[self.way].append(note)
        lists = self._checked(len(tensor), send_counts, recv_counts)
        elsewhere = sum(lists[0]) - lists[0][self.rank]
        note["elements"] = elsewhere * each
        told = self._tell([1, each, *lists[0], *lists[1]])
        if text := self._clash(told):
            raise Clash(text)
        return collectives.all_to_all(tensor, self.wire, *lists)

    def end(self):
        """The answer's part is over here; returns when it is over on every rank."""
        while any(told[0] for told in self._tell([0] * (2 + 2 * self.N))):
            pass

    def facts(self):
        """For hints: the way, the number of calls in it, and of those with rows."""
        mine = self.calls[self.way]
        return {"way": self.way, "calls": len(mine), "rows": sum(not call["counts"] for call in mine)}

    def _checked(self, rows, send_counts, recv_counts):
        """Both lists; ValueError as lib's has it."""
        if send_counts is None and recv_counts is None:
            if rows % self.N:
                raise ValueError(f"{rows} rows do not divide over {self.N} ranks: pass send_counts and recv_counts")
            return [rows // self.N] * self.N, [rows // self.N] * self.N
        if send_counts is None or recv_counts is None:
            raise ValueError("pass both send_counts and recv_counts: a rank cannot guess what the others send it")
        lists = [int(n) for n in send_counts], [int(n) for n in recv_counts]
        for name, counts in zip(("send_counts", "recv_counts"), lists, strict=True):
            if len(counts) != self.N or min(counts) < 0:
                raise ValueError(f"{name}={counts}: one count, 0 or more, for each of {self.N} ranks")
        if sum(lists[0]) != rows:
            raise ValueError(f"send_counts={lists[0]} sum to {sum(lists[0])}, but tensor has {rows} rows")
        return lists

    def _tell(self, mine):
        mine = torch.tensor(mine, device=backend.device())
        told = [torch.empty_like(mine) for _ in range(self.N)]
        dist.all_gather(told, mine, group=self.wire)
        return [one.tolist() for one in told]

    def _clash(self, told):
        """What does not fit, in words, or None."""
        N, over = self.N, [r for r, one in enumerate(told) if not one[0]]
        if over:
            other = next(r for r, one in enumerate(told) if one[0])
            return f"rank {over[0]} did not call all_to_all, while rank {other} did"
        for i in range(N):
            for j in range(N):
                sent, expected = told[i][2 + j], told[j][2 + N + i]
                if sent != expected:
                    return f"rank {i} sends {sent} rows to rank {j}, which expects {expected}"
        if len({one[1] for one in told}) > 1:
            return f"rows of {[one[1] for one in told]} elements meet, by rank"
        return None


def attempted(case, way, where, given, fn, *args):
    """(what fn(*args) returns in the case's section `way`, None), or (None, the Problem)."""
    given.way, out, problem = way, None, None
    try:
        out = called(way_of(case, way), fn, *args)
    except Exception as error:
        if type(error) is NotImplementedError:  # not written yet, on no rank
            raise
        ledger.mark("")
        problem = _of_error(f"{where}, {way}", error, given)
    given.end()
    if given.stray:
        text = f"{where}, {way}: all_to_all was called for the ranks {given.stray}, expected {given.members}"
        problem = Problem("group", text)
    return out, problem


def _of_error(where, error, given):
    problem = of_error(where, error)
    problem.facts |= given.facts()
    return problem


def of_error(where, error):
    """The Problem of an error, with the answer's line that led to it: there may be none. Of a Clash, without."""
    if isinstance(error, Clash):
        return Problem("unlike", f"{where}: {error}")
    text = f"{where}: {type(error).__name__}: {str(error).split(' Hint: ')[0]}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(NOT_THE_ANSWER_S)]
    if frames:
        text += f"\n  {place(frames[-1].filename, frames[-1].lineno, frames[-1].name)}"
    return Problem("raised", text, {"in the answer": bool(frames)})


def the_cause(problems):
    """Of the ranks' problems in one case, the first of those that the others came of."""
    return min(problems, key=lambda problem: {"raised": 0, "group": 0, "unlike": 1}.get(problem.kind, 2))


def found(cases, kind, among=None):
    """The claim that no rank has noted a problem under this name, in any of the cases, or in those `among` them."""

    def judge(runs):
        for _, case, records in seen(runs, cases):
            problems = [record[kind] for record in records if record.get(kind)]
            if problems and case in (among or cases):
                first = the_cause(problems)
                first.facts |= {"case": case}
                return first
        return None

    return judge


def only_these(cases, expected):
    """The claim: each rank sent others so many elements, and all by what it was given.

    expected(case, rank) -> {way: (of counts, of rows)}.
    """

    def judge(runs):
        for run, case, records in seen(runs, cases):
            if problem := sent_otherwise(run, case, records):
                return problem
            for rank, record in enumerate(records):
                for way, want in expected(case, rank).items():
                    calls = record["calls"][way]
                    got = tuple(sum(c["elements"] for c in calls if c["counts"] == counts) for counts in (True, False))
                    if got != want:
                        text = f"{case.where}, {way}: {case.rank(rank)} sent {_told(got)}, expected {_told(want)}"
                        return Problem("elements", text, {"case": case, "way": way, "got": got, "want": want})
        return None

    return judge


def _told(elements):
    counts, rows = elements
    return f"{rows} elements of rows" + (f" and {counts} counts" if counts else "")
