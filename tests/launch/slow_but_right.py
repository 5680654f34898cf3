"""Functions that are slow on ranks, or unusual, but right: nobody may be blamed."""

import os
import subprocess
import threading
import time

import torch
import torch.distributed as dist


def me():
    return dist.get_rank(), dist.get_world_size()


def sleeps_for_long():
    rank, _ = me()
    x = torch.ones(4)
    for step in range(2):
        if rank == step:
            time.sleep(2.7)
        dist.all_reduce(x)
    return x[0].item()


def computes_for_long():
    rank, _ = me()
    if rank == 1:
        end = time.monotonic() + 3
        while time.monotonic() < end:
            torch.ones(100, 100) @ torch.ones(100, 100)
    x = torch.ones(4)
    dist.all_reduce(x)
    return x[0].item()


def another_thread_sends():
    rank, _ = me()
    x, y = torch.zeros(4), torch.zeros(4)
    if rank == 1:
        late = threading.Thread(target=lambda: (time.sleep(1), dist.send(y + 1, 0, tag=2)))
        late.start()
        dist.recv(x, 0, tag=1)
        late.join()
    if rank == 0:
        dist.recv(y, 1, tag=2)
        dist.send(x, 1, tag=1)
    return True


def message_inside_async_collective():
    rank, _ = me()
    x, y = torch.ones(4), torch.ones(4)
    if rank == 0:
        work = dist.all_reduce(x, async_op=True)
        time.sleep(1)
        dist.send(y, 1)
        work.wait()
    elif rank == 1:
        dist.recv(y, 0)
        dist.all_reduce(x)
    else:
        dist.all_reduce(x)
    return x[0].item()


def receives_from_anyone():
    rank, world_size = me()
    if rank == 0:
        x, sources = torch.zeros(1), []
        for _ in range(world_size - 1):
            sources.append(dist.recv(x))
        return sorted(sources)
    time.sleep(0.4 * rank)
    dist.send(torch.ones(1), 0)
    return None


def group_that_takes_long():
    """For 4 s all ranks are blocked in torch: rank 2 is late, rank 1 waits for it in new_group,
    rank 0 for rank 1."""
    rank, _ = me()
    x = torch.zeros(1)
    if rank == 0:
        dist.recv(x, 1)
    if rank == 2:
        late = torch.futures.Future()
        threading.Timer(4, late.set_result, [None]).start()
        late.wait()
    dist.new_group([1, 2], use_local_synchronization=True)
    if rank == 1:
        dist.send(x + 1, 0)
    return x.item()


def message_that_takes_long():
    """A machine too busy for rank 0: it stands still for 4 s, and meanwhile the message it
    waits for is sent."""
    rank, _ = me()
    x = torch.full((1,), 1.0 - rank)
    if rank == 0:
        pid = os.getpid()
        pause = subprocess.Popen(
            ["sh", "-c", f"sleep 0.5; kill -STOP {pid}; sleep 4; kill -CONT {pid}"]
        )
        dist.recv(x, 1)
        pause.wait()
        dist.send(x + 1, 1)
    else:
        time.sleep(1)
        dist.send(x + 1, 0)
        dist.recv(x, 0)
    return x.item()


def one_op_in_a_loop_over_two_tensors():
    rank, _ = me()
    for x in [torch.ones(4), torch.ones(4)]:
        dist.all_reduce(x)
    return rank


def leaves_a_thread_behind():
    rank, _ = me()
    if rank == 1:
        threading.Thread(target=time.sleep, args=[60]).start()
    return rank


def threads_here():
    """Python threads besides the main one and the launcher's."""
    return sum(not thread.name.startswith("lib.") for thread in threading.enumerate()) - 1


def sends_between_a_receive_and_its_wait():
    """Rank 1 has begun to receive, rests, sends what rank 0 waits for, and then waits for
    rank 0, which rests."""
    rank, _ = me()
    x = torch.ones(1)
    if rank == 0:
        dist.recv(x, 1)
        time.sleep(1.5)
        dist.send(x, 1)
    else:
        coming = dist.irecv(torch.zeros(1), 0)
        time.sleep(0.6)
        dist.send(x, 0)
        coming.wait()
