"""The collectives that an answer is given: they do as lib's, note every call, and never hang.

    round      1                  2                  3
    rank 0     4 over 0 2 4 6     still              still     rank 2 will not come: a Clash
    rank 2     2 over 2 3         2 over 2 3         over
    rank 3     2 over 2 3 done    2 over 2 3 done    over

Ranks need not call in step. In every round each rank tells all others what it is about to do: op,
ranks, elements, dtype. A call on which all its ranks agree is done in this round, in the order of
the ranks: the same bits on all. The others wait. Where nothing can be done, all who wait raise a
Clash; on a wire of their own they would wait for ever. A rank whose part is over tells so until it
is over on all.

They talk on the group `control`, which no answer knows: what the logs show on another group was
sent beside them.
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
# As the ledger names them. That they are not the given ones is a claim (`only_calls`), with better
# words.
COLLECTIVES = (
    *IN_THE_LEDGER.values(),
    *(f"{fn.__module__.rpartition('.')[2]}.{fn.__name__}" for fn in _LIBS),
)
MAY_CALL = (*(f"comm.{op}" for op in OPS[1:]), "framework._measure_all", *COLLECTIVES)
DTYPES = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32,
    torch.int16, torch.int8, torch.uint8, torch.bool,
)  # fmt: skip
# bytes of a call's numbers that travel with what is told of it: one round instead of two
INLINE = 4096
REDUCTIONS = {
    dist.ReduceOp.SUM: "sum",
    dist.ReduceOp.AVG: "avg",
    dist.ReduceOp.MAX: "max",
    dist.ReduceOp.MIN: "min",
}


class Clash(Exception):
    """The ranks' calls do not fit together. problem: which, for `only_calls` and hints."""

    def __init__(self, problem):
        super().__init__(problem.text)
        self.problem = problem


