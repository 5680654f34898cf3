"""Emulates a slow link between "nodes" of one machine, without root privileges, by delaying the
messages of `p2p` that cross it.

    node 0: ranks 0 1 2 3  ==== one NIC ===   the slow link  ==== one NIC ===  node 1: ranks 4 5 6 7

Each node has one NIC, which its ranks share, and which sends and receives at the same time. A
message of m bytes from one node to another keeps the sender's NIC and the receiver's busy for
m/bytes_per_second, as soon as both are free, and arrives seconds_per_message after that. Latency
does not keep a NIC busy, so messages posted at the same time wait for it together. Messages inside
a node are not delayed. This is the alpha and beta of `cost.hierarchical_time(..., across=...)`.

How: a page of memory that all ranks map holds, for each NIC, the time until which it is busy. The
sender adds the message's time to it, sleeps until the arrival, and only then posts the message. So
a delay uses no CPU time, and two cores are enough for eight ranks. A sleep ends a little late, and
the real message takes its own time after it, so choose a link whose times are milliseconds.

This model has limits. `post` blocks until the link has let its messages through, so a send does
not run in the background; use `start` for that. If one `post` has several messages, all of them are
sent when the last one may be. Packets, switches and congestion are not modelled, and torch's own
collectives and sends are not delayed. All ranks have to be on one machine, because they share its
clock.
"""

import contextlib
import fcntl
import mmap
import os
import struct
import tempfile
import threading
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist

from lib.collectives import p2p


@contextlib.contextmanager
def slow_link(
    ranks_per_node: int, seconds_per_message: float, bytes_per_second: float
) -> Iterator[None]:
    """Inside the block, messages of `p2p` between nodes of `ranks_per_node` consecutive global
    ranks are slow.

    Every rank of the world must enter it. seconds_per_message: alpha. bytes_per_second: 1 / beta,
    of a node's NIC. Sends: torch's broadcast_object_list and barrier, when entered. Raises
    ValueError if `ranks_per_node` does not divide the world size, for a negative latency and for a
    bandwidth that is not above 0; RuntimeError inside another slow_link.
    """
    world_size = dist.get_world_size()
    if ranks_per_node < 1 or world_size % ranks_per_node:
        raise ValueError(
            f"{world_size} ranks cannot form nodes of {ranks_per_node}: "
            f"every node needs the same number of ranks"
        )
    if seconds_per_message < 0 or not bytes_per_second > 0:
        raise ValueError(
            f"seconds_per_message={seconds_per_message}, bytes_per_second={bytes_per_second}: a "
            f"link has a latency of 0 or more and a bandwidth above 0"
        )
    if p2p.posting_takes_time():
        raise RuntimeError("there is a slow link already: leave its block before you enter another")

    nics = NICs(world_size // ranks_per_node)
    node = dist.get_rank() // ranks_per_node

    def delay(sends, group):
        arrival = 0.0
        for tensor, to in sends:
            other_node = dist.get_global_rank(group, to) // ranks_per_node
            if other_node == node:
                continue
            if tensor.is_cuda:
                # it cannot leave before it has been computed
                torch.cuda.current_stream(tensor.device).synchronize()
            sent = nics.reserve(
                node, other_node, tensor.numel() * tensor.element_size() / bytes_per_second
            )
            arrival = max(arrival, sent + seconds_per_message)
        time.sleep(max(0.0, arrival - time.monotonic()))

    try:
        with p2p.delayed(delay):
            yield
    finally:
        nics.close()


class NICs:
    """For each node's NIC, the times until which it sends and receives, in one page of memory that
    all ranks share.

    All ranks create it together. The file is unlinked as soon as all have mapped it, so nothing is
    left behind.
    """

    def __init__(self, nodes):
        path = [tempfile.mkstemp(prefix="slow-link-")[1]] if dist.get_rank() == 0 else [None]
        if path[0]:
            # two doubles per node, 0.0: the NIC has never been busy
            os.truncate(path[0], 16 * nodes)
        dist.broadcast_object_list(path)
        self.file = open(path[0], "r+b")  # noqa: SIM115  closed by close(), with the map
        self.map = mmap.mmap(self.file.fileno(), 0)
        # a lock on a file keeps out other processes, not this one's other threads
        self.thread_lock = threading.Lock()
        dist.barrier()
        if dist.get_rank() == 0:
            os.unlink(path[0])

    def reserve(self, src, dst, seconds):
        """Reserve the sending side of node `src` and the receiving side of `dst` for `seconds`.
        Returns the time at which this ends."""
        sending, receiving = 16 * src, 16 * dst + 8
        with self.thread_lock:
            fcntl.lockf(self.file, fcntl.LOCK_EX)
            busy = max(struct.unpack_from("d", self.map, side)[0] for side in (sending, receiving))
            end = max(time.monotonic(), busy) + seconds
            for side in (sending, receiving):
                struct.pack_into("d", self.map, side, end)
            fcntl.lockf(self.file, fcntl.LOCK_UN)
        return end

    def close(self):
        """Unmap the page and close its file."""
        self.map.close()
        self.file.close()
