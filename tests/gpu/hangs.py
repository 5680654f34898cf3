"""The hang matrix: each way to hang or to die gets its verdict soon, of the right kind, and leaves
no process.

    case                       on gloo      under NCCL, two ranks
    both send 12 B, new        deadlock     raised or died: see below
    both send 8 MB, new        deadlock     raised or died
    both receive, new          deadlock     raised, died, or a hang that is told as one
    both send 12 B, connected  deadlock     returned, because NCCL's buffers take so little;
                                            or a deadlock
    both send 8 MB, connected  deadlock     returned (seen on one GPU), or a deadlock
    both send 512 MB, connected  deadlock   deadlock
    both receive, connected    deadlock     deadlock
    larger receive             mismatch     mismatch, or a hang that is told as one
    missing collective         deadlock     deadlock
    barrier against receive    deadlock     deadlock
    wait in C++, then .item()  no progress  no progress
    killed rank                died         died

Two ranks are "new" to each other until their first message, for which NCCL connects them while the
host waits. "Connected" means that a batch with both directions has been sent before. That matters
for the first three cases:

  - Ranks at half the group's size from each other, such as the two of a group of two, exchange the
    facts about both directions in one message, and each takes for granted that the other's message
    mirrors its own. Two sends do not. Over sockets that ends in "internal error", through shared
    memory in an illegal memory access (NVIDIA/nccl, issue 2057 and pull request 2407,
    src/transport.cc, ncclTransportP2pSetup). Two receives go through the same code, but no report
    of them is known to us, so every ending that is told in words is allowed.
  - Other ranks are connected one direction at a time, and the host waits until the partner has
    called the other half (NVIDIA/nccl, issue 783). In a ring of three or more, where every rank
    sends first, that is a deadlock.

Every case starts on new processes, so that none is connected by what ran before. Seconds are those
of the launch with the mistake less those of one that returns at once: from the fault to the
verdict.
"""

import argparse
import os
import signal
import sys
import time
from typing import NamedTuple

import torch
import torch.distributed as dist

from lib import launch
from lib.launch import warm
from tests.gpu.processes import ranks_left

TIMEOUT = 24.0  # seconds until a hang that was not understood is a "timeout", which no case allows
SOON = 18.0  # seconds to a verdict: a host that spins as it waits for its GPU is looked at for 10 s


def neighbours():
    """(the rank that this one sends to, the one that it receives from), in a ring."""
    return (dist.get_rank() + 1) % dist.get_world_size(), (
        dist.get_rank() - 1
    ) % dist.get_world_size()


def connect():
    """One batch with both directions: from here on the neighbours of the ring are
    connected, both ways."""
    (to, frm), theirs = neighbours(), torch.empty(1)
    messages = [dist.P2POp(dist.irecv, theirs, frm), dist.P2POp(dist.isend, torch.ones(1), to)]
    for work in dist.batch_isend_irecv(messages):
        work.wait()
    assert theirs.item() == 1.0


def both_send_first(elements, connected):
    if connected:
        connect()
    x, (to, frm) = torch.full((elements,), float(dist.get_rank())), neighbours()
    dist.send(x, to)
    dist.recv(x, frm)
    return x[0].item()


def both_receive_first(connected):
    if connected:
        connect()
    x, (to, frm) = torch.zeros(3), neighbours()
    dist.recv(x, frm)
    dist.send(x, to)
    return x[0].item()


def larger_receive():
    if dist.get_rank() == 0:
        dist.send(torch.ones(3), 1)
    elif dist.get_rank() == 1:
        x = torch.zeros(8)
        dist.recv(x, 0)
        return x.sum().item()


def missing_collective():
    x = torch.ones(4)
    dist.all_reduce(x)
    if dist.get_rank() == 1:
        return 0.0
    dist.all_reduce(x)
    return x.sum().item()


def barrier_against_receive():
    if dist.get_rank() == 1:
        dist.recv(torch.zeros(3), 0)
    else:
        dist.barrier()


def wait_in_cpp():
    """DDP's reducer waits for its all-reduce in C++, where the ledger sees no wait, and `.item()`
    waits for the GPU."""
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
    x = torch.ones(1, 4)
    # after its first step DDP puts its buckets anew, and its ranks agree on them in the second
    for _ in range(2):
        net(x).sum().backward()
    if dist.get_rank() == 1:
        dist.recv(torch.zeros(3), 0)
    else:
        net(x).sum().backward()
        return net.module.weight.grad.sum().item()


