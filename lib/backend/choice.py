"""Decides which backend and device a rank gets (NCCL on a GPU, or gloo on the CPU) and joins it to
the process group.

The rows are the backends that can be requested. The columns say how many of the machine's GPUs work
(gpus.py):

    requested      GPUs >= ranks      fewer than ranks    no GPU
    "auto"         nccl, a GPU each   gloo on the CPU     gloo on the CPU
    "gloo"         gloo on the CPU    gloo on the CPU     gloo on the CPU
    "nccl"         nccl, a GPU each   error               error
    "nccl-shared"  nccl, 2 ranks on a GPU (slow: for correctness only)    error

"nccl-shared" is an error, too, if there are more than 2 ranks per GPU. In a notebook the
parent calls `choose`, and each rank then calls `join`. Under torchrun each rank only calls `join`,
which itself calls `choose`, and `meet`, by which the ranks find each other even after a restart.
"""

import os
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from lib.backend import gpus as machine
from lib.backend import keyboard, peers, torch_private

Group = dist.ProcessGroup | None  # None is the group of all ranks
Op = dist.ReduceOp.RedOpType  # of dist.ReduceOp.SUM
Collective = Callable[..., torch.Tensor]  # (tensor, group) -> tensor, such as an all-reduce
NAMES = ("auto", "gloo", "nccl", "nccl-shared")
RANKS_PER_SHARED_GPU = 2


@dataclass(frozen=True)
class Choice:
    """What `choose` decided: the backend's name, the number of ranks on each GPU, and a line that
    tells the user why."""

    name: str  # "gloo" or "nccl"
    ranks_per_gpu: int  # 0 on the CPU
    why: str


def choose(backend: str, nproc: int, gpus: int | None = None) -> Choice:
    """The backend for `nproc` ranks on this machine. backend: one of NAMES. gpus: how many GPUs
    work (None: find out, which tries each of them once per process).

    Raises ValueError for an unknown name, and RuntimeError if "nccl" or "nccl-shared" has too few
    GPUs for `nproc`.
    """
    if backend not in NAMES:
        raise ValueError(f"backend={backend!r} is not one of {', '.join(map(repr, NAMES))}")
    who = "1 rank" if nproc == 1 else f"{nproc} ranks"
    if backend == "gloo":
        return Choice("gloo", 0, f"{who}: gloo, on the CPU")
    found = machine.working() if gpus is None else machine.Gpus(("GPU",) * gpus)
    gpus, has = len(found.names), f"this machine has {_count(found)}"
    if backend == "nccl" and gpus < nproc:
        raise RuntimeError(
            f'backend="nccl" needs one GPU per rank: {nproc} ranks, but {has}. Use backend="auto"'
            + (f" or nproc={gpus}." if gpus else ", which runs gloo on the CPU.")
        )
    if backend == "nccl-shared" and gpus * RANKS_PER_SHARED_GPU < nproc:
        raise RuntimeError(
            f'backend="nccl-shared" puts at most {RANKS_PER_SHARED_GPU} ranks on a GPU: {nproc} '
            f"ranks, but {has}. "
            + (
                f"Use nproc={gpus * RANKS_PER_SHARED_GPU} or fewer."
                if gpus
                else 'Use backend="gloo".'
            )
        )
    if backend == "nccl-shared":
        return Choice(
            "nccl", RANKS_PER_SHARED_GPU, f"{who}: nccl, 2 to a GPU (slow, for correctness only)"
        )
    if gpus >= nproc:
        return Choice("nccl", 1, f"{who}: nccl, one GPU each ({found})")
    why = f"{_count(found)} for {who}" if gpus else found.why or "no GPU here"
    return Choice("gloo", 0, f"{who}: gloo, on the CPU ({why})")


def _count(found):
    count = len(found.names)
    words = "no GPU" if count == 0 else "1 GPU" if count == 1 else f"{count} GPUs"
    return f"{words} that works; {found.why}" if found.why else words


