"""Sharded checkpoints: every rank writes its shards, and any number of ranks reads them back.

    a flat of n = 10 elements   0 1 2 3 4 5 6 7 8 9
    saved on 4 ranks          | 0 1 2 | 3 4 5 | 6 7 8 | 9 . . |      padded to 12
    loaded on 3               | 0 1 2   3 | 4 5   6 7 | 8   9 . . |  rank 1 reads files 1 and 2

No rank has to gather anything. N ranks write at the same time, each 1/N. A rank that loads reads
shards only from the files that contain elements of its own shard. The padding depends on the number
of ranks, so we save n and add the padding again when we load. torch's DCP
(torch.distributed.checkpoint) also reshards while it loads.

Like every checkpoint of this package it is complete or absent: a killed save leaves the previous
one intact.
"""

import functools

import torch
import torch.distributed as dist

from lib.training.checkpoint.ranks import load, save


def save_sharded(folder, step, pieces, sizes, shared=None, own=None, group=None, save=save):
    """Write the checkpoint of `step`: this rank's `pieces`, and `shared` and `own` as in `save`.

    pieces: {name: (m,)}, this rank's shard of each flat buffer, where m = ceil(n/N) on every rank
    and the last elements are padding. sizes: {name: n}. Names and sizes are the same on every rank.
    save: `checkpoint.save`, or a BackgroundSave's. Sends and raises: as `save`. Raises ValueError
    for a shard whose size is not ceil(n/N).
    """
    world_size = dist.get_world_size(group)
    for name, piece in pieces.items():
        if piece.shape != (shard_size(sizes[name], world_size),):
            raise ValueError(
                f"{name} has {sizes[name]} numbers over {world_size} ranks, a shard of "
                f"({shard_size(sizes[name], world_size)},), but this one is {tuple(piece.shape)}"
            )
    save(
        folder,
        step,
        {"shared": shared, "sizes": dict(sizes)},
        {"own": own, "pieces": dict(pieces)},
        group,
    )


def load_sharded(folder, step=None, group=None):
    """Read a complete checkpoint of `save_sharded`, on any number of ranks: (pieces, shared, own,
    facts).

    pieces: {name: (ceil(n/N),)}, this rank's shards on the N ranks of this run. own: None if the
    checkpoint was saved on another number of ranks. Sends and raises: as `load`.
    """
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    saved, own, facts = load(folder, step, group)
    read = functools.cache(lambda r: facts.own_of(r)["pieces"])
    pieces = {
        name: recut(n, lambda r, name=name: read(r)[name], facts.world_size, rank, world_size)
        for name, n in saved["sizes"].items()
    }
    return pieces, saved["shared"], own and own["own"], facts


def shard_size(n, world_size):
    """ceil(n/N): elements of a shard, with padding."""
    return -(-n // world_size)


def recut(n, piece_of, saved_on, rank, world_size):
    """The shard of `rank` of N, (ceil(n/N),), of a flat buffer of n elements that was saved as the
    shards of M = saved_on ranks: resharding.

    piece_of(r) -> (ceil(n/M),), the shard of rank r of M. It is called only for ranks whose shards
    overlap with this one, or for one other rank if this shard is nothing but padding.
    """
    m, size = shard_size(n, saved_on), shard_size(n, world_size)
    begin, end = min(rank * size, n), min((rank + 1) * size, n)  # of this rank, in the flat buffer
    parts = [
        piece_of(r)[max(begin - r * m, 0) : end - r * m]
        for r in range(begin // m, shard_size(end, m))
    ]
    shard = piece_of(0).new_zeros(size) if not parts else parts[0].new_zeros(size)
    if begin < end:
        shard[: end - begin] = torch.cat(parts)
    return shard
