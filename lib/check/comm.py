"""The collectives that an answer is given. They compute what lib's compute, record every call, and
never hang.

    round      1                      2                      3
    rank 0     n=4 on ranks 0 2 4 6   waits                  waits: rank 2 is over, so a Clash
    rank 2     n=2 on ranks 2 3       n=2 on ranks 2 3       over
    rank 3     n=2 on ranks 2 3       n=2 on ranks 2 3       over

The ranks need not call in step. In every round, each rank tells all others which call it is about
to make: op, ranks, elements and dtype. If all ranks of a call agree on it, it is done in this
round, and a sum is added up in the order of the ranks, so that all of them get the same bits. The
other ranks wait. If no call can be done, every waiting rank raises a Clash, where with real
collectives it would wait forever. A rank whose part is over keeps reporting that until all ranks
are over.

These exchanges use the group `control`, which the answer does not know. Whatever the logs show on
another group was therefore not sent by the given collectives.
"""

import contextlib
import threading
from collections import Counter
from typing import NamedTuple

import torch
import torch.distributed as dist

from lib import backend, collectives
from lib.check.exercise import Problem
from lib.collectives import background, p2p
from lib.collectives.local import combiner
from lib.collectives.local import divide_if_average as finish
from lib.ledger.record import OPS as IN_THE_LEDGER

OPS = ("over", "all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "reduce")
ROOTED = {"broadcast": "from", "reduce": "to"}
_LIBS = [
    *(getattr(collectives, name) for name in collectives.__all__),
    p2p.send,
    p2p.recv,
    p2p.send_recv,
    p2p.exchange,
]
# As the ledger names them. An answer may call them, because a judge of its traffic rejects those
# that it was not given, with a better message (`traffic.beside`).
COLLECTIVES = (
    *IN_THE_LEDGER.values(),
    *(f"{fn.__module__.rpartition('.')[2]}.{fn.__name__}" for fn in _LIBS),
)
MAY_CALL = (*(f"comm.{op}" for op in OPS[1:]), "framework._measure_all", *COLLECTIVES)
DTYPES = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32,
    torch.int16, torch.int8, torch.uint8, torch.bool,
)  # fmt: skip
# bytes of a call's data that are sent along with its header, which saves small calls an exchange
INLINE = 4096
REDUCTIONS = {
    dist.ReduceOp.SUM: "sum",
    dist.ReduceOp.AVG: "avg",
    dist.ReduceOp.MAX: "max",
    dist.ReduceOp.MIN: "min",
}


class Clash(Exception):
    """The ranks' calls do not fit together. problem: in what way, for judges and hints."""

    def __init__(self, problem):
        super().__init__(problem.text)
        self.problem = problem


class Call(NamedTuple):
    """One call of one rank. ranks: global ranks."""

    op: str
    phase: str  # what the check was doing: "forward", "backward", "step", ...
    elements: int
    dtype: torch.dtype
    ranks: tuple[int, ...]
    reduction: str = ""
    counts: tuple[
        int, ...
    ] = ()  # all_to_all: rows to each rank, then from each; broadcast, reduce: the root


