"""The all_reduce that reduce_gradients is given: it sums over the group that it is asked for, notes that, never hangs.

    rank 0    all_reduce(60, all)    all_reduce(52, [0 2])
    rank 1    all_reduce(60, all)    all_reduce(52, [1 3])
    rank 2    all_reduce(60, all)    all_reduce(40, [0 2])      40 beside rank 0's 52: a clash

Before each call every rank tells all others over which ranks it sums how many elements. Where the ranks of one sum do
not agree, all ranks raise a Clash, and nothing is sent. A rank that has returned tells zeros until all have.
"""

import torch
import torch.distributed as dist

from lib import backend, collectives
from lib.check.framework import Problem
from lib.check.lab5.ep_given import Clash


class Given:
    """One rank's all_reduce for one case. Make it on every rank of the case."""

    def __init__(self, groups):
        """groups: the case's, a `reduce_models.Groups`."""
        self.groups, self.N = groups, len(groups.members)
        self.calls = []  # (global ranks, elements)
        self.stray = None  # the ranks of the first call for a group that is none of the two

    def all_reduce(self, tensor, group=None, op=dist.ReduceOp.SUM):
        """In place; returns the tensor, as lib's does."""
        ranks = tuple(dist.get_process_group_ranks(group))
        self.calls.append((ranks, tensor.numel()))
        wire = self.groups.wire_of(ranks)
        if wire is None:
            self.stray = self.stray or ranks
        told = self._tell([1, tensor.numel(), *(int(member in ranks) for member in self.groups.members)])
        if text := self._clash(told):
            raise Clash(text)
        if wire is not None:
            collectives.ring_all_reduce(tensor, wire, op)
        return tensor

    def end(self):
        """The answer has returned here; returns when it has on every rank."""
        while any(told[0] for told in self._tell([0] * (2 + self.N))):
            pass

    def wrong_group(self, where):
        """A Problem if it was called for ranks that are neither all nor those with the same experts."""
        if self.stray is None:
            return None
        text = f"{where} called all_reduce for the ranks {[*self.stray]}"
        return Problem("group", f"{text}: neither all nor those with the same experts")

    def _tell(self, mine):
        mine = torch.tensor(mine, device=backend.device())
        told = [torch.empty_like(mine) for _ in range(self.N)]
        dist.all_gather(told, mine, group=self.groups.wire)
        return [one.tolist() for one in told]

    def _clash(self, told):
        """What does not fit, in words, or None. told: [1 or 0, elements, over rank 0?, over rank 1?, ...] of each."""
        for i, one in enumerate(told):
            for j in range(self.N):
                if one[2 + j] and told[j] != one:
                    return f"all_reduce number {len(self.calls)}: rank {i} {_words(one)}, rank {j} {_words(told[j])}"
        return None


def _words(told):
    if not told[0]:
        return "has returned"
    return f"has {told[1]} elements over ranks {[i for i, there in enumerate(told[2:]) if there]}"
