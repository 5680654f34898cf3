"""Right programs drawn at random: communication of all kinds, in any order, on ranks that are now
and then slow.

program(seed)  three to six pieces; every rank draws the same ones, and sleeps or computes on its
               own in between
"""

import random
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from lib import collectives
from lib.data_parallel import OverlappedDataParallel


def me():
    return dist.get_rank(), dist.get_world_size()


def plain_collectives(draw):
    rank, world_size = me()
    n, root = draw.randint(1, 50), draw.randrange(world_size)
    dtype = draw.choice([torch.float32, torch.float64, torch.int64])
    x, rows = torch.ones(n, dtype=dtype), torch.ones(world_size, n, dtype=dtype)
    dist.all_reduce(x, op=draw.choice([dist.ReduceOp.SUM, dist.ReduceOp.MAX]))
    dist.broadcast(x, src=root)
    dist.reduce(x, dst=root)
    dist.all_gather([torch.empty_like(x) for _ in range(world_size)], x)
    dist.gather(x, list(rows) if rank == root else None, dst=root)
    dist.scatter(x, list(rows) if rank == root else None, src=root)
    dist.all_to_all_single(torch.empty_like(rows), rows)
    dist.barrier()


def uneven_all_to_all(draw):
    rank, world_size = me()
    counts = [[draw.randrange(4) for _ in range(world_size)] for _ in range(world_size)]
    gives, takes = counts[rank], [row[rank] for row in counts]
    width = draw.randint(1, 3)
    got = torch.empty(sum(takes), width)
    dist.all_to_all_single(got, torch.ones(sum(gives), width), takes, gives)


def groups_that_every_rank_makes(draw):
    rank, world_size = me()
    sets = [sorted(draw.sample(range(world_size), draw.randint(1, world_size))) for _ in range(2)]
    for members, group in [(members, dist.new_group(members)) for members in sets]:
        if rank in members:
            dist.all_reduce(torch.ones(3), group=group)


def a_group_that_its_members_make(draw):
    """Only where every rank is in as many groups: torch hashes that number into the name,
    and else they hang."""
    rank, world_size = me()
    members = sorted(draw.sample(range(world_size), 2))
    alone = torch.tensor(len(dist.distributed_c10d._world.pg_names))
    alike = [torch.empty_like(alone) for _ in range(world_size)]
    dist.all_gather(alike, alone)
    if len({int(n) for n in alike}) == 1:
        group = dist.new_group(members, use_local_synchronization=True)
        if rank in members:
            dist.all_reduce(torch.ones(3), group=group)


def works_in_any_order(draw):
    tensors = [torch.ones(draw.randint(1, 9)) for _ in range(4)]
    works = [dist.all_reduce(x, async_op=True) for x in tensors]
    for i in draw.sample(range(4), 4):
        ends = draw.randrange(3)
        if ends == 0:
            works[i].wait()
        elif ends == 1:
            works[i].get_future().wait()
        else:
            while not works[i].is_completed():
                time.sleep(0.001)


def ring(draw):
    rank, world_size = me()
    x, y = torch.ones(5), torch.empty(5)
    right, left, tag = (rank + 1) % world_size, (rank - 1) % world_size, draw.randrange(3)
    how = draw.randrange(3)
    if how == 0:
        works = [dist.isend(x, right, tag=tag), dist.irecv(y, left, tag=tag)]
    elif how == 1:
        works = dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, x, right), dist.P2POp(dist.irecv, y, left)]
        )
    else:  # the receive is begun, something else happens, and only then is it waited for
        works = [dist.irecv(y, left, tag=tag)]
        dist.barrier()
        works.append(dist.isend(x, right, tag=tag))
    for work in works:
        work.wait()


