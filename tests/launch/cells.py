"""What the cells of a notebook may do to their ranks. Each says first how it found its
rank; see test_warm.py."""

import builtins
import gc
import inspect
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from lib import collectives, ledger
from lib.collectives import background, p2p
from lib.zero import Zero1


def found():
    """How a fresh rank is, in plain data: whatever a cell could notice of an earlier one."""
    with warnings.catch_warnings(record=True) as given:
        warnings.warn("again", UserWarning, stacklevel=1)
    world = dist.distributed_c10d._world
    return {
        "rank": dist.get_rank(),
        "seeded": [
            torch.initial_seed() == 5,
            np.random.rand() == np.random.RandomState(5).rand(),
            random.random() == random.Random(5).random(),
        ],
        "dtype and device": [torch.tensor(1.0).dtype, torch.tensor(1.0).device],
        "modes": [
            torch.is_grad_enabled(),
            torch.is_anomaly_enabled(),
            torch.are_deterministic_algorithms_enabled(),
        ],
        "autocast": (torch.ones(2, 2) @ torch.ones(2, 2)).dtype,
        "threads": [
            torch.get_num_threads(),
            sum(not t.name.startswith("lib.") for t in threading.enumerate()),
        ],
        "environment": [os.environ.get(name) for name in ("HOME", "RANK", "OF_AN_EARLIER_CELL")],
        "where": [os.getcwd(), list(sys.path), list(sys.argv)],
        "warnings": [len(given), [f[0] for f in warnings.filters]],
        "handlers": [
            str(signal.getsignal(s)) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
        ],
        "groups": [len(world.pg_map), world.group_count],
        "functions": [
            F.relu(torch.tensor(-1.0)).item(),
            torch.tensor([3.0, 4.0]).norm().item(),
            abs(-1),
        ],
        "lib": [
            p2p.posting_takes_time(),
            dict(background.in_use),
            collectives.all_reduce(torch.ones(3)).tolist(),
        ],
        "modules": [m for m in sys.modules if m.startswith("of_the_user")],
        "printing": repr(torch.tensor([0.123456789])),
        "logging": [logging.root.level, len(logging.root.handlers)],
        "limits": [sys.getrecursionlimit(), gc.isenabled()],
        "hooks": len(nn.modules.module._global_forward_hooks),
        "streams": [sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__],
    }


def nothing():
    return found()


def random_numbers():
    before = found()
    torch.manual_seed(5), np.random.seed(5), random.seed(5)
    return before, found()["seeded"], torch.rand(3), random.random()


def defaults():
    before = found()
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    torch.set_num_threads(2)
    torch.set_printoptions(precision=2)
    torch.use_deterministic_algorithms(True)
    torch.autograd.set_detect_anomaly(True)
    torch.set_autocast_enabled("cpu", True)
    torch.set_grad_enabled(False)
    return before


def environment():
    before = found()
    os.environ["OF_AN_EARLIER_CELL"] = "1"
    os.environ.pop("HOME", None)
    os.chdir("/")
    sys.path.insert(0, "/nowhere")
    sys.argv.append("more")
    return before


def told_once():
    before = found()
    for _ in range(3):
        warnings.warn("once", UserWarning, stacklevel=1)
    warnings.simplefilter("error")
    logging.basicConfig(level=logging.DEBUG, force=True)
    return before


def handlers():
    before = found()
    signal.signal(signal.SIGTERM, signal.SIG_IGN), signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_REAL, 30)
    sys.setrecursionlimit(2000)
    gc.disable()
    return before


def streams():
    before = found()
    print("to the screen")
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    return before


def groups():
    before = found()
    pair, other = dist.new_group([0, 1]), dist.new_group([0, 1])
    x = torch.ones(4)
    dist.all_reduce(x, group=pair)
    dist.all_reduce(x, group=other)
    return before, x


def uneven_groups():
    before = found()
    alone = [dist.new_group([r]) for r in range(dist.get_world_size())]
    dist.barrier(group=alone[dist.get_rank()])
    objects = [None] * dist.get_world_size()
    dist.all_gather_object(objects, {"rank": dist.get_rank()})
    return before, objects


def a_message():
    before = found()
    x = torch.full((3,), float(dist.get_rank()))
    if dist.get_rank() == 0:
        dist.send(x, 1)
    elif dist.get_rank() == 1:
        dist.recv(x, 0)
    ledger.mark("end")
    return before, x


def a_message_nobody_waits_for():
    before = found()
    if dist.get_rank() == 0:
        dist.isend(torch.ones(3), 1)
    return before


def a_receive_nobody_waits_for():
    before = found()
    if dist.get_rank() == 1:
        dist.irecv(torch.ones(3), 0)
    return before


def a_collective_nobody_waits_for():
    before = found()
    x = torch.ones(2)
    dist.all_reduce(x, async_op=True)
    return before


def a_collective_of_one_rank():
    before = found()
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(2), async_op=True)
    return before


def in_the_background():
    before = found()
    x = torch.ones(1000)
    background.start(collectives.all_reduce, x).wait()
    return before, x.sum().item()


def a_failure_in_the_background():
    before = found()
    try:
        background.start(lambda: 1 / 0).wait()
    except ZeroDivisionError:
        return before


def another_relu():
    before = found()
    F.relu = lambda x: x
    return before


def another_method():
    before = found()
    torch.Tensor.norm = lambda self: self.sum()
    return before


def another_forward():
    before = found()
    nn.Linear.forward = lambda self, x: x
    return before, nn.Linear(2, 2)(torch.ones(2))


def uses_a_linear():
    before = found()
    torch.manual_seed(0)
    return before, nn.Linear(2, 2)(torch.ones(2)).detach()


def another_builtin():
    before = found()
    builtins.abs = lambda x: x
    return before


def another_function_of_lib():
    before = found()
    collectives.all_reduce = lambda x, *args, **kwargs: x
    p2p._delay = lambda sends, group: None
    return before


def another_method_of_lib():
    before = found()
    Zero1.step = lambda self: None
    return before


def a_table_of_lib():
    before = found()
    background.in_use["of an earlier cell"] = None
    return before


def a_thread():
    before = found()
    threading.Thread(target=time.sleep, args=[3], daemon=True).start()
    return before


def a_process():
    before = found()
    subprocess.Popen(["sleep", "3"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return before


def a_hook():
    before = found()
    nn.modules.module.register_module_forward_hook(lambda module, args, out: out + 1)
    return before


class Classy:
    value = 1


def a_class():
    before = found(), Classy.value
    Classy.value += 1
    return before


def a_training_step():
    before = found()
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    return before, [p.detach().clone() for p in model.parameters()]


def destroys_the_world():
    before = found()
    dist.barrier()
    dist.destroy_process_group()
    return before


def raises():
    before = found()
    if dist.get_rank() == 1:
        raise ValueError(f"found {before['dtype and device']}")


def hangs():
    found()
    dist.recv(torch.ones(2), (dist.get_rank() + 1) % dist.get_world_size())


def does_not_match():
    found()
    dist.all_reduce(
        torch.ones(2), op=dist.ReduceOp.MAX if dist.get_rank() == 1 else dist.ReduceOp.SUM
    )


MINE = [
    fn for fn in list(globals().values()) if inspect.isfunction(fn) and fn.__module__ == __name__
]
CELLS = MINE[1:]  # without `found`
