"""The reduce_scatter and all_gather that an answer is given: they do as lib's, note every call, and never hang.

    rank 0    reduce_scatter(78)   all_gather(26)       part over: 0    0
    rank 1    reduce_scatter(78)   reduce_scatter(78)   part over: 0    0
    told      alike: done          a clash              [0 0]           every rank's part is over

Before each call every rank tells the others what it is about to do. Ranks that do not agree note it, and send nothing.
They talk on a group of their own, which no answer knows: a call for the wrong group is noted and does not hang.

In a slow part events, not times, show what runs beside what. Backward passes a gate after each layer:

    backward        flat 0  gate  flat 1  gate  flat 2  gate  flat 3 ...
    reduce_scatter  [== 0, held =======]
                                  [== 1, held =======]           i is held until backward is past the gate of flat i+1

Two are under way then, and neither ends before backward has gone on: whoever waits sooner than for the oldest of two
is stuck. At each gate `at_gate` looks at the memory.
"""

import threading

import torch
import torch.distributed as dist

from lib import backend, collectives
from lib.check.lab1.watched import LINGER

PATIENCE = 3  # seconds that a slow part waits for what a right answer does at once
REDUCE_SCATTER, ALL_GATHER = "reduce_scatter", "all_gather"
CODES = {REDUCE_SCATTER: 1, ALL_GATHER: 2}
MAY_CALL = (f"zero_given.{REDUCE_SCATTER}", f"zero_given.{ALL_GATHER}")  # as the ledger names them


class Given:
    """One rank's collectives. Make it on every rank of the group."""

    def __init__(self, wire):
        """wire: a group of the same ranks as the answer's, which no answer knows."""
        self.wire = wire
        self.at_gate = None  # at_gate(how many gates backward has passed, the gradient that flows through this one)
        self.begin()

    def begin(self, gates=0):
        """A new part: calls are counted anew. gates: how many backward will pass, of a slow part."""
        self.gates = gates
        self.calls = []  # (name, elements) of this rank
        self.gathered = []  # a copy of each shard that was to be gathered
        self.clash = None  # (number, what each rank was about to do) of the first call in which ranks differ
        self.stray = None  # (name, ranks) of the first call for another group
        self.stuck = None  # (which reduce_scatter, gates passed) of the first that was held in vain
        self.early = False  # was a reduce_scatter under way when the answer's function had returned?
        self.begun_in_backward = True
        self.passed, self.backward_ended, self.returned, self.lingered = 0, False, False, False
        self.changed = threading.Condition()
        self.told = 0

    def reduce_scatter(self, line, group=None, op=dist.ReduceOp.SUM):
        """(n/N,): this rank's part of the sum."""
        self._note(REDUCE_SCATTER, line, group)
        if self.gates:
            self._hold(len(self.calls) - 1)
        if self._told(REDUCE_SCATTER, line.numel()):
            return collectives.reduce_scatter(line, self.wire, op)
        return torch.zeros_like(line.detach().tensor_split(self.wire.size())[self.wire.rank()])

    def all_gather(self, shard, group=None, out=None):
        """(n,): all ranks' shards."""
        self._note(ALL_GATHER, shard, group)
        self.gathered.append(shard.detach().clone())
        if self._told(ALL_GATHER, shard.numel()):
            return collectives.all_gather(shard, self.wire, out=out)
        return shard.detach().repeat(self.wire.size()) if out is None else out

    def pass_gate(self, gradient):
        """Called in backward after each layer but the first."""
        if not self.gates:
            return
        self.at_gate(self.passed, gradient)
        with self.changed:
            self.passed += 1
            self.changed.notify_all()
            if self.passed == self.gates:
                self.begun_in_backward = bool(self.changed.wait_for(lambda: self.calls, PATIENCE))

    def end_backward(self):
        """Backward has ended: what calls have begun, or will of themselves (in a slow part: have begun)?"""
        with self.changed:
            self.backward_ended = True
            self.changed.notify_all()
        return list(self.calls) if self.gates else self._drained()

    def end(self):
        """The answer's function has returned here. What it left in the background ends; then the other ranks' too."""
        with self.changed:
            self.returned = True
            self.changed.notify_all()
        self._drained()
        while any(code for code, _ in self._tell(None, 0)):
            pass
        return {
            "calls": self.calls, "clash": self.clash, "stray": self.stray, "stuck": self.stuck, "early": self.early,
            "begun_in_backward": self.begun_in_backward,
        }  # fmt: skip

    def sum_of_squares(self, tensors):
        """Over all ranks, of all their numbers."""
        total = torch.zeros((), dtype=torch.float64, device=backend.device())
        for tensor in tensors:
            total += tensor.detach().double().square().sum()
        dist.all_reduce(total, group=self.wire)
        return total.item()

    def all_right(self, ok):
        """Is it so on every rank?"""
        all_ok = torch.tensor(int(ok), device=backend.device())
        dist.all_reduce(all_ok, dist.ReduceOp.MIN, group=self.wire)
        return bool(all_ok)

    def _drained(self):
        collectives.start(lambda: None).wait()
        return list(self.calls)

    def _note(self, name, tensor, group):
        ranks = dist.get_process_group_ranks(group)
        if ranks != dist.get_process_group_ranks(self.wire):
            self.stray = self.stray or (name, ranks)
        with self.changed:
            self.calls.append((name, tensor.numel()))
            self.changed.notify_all()

    def _hold(self, number):
        """In a slow part: until backward is past the gate of the flat after this one; the last, a little longer."""
        with self.changed:
            past = lambda: self.passed >= number + 2 or self.backward_ended or self.stuck
            if not self.changed.wait_for(past, PATIENCE):
                self.stuck = (number, self.passed)
            if self.backward_ended and not self.lingered:
                self.lingered = True
                self.early = self.changed.wait_for(lambda: self.returned, LINGER)

    def _told(self, name, elements):
        """Are all ranks about to do the same?"""
        return len(set(self._tell(name, elements))) == 1

    def _tell(self, name, elements):
        mine = torch.tensor([CODES.get(name, 0), elements], device=backend.device())
        told = [torch.empty_like(mine) for _ in range(self.wire.size())]
        dist.all_gather(told, mine, group=self.wire)
        told, self.told = [tuple(one.tolist()) for one in told], self.told + 1
        if len(set(told)) > 1:
            self.clash = self.clash or (self.told, told)
        return told
