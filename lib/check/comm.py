"""The collectives that an answer is given. They compute what lib's compute, record every call, and
never hang. In this example, rank 0 calls with ranks that never join:

    round      1                      2                      3
    rank 0     n=4 on ranks 0 2 4 6   waits                  waits: rank 2 is over, so a Clash
    rank 2     n=2 on ranks 2 3       n=2 on ranks 2 3       over
    rank 3     n=2 on ranks 2 3       n=2 on ranks 2 3       over

The ranks need not call in step. In every round, each rank announces to all others which call it is
about to make: op, ranks, elements, dtype, reduction and counts. If all ranks of a call agree on it,
it is done in this round. A sum is added up in the order of the ranks, so all of them get the same
bits. The other ranks wait. If no call can be done, every waiting rank raises a Clash, where with
real collectives it would wait forever. A rank that has finished its part keeps reporting "over"
until all ranks are over.

The ranks exchange these announcements through named pipes (wire.py). In the logs, each exchange is
a barrier under the wire's name. Whatever the logs show on a group was therefore not sent by the
given collectives.
"""

import contextlib
import threading
from array import array
from typing import NamedTuple

import torch
import torch.distributed as dist

from lib import backend, collectives
from lib.backend.torch_private import without_dispatch_modes as unseen
from lib.check.exercise import Problem
from lib.check.wire import Wire
from lib.collectives import background, p2p
from lib.collectives.local import combiner
from lib.collectives.local import divide_if_average as finish
from lib.ledger.record import OPS as IN_THE_LEDGER

OPS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "reduce")
ROOTED = {"broadcast": "from", "reduce": "to"}
_LIBS = [getattr(collectives, name) for name in collectives.__all__]
_LIBS += [p2p.send, p2p.recv, p2p.send_recv, p2p.exchange]
# As the ledger names them. An answer may call them, because a judge of its traffic rejects those
# that it was not given, with a better message (`traffic.beside`).
COLLECTIVES = (
    *IN_THE_LEDGER.values(),
    *(f"{fn.__module__.rpartition('.')[2]}.{fn.__name__}" for fn in _LIBS),
)
MAY_CALL = (*(f"comm.{op}" for op in OPS), "framework._measure_all", *COLLECTIVES)
DTYPES = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32,
    torch.int16, torch.int8, torch.uint8, torch.bool,
)  # fmt: skip
# bytes of data that are sent along with a call's header, which saves small calls an exchange
INLINE = 4096
REDUCTIONS = {
    dist.ReduceOp.SUM: "sum",
    dist.ReduceOp.AVG: "avg",
    dist.ReduceOp.MAX: "max",
    dist.ReduceOp.MIN: "min",
}
KINDS = ("", *REDUCTIONS.values())


class Clash(Exception):
    """The ranks' calls do not match. problem: the mismatch, for judges and hints."""

    def __init__(self, problem):
        super().__init__(problem.text)
        self.problem = problem


class Call(NamedTuple):
    """One call of one rank.

    phase: what the check was doing: "forward", "backward", "step", ...
    ranks: global ranks.
    counts: for an all_to_all, the rows to each rank and then from each; for a broadcast or a
        reduce, the root.
    """

    op: str
    phase: str
    elements: int
    dtype: torch.dtype
    ranks: tuple[int, ...]
    reduction: str = ""
    counts: tuple[int, ...] = ()


