"""One rank's log: a memory-mapped file that outlives the rank. (PyTorch's Flight Recorder keeps a
similar ring in the memory of the rank, where it is lost when the rank is killed.)

    header | totals, one per peer | entry | ... | entry   a ring: the newest overwrite the oldest

The rank writes an entry *before* the call that it describes, and adds the times as they happen. The
operating system keeps the pages of the file when the process dies, so the parent can read the log
while the rank is stuck, and also after SIGKILL or a crash. Because entries have a fixed size, each
text (a source line, a group's members) is written once, as a line of a second file, and entries
store the number of that line.

A log is bounded, because the ring keeps only the last `capacity` entries. Two things still cover
the full run: the totals of what was sent to each peer, and the `nth` and `chain` of each entry,
which are the index of the op in its channel and the rolling hash of all ops of the channel up to
it. If the chains of two ranks agree at the same `nth`, the ranks have called matching ops until
then, even if those entries have been overwritten.

Within a channel, the ops of different ranks are paired by their order. The channel of a collective
is its group, and that of a message is (group, source, destination, tag).
"""

import hashlib
import json
import mmap
import os
import struct
import threading
import time
from dataclasses import dataclass, field

from lib.ledger.splits import SPLIT, SplitsReader

RUNNING, RETURNED, RAISED, EXITED = 1, 2, 3, 4  # 0: the rank has not begun
KILLED = 5  # in no log: a reader's conclusion if the process is gone but its state is RUNNING
# magic pid rank world_size capacity state count touches began wall left: see `Head`
HEADER = struct.Struct("<8sqqqqqqqddd")
COUNT_AT, TOUCHES_AT, STATE_AT, LEFT_AT = 48, 56, 40, 80
TOTALS = struct.Struct("<qqq")  # to one peer: messages, elements, bytes
ENTRY = struct.Struct("<q6HiiHH5qqqqQqdddd")
TIMES = {
    "posted": ENTRY.size - 32,
    "wait_from": ENTRY.size - 24,
    "wait_to": ENTRY.size - 16,
    "done": ENTRY.size - 8,
}
THREADS_AT, PEER_AT, NTH_AT = 28, 20, 88
MAGIC = b"ledger02"
# a bit of an entry's `threads`: the program has begun the op, but has not waited for it yet
OWED = 0x8000
DEFAULT_CAPACITY = 1 << 16
now = time.monotonic


@dataclass(slots=True)
class Entry:
    """One communication op, as its rank posted it. Times are in seconds since the first rank began;
    a time is None until its event has happened."""

    rank: int
    seq: int  # index of this entry in its rank's log, from 0
    op: str  # "send", "recv", "all_reduce", ..., or "mark"
    reduce_op: str  # "sum", "max", ..., or ""
    dtype: str  # "float32"
    group: str  # the group's name in torch
    members: tuple[int, ...]  # its global ranks
    peer: int | None  # the other global rank of a message; the root of a rooted collective
    tag: int  # of a message
    shape: tuple[int, ...]  # of the first tensor, at most 5 dimensions
    numel: int  # of all tensors of the payload
    # of a message, its size; of a collective, the payload that this rank gave, or received into if
    # it gave none
    nbytes: int
    nth: int  # index in its channel, from 0; -1 while the source of a receive is not known
    chain: int  # rolling hash of the channel up to this op
    # NCCL: index of its item in its group's queue on the GPU (a batch is one item); gloo: -1
    item: int
    posted: float  # just before the call
    wait_from: float | None  # when its rank began to wait for it
    wait_to: float | None  # when this wait returned
    done: float | None  # when the op itself was seen to have ended
    threads: int  # Python threads that might communicate when the wait began
    file: str  # of the line that called it; for a mark, its label
    line: int
    function: str
    # the lib function that this line called, e.g. "ring.ring_all_reduce"
    via: str = field(default="")
    # the module that the op is for, if torch's own code called it (lib/ledger/inside.py)
    inside: str = ""
    # of a collective that may be uneven: how many elements this rank gives to each rank of its
    # group
    gives: tuple[int, ...] = ()
    takes: tuple[int, ...] = ()  # and how many it expects from each
    owed: bool = False  # the program has begun it without waiting, and has not waited for it yet

    @property
    def is_message(self) -> bool:
        return self.op in ("send", "recv", "recv_any")

    @property
    def open(self) -> bool:
        """Posted and, as far as the log knows, not finished."""
        return self.done is None and self.wait_to is None

    @property
    def channel(self) -> tuple:
        if not self.is_message:
            return (self.group,)
        src, dst = (self.rank, self.peer) if self.op == "send" else (self.peer, self.rank)
        return (self.group, src, dst, self.tag)


