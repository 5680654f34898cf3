"""One rank's log: a memory-mapped file that outlives the rank. (PyTorch's Flight Recorder keeps a
similar ring, in the memory of the rank.)

    header | totals, a line per peer | entry | ... | entry   a ring: the newest overwrite the oldest

The rank writes an entry *before* the call it describes, and the times as they happen. The kernel
keeps the pages when the process dies, so the parent can read the log while the rank is stuck, and
after SIGKILL or a crash. Entries have a fixed size. What is text (a source line, a group's members)
is written once to a second file, a line each, and the entry holds the line's number.

A log is bounded: the ring keeps the last `capacity` entries. Two things never wrap: the totals per
peer, and in each entry `nth` and `chain`, the count and the rolling hash of all entries of its
channel so far. Ranks whose chains agree at the same `nth` agreed on everything before it, whatever
has been overwritten since.

Channel: a group, for its collectives; (group, source, destination, tag), for messages.
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
KILLED = 5  # the reader says so: the process is gone, and the rank itself said RUNNING last
# magic pid rank world_size capacity state count touches began wall left
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
OWED = (
    0x8000  # with the threads of an entry: the program has begun its op, and is yet to wait for it
)
DEFAULT_CAPACITY = 1 << 16
now = time.monotonic


@dataclass(slots=True)
class Entry:
    """One communication op, as its rank posted it. Times in seconds since the first rank began;
    None: not yet."""

    rank: int
    seq: int  # n-th entry of this rank's log
    op: str  # "send", "recv", "all_reduce", ..., or "mark"
    reduce_op: str  # "sum", "max", ..., or ""
    dtype: str  # "float32"
    group: str  # the group's name in torch
    members: tuple[int, ...]  # its global ranks
    peer: int | None  # the other global rank of a message; the root of a rooted collective
    tag: int  # of a message
    shape: tuple[int, ...]
    numel: int
    nbytes: int  # a message: its size. A collective: the payload this rank gave
    nth: int  # n-th op of its channel, from 0
    chain: int  # rolling hash of the channel up to this op
    # NCCL: n-th item of its group's queue on the GPU, a batch's ops have one together; gloo: -1
    item: int
    posted: float
    wait_from: float | None
    wait_to: float | None
    done: float | None
    threads: int  # Python threads alive when the wait began
    file: str
    line: int
    function: str
    # the lib function that the line called, e.g. "ring.ring_all_reduce"
    via: str = field(default="")
    inside: str = (
        ""  # the module that it belongs to, where torch's own code called it (lib/ledger/inside.py)
    )
    # of a collective that may be uneven: elements for each rank of the group
    gives: tuple[int, ...] = ()
    takes: tuple[int, ...] = ()  # and elements that this rank expects from each
    owed: bool = False  # the program has begun it to wait for it later, and has not waited

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
    """Make the empty log of a rank that has not begun, so that it can be read from the
    start. A sparse file."""
    path = f"{folder}/log{rank}"
    if not os.path.exists(path):
        with open(path, "wb") as file:
            file.truncate(HEADER.size + TOTALS.size * world_size + ENTRY.size * capacity)
            file.write(HEADER.pack(MAGIC, 0, rank, world_size, capacity, 0, 0, 0, 0.0, 0.0, 0.0))


class LogWriter:
    """The rank's side. `record` returns the entry's slot in the ring, (offset, seq); `timestamp`
    writes one of its times there."""

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
        # Not pack_into, which clears the bytes first: the parent may be reading.
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
        """This rank is RUNNING from now on; what it did before, such as to connect, counts
        towards no timeout."""
        self._write_header(RUNNING)

    def name(self, text: object) -> int:
        """The number of `text` (anything JSON can hold) in the names file."""
        number = self.names.get(text)
        if number is None:
            with self.lock:
                if text in self.names:  # another thread has just written it
                    return self.names[text]
                number = len(self.names)
                # more distinct source lines than a program has: keep counting, lose the text
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
        """Write an entry before its op begins. Strings come as numbers from `name`; `channel` None:
        resolve later.

        tag: of a collective the number of its splits (lib/ledger/splits.py), 0 for none.
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
        # FNV-1a's multiplier
        state[1] = ((state[1] * 0x100000001B3) ^ signature) & 0xFFFFFFFFFFFFFFFF
        return nth, state[1]

    def resolve(self, slot: tuple[int, int], peer: int, channel: tuple, signature: int) -> None:
        """Name the source of a receive from any source, once it is known."""
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

    def timestamp(self, slot: tuple[int, int], which: str, threads: int | None = None) -> None:
        """Write down one of an entry's times. threads: of a wait's beginning; whose wait it is,
        `settle` says."""
        at, seq = slot
        with self.lock:
            if self._still(at, seq):
                if threads is not None:
                    owed = self._threads(at) & OWED
                    struct.pack_into("<H", self.map, at + THREADS_AT, owed | min(threads, OWED - 1))
                struct.pack_into("<d", self.map, at + TIMES[which], now())
                self._touch()

    def owed(self, since: int) -> bool:
        """Does the program still have to wait for one of the ops from number `since` on?"""
        with self.lock:
            seqs = range(max(since, self.count - self.capacity), self.count)
            offsets = [self.first + (seq % self.capacity) * ENTRY.size for seq in seqs]
            return any(self._threads(at) & OWED for at in offsets)

    def erase(self, slot: tuple[int, int], which: str) -> None:
        """Take back one of an entry's times."""
        at, seq = slot
        with self.lock:
            if self._still(at, seq):
                struct.pack_into("<d", self.map, at + TIMES[which], 0.0)
                self._touch()

    def settle(self, slot: tuple[int, int]) -> None:
        """The program waits for this op, or has seen its end in another way."""
        at, seq = slot
        with self.lock:
            if self._still(at, seq) and self._threads(at) & OWED:
                struct.pack_into("<H", self.map, at + THREADS_AT, self._threads(at) & ~OWED)

    def _threads(self, at):
        return struct.unpack_from("<H", self.map, at + THREADS_AT)[0]

    def _still(self, at, seq):  # has the ring come round and given this slot to a newer entry?
        return struct.unpack_from("<q", self.map, at)[0] == seq

    def touch(self) -> None:
        """Something next to this log has changed: the watch over the ranks sees
        that this one goes on."""
        with self.lock:
            self._touch()

    def _touch(self):
        self.touches += 1
        struct.pack_into("<q", self.map, TOUCHES_AT, self.touches)

    def close(self, state: int) -> None:
        """This rank has left the function: RETURNED, RAISED or EXITED."""
        with self.lock:
            struct.pack_into("<d", self.map, LEFT_AT, now())
            struct.pack_into("<q", self.map, STATE_AT, state)
            self._touch()


def signature_of(*facts: object) -> int:
    """A 64-bit number that is the same on every rank for the same facts."""
    return int.from_bytes(hashlib.blake2b(repr(facts).encode(), digest_size=8).digest(), "little")


@dataclass(frozen=True, slots=True)
class Head:
    """A log's header, as it was when read."""

    pid: int
    rank: int
    world_size: int
    capacity: int
    state: int
    count: int
    touches: int
    began: float
    wall: float
    left: float


class LogReader:
    """The parent's side: reads a log that may be written at this moment, or whose rank is dead."""

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
        """For each peer: messages, elements, bytes sent to it since the rank began."""
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
        """The entries the ring still holds, oldest first, times relative to `zero`
        (monotonic seconds)."""
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