class Call(NamedTuple):
    """One call of one rank. ranks: global."""

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
    """One rank's collectives. Make it on every rank of `control`.

    allowed: the sets of ranks over which an answer may call; a call for others is noted (`stray`)
        and done over the first of them. None: any ranks of control.
    before: before(Call) is called as each call begins; it may look at the memory, or wait
        (overlap.py).
    raises: False for calls in the background, whose thread a Clash would end: it is noted, and a
        call that nobody joins is done with this rank's own numbers as those of all.
    """

    def __init__(self, control, allowed=None, before=None, raises=True):
        self.control, self.before, self.raises = control, before, raises
        self.members = tuple(dist.get_process_group_ranks(control))
        self.allowed = [tuple(ranks) for ranks in allowed] if allowed else None
        self.place, self.N = dist.get_rank(control), len(self.members)
        self.lock = threading.Lock()
        self.begin()

    def begin(self, phase=""):
        """A new part: calls are counted anew."""
        self.phase, self.calls, self.used = phase, [], Counter()
        self.stray = self.clash = None

    def all_reduce(self, tensor, group=None, op=dist.ReduceOp.SUM):
        """In place; returns the tensor, as lib's does."""
        ranks, parts = self._do("all_reduce", tensor, group, op)
        tensor.detach().copy_(self._reduced(ranks, parts, op, tensor).view(tensor.shape))
        return tensor

    def reduce_scatter(self, tensor, group=None, op=dist.ReduceOp.SUM):
        """(n/N, ...): this rank's part of the sum, rows tensor_split(N)[r]."""
        ranks, parts = self._do("reduce_scatter", tensor, group, op)
        whole = self._reduced(ranks, parts, op, tensor).view(tensor.shape)
        return whole.tensor_split(len(ranks))[ranks.index(self.rank)].clone()

    def all_gather(self, chunk, group=None, out=None):
        """(n, ...): all ranks' chunks, one below the other."""
        ranks, parts = self._do("all_gather", chunk, group)
        whole = torch.cat([parts[r].view(-1, *chunk.shape[1:]) for r in ranks])
        return whole if out is None else out.detach().copy_(whole.view(out.shape))

    def broadcast(self, tensor, src, group=None):
        """In place; src: a rank of the group."""
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
        """(rows, ...): what was received, by sender. Counts are rows; None: equal blocks."""
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
                f"send_counts={counts[0]} and recv_counts={counts[1]}: one count for each of {N} "
                f"ranks"
            )
            raise ValueError(f"{text}, and the first sum to the tensor's {len(tensor)} rows")
        ranks, parts = self._do("all_to_all", tensor, group, extra=[*counts[0], *counts[1]])
        me, blocks = ranks.index(self.rank), []
        for r in ranks:
            sends = self.extras[r][:N]
            blocks.append(
                parts[r].view(-1, *tensor.shape[1:]).split(sends)[me]
                if sum(sends)
                else parts[r][:0]
            )
        came = torch.cat([block.reshape(-1, *tensor.shape[1:]) for block in blocks])
        n = sum(counts[1])  # a call that nobody joined has other rows: as many as are expected
        return came if len(came) == n else tensor.new_zeros(n, *tensor.shape[1:])

    def wrap(self, name, fn):
        """One of lib's functions fn(*args, group, all_reduce), as an answer gets it:
        given(*args, group)."""

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
        """The answer has returned here, or raised; returns when it has on every rank of control."""
        # not run, as something under way has raised: that is told elsewhere
        with contextlib.suppress(RuntimeError):
            _in_turn(lambda: None)
        for group, work in list(background.in_use.items()):  # nobody waited for it, and nobody will
            if work.is_completed():
                background.in_use.pop(group, None)
        with self.lock:
            while True:
                heads, begun = self._tell(self._head("over"))
                if not any(head[0] for head in heads):
                    return
                if done := self._ready(heads):
                    self._exchange(heads, done, begun)

    def agreed(self, ok) -> bool:
        """Is it so on every rank of control?"""
        return all(map(bool, self._gather(torch.tensor([ok], device=backend.device()))))

    def record(self):
        """For `only_calls`."""
        return {
            "calls": self.calls,
            "stray": self.stray,
            "clash": self.clash,
            "control": self.control.group_name,
        }

    def _ranks(self, group, op=""):
        """The global ranks that are called: the answer's or, where it may not, those that
        it should have taken."""
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
        """({global rank: its elements, flat}, in the order of the ranks) once all ranks of
        the call agree."""
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
        head, ranks = self._head(call.op, call, extra), call.ranks
        with self.lock:
            while True:
                heads, begun = self._tell(head, tensor)
                done = self._ready(heads)
                if done:
                    parts = self._exchange(heads, done, begun, tensor)
                if self.place in done:
                    self.extras = {self.members[i]: one[7:] for i, one in enumerate(heads)}
                    return ranks, parts
                if not done:
                    self.clash = self.clash or self._why(heads)
                    if self.raises:
                        raise Clash(self.clash)
                    self.extras = dict.fromkeys(ranks, tuple(extra))
                    return ranks, dict.fromkeys(ranks, tensor.detach().reshape(-1))

    def _head(self, op, call=None, extra=()):
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

    def _tell(self, head, tensor=None):
        """What all ranks of control do: (heads, the first INLINE bytes of their numbers)."""
        told = torch.tensor(head, device=backend.device()).view(torch.uint8)
        both = self._gather(torch.cat([told, _bytes(tensor, INLINE, 0)]))
        return [one[: len(told)].view(torch.int64).tolist() for one in both], [
            one[len(told) :] for one in both
        ]

    def _gather(self, mine):
        """What every rank of control has, of one size, over the first: ranks that share cores pay
        for each message."""
        whole = mine.new_empty(self.N, *mine.shape)
        dist.gather(mine, [*whole] if self.place == 0 else None, group=self.control, group_dst=0)
        dist.broadcast(whole, group=self.control, group_src=0)
        return [*whole]

    def _of(self, head):
        return [i for i in range(self.N) if head[3] >> i & 1]

    def _ready(self, heads):
        """The places whose calls can be done now."""
        return [
            i
            for i, head in enumerate(heads)
            if head[0]
            and all(self._fit(head, heads[j]) for j in self._of(head))
            and self._counts_fit(head, heads)
        ]

    @staticmethod
    def _fit(a, b):
        """Are these two heads of one call? Only gathered chunks, and rows that change places, may
        differ in size."""
        alike = [0, 2, 3, 4] if OPS[a[0]] in ("all_gather", "all_to_all") else [0, 1, 2, 3, 4]
        return all(a[i] == b[i] for i in alike) and (OPS[a[0]] not in ROOTED or a[7] == b[7])

    def _counts_fit(self, head, heads):
        places = self._of(head)
        if OPS[head[0]] != "all_to_all":
            return True
        N = len(places)
        return all(
            heads[i][7 + b] == heads[j][7 + N + a]
            for a, i in enumerate(places)
            for b, j in enumerate(places)
        )

    def _exchange(self, heads, done, begun, tensor=None):
        """{global rank: flat elements} of all whose calls are done now. begun: what
        `_tell` gave of them."""
        rest = max(heads[i][5] for i in done) - INLINE
        if rest > 0:
            mine = _bytes(tensor if self.place in done else None, rest, INLINE)
            begun = [torch.cat(both) for both in zip(begun, self._gather(mine), strict=True)]
        # A copy of its own is aligned for every dtype.
        return {
            self.members[i]: begun[i][: heads[i][5]].clone().view(DTYPES[heads[i][2]]) for i in done
        }

    def _reduced(self, ranks, parts, op, tensor):
        combine = combiner(op, tensor)
        result = parts[ranks[0]].clone()
        for rank in ranks[1:]:
            result = combine(result, parts[rank])
        return finish(result, op, len(ranks))

    def _why(self, heads):
        """Who waits for whom: for a rank that is over, if there is one."""
        root = lambda head: (
            f" {ROOTED[OPS[head[0]]]} rank {head[7]}" if OPS[head[0]] in ROOTED else ""
        )
        what = lambda head: f"{OPS[head[0]]} of {head[1]} {str(DTYPES[head[2]])[6:]}{root(head)}"
        says = lambda i: what(heads[i]) if heads[i][0] else "has returned"
        pairs = [
            (i, j)
            for i, one in enumerate(heads)
            if one[0]
            for j in self._of(one)
            if not self._fit(one, heads[j])
        ]
        pairs = pairs or [
            (i, j) for i, one in enumerate(heads) if one[0] for j in self._of(one) if i != j
        ]
        i, j = min(pairs, key=lambda pair: (heads[pair[1]][0] != 0, pair))
        facts = {
            "over": [self.members[x] for x, one in enumerate(heads) if not one[0]],
            "phase": self.phase,
        }
        facts |= {"ops": [OPS[one[0]] for one in heads], "elements": [one[1] for one in heads]}
        facts["dtype"] = heads[i][2] != heads[j][2] and heads[j][0] != 0
        facts["ranks"] = tuple(self.members[x] for x in self._of(heads[i]))
        text = f"rank {self.members[i]}: {says(i)}, but rank {self.members[j]}: {says(j)}"
        return Problem("clash", text, facts, [facts["ops"], facts["elements"]])


def _bytes(tensor, n, start):
    """n bytes of the tensor's numbers from byte `start` on, zeros after its end."""
    found = torch.zeros(n, dtype=torch.uint8, device=backend.device())
    if tensor is not None and tensor.numel():
        flat = tensor.detach().contiguous().view(-1).view(torch.uint8)[start : start + n]
        found[: len(flat)] = flat
    return found


def _in_turn(fn):
    """fn(); while anything is under way in the background, by that thread, when it comes to it:
    ranks stay in order."""
    if background.in_use and not background.is_this_thread():
        return background.start(fn).wait()
    return fn()