def lay_out(folder: str, rank: int, world_size: int, capacity: int = DEFAULT_CAPACITY) -> None:
    """Make the empty log of a rank that has not begun, so that the parent can read it from the
    start. The file is sparse: entries that are never written take no disk space."""
    path = f"{folder}/log{rank}"
    if not os.path.exists(path):
        with open(path, "wb") as file:
            file.truncate(HEADER.size + TOTALS.size * world_size + ENTRY.size * capacity)
            file.write(HEADER.pack(MAGIC, 0, rank, world_size, capacity, 0, 0, 0, 0.0, 0.0, 0.0))


class LogWriter:
    """The rank's side of the log. `record` returns the entry's slot in the ring, (offset, seq), and
    `timestamp` writes one of its times there later."""

    def __init__(self, folder: str, rank: int, world_size: int, capacity: int = DEFAULT_CAPACITY):
        """Open the log that `lay_out` made in `folder`, or make it; the rank has not begun yet."""
        self.folder = folder
        lay_out(folder, rank, world_size, capacity)
        with open(f"{folder}/log{rank}", "r+b") as file:
            self.map = mmap.mmap(file.fileno(), 0)
        self.first = HEADER.size + TOTALS.size * world_size
        self.names_fd = os.open(
            f"{folder}/names{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644
        )
        self.names: dict[object, int] = {}
        self.rank, self.world_size, self.capacity, self.count, self.touches = (
            rank,
            world_size,
            capacity,
            0,
            0,
        )
        self.channels: dict[tuple, list[int]] = {}  # channel -> [count, chain]
        self.lock = threading.RLock()
        self._write_header(0)

    def _write_header(self, state):
        # pack_into would clear the bytes first, and the parent may be reading them.
        self.map[: HEADER.size] = HEADER.pack(
            MAGIC,
            os.getpid(),
            self.rank,
            self.world_size,
            self.capacity,
            state,
            0,
            0,
            now(),
            time.time(),
            0.0,
        )

    def begin(self) -> None:
        """This rank is RUNNING from now on. The time that it has needed until now, for example to
        connect, does not count towards a timeout."""
        self._write_header(RUNNING)

    def name(self, text: object) -> int:
        """The number of the line in the names file that contains `text`, which can be any hashable
        value that JSON can store. At its first use `text` is appended to the file."""
        number = self.names.get(text)
        if number is None:
            with self.lock:
                if text in self.names:  # another thread has just written it
                    return self.names[text]
                number = len(self.names)
                # No program should use so many different texts. If one does, we lose the text and
                # continue.
                if number > 0xFFFF:
                    return 0xFFFF
                os.write(self.names_fd, (json.dumps(text) + "\n").encode())
                self.names[text] = number
        return number

    def record(
        self,
        op,
        reduce_op,
        dtype,
        group,
        site,
        via,
        peer,
        tag,
        shape,
        numel,
        nbytes,
        channel,
        signature,
        item=-1,
        owed=False,
    ):
        """Write an entry before its op begins, and return its slot. Texts are passed as the numbers
        that `name` returns.

        channel: None for a receive from any source, until `resolve` provides it. tag: for a
        collective, the number of its splits (lib/ledger/splits.py), or 0 if it has none.
        """
        with self.lock:
            seq, nth, chain = self.count, -1, 0
            at = self.first + (seq % self.capacity) * ENTRY.size
            if channel is not None:
                nth, chain = self._advance(channel, signature)
            dims = (*shape[:5], 0, 0, 0, 0, 0)[:5]
            ENTRY.pack_into(
                self.map, at, seq, op, reduce_op, dtype, group, site, via, peer, tag, OWED * owed,
                len(shape),
                *dims, numel, nbytes, nth, chain, item, now(), 0.0, 0.0, 0.0,
            )  # fmt: skip
            self.count = seq + 1
            struct.pack_into("<q", self.map, COUNT_AT, self.count)
            self._touch()
        return at, seq

    def _advance(self, channel, signature):
        state = self.channels.setdefault(channel, [0, 0])
        nth, state[0] = state[0], state[0] + 1
        # the multiplier of FNV-1a
        state[1] = ((state[1] * 0x100000001B3) ^ signature) & 0xFFFFFFFFFFFFFFFF
        return nth, state[1]

    def resolve(self, slot: tuple[int, int], peer: int, channel: tuple, signature: int) -> None:
        """Fill in the source of a receive from any source, once it is known."""
        at, seq = slot
        with self.lock:
            nth, chain = self._advance(channel, signature)
            if self._still(at, seq):
                struct.pack_into("<i", self.map, at + PEER_AT, peer)
                struct.pack_into("<qQ", self.map, at + NTH_AT, nth, chain)

    def count_sent(self, peer: int, elements: int, nbytes: int) -> None:
        with self.lock:
            at = HEADER.size + TOTALS.size * peer
            messages, total, size = TOTALS.unpack_from(self.map, at)
            TOTALS.pack_into(self.map, at, messages + 1, total + elements, size + nbytes)

    def timestamp(self, slot: tuple[int, int], *which: str, threads: int | None = None) -> None:
        """Set these times of an entry to the current time. threads: when a wait begins, how many
        threads may communicate. The op stays owed until `settle`, because the ledger itself may be
        what waits."""
        at, seq = slot
        with self.lock:
            if self._still(at, seq):
                if threads is not None:
                    owed = self._threads(at) & OWED
                    struct.pack_into("<H", self.map, at + THREADS_AT, owed | min(threads, OWED - 1))
                for one in which:
                    struct.pack_into("<d", self.map, at + TIMES[one], now())
                self._touch()

    def owed(self, since: int) -> bool:
        """Is there an op, number `since` or later, that the program still has to wait for?"""
        with self.lock:
            seqs = range(max(since, self.count - self.capacity), self.count)
            offsets = [self.first + (seq % self.capacity) * ENTRY.size for seq in seqs]
            return any(self._threads(at) & OWED for at in offsets)

    def erase(self, slot: tuple[int, int], which: str) -> None:
        """Remove one of an entry's times."""
        at, seq = slot
        with self.lock:
            if self._still(at, seq):
                struct.pack_into("<d", self.map, at + TIMES[which], 0.0)
                self._touch()

    def settle(self, slot: tuple[int, int]) -> None:
        """Mark the op as no longer owed, because the program waits for it, or has learned in
        another way that it has ended."""
        at, seq = slot
        with self.lock:
            if self._still(at, seq) and self._threads(at) & OWED:
                struct.pack_into("<H", self.map, at + THREADS_AT, self._threads(at) & ~OWED)

    def _threads(self, at):
        return struct.unpack_from("<H", self.map, at + THREADS_AT)[0]

    def _still(self, at, seq):  # False once a newer entry has overwritten this one
        return struct.unpack_from("<q", self.map, at)[0] == seq

    def touch(self) -> None:
        """Count a change in a file next to this log, so that the launcher's watch sees that this
        rank is making progress."""
        with self.lock:
            self._touch()

    def _touch(self):
        self.touches += 1
        struct.pack_into("<q", self.map, TOUCHES_AT, self.touches)

    def close(self, state: int) -> None:
        """Record that this rank has left the function. state: RETURNED, RAISED or EXITED."""
        with self.lock:
            struct.pack_into("<d", self.map, LEFT_AT, now())
            struct.pack_into("<q", self.map, STATE_AT, state)
            self._touch()