class Recorder:
    """The collectives of one rank. Every rank of `control` creates one.

    allowed: the sets of ranks on which an answer may call. A call on other ranks is recorded as
        `stray` and done on the first set that contains this rank. None: any ranks of control.
    before: before(Call) is called as each call begins. It may inspect the memory, or wait
        (overlap.py).
    raises: False for calls in the background, because a Clash would end their thread. The Clash is
        then only recorded, and a call that the others do not join takes this rank's elements for
        theirs.
    """

    def __init__(self, control, allowed=None, before=None, raises=True):
        self.control, self.before, self.raises = control, before, raises
        self.members = tuple(dist.get_process_group_ranks(control))
        self.allowed = [tuple(ranks) for ranks in allowed] if allowed else None
        self.place, self.N = dist.get_rank(control), len(self.members)
        self.lock = threading.Lock()
        self.begin()

    def begin(self, phase=""):
        """Begin a new part, in which calls are counted from zero."""
        self.phase, self.calls, self.used = phase, [], Counter()
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
        ranks, parts = self._do("broadcast", tensor, group, extra=[src])
        tensor.detach().copy_(parts[ranks[src]].view(tensor.shape))
        return tensor

    def reduce(self, tensor, dst, group=None):
        """In place on rank dst of the group: the sum."""
        ranks, parts = self._do("reduce", tensor, group, dist.ReduceOp.SUM, extra=[dst])
        if ranks[dst] == self.rank:
            total = self._reduced(ranks, parts, dist.ReduceOp.SUM, tensor)
            tensor.detach().copy_(total.view(tensor.shape))
        return tensor

    def all_to_all(self, tensor, group=None, send_counts=None, recv_counts=None):
        """(rows, ...): the received rows, ordered by sender. Counts are in rows; None means equal
        blocks."""
        N = len(self._ranks(group))
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
        ranks, parts = self._do("all_to_all", tensor, group, extra=[*counts[0], *counts[1]])
        me, blocks = ranks.index(self.rank), []
        for r in ranks:
            sends = self.extras[r][:N]
            blocks.append(
                parts[r].view(-1, *tensor.shape[1:]).split(sends)[me]
                if sum(sends)
                else parts[r][:0]
            )
        received = torch.cat([block.reshape(-1, *tensor.shape[1:]) for block in blocks])
        n = sum(counts[1])  # a call that no rank joined has other rows; the caller expects n
        return received if len(received) == n else tensor.new_zeros(n, *tensor.shape[1:])

    def wrap(self, name, fn):
        """Turn fn(*args, group, all_reduce), one of lib's functions, into given(*args, group),
        which an answer gets."""

        def given(*args, **named):
            *args, group = (*args, named.get("group")) if "group" in named else args
            self._ranks(group, name)
            self.used[name] += 1
            return fn(
                *args,
                self.control,
                lambda tensor, _=None, op=dist.ReduceOp.SUM: self.all_reduce(tensor, group, op),
            )

        return given

    @property
    def rank(self):
        return self.members[self.place]

    def end(self):
        """Called when the answer has returned on this rank, or raised. Returns once that is so on
        every rank of control."""
        # it is not run if an op in flight has raised, which is reported elsewhere
        with contextlib.suppress(RuntimeError):
            _in_turn(lambda: None)
        for group, work in list(background.in_use.items()):  # the answer did not wait for it
            if work.is_completed():
                background.in_use.pop(group, None)
        with self.lock:
            while True:
                headers, first_bytes = self._announce(self._header("over"))
                if not any(header[0] for header in headers):
                    return
                if done := self._ready(headers):
                    self._exchange(headers, done, first_bytes)

    def agreed(self, ok) -> bool:
        """True if `ok` holds on every rank of control."""
        return all(map(bool, self._gather(torch.tensor([ok], device=backend.device()))))

    def record(self):
        """What judges of traffic need to know."""
        return {
            "calls": self.calls,
            "stray": self.stray,
            "clash": self.clash,
            "control": self.control.group_name,
        }

    def _ranks(self, group, op=""):
        """The global ranks of a call: the answer's or, if these are not allowed, those that it
        should have taken."""
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

    def _do(self, op, tensor, group, reduction=None, extra=()):
        """Return (ranks, {global rank: its elements, flat}) in the order of the ranks, once all
        ranks of the call agree on it."""
        ranks = self._ranks(group, op)
        call = Call(
            op,
            self.phase,
            tensor.numel(),
            tensor.dtype,
            ranks,
            REDUCTIONS.get(reduction, ""),
            tuple(extra),
        )
        self.calls.append(call)
        return _in_turn(lambda: self._done(call, tensor, extra))

    def _done(self, call, tensor, extra):
        if self.before:
            self.before(call)
        header, ranks = self._header(call.op, call, extra), call.ranks
        with self.lock:
            while True:
                headers, first_bytes = self._announce(header, tensor)
                done = self._ready(headers)
                if done:
                    parts = self._exchange(headers, done, first_bytes, tensor)
                if self.place in done:
                    self.extras = {self.members[i]: one[7:] for i, one in enumerate(headers)}
                    return ranks, parts
                if not done:
                    self.clash = self.clash or self._why(headers)
                    if self.raises:
                        raise Clash(self.clash)
                    self.extras = dict.fromkeys(ranks, tuple(extra))
                    return ranks, dict.fromkeys(ranks, tensor.detach().reshape(-1))

    def _header(self, op, call=None, extra=()):
        mask = sum(1 << self.members.index(rank) for rank in call.ranks) if call else 0
        numbers = (
            [
                call.elements,
                DTYPES.index(call.dtype),
                mask,
                list(REDUCTIONS.values()).index(call.reduction) if call.reduction else -1,
                call.elements * call.dtype.itemsize,
            ]
            if call
            else [0] * 5
        )
        return [OPS.index(op), *numbers, 0, *extra, *([0] * (2 * self.N - len(extra)))]

    def _announce(self, header, tensor=None):
        """What all ranks of control are about to do: (headers, the first INLINE bytes of their
        data)."""
        encoded = torch.tensor(header, device=backend.device()).view(torch.uint8)
        both = self._gather(torch.cat([encoded, _bytes(tensor, INLINE, 0)]))
        return [one[: len(encoded)].view(torch.int64).tolist() for one in both], [
            one[len(encoded) :] for one in both
        ]

    def _gather(self, mine):
        """The tensor `mine` of every rank of control, all of one size. They are collected on the
        first rank, because ranks that share cores pay for each message."""
        gathered = mine.new_empty(self.N, *mine.shape)
        dist.gather(mine, [*gathered] if self.place == 0 else None, group=self.control, group_dst=0)
        dist.broadcast(gathered, group=self.control, group_src=0)
        return [*gathered]

    def _indices_of(self, header):
        return [i for i in range(self.N) if header[3] >> i & 1]

    def _ready(self, headers):
        """The indices, in control, of the ranks whose calls can be done now."""
        return [
            i
            for i, header in enumerate(headers)
            if header[0]
            and all(self._fit(header, headers[j]) for j in self._indices_of(header))
            and self._counts_fit(header, headers)
        ]

    @staticmethod
    def _fit(a, b):
        """True if these two headers are of one call. Only gathered chunks, and the rows of an
        all-to-all, may differ in size."""
        alike = [0, 2, 3, 4] if OPS[a[0]] in ("all_gather", "all_to_all") else [0, 1, 2, 3, 4]
        return all(a[i] == b[i] for i in alike) and (OPS[a[0]] not in ROOTED or a[7] == b[7])

    def _counts_fit(self, header, headers):
        indices = self._indices_of(header)
        if OPS[header[0]] != "all_to_all":
            return True
        N = len(indices)
        return all(
            headers[i][7 + b] == headers[j][7 + N + a]
            for a, i in enumerate(indices)
            for b, j in enumerate(indices)
        )

    def _exchange(self, headers, done, first_bytes, tensor=None):
        """{global rank: flat elements} of the ranks whose calls are done now. first_bytes: those
        that `_announce` returned."""
        rest = max(headers[i][5] for i in done) - INLINE
        if rest > 0:
            mine = _bytes(tensor if self.place in done else None, rest, INLINE)
            first_bytes = [
                torch.cat(both) for both in zip(first_bytes, self._gather(mine), strict=True)
            ]
        # A copy is aligned for every dtype, which a slice need not be.
        return {
            self.members[i]: first_bytes[i][: headers[i][5]].clone().view(DTYPES[headers[i][2]])
            for i in done
        }

    def _reduced(self, ranks, parts, op, tensor):
        combine = combiner(op, tensor)
        result = parts[ranks[0]].clone()
        for rank in ranks[1:]:
            result = combine(result, parts[rank])
        return finish(result, op, len(ranks))

    def _why(self, headers):
        """The Problem, which says what one rank waits for in vain, and what another does instead.
        If a rank is over, it is the other."""
        root = lambda header: (
            f" {ROOTED[OPS[header[0]]]} rank {header[7]}" if OPS[header[0]] in ROOTED else ""
        )
        described = lambda header: (
            f"{OPS[header[0]]} of {header[1]} {str(DTYPES[header[2]])[6:]}{root(header)}"
        )
        did = lambda i: f"called {described(headers[i])}" if headers[i][0] else "has returned"
        pairs = [
            (i, j)
            for i, one in enumerate(headers)
            if one[0]
            for j in self._indices_of(one)
            if not self._fit(one, headers[j])
        ]
        pairs = pairs or [
            (i, j)
            for i, one in enumerate(headers)
            if one[0]
            for j in self._indices_of(one)
            if i != j
        ]
        i, j = min(pairs, key=lambda pair: (headers[pair[1]][0] != 0, pair))
        facts = {
            "over": [self.members[x] for x, one in enumerate(headers) if not one[0]],
            "phase": self.phase,
        }
        facts |= {"ops": [OPS[one[0]] for one in headers], "elements": [one[1] for one in headers]}
        facts["lists"] = {*facts["ops"]} == {"all_to_all"}  # called by all, with counts that differ
        facts["dtype"] = headers[i][2] != headers[j][2] and headers[j][0] != 0
        facts["ranks"] = tuple(self.members[x] for x in self._indices_of(headers[i]))
        text = f"rank {self.members[i]} {did(i)}, but rank {self.members[j]} {did(j)}"
        return Problem("clash", text, facts, [facts["ops"], facts["elements"]])


def _bytes(tensor, n, start):
    """n bytes of the tensor's data, beginning with byte `start`, and zeros after its end."""
    found = torch.zeros(n, dtype=torch.uint8, device=backend.device())
    if tensor is not None and tensor.numel():
        flat = tensor.detach().contiguous().view(-1).view(torch.uint8)[start : start + n]
        found[: len(flat)] = flat
    return found


def _in_turn(fn):
    """Call fn. While anything is in flight in the background, its thread makes the call, after what
    was begun before, so that each rank's calls stay in order."""
    if background.in_use and not background.is_this_thread():
        return background.start(fn).wait()
    return fn()
