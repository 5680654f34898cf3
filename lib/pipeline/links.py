"""The links of a pipeline: one process group per direction between two neighbours.

    rank 0  ==01==>  rank 1  ==12==>  rank 2          forward: activations
            <==10==          <==21==                  backward: gradients
      ^ |                              ^ |
      | +--------------02--------------+ |            gradients      for interleaved stages, between
      +----------------20----------------+            activations    the last rank and the first

Why not one group for all? On NCCL the messages of a group wait in one queue: a rank that has posted
a receive cannot send before that message has arrived. With a queue for each direction, a receive
waits for no send.

Posting a send takes almost no time, so the rank's main thread does it: another thread would first
have to be scheduled, and the next rank would wait for that. Only inside `collectives.slow_link`
does posting take as long as the link is busy. There the communication thread posts
(`collectives.start`), and the rank computes meanwhile.
"""

from typing import Any, NamedTuple

import torch.distributed as dist

from lib.collectives import barrier, p2p, start


class Links(NamedTuple):
    """The P2P process groups of one rank of a pipeline. Made by `connect`."""

    rank: int  # this rank's index in the pipeline, 0 ... p-1 (Megatron's pipeline rank)
    ranks: list[int]  # the global rank of each pipeline rank
    # (pipeline rank that sends, that receives), this rank's only
    groups: dict[tuple[int, int], dist.ProcessGroup]
    # of the first and the last pipeline rank; None on others, and if the two are the same
    ends: dist.ProcessGroup | None

    def receive(self, out, frm):
        """Post a receive for what pipeline rank `frm` sends next. When `wait()` of the returned
        object ends, `out` is filled."""
        group = self.groups[frm, self.rank]
        return p2p.post([], [(out, dist.get_group_rank(group, self.ranks[frm]))], group)

    def send(self, tensor, to):
        """Start to send `tensor` to pipeline rank `to`. When `wait()` of the returned object ends,
        `tensor` may be changed."""
        group = self.groups[self.rank, to]
        to = dist.get_group_rank(group, self.ranks[to])
        return (
            _PostedInBackground(start(_post, tensor, to, group))
            if p2p.posting_takes_time()
            else _post(tensor, to, group)
        )


def _post(tensor, to, group):
    return p2p.post([(tensor, to)], [], group)


class _PostedInBackground(NamedTuple):
    """A send that the communication thread posts; `wait` returns when it has completed."""

    work: object

    def wait(self):
        self.work.wait().wait()  # posted; sent, so that the tensor may be changed


def connect(pipelines: Any = None) -> Any:
    """Make the links of one or several pipelines; returns this rank's Links, or None if it is in
    none of them.

    pipelines: for each its global ranks, in the order of the pipeline; by default one, of all ranks
    in their order. Every rank of the world must call it, with the same list; once is enough for any
    number of runs. Sends: one byte each way over every link, so that all of them are open. Raises
    ValueError for a rank that is listed twice.
    """
    me, mine = dist.get_rank(), None
    pipelines = [range(dist.get_world_size())] if pipelines is None else pipelines
    everyone = [rank for ranks in pipelines for rank in ranks]
    twice = sorted({rank for rank in everyone if everyone.count(rank) > 1})
    if twice:
        raise ValueError(
            f"ranks {twice} are listed twice in {[list(ranks) for ranks in pipelines]}: "
            f"a rank is in one pipeline, once"
        )

    for ranks in pipelines:
        p, groups, ends = len(ranks), {}, None
        for frm, to in sorted({(i, (i + step) % p) for i in range(p) for step in (1, -1) if p > 1}):
            group = dist.new_group([ranks[frm], ranks[to]])
            if me in (ranks[frm], ranks[to]):
                # NCCL connects at the first message, and both ranks wait for that. We send one here
                # so that this does not happen during the run.
                barrier(group)
                groups[frm, to] = group
        if p > 1:
            group = dist.new_group([ranks[0], ranks[-1]])
            ends = group if me in (ranks[0], ranks[-1]) else None
        if me in ranks:
            mine = Links(list(ranks).index(me), list(ranks), groups, ends)
    return mine
