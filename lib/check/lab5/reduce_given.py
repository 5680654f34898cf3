"""The all_reduce that reduce_gradients is given: it sums over the group that it is asked for, notes that, never hangs.

    rank 0    all_reduce(60, all)    all_reduce(52, [0 2])
    rank 1    all_reduce(60, all)    all_reduce(52, [1 3])
    rank 2    all_reduce(60, all)    all_reduce(40, [0 2])      40 beside rank 0's 52: a clash

Before each call every rank tells all others over which ranks it sums how many elements. Where the ranks of one sum do
not agree, all ranks raise a Clash, and nothing is sent. A rank that has returned tells zeros until all have.
"""

import os
import traceback

import torch
import torch.distributed as dist

import lib
from lib import backend, collectives, ledger
from lib.check.framework import Problem
from lib.ledger.source import place

NOT_THE_ANSWER_S = tuple(os.path.dirname(module.__file__) + os.sep for module in (lib, torch))


class Clash(Exception):
    """The ranks' calls do not fit together."""


class Given:
    """One rank's all_reduce for one case. Make it on every rank of the world."""

    def __init__(self, groups):
        """groups: reduce_models.Groups, with a wire for each that an answer may sum over."""
        self.groups, self.calls, self.stray = groups, [], None  # calls: (ranks, elements)
        self.N = dist.get_world_size(groups.wire)

    def all_reduce(self, tensor, group=None, op=dist.ReduceOp.SUM):
        """In place; returns the tensor, as lib's does."""
        ranks = tuple(dist.get_process_group_ranks(group))
        self.calls.append((ranks, tensor.numel()))
        wire = self.groups.wire_of(ranks)
        self.stray = self.stray or (ranks if wire is None else None)
        members = self.groups.members
        told = self._tell([1, tensor.numel(), *(int(rank in ranks) for rank in members)])
        mine = dist.get_rank(self.groups.wire)
        for r, one in enumerate(told):
            if not one[0]:
                raise Clash(f"rank {r} has called all_reduce {len(self.calls) - 1} times, another rank more often")
            if one[2 + mine] and members[r] in ranks and one[1] != tensor.numel():
                self.unlike = True
        fits = [self._fits(i, told, members) for i in range(self.N)]
        if not all(fits):
            r = fits.index(False)
            other = next(i for i in range(self.N) if told[r][2 + i] and told[i][1:] != told[r][1:])
            raise Clash(
                f"all_reduce number {len(self.calls)}: rank {r} has {told[r][1]} elements over {_over(told[r])}, rank "
                f"{other} {told[other][1]} over {_over(told[other])}"
            )
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
        text = f"{where} called all_reduce for ranks {[*self.stray]}: neither all nor those with the same experts"
        return Problem("group", text)

    def _fits(self, i, told, members):
        """Do all that rank i sums with say the same?"""
        return all(told[j][1:] == told[i][1:] for j in range(self.N) if told[i][2 + j])

    def _tell(self, mine):
        mine = torch.tensor(mine, device=backend.device())
        told = [torch.empty_like(mine) for _ in range(self.N)]
        dist.all_gather(told, mine, group=self.groups.wire)
        return [one.tolist() for one in told]


def _over(told):
    """The ranks that a call is for, in words."""
    return f"ranks {[i for i, there in enumerate(told[2:]) if there]}"


def of_error(where, error):
    """The Problem of an error that the answer raised."""
    ledger.mark("")
    if isinstance(error, Clash):
        return Problem("unlike", f"{where}: {error}")
    text = f"{where}: {type(error).__name__}: {str(error).split(' Hint: ')[0]}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(NOT_THE_ANSWER_S)]
    if frames:
        text += f"\n  {place(frames[-1].filename, frames[-1].lineno, frames[-1].name)}"
    return Problem("raised", text)
