"""What units are given to communicate with: it notes every call, and talks on a group that no answer knows.

    the answer    self.all_gather(flat.shard, flat.group)     noted: unit 2, 8 elements
    Given         on the wire                                 another group of the same ranks

So the ranks' books tell what an answer sends by itself from what it was given to send, and a call for the wrong group
does not hang.
"""

import threading

import torch.distributed as dist

from lib import collectives
from lib.check.framework import Hint, Problem
from lib.check.lab1.wire import COLLECTIVES
from lib.collectives import background, p2p

# What the ledger may call what an answer calls. Other collectives too: that they are not the given ones is a claim.
MAY_CALL = (
    *COLLECTIVES, "fsdp_given.all_gather", "fsdp_given.reduce_scatter", "fsdp_watched.unshard",
    "fsdp_watched.reduce_gradients", "zero1.gather_parameters", "zero1.reduce_gradients", "flat.__init__",
    "fsdp.__init__", "prefetch.__init__", "prefetch.start_unshard", "fsdp_started.start",
    "background.start", "framework._measure_all",
)  # fmt: skip


class Given:
    """One rank's all_gather and reduce_scatter. calls: (name, elements of the argument) of each, in order."""

    def __init__(self, group, wire):
        self.group, self.wire = group, wire
        self.flats, self.calls, self.stray = [], [], None
        self.noting = lambda name, tensor: None  # told of each call

    def all_gather(self, chunk, group=None, out=None):
        self._note("all_gather", chunk, group)
        for whole in [flat.whole for flat in self.flats] + ([] if out is None else [out]):
            _refuse_half_a_memory(whole, is_out=whole is out)
        return self._in_turn(collectives.all_gather, chunk, self.wire, out)

    def reduce_scatter(self, tensor, group=None, op=dist.ReduceOp.SUM):
        self._note("reduce_scatter", tensor, group)
        return self._in_turn(collectives.reduce_scatter, tensor, self.wire, op)

    def _note(self, name, tensor, group):
        self.calls.append((name, tensor.numel()))
        self.noting(name, tensor)
        ranks = dist.get_process_group_ranks(group)
        if ranks != dist.get_process_group_ranks(self.group):
            self.stray = self.stray or (name, ranks)

    def _in_turn(self, fn, *args):
        """While something is under way in the background, only that thread may use the wire."""
        if p2p.in_background and threading.current_thread() is not p2p.background_thread:
            return background.start(fn, *args).wait()
        return fn(*args)

    def end(self):
        """What an answer has left under way ends here, or it would meet the messages of what comes next."""
        if p2p.in_background:
            background.start(lambda group: None, dist.group.WORLD if self.group is None else self.group).wait()

    def wrong_group(self, where):
        """A Problem if it was called for another group."""
        if self.stray is None:
            return None
        name, ranks = self.stray
        expected = dist.get_process_group_ranks(self.group)
        return Problem("group", f"{where}: {name} was called for the ranks {ranks}, expected the group's, {expected}")


def has_memory(tensor):
    """Is there memory for all of its elements? To read what has none would end the process."""
    return tensor.untyped_storage().nbytes() >= needed(tensor)


def needed(tensor):
    """Bytes that its storage must have."""
    return (tensor.storage_offset() + tensor.numel()) * tensor.element_size() if tensor.numel() else 0


def _refuse_half_a_memory(whole, is_out):
    got = whole.untyped_storage().nbytes()
    if not has_memory(whole) and (is_out or got):
        raise MemoryError(f"whole has memory of {got} bytes; its {whole.numel()} elements need {needed(whole)}")


def sent_otherwise(book, case, wires):
    """A Problem if a rank communicated in this part of the book by something that it was not given. wires: by rank."""
    for rank, (member, wire) in enumerate(zip(case.members, wires, strict=True)):
        stranger = next((e for e in book.of(member) if e.op != "mark" and e.group != wire), None)
        if stranger is not None:
            called = (stranger.via or stranger.op).replace("fsdp_started.start", "collectives.start")
            text = f"{case.where}: {case.rank(rank)} called {called}, which it was not given"
            return Problem("another way", text)
    return None


CALLS_LIB = Hint(
    "called lib's",
    lambda p: p.kind == "built-in",
    "write the methods yourself; what the class inherits beside them is there to be used.",
)
WRONG_GROUP = Hint("the group is not passed on", lambda p: p.kind == "group", "each flat knows its group: flat.group.")
NOT_ALL_RANKS = Hint(
    "not on every rank",
    lambda p: p.kind in ("deadlock", "no progress", "mismatch"),
    "all ranks must gather and reduce the same flats in the same order, whatever is in them: a flat whose parameters "
    "this rank did not use too.",
)
OTHERWISE = Hint(
    "not what it was given",
    lambda p: p.kind == "another way",
    "whoever makes the units chooses what sends: self.all_gather and self.reduce_scatter.",
)
