"""What 1, 10 and 40 new groups cost: seconds, file descriptors, threads, GPU memory; destroyed, and
left behind.

Under NCCL a group is a communicator: buffers, threads, sockets. A mesh of 8 ranks makes 20 groups,
a test of all meshes hundreds. Those left behind are taken away when the rank leaves, which may
hang; so that is timed too.
"""

import argparse
import os
import sys
import time

import torch
import torch.distributed as dist

from lib import backend, launch

NUMBERS = (1, 10, 40)
A_FEW = 8  # descriptors or threads more than before that are no leak


def held():
    """(file descriptors, threads of this process, MiB of its GPU in use by all)"""
    used = 0
    if backend.device().type == "cuda":
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        used = (total - free) >> 20
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), used


def make(number):
    """So many groups of all ranks, each used once: NCCL connects at the first collective."""
    groups = [dist.new_group(list(range(dist.get_world_size()))) for _ in range(number)]
    for group in groups:
        x = torch.ones(1)
        dist.all_reduce(x, group=group)
        assert x.item() == dist.get_world_size()
    return groups  # the only references


def on_ranks(destroy):
    """[(number, seconds to make, to destroy, what was held more with them, and after)]"""
    dist.barrier()
    seen, kept, before = [], [], held()
    for number in NUMBERS:
        began = time.monotonic()
        groups = make(number)
        made, most = time.monotonic() - began, held()
        began = time.monotonic()
        if destroy:
            while groups:  # and none is kept: what a group holds goes with the last reference to it
                dist.destroy_process_group(groups.pop())
        kept += groups
        destroyed, after = time.monotonic() - began, held()
        minus = lambda now: tuple(a - b for a, b in zip(now, before, strict=True))
        seen.append((number, made, destroyed, minus(most), minus(after)))
    return seen


def run(name: str, ranks: int):
    """(rank 0's account with the groups destroyed, without, and seconds of that whole launch)"""
    destroyed = launch.capture(
        on_ranks, True, nproc=ranks, backend=name, timeout=120, ledger=False
    )[0]
    began = time.monotonic()
    left = launch.capture(on_ranks, False, nproc=ranks, backend=name, timeout=120, ledger=False)[0]
    return destroyed, left, time.monotonic() - began


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.groups")
    parser.add_argument("--backend", default="nccl-shared")
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args(argv)
    destroyed, left, seconds = run(options.backend, options.ranks)
    for how, account in (("destroyed", destroyed), ("left behind", left)):
        for number, made, gone, most, after in account:
            print(f"{how}, {number}: made in {made:.2f} s, gone in {gone:.2f} s; descriptors, "
                  f"threads, MiB: "
                  f"{most} with them, {after} after")  # fmt: skip
    number, made, gone, most, after = destroyed[-1]
    clean = all(more <= A_FEW for more in after[:2])
    print(
        f"showed: {number} groups: {made:.2f} s, +{most[0]} descriptors, +{most[1]} threads, "
        f"+{most[2]} MiB; destroyed in {gone:.2f} s, then +{after[0]}, +{after[1]}, "
        f"+{after[2]}{'' if clean else ' LEFT'}; {sum(NUMBERS)} left behind: +{left[-1][4][0]}, "
        f"+{left[-1][4][1]}, +{left[-1][4][2]}, launch {seconds:.1f} s"
    )
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
