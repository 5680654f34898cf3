"""Intercepts every communication op of this process, below Python, and writes it into the log.

    dist.send, DDP's reducer, FSDP2, DTensor, compiled code
                          |
                torch.ops.c10d.<op>         one dispatcher entry each
                          |  BackendSelect  <- we are here: write the entry, then redispatch
                   gloo or NCCL

We override the dispatch key BackendSelect because simpler ways miss ops: replacing the functions of
`dist` would miss what DDP's reducer calls from C++, and a TorchDispatchMode sees only its own
thread. The override applies to the whole process, and it does not slow down aten ops. Each
communication op, however, takes about 25 microseconds longer even if nothing is written, so a
process without a ledger has no override installed.
"""

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from lib import backend
from lib.backend import torch_private
from lib.ledger.caller import is_programs, locate
from lib.ledger.follow import Blocking, Queued, threads
from lib.ledger.inside import Inside
from lib.ledger.log import LogReader, signature_of
from lib.ledger.made import GroupsWriter
from lib.ledger.splits import SPLIT, SplitsWriter, give_and_take

REDUCE_OPS = ["sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum"]
OPS = {  # torch's schema name -> the name that users know
    "send": "send",
    "recv_": "recv",
    "recv_any_source_": "recv_any",
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce_coalesced",
    "allgather_": "all_gather",
    "_allgather_base_": "all_gather_into_tensor",
    "allgather_coalesced_": "all_gather_coalesced",
    "allgather_into_tensor_coalesced_": "all_gather_into_tensor_coalesced",
    "reduce_scatter_": "reduce_scatter",
    "_reduce_scatter_base_": "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter_tensor_coalesced",
    "broadcast_": "broadcast",
    "reduce_": "reduce",
    "gather_": "gather",
    "scatter_": "scatter",
    "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all_single",
    "barrier": "barrier",
    "monitored_barrier_": "monitored_barrier",
}
# In these collectives the ranks may give payloads of different sizes, so the size is not part of
# what has to agree.
UNEVEN = {
    "all_gather",
    "all_to_all",
    "all_to_all_single",
    "gather",
    "scatter",
    "reduce_scatter",
    "barrier",
}
MESSAGES = {"send", "recv", "recv_any"}
BLOCKING = {"monitored_barrier"}
NOT_QUEUED = contextlib.nullcontext()

_recorder = None  # the one installed in this process


def install(writer: Any) -> None:
    """Record every op of this process into `writer` (a LogWriter) from now on. Raises RuntimeError
    if a ledger is already installed."""
    global _recorder
    if _recorder is not None:
        raise RuntimeError(
            "a ledger is already being kept in this process; call ledger.uninstall() first"
        )
    _recorder = Recorder(writer)


def uninstall() -> None:
    """Stop recording and remove the override, so that calls are as fast as before."""
    global _recorder
    if _recorder is not None:
        _recorder.close()
        _recorder = None


def finish() -> None:
    """Wait until all ops in this rank's GPU queues have ended, because they may still be in flight
    when the program has returned.

    Call it before the results are collected. If an op cannot end, the rank then waits in this call,
    and the verdict can say for which rank. On gloo there is nothing to wait for.
    """
    if _recorder is not None:
        _recorder.queued.finish()


def mark(label: str) -> None:
    """On a rank: begin a section of its log, which is read as `results.ledger.section(label)`.

    A section ends at the rank's next mark. Without a ledger, `mark` does nothing.
    """
    if _recorder is not None:
        _recorder.mark(label)


@contextlib.contextmanager
def barrier(name: str, members: tuple[int, ...]) -> Iterator[None]:
    """On a rank: log the block as a barrier of these global ranks, as if they were a group of this
    name. This is for code that waits for them without an op of torch. Without a ledger, it does
    nothing."""
    if _recorder is None:
        yield
        return
    slot = _recorder.begin_barrier(name, members)
    yield
    _recorder.log.timestamp(slot, "wait_to", "done")


def not_waited_for() -> list:
    """On a rank: the Entries since its last mark whose Work the program has received but not waited
    for.

    Ops that a function of lib has begun are left out, because a thread of lib may be about to wait
    for them.
    """
    if _recorder is None or not _recorder.log.owed(_recorder.marked):
        return []
    entries = LogReader(_recorder.log.folder, _recorder.log.rank).entries()
    return [
        entry for entry in entries if entry.owed and not entry.via and entry.seq >= _recorder.marked
    ]


def call_site() -> tuple:
    """The line that the program executes now, as the ledger would log it for an op: ((file, line,
    function), the lib function that this line called or "")."""
    return locate(sys._getframe(1))


@contextlib.contextmanager
def attributed_to(site: tuple) -> Iterator[None]:
    """Inside the block, log the ops of this thread as if they were called at `site`, which is a
    result of `call_site`.

    A communication thread needs this, because its own stack does not show the line that requested
    the op.
    """
    _overrides.site, before = site, getattr(_overrides, "site", None)
    try:
        yield
    finally:
        _overrides.site = before


_overrides = threading.local()