def signature_of(*facts: object) -> int:
    """A 64-bit hash that is the same on every rank for the same facts, unlike Python's own."""
    return int.from_bytes(hashlib.blake2b(repr(facts).encode(), digest_size=8).digest(), "little")


@dataclass(frozen=True, slots=True)
class Head:
    """A log's header, as it was when it was read."""

    pid: int
    rank: int
    world_size: int
    capacity: int  # entries that the ring can store
    state: int  # 0, RUNNING, RETURNED, ...
    count: int  # entries written so far
    touches: int  # changes so far: of entries, their times, the state, and files next to the log
    began: float  # time.monotonic() when the rank began
    wall: float  # time.time() at the same instant, to align nodes
    left: float  # time.monotonic() when the rank left its function; 0.0 until then


class LogReader:
    """The parent's side: reads a log while its rank may be writing it, or after the rank has
    died."""

    def __init__(self, folder: str, rank: int):
        self.path, self.rank = f"{folder}/log{rank}", rank
        with open(self.path, "rb") as file:
            self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.names_path = f"{folder}/names{rank}"
        self.names: list = []
        self.splits = SplitsReader(folder, rank, self.head().world_size)

    def head(self) -> Head:
        magic, *rest = HEADER.unpack_from(self.map, 0)
        if magic != MAGIC:
            raise ValueError(
                f"{self.path} is not a rank's log of this version (it begins with {magic!r})"
            )
        return Head(*rest)

    def totals(self) -> list[tuple[int, int, int]]:
        """For each peer, the (messages, elements, bytes) sent to it since the rank began."""
        world_size = self.head().world_size
        return [
            TOTALS.unpack_from(self.map, HEADER.size + TOTALS.size * peer)
            for peer in range(world_size)
        ]

    def _name(self, number):
        if number >= len(self.names):
            with open(self.names_path) as file:
                self.names = [json.loads(line) for line in file if line.endswith("\n")]
        return self.names[number] if number < len(self.names) else None

    def entries(self, zero: float = 0.0) -> list[Entry]:
        """The entries that the ring still holds, oldest first, with times relative to `zero`, a
        reading of the rank's time.monotonic()."""
        head, out = self.head(), []
        first = HEADER.size + TOTALS.size * head.world_size
        for seq in range(max(0, head.count - head.capacity), head.count):
            raw = ENTRY.unpack_from(self.map, first + (seq % head.capacity) * ENTRY.size)
            if raw[0] != seq:  # overwritten while we read
                continue
            out.append(self._entry(raw, zero))
        return out

    def _entry(self, raw, zero):
        seq, op, reduce_op, dtype, group, site, via, peer, tag, threads, ndim, *rest = raw
        dims, (numel, nbytes, nth, chain, item), times = rest[:5], rest[5:10], rest[10:]
        posted, wait_from, wait_to, done = (t - zero if t else None for t in times)
        name, members = self._name(group) or ("", [])
        file, line, function = self._name(site) or ("?", 0, "?")
        via, inside = self._name(via) or "", ""
        if isinstance(via, list):
            via, inside = "", via[1]
        gives = takes = ()
        if tag and self._name(op) in SPLIT:
            (gives, takes), tag = self.splits.read(tag), 0
        return Entry(
            self.rank, seq, self._name(op), self._name(reduce_op), self._name(dtype), name,
            tuple(members),
            None if peer < 0 else peer, tag, tuple(dims[: min(ndim, 5)]), numel, nbytes, nth, chain,
            item,
            posted, wait_from, wait_to, done, threads & ~OWED, file, line, function, via, inside,
            gives, takes, bool(threads & OWED),
        )  # fmt: skip
