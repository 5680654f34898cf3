"""The raw probe's programs: torch alone, nothing of lib, each in a process of its own, for it may
hang or crash.

    python raw.py facts                 what torch says of itself, and of the GPUs it counts
    python raw.py product 1             a context on GPU 1, and a small product there
    python raw.py rank FOLDER nccl 0    a rank on GPU 0, with RANK and WORLD_SIZE in the environment

Each prints a line of JSON for every thing that it has done, as it goes: of one that hangs, the last
line tells where.
"""

import json
import os
import sys
import threading
import time
from datetime import timedelta

SIZES = {"0 B": 0, "1 B": 1, "16 KB": 16 << 10, "8 MB": 8 << 20}  # of the messages of a batch

# of a rank
PHASES = (
    "import",
    "init",
    "all_reduce",
    *(f"batch of {size}" for size in SIZES),
    "new_group",
    "DDP step",
    "destroy",
)


def say(what, began, **facts):
    print(
        json.dumps({"what": what, "seconds": round(time.monotonic() - began, 3), **facts}),
        flush=True,
    )


def facts():
    began = time.monotonic()
    import torch
    import torch.distributed as dist

    count = torch.cuda.device_count()
    nccl = dist.is_available() and dist.is_nccl_available()
    say(
        "facts", began, torch=torch.__version__, cuda=torch.version.cuda, count=count,
        nccl=".".join(map(str, torch.cuda.nccl.version())) if nccl else None,
        arch=torch.cuda.get_arch_list() if count else [],
        python=".".join(map(str, sys.version_info[:3])),
    )  # fmt: skip


def product(index):
    """A product in float32, the kind that every training step begins with, and its sum,
    which is exact."""
    import torch

    began = time.monotonic()
    torch.cuda.set_device(index)
    properties = torch.cuda.get_device_properties(index)
    free, total = torch.cuda.mem_get_info(index)
    say(
        "context", began, name=properties.name, capability=f"{properties.major}.{properties.minor}",
        free_mib=free >> 20, total_mib=total >> 20,
    )  # fmt: skip
    began = time.monotonic()
    ones = torch.ones(256, 256, device=f"cuda:{index}")
    say("product", began, right=(ones @ ones).sum().item() == 256.0**3)


def rank(folder, backend, index):
    """A rank: init, all-reduce, batches round a ring, a new group, a step of DDP, destroy; with
    seconds and values."""
    began = time.monotonic()
    import torch
    import torch.distributed as dist

    me, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    cuda = backend == "nccl"
    device = torch.device("cuda", index) if cuda else torch.device("cpu")
    finish = torch.cuda.synchronize if cuda else lambda: None
    if cuda:
        torch.cuda.set_device(device)
    say("import", began)

    began = time.monotonic()
    store = dist.FileStore(f"{folder}/store", world_size)
    how = {"device_id": device} if cuda else {}
    dist.init_process_group(
        backend, store=store, rank=me, world_size=world_size, timeout=timedelta(seconds=60), **how
    )  # fmt: skip
    say("init", began)

    began = time.monotonic()
    x, options = torch.full((1024,), me + 1.0, device=device), dist.AllreduceOptions()
    options.asyncOp = False
    work = dist.group.WORLD.allreduce([x], options)
    if work is not None:
        work.wait()
    finish()
    say(
        "all_reduce",
        began,
        right=x[0].item() == world_size * (world_size + 1) / 2,
        no_work=work is None,
    )

    for name, size in SIZES.items():
        began = time.monotonic()
        mine = torch.full((size,), me, dtype=torch.uint8, device=device)
        theirs = torch.full((size,), 255, dtype=torch.uint8, device=device)
        right, left = (me + 1) % world_size, (me - 1) % world_size
        works = dist.batch_isend_irecv(
            [dist.P2POp(dist.irecv, theirs, left), dist.P2POp(dist.isend, mine, right)]
        )
        for each in works:
            each.wait()
        finish()
        say(f"batch of {name}", began, right=bool((theirs == left).all()), works=len(works))

    began = time.monotonic()
    group = dist.new_group(list(range(world_size)))
    x = torch.ones(1, device=device)
    dist.all_reduce(x, group=group)
    finish()
    say("new_group", began, right=x.item() == world_size)

    began = time.monotonic()
    right, seen = ddp_step(device)
    finish()
    say("DDP step", began, right=right, **seen)

    began = time.monotonic()
    dist.destroy_process_group(group)
    dist.destroy_process_group()
    say("destroy", began)


def ddp_step(device):
    """(is the gradient the mean over the ranks?, where a hook of a parameter and DDP's reducer run)

    On a GPU, autograd has a thread of its own for backward. lib's hooks run there, and so does
    DDP's reducer, whose all-reduces the ledger sees. That thread has neither this one's default
    device nor any Python frame that called it.
    """
    import torch
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    seen, main = {}, threading.get_ident()
    where = lambda: [
        "main" if threading.get_ident() == main else "another",
        str(torch.get_default_device()),
    ]

    def reduce(state, bucket):
        seen["reducer"] = where()
        return allreduce_hook(state, bucket)

    torch.set_default_device(device)
    try:
        net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
        net.register_comm_hook(None, reduce)
        net.module.weight.register_hook(lambda grad: seen.update(hook=where()))
        net(torch.full((1, 1), dist.get_rank() + 1.0)).sum().backward()
        return net.module.weight.grad.item() == (dist.get_world_size() + 1) / 2, seen
    finally:
        torch.set_default_device(None)


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    if what == "facts":
        facts()
    elif what == "product":
        product(int(rest[0]))
    else:
        rank(rest[0], rest[1], int(rest[2]))