def killed():
    x = torch.ones(4)
    dist.all_reduce(x)
    x.sum().item()
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(x)
    return x.sum().item()


class Case(NamedTuple):
    """What hangs, and the kinds of verdict that are right: on gloo, under NCCL, and there
    with two ranks alone."""

    fn: object
    args: tuple
    on_gloo: tuple[str, ...]
    on_nccl: tuple[str, ...]
    of_two: tuple[str, ...] = ()  # () where two ranks are like more


HANGS = ("deadlock", "no progress")
# by the error, or by NCCL's watchdog, which ends a process whose GPU met an illegal access
ENDED = "raised", "died"
CASES = {
    "both send 12 B, new": Case(both_send_first, (3, False), ("deadlock",), HANGS, ENDED),
    "both send 8 MB, new": Case(both_send_first, (2 << 20, False), ("deadlock",), HANGS, ENDED),
    "both receive, new": Case(both_receive_first, (False,), ("deadlock",), HANGS, (*ENDED, *HANGS)),
    "both send 12 B, connected": Case(
        both_send_first, (3, True), ("deadlock",), ("returned", *HANGS)
    ),
    "both send 8 MB, connected": Case(
        both_send_first, (2 << 20, True), ("deadlock",), ("returned", *HANGS)
    ),
    "both send 512 MB, connected": Case(both_send_first, (128 << 20, True), ("deadlock",), HANGS),
    "both receive, connected": Case(both_receive_first, (True,), ("deadlock",), HANGS),
    "larger receive": Case(larger_receive, (), ("mismatch",), ("mismatch", *HANGS)),
    "missing collective": Case(missing_collective, (), ("deadlock",), HANGS),
    "barrier against receive": Case(barrier_against_receive, (), ("deadlock",), HANGS),
    "wait in C++, then .item()": Case(wait_in_cpp, (), HANGS, HANGS),
    "killed rank": Case(killed, (), ("died",), ("died",)),
}


def allowed(case: Case, backend: str, ranks: int) -> tuple[str, ...]:
    """The kinds of verdict that are right for `case` on so many ranks."""
    if backend == "gloo":
        return case.on_gloo
    return case.of_two if ranks == 2 and case.of_two else case.on_nccl


def verdict(backend: str, ranks: int, fn, *args) -> tuple[str, float, int]:
    """(kind, or "returned"; seconds of the run on ranks that are there already; processes left)"""
    warm.end_all()
    launch.capture(dist.get_rank, nproc=ranks, backend=backend, timeout=TIMEOUT)
    began = time.monotonic()
    try:
        launch.capture(fn, *args, nproc=ranks, backend=backend, timeout=TIMEOUT)
        kind = "returned"
    except launch.RankError as error:
        kind = error.kind
        print(error, flush=True)
    return kind, time.monotonic() - began, ranks_left()


def run(backend: str, ranks: int, cases=CASES) -> dict[str, tuple[str, float, int, bool]]:
    """{case: (kind, seconds to the verdict, processes left, as it should be?)}"""
    _, empty, _ = verdict(backend, ranks, dist.get_rank)
    seen = {}
    for name, case in cases.items():
        kind, seconds, left = verdict(backend, ranks, case.fn, *case.args)
        seconds, kinds = max(0.0, seconds - empty), allowed(case, backend, ranks)
        right = kind in kinds and left == 0 and seconds < SOON
        seen[name] = kind, seconds, left, right
        wrong = (
            ""
            if right
            else f", WRONG: {' or '.join(kinds)} within {SOON:g} s, and no process left, would be "
            f"right"
        )
        print(f"{name}: {kind} after {seconds:.1f} s, {left} processes left{wrong}", flush=True)
    return seen


def main(argv=None, cases=CASES):
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.hangs")
    parser.add_argument("--backend", default="nccl-shared")
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args(argv)
    seen = run(options.backend, options.ranks, cases)
    said = [f"{case}: {kind} in {seconds:.1f} s" + f" WRONG ({left} left)" * (not right)
            for case, (kind, seconds, left, right) in seen.items()]  # fmt: skip
    print(
        f"showed: {'; '.join(said)}; {sum(left for _, _, left, _ in seen.values())} processes left"
    )
    return 0 if all(right for *_, right in seen.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