class _Group(NamedTuple):
    number: int  # of its line in the log's names file
    name: str  # torch's name for it
    members: tuple[int, ...]  # global ranks, by rank in the group


class Recorder:
    """The override, together with the functions of torch that are replaced while it is installed:
    `Work.wait` and other ways to learn that an op has ended, the start and the end of a batch of
    messages, DDP's forward, and new_group."""

    def __init__(self, writer):
        self.log = writer
        self.marked = 0  # seq of the first entry after the last mark
        self.groups: dict[str, _Group] = {}
        self.queues: dict[
            tuple, bool
        ] = {}  # (group's name, type of device) -> is it stream-ordered?
        self.signatures: dict[tuple, int] = {}
        self.blocking, self.queued = Blocking(writer), Queued(writer)
        self.splits, self.inside = SplitsWriter(writer), Inside()
        self.library = torch.library.Library("c10d", "IMPL")
        below = torch_private.below_backend_select
        for schema_name, name in OPS.items():
            op = getattr(torch.ops.c10d, schema_name, None)
            if op is not None:
                self.library.impl(
                    schema_name, self._shim(name, op.default, below), "BackendSelect",
                    with_keyset=True
                )  # fmt: skip
        self.replaced = []
        self._replace(dist.Work, "wait", self._wait)
        for name in ("get_future", "is_completed", "synchronize"):
            self._replace(dist.Work, name, self._other_end)
        self._replace(dist.ProcessGroup, "_start_coalescing", self._start_batch)
        self._replace(dist.ProcessGroup, "_end_coalescing", self._end_batch)
        self._replace(torch.nn.parallel.DistributedDataParallel, "forward", self.inside.forward)
        self.made = GroupsWriter(writer)
        self._replace(c10d, "_new_group_with_tag", self._new_group)

    def close(self):
        for owner, name, plain in self.replaced:
            setattr(owner, name, plain)
        self.library._destroy()
        self.blocking.close()
        self.queued.close()

    def _replace(self, owner, name, make):
        self.replaced.append((owner, name, vars(owner)[name]))
        setattr(owner, name, make(getattr(owner, name)))

    def _wait(self, plain):
        def wait(work, *args, **kwargs):
            for kind in (self.blocking, self.queued):
                if id(work) in kind.live:
                    return kind.wait(work, plain, args, kwargs)
            return plain(work, *args, **kwargs)

        return wait

    def _other_end(self, plain):
        """Wrap another function by which a program learns that an op has ended."""

        def end(work, *args, **kwargs):
            out = plain(work, *args, **kwargs)
            for kind in (self.blocking, self.queued):
                # The op stays owed if is_completed returns False, or if the ledger itself polls.
                if out is not False and id(work) in kind.live and is_programs(sys._getframe(1)):
                    kind.settle(work)
            return out

        return end

    def _start_batch(self, plain):
        def start(pg, device):
            self.queued.start_batch(self._group(pg).name)
            return plain(pg, device)

        return start

    def _end_batch(self, plain):
        def end(pg, device):
            group = self._group(pg).name
            item = self.queued.end_batch(group)
            with self.queued.calling(group, item):
                work = plain(pg, device)
            if item.slots:
                self.queued.given(group, item, work, device)
            return work

        return end

    def _new_group(self, plain):
        def new_group(ranks=None, *args, **kwargs):
            # only the members call it, and torch gives it a hash instead of a number
            if kwargs.get("use_local_synchronization"):
                return plain(ranks, *args, **kwargs)
            number, site = torch_private.registry().group_count, call_site()[0]
            members = range(self.log.world_size) if ranks is None else ranks
            members = tuple(members if kwargs.get("sort_ranks") is False else sorted(members))
            self.made.begins(number, members, site)
            group = plain(ranks, *args, **kwargs)
            self.made.ends(number)
            return group

        return new_group

    def mark(self, label):
        name, nothing = self.log.name, self.log.name("")
        self.log.record(
            name("mark"), nothing, nothing, name(("", ())), name((label, 0, "")), nothing,
            peer=-1, tag=0, shape=(), numel=0, nbytes=0, channel=("mark",), signature=0,
        )  # fmt: skip
        self.marked = self.log.count

    def begin_barrier(self, name, members):
        """Log that this rank waits in a barrier from now on. Returns the barrier's slot."""
        self.blocking.last.work = None  # as after any op of torch, so that its tensors can be freed
        number, (site, via) = self.log.name, locate(sys._getframe(1))
        slot = self.log.record(
            number("barrier"), number(""), number(""), self._named(name, members).number,
            number(site), number(via), peer=-1, tag=0, shape=(), numel=0, nbytes=0,
            channel=(name,), signature=self._signature("barrier"),
        )  # fmt: skip
        self.log.timestamp(slot, "wait_from", threads=threads())
        return slot

    def _shim(self, name, op, below):
        arguments = [a.name for a in op._schema.arguments]

        def shim(keyset, *args):
            given = dict(zip(arguments, args, strict=False))  # torch omits trailing defaults
            pg, tensors = dist.ProcessGroup.unbox(given["process_group"]), _payload(given)
            group, device = self._group(pg), tensors[0].device if tensors else torch.device("cpu")
            item = self.queued.item(group.name) if self._is_queued(pg, group, device) else None
            slot, resolves = self._post(name, given, pg, group, tensors, item)
            with NOT_QUEUED if item is None else self.queued.calling(group.name, item):
                out = op.redispatch(keyset & below, *args)
            work = out[-1] if isinstance(out, tuple) else out
            work = None if work is None else dist.Work.unbox(work)
            if item is not None:
                self.queued.given(group.name, item, work, device)
            else:
                blocking = name in BLOCKING or given.get("async_op") is False
                self.blocking.given(work, slot, resolves, blocking)
            return out

        return shim

    def _is_queued(self, pg, group, device):
        key = (group.name, device.type)
        if key not in self.queues:
            try:
                self.queues[key] = backend.stream_ordered(pg, device)
            except RuntimeError:  # the group has no such device; torch itself will report that
                return False
        return self.queues[key]

    def _post(self, name, given, pg, group, tensors, item):
        """Find out from its arguments what the call communicates, and write the entry. Returns the
        entry's slot, and what `Blocking` needs to name the source of a receive from any source."""
        reduce_op = REDUCE_OPS[given["reduce_op"].op()] if "reduce_op" in given else ""
        peer = next((given[k] for k in ("dst", "src", "root_rank") if k in given), -1)
        peer = group.members[peer] if peer >= 0 else -1
        tag = given.get("tag", 0)
        dtype = str(tensors[0].dtype)[6:] if tensors else ""
        shape = tuple(tensors[0].shape) if tensors else ()
        numel = sum(t.numel() for t in tensors)
        nbytes = sum(t.numel() * t.element_size() for t in tensors)
        resolves = None
        if name not in MESSAGES:
            channel = (group.name,)
            signature = self._signature(
                name, reduce_op, dtype, peer, None if name in UNEVEN else numel
            )
        else:
            signature = self._signature(dtype, numel)
            if peer == self.log.rank and dist.get_backend(pg) == "gloo":
                raise ValueError(
                    f"rank {peer} would {'send to' if name == 'send' else 'receive from'} itself: "
                    f"gloo has no connection from a rank to itself; copy the tensor instead"
                )
            if name == "send":
                channel = (group.name, self.log.rank, peer, tag)
                self.log.count_sent(peer, numel, nbytes)
            elif name == "recv":
                channel = (group.name, peer, self.log.rank, tag)
            else:
                channel, resolves = None, (group, tag, signature)
        if name in SPLIT:
            tag = self._split(name, given, group, peer)
        frame = sys._getframe(1).f_back
        site, via = getattr(_overrides, "site", None) or locate(frame)
        by_program = is_programs(frame)
        owed = by_program and given.get("async_op") is not False and name not in BLOCKING
        if not by_program and not via and (module := self.inside(frame, name, numel)):
            via = ("inside", module)
        number = self.log.name
        slot = self.log.record(
            number(name), number(reduce_op), number(dtype), group.number, number(site), number(via),
            peer, tag, shape, numel, nbytes, channel, signature,
            -1 if item is None else item.number,
            owed,
        )  # fmt: skip
        if item is not None:
            item.slots.append(slot)
            is_first = name in MESSAGES and self.queued.is_first(group.name, name, peer)
            item.blocks = item.blocks or is_first or given.get("async_op") is False
        return slot, resolves

    def _split(self, name, given, group, root):
        """Record how many elements this rank gives to and expects from each rank. Returns the
        number of that record, or 0 if the lists do not have one tensor per rank."""
        n = len(group.members)
        gives, takes = give_and_take(name, given, group.members.index(root) if root >= 0 else -1, n)
        return self.splits.write(gives, takes) if len(gives) == len(takes) == n else 0

    def _group(self, pg):
        known = self.groups.get(pg.group_name)
        if known is None:
            ranks = torch_private.registry().pg_group_ranks.get(pg)
            # torch's registry does not know this group: assume that its ranks are global ranks
            if ranks is None:
                ranks = {i: i for i in range(pg.size())}
            known = self._named(pg.group_name, tuple(sorted(ranks, key=ranks.get)))
        return known

    def _named(self, name, members):
        known = self.groups.get(name)
        if known is None:
            known = self.groups[name] = _Group(self.log.name((name, members)), name, members)
        return known

    def _signature(self, *facts):
        value = self.signatures.get(facts)
        if value is None:
            # the cache must stay bounded, even in a long job with ever new shapes
            if len(self.signatures) > 4096:
                self.signatures.clear()
            value = self.signatures[facts] = signature_of(*facts)
        return value


def _payload(given):
    """The tensors that this rank gives to the op. If it gives none, as in a receive, or in a
    scatter on ranks that are not the root, those that it receives into."""
    for key in (
        "input_tensor",
        "input",
        "input_tensors",
        "input_list",
        "inputs",
        "tensors",
        "tensor",
    ):
        if key in given:
            found = list(_flatten(given[key]))
            if found:
                return found
    return list(_flatten(given.get("output_tensors", ())))


def _flatten(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _flatten(item)
