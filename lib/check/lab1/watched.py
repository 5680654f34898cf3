"""The all-reduce that a student's wrapper is given in a check: it sums, notes every call, and never hangs.

    rank 0    all_reduce(49)   all_reduce(41)   step over: 0    0
    rank 1    all_reduce(49)   all_reduce(36)   step over: 0    0
    told      [49 49]          [41 36] a clash  [0 0]           every rank's step is over

Before it sums, every rank tells the others how many elements it has. Ranks that do not agree note it, and sum nothing.
A rank whose step is over tells 0 until all ranks do, so that nobody waits for a message that it will never send.

In a slow step (`slow=True`) events, not times, show what runs beside what: the first all-reduce goes on only when
backward has ended, and backward's last layer begins only when some all-reduce has begun. Whoever does both at once
waits for neither.
"""

import threading

import torch
import torch.distributed as dist

from lib import backend, collectives

PATIENCE = 2  # seconds that a slow step waits for what a right answer does at once
LINGER = 0.1  # seconds by which an all-reduce of a slow step ends later than average_gradients, if that does not wait


def groups_with_wires(cases):
    """{case: (the group that the answer is given, None for all ranks; a group of the same ranks for the notes)}"""
    made = {}
    for members in dict.fromkeys(case.members for case in cases):
        wire = dist.new_group(members)
        made[members] = (None if len(members) == dist.get_world_size() else dist.new_group(members), wire)
    return {case: made[case.members] for case in cases}


class Watched:
    """One rank's view of one step after another on `group`; None is all ranks. Make it on every rank of the group."""

    def __init__(self, group, wire):
        """wire: a group of the same ranks, for the notes; no answer knows it."""
        self.group, self.wire = group, wire
        self.begin()

    def begin(self, slow=False):
        """A new step."""
        self.slow = slow
        self.elements = []  # of this rank's messages in this step
        self.clash = None  # (message, elements of each rank) of the first message in which ranks differ
        self.stray = False  # called for another group?
        self.begun_in_backward = self.stuck = self.early = False
        self.begun, self.backward_ended, self.returned = (threading.Event() for _ in range(3))
        self.told = 0

    def given_all_reduce(self, tensor, group=None):
        """What the student's wrapper calls. Sums in place over the ranks, and returns the tensor."""
        self.elements.append(tensor.numel())
        self.stray = self.stray or (self.group is not None and group is not self.group)
        self.begun.set()
        if self.slow:
            self.stuck = self.stuck or not self.backward_ended.wait(PATIENCE)
            if len(self.elements) == 2:  # not the first: some wait for that one only
                self.early = self.returned.wait(LINGER)
        self._tell(tensor)
        return tensor

    def last_layer_begins(self):
        """Called in backward when only the first layer's gradients are still to come."""
        if self.slow:
            self.begun_in_backward = self.begun.wait(PATIENCE)

    def end(self):
        """The student's step is over here. What it left in the background ends; then the other ranks' steps end too."""
        self.returned.set()
        collectives.start(lambda: None).wait()
        while any(self._tell(None)):
            pass
        return {
            "elements": self.elements, "clash": self.clash, "stray": self.stray, "early": self.early,
            "stuck": self.stuck, "begun_in_backward": self.begun_in_backward,
        }  # fmt: skip

    def all_ranks(self, ok):
        """Is it so on every rank of the group?"""
        all_ok = torch.tensor([int(ok)], device=backend.device())
        dist.all_reduce(all_ok, dist.ReduceOp.MIN, group=self.wire)
        return bool(all_ok)

    def _tell(self, tensor):
        mine = torch.tensor([0 if tensor is None else tensor.numel()], device=backend.device())
        told = [torch.empty_like(mine) for _ in range(dist.get_world_size(self.wire))]
        dist.all_gather(told, mine, group=self.wire)
        told, self.told = [int(n) for n in told], self.told + 1
        if len(set(told)) > 1:
            self.clash = self.clash or (self.told, told)
        elif tensor is not None:
            dist.all_reduce(tensor, group=self.wire)
        return told