def join(
    choice: Choice | None = None, store: dist.Store | None = None, timeout: float = 600.0
) -> None:
    """On a rank: take this rank's device and join the default process group.

    RANK, WORLD_SIZE and LOCAL_RANK come from the environment, as torchrun sets them. Under torchrun
    call `join()` without arguments. It then selects NCCL if the node has a GPU for each of its
    ranks, else gloo, and the ranks meet at MASTER_ADDR. In this case the GPUs are not tested first,
    because a job that requested GPUs should fail rather than run on the CPU. After `join` new
    tensors are created on the rank's GPU by default if it has one, so the same cell runs on a CPU
    and on a GPU. timeout: the seconds after which a collective fails if some ranks do not call it,
    or after which `meet` fails if some ranks do not arrive.
    """
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local_rank = int(os.environ["LOCAL_RANK"])
    if choice is None:
        keyboard.refuse_debuggers()  # all of torchrun's ranks would wait for one keyboard
        counted = torch.cuda.device_count() if dist.is_nccl_available() else 0
        choice = choose("auto", int(os.environ["LOCAL_WORLD_SIZE"]), counted)
    if store is None:
        at_master, _, _ = next(dist.rendezvous("env://", timeout=timedelta(seconds=timeout)))
        store = meet(at_master, rank, world_size, timeout)
    kwargs: dict[str, Any] = {}
    if choice.ranks_per_gpu:
        unless_set(ON_A_GPU)  # before CUDA starts, because it reads its variable only then
        torch.cuda.set_device(local_rank // choice.ranks_per_gpu)
        torch.cuda.init()
        torch.set_default_device(device())
        # With a device_id NCCL connects all ranks now. Otherwise a first batch of messages in which
        # only some ranks take part would hang.
        kwargs["device_id"] = device()
        if torch.cuda.get_device_capability() in WITHOUT_NVLINK:
            unless_set(OVER_PCIE)
    if choice.ranks_per_gpu > 1:
        unless_set(shared_gpu_settings(rank))
    if "TORCH_NCCL_TRACE_BUFFER_SIZE" not in os.environ:  # the older name of the variable below
        # torch 2.15 has this size by default, whereas 2.10 would record nothing
        os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "2000")
    kwargs |= {"store": store, "rank": rank, "world_size": world_size}
    dist.init_process_group(choice.name, timeout=timedelta(seconds=timeout), **kwargs)
    peers.refuse_strangers()


def meet(store: dist.Store, rank: int, world_size: int, timeout: float) -> dist.Store:
    """A part of `store` that only the ranks of this attempt use, although the ranks of earlier
    attempts, which are dead now, have left keys in the store.

        rank r  here/r = r's own name, new in every process
                waits until rank 0 answers that name
        rank 0  answer/(name of r) = name of rank 0, for every r
                waits until all ranks have arrived: came/(name of rank 0)/r

    torchrun keeps one store across all its restarts, and init_process_group writes the addresses of
    the ranks under the same keys each time. A rank of the second attempt would therefore read the
    address of a dead rank of the first, and wait for it. Nothing in the environment identifies the
    attempt (TORCHELASTIC_RESTART_COUNT counts each node's own failures), so we use rank 0's name,
    which is new each time. Only a rank 0 that is alive can answer to a rank's new name.

    Raises RuntimeError on rank 0 after `timeout` seconds, naming the ranks that have not arrived,
    and torch's error on the other ranks.
    """
    name = uuid.uuid4().hex
    store.set(f"here/{rank}", name)
    if rank > 0:
        store.wait([f"answer/{name}"], timedelta(seconds=timeout))
        first = store.get(f"answer/{name}").decode()
        store.set(f"came/{first}/{rank}", "")
        return dist.PrefixStore(first, store)
    missing, deadline = list(range(1, world_size)), time.monotonic() + timeout
    while missing:
        for r in missing:
            # This may be a dead rank's name, until the new rank overwrites it.
            if store.check([f"here/{r}"]):
                store.set("answer/" + store.get(f"here/{r}").decode(), name)
        missing = [r for r in missing if not store.check([f"came/{name}/{r}"])]
        if missing and time.monotonic() > deadline:
            who = ", ".join(map(str, missing))
            raise RuntimeError(
                f"after {timeout:g} s rank {who} of {world_size} has not come: does torchrun run "
                f"there?"
            )
        time.sleep(0.01)
    return dist.PrefixStore(name, store)