class Recorder:
    """The collectives of one rank. Every rank of `wire` creates one.

    allowed: the sets of ranks on which an answer may call. The first call on other ranks is
        recorded as `stray`, and every such call is done on the first set that contains this rank.
        None: any ranks of the wire that include this rank.
    before: before(Call) is called as each call begins. It may inspect the memory, or wait
        (overlap.py).
    raises: False for calls in the background, because a Clash would end their thread. The Clash is
        then only recorded, and a call that the others do not join continues with copies of this
        rank's elements in place of theirs.
    """

    def __init__(self, wire: Wire, allowed=None, before=None, raises=True):
        self.wire, self.before, self.raises = wire, before, raises
        self.members, self.place, self.N = wire.members, wire.place, wire.N
        self.allowed = [tuple(ranks) for ranks in allowed] if allowed else None
        self.lock = threading.Lock()
        self.begin()

    def begin(self, phase=""):
        """Begin a new part, in which calls are counted from zero."""
        self.phase, self.calls = phase, []
        self.stray = self.clash = None

    def all_reduce(self, tensor, group=None, op=dist.ReduceOp.SUM):
        """In place; returns the tensor, as lib's does."""
        ranks, parts = self._do("all_reduce", tensor, group, op)
        tensor.detach().copy_(self._reduced(ranks, parts, op, tensor).view(tensor.shape))
        return tensor

    def reduce_scatter(self, tensor, group=None, op=dist.ReduceOp.SUM):
        """(n/N, ...): this rank's shard of the sum, the rows tensor_split(N)[r]."""
        ranks, parts = self._do("reduce_scatter", tensor, group, op)
        total = self._reduced(ranks, parts, op, tensor).view(tensor.shape)
        return total.tensor_split(len(ranks))[ranks.index(self.rank)].clone()

    def all_gather(self, chunk, group=None, out=None):
        """(n, ...): the chunks of all ranks, concatenated in the order of the ranks."""
        ranks, parts = self._do("all_gather", chunk, group)
        full = torch.cat([parts[r].view(-1, *chunk.shape[1:]) for r in ranks])
        return full if out is None else out.detach().copy_(full.view(out.shape))

    def broadcast(self, tensor, src, group=None):
        """In place. src: a rank of the group."""
        ranks, parts = self._do("broadcast", tensor, group, counts=[src])
        tensor.detach().copy_(parts[ranks[src]].view(tensor.shape))
        return tensor

    def reduce(self, tensor, dst, group=None):
        """In place on rank dst of the group: the sum."""
        ranks, parts = self._do("reduce", tensor, group, dist.ReduceOp.SUM, counts=[dst])
        if ranks[dst] == self.rank:
            total = self._reduced(ranks, parts, dist.ReduceOp.SUM, tensor)
            tensor.detach().copy_(total.view(tensor.shape))
        return tensor

    def all_to_all(self, tensor, group=None, send_counts=None, recv_counts=None):
        """(rows, ...): the received rows, ordered by sender. Counts are in rows; None means equal
        blocks."""
        N = len(self._ranks(group, "all_to_all"))
        if (send_counts is None) != (recv_counts is None):
            raise ValueError(
                "pass both send_counts and recv_counts: a rank cannot guess what the others send it"
            )
        counts = [
            [len(tensor) // N] * N if one is None else [int(n) for n in one]
            for one in (send_counts, recv_counts)
        ]
        if any(len(one) != N or min(one) < 0 for one in counts) or sum(counts[0]) != len(tensor):
            text = (
                f"send_counts={counts[0]} and recv_counts={counts[1]}: each must have one count "
                f"for each of {N} ranks"
            )
            raise ValueError(f"{text}, and send_counts must sum to the {len(tensor)} rows")
        ranks, parts = self._do("all_to_all", tensor, group, counts=[*counts[0], *counts[1]])
        me, blocks = ranks.index(self.rank), []
        for r in ranks:
            sends = self.given_counts[r][:N]
            rows = parts[r].view(-1, *tensor.shape[1:])
            blocks.append(rows.split(sends)[me] if sum(sends) else parts[r][:0])
        received = torch.cat([block.reshape(-1, *tensor.shape[1:]) for block in blocks])
        n = sum(counts[1])  # a call that no rank joined has other rows; the caller expects n
        return received if len(received) == n else tensor.new_zeros(n, *tensor.shape[1:])

    @property
    def rank(self):
        return self.members[self.place]

    def end(self):
        """Called when the answer has returned on this rank, or raised. Returns once that is so on
        every rank of the wire."""
        # raises if an op in flight has raised, which is reported elsewhere
        with contextlib.suppress(RuntimeError):
            _in_turn(lambda: None)
        for group, work in list(background.in_use.items()):  # the answer did not wait for it
            if work.is_completed():
                background.in_use.pop(group, None)
        with self.lock:
            while True:
                said, first_bytes = self._announce(None)
                if not any(said):
                    return
                if done := self._ready(said):
                    self._exchange(said, done, first_bytes)

    def agreed(self, ok) -> bool:
        """True if `ok` holds on every rank of the wire."""
        return self.wire.agreed(ok)

    def gathered(self, tensor):
        """The tensors of all ranks of the wire, in the order of the ranks. All have one form."""
        mine = _bytes(tensor, tensor.numel() * tensor.element_size(), 0)
        return [_tensor(one, tensor.dtype).view(tensor.shape) for one in self.wire.exchange(mine)]

    def record(self):
        """What judges of traffic need to know."""
        return {
            "calls": self.calls,
            "stray": self.stray,
            "clash": self.clash,
            "wire": self.wire.name,
        }

    def _ranks(self, group, op=""):
        """The global ranks of a call: those of the answer's group or, if these are not allowed,
        those that it should have used."""
        ranks = (
            tuple(dist.get_process_group_ranks(group))
            if group != dist.GroupMember.NON_GROUP_MEMBER
            else ()
        )
        allowed = self.allowed or (
            [self.members] if not {self.rank} <= set(ranks) <= set(self.members) else [ranks]
        )
        if ranks not in allowed:
            self.stray = self.stray or (op, ranks)
            return next((one for one in allowed if self.rank in one), (self.rank,))
        return ranks

    def _do(self, op, tensor, group, reduction=None, counts=()):
        """Return (ranks, {global rank: its elements, flat}) in the order of the ranks, once all
        ranks of the call agree on it."""
        ranks, kind = self._ranks(group, op), REDUCTIONS.get(reduction, "")
        n, dtype = tensor.numel(), tensor.dtype
        call = Call(op, self.phase, n, dtype, ranks, kind, tuple(counts))
        self.calls.append(call)
        return _in_turn(lambda: self._done(call, tensor))

    def _done(self, call, tensor):
        if self.before:
            self.before(call)
        with self.lock:
            while True:
                said, first_bytes = self._announce(call, tensor)
                done = self._ready(said)
                if done:
                    parts = self._exchange(said, done, first_bytes, tensor)
                if self.place in done:
                    of = zip(self.members, said, strict=True)
                    self.given_counts = {rank: one.counts for rank, one in of if one}
                    return call.ranks, parts
                if not done:
                    self.clash = self.clash or self._why(said)
                    if self.raises:
                        raise Clash(self.clash)
                    self.given_counts = dict.fromkeys(call.ranks, call.counts)
                    return call.ranks, dict.fromkeys(call.ranks, tensor.detach().reshape(-1))

    def _announce(self, call, tensor=None):
        """What all ranks of the wire are about to do: (their Calls, None for a rank that is over;
        the first INLINE bytes of their data)."""
        numbers = array("q", self._encoded(call)).tobytes()
        both, n = self.wire.exchange(numbers + _bytes(tensor, INLINE, 0)), len(numbers)
        return [self._decoded(array("q", one[:n])) for one in both], [one[n:] for one in both]

    def _encoded(self, call):
        """A Call as a list of integers, which has the same length for every Call of this group."""
        numbers = [-1]
        if call:
            mask = sum(1 << self.members.index(rank) for rank in call.ranks)
            kind = KINDS.index(call.reduction)
            numbers = [OPS.index(call.op), call.elements, DTYPES.index(call.dtype), mask, kind]
            numbers += [len(call.counts), *call.counts]
        return numbers + [0] * (6 + 2 * self.N - len(numbers))

    def _decoded(self, numbers):
        op, elements, dtype, mask, kind, n, *counts = numbers
        if op < 0:
            return None
        ranks = tuple(rank for i, rank in enumerate(self.members) if mask >> i & 1)
        return Call(OPS[op], "", elements, DTYPES[dtype], ranks, KINDS[kind], tuple(counts[:n]))

    def _ready(self, said):
        """The places, in the wire, of the ranks whose calls can be done now."""
        return [i for i, call in enumerate(said) if call and self._complete(call, said)]

    def _complete(self, call, said):
        """True if all ranks of this call make it, with counts that fit each other."""
        calls = [said[self.members.index(rank)] for rank in call.ranks]
        if not all(_fit(call, other) for other in calls):
            return False
        N = len(calls)
        return call.op != "all_to_all" or all(
            calls[a].counts[b] == calls[b].counts[N + a] for a in range(N) for b in range(N)
        )

    def _exchange(self, said, done, first_bytes, tensor=None):
        """{global rank: flat elements} of the ranks whose calls are done now. first_bytes: those
        that `_announce` returned."""
        sizes = {i: said[i].elements * said[i].dtype.itemsize for i in done}
        rest = max(sizes.values()) - INLINE
        if rest > 0:
            mine = _bytes(tensor if self.place in done else None, rest, INLINE)
            pairs = zip(first_bytes, self.wire.exchange(mine), strict=True)
            first_bytes = [b"".join(both) for both in pairs]
        flat = lambda i: _tensor(first_bytes[i][: sizes[i]], said[i].dtype)
        return {self.members[i]: flat(i) for i in done}

    def _reduced(self, ranks, parts, op, tensor):
        combine = combiner(op, tensor)
        result = parts[ranks[0]].clone()
        for rank in ranks[1:]:
            result = combine(result, parts[rank])
        return finish(result, op, len(ranks))

    def _why(self, said):
        """The Problem, which says which call one rank waits in, and what another does instead. A
        rank that is over is preferred as the other one."""
        waiting = [
            (rank, other)
            for rank, call in zip(self.members, said, strict=True)
            for other in (call.ranks if call else ())
        ]
        of = dict(zip(self.members, said, strict=True))
        pairs = [(r, other) for r, other in waiting if not _fit(of[r], of[other])]
        pairs = pairs or [(r, other) for r, other in waiting if r != other] or waiting
        rank, other = min(pairs, key=lambda pair: (of[pair[1]] is not None, pair))
        ops = [call.op if call else "over" for call in said]
        elements = [call.elements if call else 0 for call in said]
        facts = {
            "over": [rank for rank, call in of.items() if not call],
            "phase": self.phase,
            "ops": ops,
            "elements": elements,
            "lists": {*ops} == {"all_to_all"},  # called by all, with counts that differ
            "dtype": of[other] is not None and of[rank].dtype != of[other].dtype,
            "ranks": of[rank].ranks,
        }
        text = f"rank {rank} {_did(of[rank])}, but rank {other} {_did(of[other])}"
        return Problem("clash", text, facts, [ops, elements])


def _fit(a, b):
    """True if these two belong to one call. Their sizes may differ only in an all_gather and an
    all_to_all."""
    if b is None or (a.op, a.dtype, a.ranks, a.reduction) != (b.op, b.dtype, b.ranks, b.reduction):
        return False
    sizes = a.op in ("all_gather", "all_to_all") or a.elements == b.elements
    return sizes and (a.op not in ROOTED or a.counts == b.counts)


def _did(call):
    if call is None:
        return "has returned"
    said = f"called {call.op} of {call.elements} {str(call.dtype)[6:]}"
    if call.op not in ROOTED:
        return said
    (root,) = call.counts  # a rank of the group, if it has that many
    return f"{said} {ROOTED[call.op]} rank {dict(enumerate(call.ranks)).get(root, root)}"


def _bytes(tensor, n, start):
    """n bytes of the tensor's data, starting at byte `start` and padded with zeros."""
    if tensor is None or not tensor.numel():
        return bytes(n)
    with unseen():
        flat = tensor.detach().contiguous().view(-1).view(torch.uint8)[start : start + n]
        return flat.cpu().numpy().tobytes().ljust(n, b"\0")


def _tensor(data, dtype):
    """These bytes as a flat tensor."""
    with unseen():
        found = torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0).to(dtype)
        return found.to(backend.device())


def _in_turn(fn):
    """Call fn. While anything is in flight in the background, the background thread calls fn after
    what was begun before, so that each rank's calls stay in order."""
    if background.in_use and not background.is_this_thread():
        return background.start(fn).wait()
    return fn()
