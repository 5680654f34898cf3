"""The all_reduce that average_over_mesh and norm_over_mesh are given: it sums, notes that, never hangs.

    pp=4 tp=2, and somebody sums the tied ones over pp instead of the ends

    round      1                  2                  3
    rank 0     4 over 0 2 4 6     still              still     rank 2 will not come: a Clash
    rank 2     2 over 2 3         2 over 2 3         returned
    rank 3     2 over 2 3 done    2 over 2 3 done    returned

Stages have unequally many parameters, so ranks do not call in step. In every round each rank tells all others over
which ranks it sums how many elements. A call on which all its ranks agree is done in this round, in the order of the
ranks: the same bits on all. The others wait. Where nothing can be done, all who wait raise a Clash; on a wire of its
own they would wait for ever. A rank that has returned tells zeros until all have.
"""

import torch
import torch.distributed as dist

from lib import backend
from lib.check.framework import Problem
from lib.check.lab0.cases import seen
from lib.check.lab1.wire import COLLECTIVES
from lib.check.lab5.ep_given import Clash
from lib.collectives.local import combiner, finish

# As the ledger names it. Other collectives may be called: that they are not the given one is a claim.
MAY_CALL = (*COLLECTIVES, "over_given.all_reduce")

SHORT = 32  # elements that are told at once; of longer tensors all are, in another message


class Given:
    """One rank's all_reduce for one case. Make it on every rank."""

    def __init__(self, case, wire):
        self.case, self.wire, self.rank = case, wire, dist.get_rank()
        self.calls = []  # (global ranks, elements)
        self.stuck = None  # (global ranks, elements) of the call that brought a Clash

    def all_reduce(self, tensor, group=None, op=dist.ReduceOp.SUM):
        """In place; returns the tensor, as lib's does."""
        call = tuple(dist.get_process_group_ranks(group)), tensor.numel()
        combine = combiner(op, tensor)
        self.calls.append(call)
        done = []
        while self.rank not in done:
            told, done, lines = self._round(call, tensor)
            if not done:
                raise Clash(self._why(told))
        ranks, n = call
        total = lines[ranks[0]][:n]
        for rank in ranks[1:]:
            total = combine(total, lines[rank][:n])
        tensor.detach().copy_(finish(total, op, len(ranks)).view(tensor.shape))
        return tensor

    def end(self):
        """The answer has returned here; returns when it has on every rank."""
        while any(self._round(None, None)[0]):
            pass

    def sums(self):
        """{global ranks: elements}: what was summed over each group of more than one rank."""
        sums = {}
        for ranks, n in self.calls:
            if len(ranks) > 1 and n:
                sums[ranks] = sums.get(ranks, 0) + n
        return sums

    def _round(self, call, tensor):
        """(each rank's call or None, the ranks whose calls are done now, their elements). All ranks take part."""
        N, told, lines = len(self.case.members), [], []
        mine = torch.zeros(1 + N + SHORT, dtype=torch.float64, device=backend.device())
        if call:
            mine[0] = 1 + call[1]
            mine[1 + torch.tensor(call[0], device=mine.device)] = 1
            mine[1 + N : 1 + N + call[1]] = tensor.detach().reshape(-1)[:SHORT]
        for note in self._gather(mine):
            n, *there = note[: 1 + N].tolist()
            told.append((tuple(rank for rank in range(N) if there[rank]), int(n) - 1) if n else None)
            lines.append(note[1 + N :])
        done = [i for i, one in enumerate(told) if one and all(told[rank] == one for rank in one[0])]
        longest = max((told[i][1] for i in done), default=0)
        if longest > SHORT:
            mine = torch.zeros(longest, dtype=torch.float64, device=backend.device())
            if self.rank in done:
                mine[: call[1]] = tensor.detach().reshape(-1)
            lines = self._gather(mine)
        return told, done, lines

    def _gather(self, mine):
        told = [torch.empty_like(mine) for _ in range(len(self.case.members))]
        dist.all_gather(told, mine, group=self.wire)
        return told

    def _why(self, told):
        """Who waits for whom: for a rank that has returned, if there is one."""
        pairs = [(i, j) for i, one in enumerate(told) if one for j in one[0] if told[j] != one]
        i, j = min(pairs, key=lambda pair: told[pair[1]] is not None)
        self.stuck = told[i]
        has = f"sums {_said(self.case, *told[j])}" if told[j] else "has returned"
        return f"{self.case.rank(i)} sums {_said(self.case, *told[i])}\nwhile {self.case.rank(j)} {has}"


def sent_otherwise(run, case, records):
    """A Problem if a rank communicated by something that it was not given. A record has the wire's name."""
    section = run.ledger.section(case.name)
    for rank, record in enumerate(records):
        stranger = next((e for e in section.of(rank) if e.group != record["wire"]), None)
        if stranger is not None:
            called = stranger.via or stranger.op
            return Problem("another way", f"{case.where}: {case.rank(rank)} called {called}, which it was not given")
    return None


def these_sums(cases, wrong):
    """The claim: nothing was sent but by the given all_reduce, and wrong(case, rank, record) finds nothing wrong."""

    def judge(runs):
        for run, case, records in seen(runs, cases):
            if problem := sent_otherwise(run, case, records):
                return problem
            for rank, record in enumerate(records):
                if problem := wrong(case, rank, record):
                    return problem
        return None

    return judge


def listed(case, sums):
    """{ranks: elements} in words."""
    return "; ".join(_said(case, ranks, n) for ranks, n in sorted(sums.items())) or "nothing"


def _said(case, ranks, n):
    return f"{n} element{'s' * (n != 1)} over {case.told(ranks)}"