def device() -> torch.device:
    """This rank's device: its GPU if this process has initialized CUDA (under NCCL `join` does),
    else the CPU."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def synchronize() -> None:
    """Wait until this rank's device has finished all its work, so that a time measured now includes
    it.

    On a GPU calls return as soon as their work is queued. On the CPU there is nothing to wait for.
    """
    if device().type == "cuda":
        torch.cuda.synchronize()


def synchronize_stream() -> None:
    """Wait until the GPU has finished what is queued on the current stream, including the ops of
    other streams that it waits for. On the CPU there is nothing to wait for.

    Call it, for example, before the host sleeps in order to imitate work of its GPU, because under
    NCCL `wait()` blocks only the stream. In contrast to `synchronize`, it does not wait for a
    receive that the program has not waited for yet, and that may depend on what this rank does
    next.
    """
    if device().type == "cuda":
        torch.cuda.current_stream().synchronize()


def stream_ordered(group: dist.ProcessGroup, device: torch.device) -> bool:
    """Does `group` queue its ops on `device`, as NCCL does, so that `wait` orders streams and does
    not block the host?

    If so, concurrent messages must be posted as one batch, because otherwise each message waits, on
    the sender's and on the receiver's side, for those that were queued before it.
    """
    return torch_private.backend_of(group, device).supports_coalescing


def loopback() -> str:
    """The name of the loopback network interface, which gloo has to be given by name."""
    return "lo0" if sys.platform == "darwin" else "lo"


ON_A_GPU = {
    # The number of queues from a rank to its GPU, at most 32. The default is 8, but a rank of Lab 6
    # has more streams (the default one, the communication thread's, and NCCL's for the world, tp,
    # dp, pp and each link). If two of them shared a queue, a receive that waits in one would hold
    # up the kernel that its sender waits for in the other. For TP or CP on GPUs before Blackwell,
    # Megatron-LM requires 1, so that a collective is launched ahead of the GEMM that it overlaps
    # with, while its FSDP refuses 1. lib orders its kernels by events, so it does not need 1.
    "CUDA_DEVICE_MAX_CONNECTIONS": "32",
    # Otherwise each rank would warn that a send or receive outside of a batch waits for those
    # before it, which Lab 0 teaches anyway.
    "TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING": "false",
}
# Compute capabilities of GPUs that are mostly connected by PCIe: T4, A10 and A40, L4 and L40S.
WITHOUT_NVLINK = {(7, 5), (8, 6), (8, 9)}
OVER_PCIE = {
    # NCCL 2.29 has been seen to hang while it creates some 50 communicators in a row (NVIDIA/nccl
    # 2379), and Lab 6 creates 20 or more. We turn off cuMem allocations, because they serve NVLS
    # and NVLink between nodes, which these GPUs do not have.
    "NCCL_CUMEM_ENABLE": "0",
}


def unless_set(settings: dict[str, str]) -> None:
    """Put `settings` into the environment of this rank, except those that the user has set."""
    for name, value in settings.items():
        os.environ.setdefault(name, value)


def shared_gpu_settings(rank):
    """Settings with which NCCL accepts two ranks on one GPU. It refuses two ranks of the same host
    there, so each rank claims to be a host of its own, and they communicate over sockets."""
    return {
        "NCCL_HOSTID": f"rank{rank}",
        # NCCL 2.30 and above require it; older versions ignore it
        "NCCL_MULTI_RANK_GPU_ENABLE": "1",
        "NCCL_NET": "Socket",
        "NCCL_NET_PLUGIN": "none",
        "NCCL_SOCKET_IFNAME": "=lo",
        "NCCL_IB_DISABLE": "1",
        "NCCL_P2P_DISABLE": "1",
        "NCCL_SHM_DISABLE": "1",
        "NCCL_NVLS_ENABLE": "0",
        "NCCL_MNNVL_ENABLE": "0",
        "NCCL_RAS_ENABLE": "0",
        "NCCL_MAX_CTAS": "2",
    }
