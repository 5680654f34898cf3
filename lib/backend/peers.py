"""Raises an error at once if a rank communicates with a rank that does not exist. This file also
counts the messages that a rank has begun but not waited for.

    dist.send(x, rank + 1) on rank 1 of 2:
        ValueError: send to rank 2: the group has ranks 0 to 1. ...
    dist.isend(x, 1) on rank 0, without a `wait`:
        messages_left() is 1

torch passes the number of such a rank on to the backend, and gloo then waits for it forever.
Therefore we wrap the methods of ProcessGroup behind dist.send, dist.isend, dist.recv, dist.irecv,
dist.broadcast, dist.reduce, dist.scatter and dist.gather, so that they check the number first.
"""

import torch.distributed as dist

from lib.backend import torch_private

MESSAGES = {"send": "send to", "recv": "receive from"}
ROOTED = {
    "broadcast": "broadcast from",
    "reduce": "reduce to",
    "scatter": "scatter from",
    "gather": "gather to",
}
_begun: set[int] = set()  # the ids of the Works of messages that have not been waited for
_counts = {"begun": 0, "waited for": 0, "in the world": 0}


def refuse_strangers() -> None:
    """From now on, raise a ValueError if a call in this process names a rank that does not exist.
    The check takes a microsecond per call."""
    for name, words in MESSAGES.items():
        _guard(name, words, lambda tensors, peer, *_: peer)
    for name, words in ROOTED.items():
        _guard(name, words, lambda *args: getattr(args[-1], "rootRank", 0))


def count_messages() -> None:
    """From now on, count this process's messages for `messages_left`. This takes a microsecond per
    message."""
    for name in (*MESSAGES, "recv_anysource"):
        _count(name)
    plain = dist.Work.wait

    def wait(work, *args, **kwargs):
        if id(work) in _begun:
            _begun.remove(id(work))
            _counts["waited for"] += 1
        return plain(work, *args, **kwargs)

    dist.Work.wait = wait  # type: ignore[assignment]


def messages_left() -> int:
    """How many messages this rank has begun and not waited for. Such a message may still be in
    flight, and may then be received in place of a later one."""
    # not len(_begun), because a new Work may get the id of one that was dropped
    return _counts["begun"] - _counts["waited for"]


def forget_messages() -> None:
    """Set the counts to zero, after the groups of those messages have been destroyed."""
    _begun.clear()
    _counts.update(dict.fromkeys(_counts, 0))


def collectives_called() -> int:
    """How many collectives this rank has called on the group of all ranks, which must be the same
    number on every rank. We count only on gloo, and after `count_messages`; on another backend the
    result is 0."""
    world = dist.group.WORLD
    if world is None or dist.get_backend() != "gloo":
        return 0
    # gloo's number counts messages, too
    return torch_private.collectives_so_far(world) - _counts["in the world"]


def _count(name):
    plain = getattr(dist.ProcessGroup, name)

    def op(group, *args, **kwargs):
        work = plain(group, *args, **kwargs)
        if work is not None:  # NCCL gives none for the members of a batch
            _begun.add(id(work))
            _counts["begun"] += 1
            _counts["in the world"] += group is dist.group.WORLD
        return work

    setattr(dist.ProcessGroup, name, op)


def _guard(name, words, peer_of):
    plain = getattr(dist.ProcessGroup, name)
    if plain.__module__ == __name__:  # this process has joined before
        return

    def op(group, *args, **kwargs):
        peer = 0 if kwargs else peer_of(*args)
        if not 0 <= peer < group.size():
            last = group.size() - 1
            there = "only rank 0" if last == 0 else f"ranks 0 to {last}"
            raise ValueError(
                f"{words} rank {peer}: the group has {there}. Round a ring, rank + 1 is (rank + 1) "
                f"% world_size; along a line, the first and the last rank have no neighbour on one "
                "side"
            )
        return plain(group, *args, **kwargs)

    setattr(dist.ProcessGroup, name, op)
