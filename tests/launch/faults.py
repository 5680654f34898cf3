"""Functions that go wrong on ranks, each in one way. test_faults.py says what the
error must name."""

import ctypes
import os
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist


def me():
    return dist.get_rank(), dist.get_world_size()


def raises_on_one():
    rank, _ = me()
    x = torch.ones(4)
    dist.all_reduce(x)
    if rank == 1:
        loss = float("nan")
        raise ValueError(f"the loss is {loss}")
    dist.all_reduce(x)


def raises_on_all():
    scale = 0
    return 1 / scale


def raises_on_all_in_turn():
    """The last rank 0.4 seconds of processor time after the first, as on a machine
    that lets it wait."""
    rank, _ = me()
    end = time.thread_time() + 0.2 * rank
    while time.thread_time() < end:
        pass
    scale = 0
    return 1 / scale


def sys_exit_on_one():
    rank, _ = me()
    dist.all_reduce(torch.ones(4))
    if rank == 1:
        sys.exit(0)
    dist.all_reduce(torch.ones(4))


def os_exit_on_one():
    rank, _ = me()
    dist.all_reduce(torch.ones(4))
    if rank == 1:
        os._exit(3)
    dist.all_reduce(torch.ones(4))


def os_exit_zero():
    rank, _ = me()
    if rank == 2:
        os._exit(0)
    dist.barrier()


def killed():
    rank, _ = me()
    dist.all_reduce(torch.ones(4))
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(4))


def segfault():
    rank, _ = me()
    dist.all_reduce(torch.ones(4))
    if rank == 1:
        ctypes.string_at(0)
    dist.all_reduce(torch.ones(4))


def unequal_shapes():
    rank, _ = me()
    dist.all_reduce(torch.ones(1000 if rank != 1 else 400))


def ring_of_receives():
    rank, world_size = me()
    x = torch.empty(4)
    dist.recv(x, (rank - 1) % world_size)
    dist.send(x, (rank + 1) % world_size)


def both_send_first():
    rank, _ = me()
    x = torch.ones(4)
    dist.send(x, rank ^ 1)
    dist.recv(x, rank ^ 1)


def returns_early():
    rank, _ = me()
    x = torch.ones(4)
    for step in range(3):
        if rank == 2 and step == 1:
            return
        dist.all_reduce(x)


def different_ops():
    rank, _ = me()
    x = torch.ones(4)
    if rank == 1:
        dist.broadcast(x, 0)
    else:
        dist.all_reduce(x)


def different_reduce_ops():
    rank, _ = me()
    dist.all_reduce(torch.ones(4), op=dist.ReduceOp.MAX if rank == 1 else dist.ReduceOp.SUM)


def different_dtypes():
    rank, _ = me()
    dist.all_reduce(torch.ones(4, dtype=torch.int32 if rank == 1 else torch.float32))


def different_roots():
    rank, _ = me()
    dist.broadcast(torch.ones(4), 1 if rank == 1 else 0)


def swapped_collectives():
    rank, _ = me()
    loss, accuracy = torch.tensor([1.0]), torch.tensor([10.0])
    if rank == 1:
        dist.all_reduce(accuracy)
        dist.all_reduce(loss)
    else:
        dist.all_reduce(loss)
        dist.all_reduce(accuracy)
    return loss.item()


def larger_receive():
    rank, _ = me()
    if rank == 0:
        dist.send(torch.ones(3), 1)
    if rank == 1:
        x = torch.zeros(8)
        dist.recv(x, 0)


def receive_of_another_dtype():
    rank, _ = me()
    if rank == 0:
        dist.send(torch.ones(4), 1)
    if rank == 1:
        x = torch.zeros(4, dtype=torch.int32)
        dist.recv(x, 0)


def endless_loop():
    rank, _ = me()
    dist.all_reduce(torch.ones(4))
    count = 0
    while rank == 3:
        count += 1
    dist.all_reduce(torch.ones(4))


def all_loop():
    count = 0
    while True:
        count += 1


def prints_five_megabytes():
    rank, _ = me()
    print("start")
    for _ in range(50_000):
        print("x" * 99)
    return rank


def prints_without_newline():
    sys.stdout.write("y" * 5_000_000)
    return True


def returns_a_lock():
    return threading.Lock()


def ddp_on_all_but_one():
    """Blocked in C++, inside DDP's reducer, where no Python wait is seen."""
    rank, _ = me()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    for step in range(3):
        if rank == 2 and step == 2:
            return
        model(torch.ones(2, 4)).sum().backward()


def wrong_group():
    """Rank 3 calls on the world what the others call on smaller groups."""
    rank, _ = me()
    x = torch.ones(4)
    low, middle = dist.new_group([0, 1]), dist.new_group([1, 2])
    if rank == 0:
        dist.all_reduce(x, group=low)
    if rank == 1:
        dist.all_reduce(x, group=middle)
        dist.all_reduce(x, group=low)
    if rank == 2:
        dist.barrier()
        dist.all_reduce(x, group=middle)
    if rank == 3:
        dist.all_reduce(x)


def group_that_never_is():
    """Rank 2 never comes to `new_group`, where rank 1 waits for it, and rank 0 for rank 1."""
    rank, _ = me()
    if rank == 0:
        dist.recv(torch.zeros(1), 1)
    if rank == 2:
        torch.futures.Future().wait()
    dist.new_group([1, 2], use_local_synchronization=True)


def sleeps_for_ever():
    rank, _ = me()
    if rank == 1:
        time.sleep(600)
    dist.barrier()


def stands_still():
    rank, _ = me()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.barrier()


def talks_to_nobody(how, peer, group=None):
    """Every way to name a partner or a root, with one that is not there."""
    rank, x = dist.get_rank(), torch.ones(4)
    if group is not None:
        group = dist.new_group(group)
        if rank > 0:
            return
    parts = [torch.ones(4) for _ in range(dist.get_world_size(group))] if rank == 0 else None
    calls = {
        "send": lambda: dist.send(x, group_dst=peer, group=group),
        "isend": lambda: dist.isend(x, group_dst=peer, group=group).wait(),
        "recv": lambda: dist.recv(x, group_src=peer, group=group),
        "irecv": lambda: dist.irecv(x, group_src=peer, group=group).wait(),
        "broadcast": lambda: dist.broadcast(x, group_src=peer, group=group),
        "reduce": lambda: dist.reduce(x, group_dst=peer, group=group),
        "gather": lambda: dist.gather(
            x, parts if rank == peer else None, group_dst=peer, group=group
        ),
        "scatter": lambda: dist.scatter(
            x, parts if rank == peer else None, group_src=peer, group=group
        ),
    }
    calls[how]()


def kills_itself_before_a_barrier():
    rank, _ = me()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("not even this")


def raises_what_has_no_text():
    raise Unspeakable


def raises_two_megabytes():
    raise ValueError("x" * 2_000_000)