def tags_out_of_order(draw):
    rank, _ = me()
    x, y = torch.ones(1), torch.ones(1)
    works, order = [], draw.sample(range(2), 2)
    if rank == 0:
        works = [dist.isend(x, 1, tag=1), dist.isend(y, 1, tag=2)]
    elif rank == 1:
        works = [dist.irecv(y, 0, tag=2), dist.irecv(x, 0, tag=1)]
    for i in order if works else ():
        works[i].wait()


def from_anyone(draw):
    rank, world_size = me()
    if rank == 0:
        for _ in range(world_size - 1):
            dist.recv(torch.empty(2))
    else:
        dist.send(torch.ones(2), 0)
    dist.barrier()


def objects(draw):
    rank, world_size = me()
    dist.all_gather_object([None] * world_size, "x" * (1 + 1000 * rank))
    dist.broadcast_object_list([{"rank": rank}], src=draw.randrange(world_size))


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.heads = nn.Linear(4, 4), nn.ModuleList(nn.Linear(4, 2) for _ in range(2))

    def forward(self, x, head):
        return self.heads[head](self.body(x))


def ddp(draw):
    rank, _ = me()
    model = nn.parallel.DistributedDataParallel(Two(), find_unused_parameters=True)
    if draw.randrange(2):
        model.register_comm_hook(None, averages)
    for _ in range(2):
        model(torch.ones(2, 4), rank % 2).sum().backward()
    with model.no_sync():
        model(torch.ones(2, 4), 0).sum().backward()
    model(torch.ones(2, 4), 1).sum().backward()


def averages(_, bucket):
    """A hook as torch's documentation has it: the work is waited for as a future, in C++."""
    future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    return future.then(lambda done: done.value()[0] / dist.get_world_size())


def overlapped(draw):
    rank, _ = me()
    model = OverlappedDataParallel(Two())
    for _ in range(2):
        model.zero_grad()
        model(torch.ones(2, 4), rank % 2).sum().backward()
        model.average_gradients()


def fsdp(draw):
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    for layer in model:
        fully_shard(layer, reshard_after_forward=bool(draw.randrange(2)))
    fully_shard(model)
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()


def tensor_parallel(draw):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    layers = nn.Sequential(
        nn.Linear(4, 8 * dist.get_world_size()), nn.Linear(8 * dist.get_world_size(), 4)
    )
    model = parallelize_module(layers, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
    model(torch.ones(2, 4)).sum().backward()


def libs_collectives(draw):
    x = torch.ones(draw.randint(1, 30))
    collectives.all_reduce(x)
    work = collectives.start(collectives.ring_all_reduce, torch.ones(12))
    time.sleep(0.01)
    work.wait()


def another_thread(draw):
    """It has a group of its own, and the main thread communicates meanwhile."""
    group = dist.new_group()
    thread = threading.Thread(
        target=lambda: [dist.all_reduce(torch.ones(3), group=group) for _ in range(3)]
    )
    thread.start()
    dist.all_reduce(torch.ones(4))
    thread.join()


LIGHT = [
    plain_collectives, uneven_all_to_all, groups_that_every_rank_makes,
    a_group_that_its_members_make, works_in_any_order, ring, tags_out_of_order, from_anyone,
    objects, overlapped, libs_collectives, another_thread,
]  # fmt: skip
HEAVY = [ddp, fsdp, tensor_parallel]  # each run of these needs new ranks


def program(seed):
    draw, own = random.Random(seed), random.Random(1000 * seed + dist.get_rank())
    pieces = draw.choices(LIGHT, k=draw.randint(3, 5)) + (
        draw.choices(HEAVY) if seed % 5 == 0 else []
    )
    for piece in draw.sample(pieces, len(pieces)):
        slow = own.randrange(8)
        if slow == 0:
            time.sleep(own.uniform(0.05, 0.6))
        if slow == 1:
            end = time.monotonic() + 0.2
            while time.monotonic() < end:
                torch.ones(50, 50) @ torch.ones(50, 50)
        piece(draw)
    return [piece.__name__ for piece in pieces]
