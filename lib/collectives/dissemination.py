"""Barrier by dissemination: after ceil(log2 N) rounds every rank has heard, directly or not, from
every other.

    N = 8, all ranks mod 8
    round 0   r -> r+1     rank 4 has heard from 3
    round 1   r -> r+2     ... and, through 2, from 1 and 2
    round 2   r -> r+4     ... and, through 0, from 0, 7, 6, 5: from all others

Each round doubles the number of ranks, itself included, that a rank has heard from. This works for
any N and, unlike a tree, needs no root for which all ranks wait.

Source: Hensgen, Finkel, Manber 1988.
"""

import torch
import torch.distributed as dist

from lib.backend import Group
from lib.collectives import p2p
from lib.collectives.local import powers_of_two


def barrier(group: Group = None) -> None:
    """Return once every rank of `group` has called it.

    Sends: ceil(log2 N) rounds of one byte a rank.
    """
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    device = "cuda" if dist.get_backend(group) == "nccl" else "cpu"
    token, heard = torch.zeros(2, 1, dtype=torch.uint8, device=device)
    for distance in powers_of_two(world_size):
        p2p.send_recv(
            token, (rank + distance) % world_size, (rank - distance) % world_size, group, out=heard
        )
    heard.item()  # on a GPU the messages run on a stream: here the host waits for the last one
