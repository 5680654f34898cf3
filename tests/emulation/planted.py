"""Mistakes planted in copies of lib's code, one line each: every one works on gloo, and breaks a
rule of NCCL's.

    source of lib.collectives.ring  --one line replaced-->       a module of its own
                                    --on ranks, by the rules-->  "..."

`MISTAKES` names for each the module, the line, what stands there instead, what uses it on ranks,
and what must be said. The same code with nothing replaced must pass.
"""

import importlib
import inspect
import linecache
import os
import time
import types
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import _disable_current_modes

HANG = "deadlock"


class Mistake(NamedTuple):
    name: str
    module: str
    line: str  # as it stands in the module, once
    instead: str
    use: str  # the function of this file that runs it on a rank: use(the edited module)
    says: str  # what the error must contain
    nproc: int = 2
    threshold: str = "inf"


SEND_RECV = "    post([(tensor, to)], [(out, frm)], group).wait()\n    return out"
RING_STEP = (
    "        received = p2p.send_recv(partial, right, left, group, out=buffers[step % 2][: "
    "len(mine)])"
)
GATHER_STEP = "        p2p.send_recv(passed_on, right, left, group, out=coming)"
ONE_BATCH = (
    "_begin_batch(inbound, outbound, group) if coalesces else _begin(inbound, outbound, group)"
)
MISTAKES = [
    Mistake(
        "send_recv without wait", "lib.collectives.p2p", SEND_RECV,
        "    post([(tensor, to)], [(out, frm)], group)\n    return out", "swap",
        "read before wait: aten::add",
    ),
    Mistake(
        "an exchange that nobody waits for", "lib.collectives.p2p",
        "    post(sends, receives, group).wait()",
        "    post(sends, receives, group)", "exchange_unread", "never waited for: send",
    ),
    Mistake(
        "wait leaves out the first work", "lib.collectives.p2p", "        for work in self.works:",
        "        for work in self.works[1:]:", "swap", "read before wait: aten::add",
    ),
    Mistake(
        "messages of a ring apart, not a batch", "lib.collectives.p2p", ONE_BATCH,
        "_begin(inbound, outbound, group)", "swap_connected", HANG,
    ),
    Mistake(
        "send, then receive, in a ring", "lib.collectives.p2p", SEND_RECV,
        "    send(tensor, to, group)\n    recv(out, frm, group)\n    return out", "swap_apart",
        HANG, 3, "0",
    ),
    Mistake(
        "send, then receive, as two ranks' first messages", "lib.collectives.p2p", SEND_RECV,
        "    send(tensor, to, group)\n    recv(out, frm, group)\n    return out", "swap",
        "first contact: send to rank",
    ),
    Mistake(
        "a paced rank sleeps before its input has come", "lib.measuring.paced",
        "    backend.synchronize_stream()\n    began =",
        "    began =", "paced_after_a_message", "the host slept while the message was under way",
    ),
    Mistake(
        "the caller's frame on a thread without frames", "lib.ledger.record",
        "frame = sys._getframe(1).f_back",
        "frame = sys._getframe(2)", "recorded_backward", "call stack is not deep enough",
    ),
    Mistake(
        "what is sent is changed too early", "lib.collectives.ring", RING_STEP,
        "        received = buffers[step % 2][: len(mine)]\n"
        "        pending = p2p.post([(partial, right)], [(received, left)], group)\n"
        "        partial.mul_(2)\n        pending.wait()",
        "reduce_scatter", "written while its send is under way: aten::mul_ writes",
    ),
    Mistake(
        "one buffer for what arrives and what leaves", "lib.collectives.ring", RING_STEP,
        "        received = p2p.send_recv(partial, right, left, group, out=buffers[0][: "
        "len(mine)])",
        "reduce_scatter", "written while its send is under way: recv writes", 3,
    ),
    Mistake(
        "a chunk is passed on before it has come", "lib.collectives.ring", GATHER_STEP,
        "        p2p.post([(passed_on, right)], [(coming, left)], group)",
        "all_gather", "read before wait: send reads", 3,
    ),
    Mistake(
        "blocks are read before they have come", "lib.collectives.pairwise",
        "    pending.wait()\n    return out",
        "    return out.clone()", "all_to_all", "read before wait: aten::clone",
    ),
    Mistake(
        "cleared while it is being filled", "lib.collectives.pairwise",
        "    pending.wait()\n    return out",
        "    out.zero_()\n    pending.wait()\n    return out", "all_to_all",
        "written before wait: aten::zero_",
    ),
    Mistake(
        "one buffer for two messages", "lib.collectives.pairwise",
        "[(arrivals[r], r) for r in others]",
        "[(arrivals[others[0]], r) for r in others]", "all_to_all", "two receives into one buffer",
        3,
    ),
    Mistake(
        "the last bucket's work is dropped", "lib.data_parallel.bucketed",
        "        for work in self.works:",
        "        for work in self.works[:-1]:", "overlapped_in_lib", "read before wait",
    ),
    Mistake(
        "torch's work of the last bucket is dropped", "lib.data_parallel.bucketed",
        "        for work in self.works:",
        "        for work in self.works[:-1]:", "overlapped_in_torch", "read before wait",
    ),
    Mistake(
        "averaged before the sum is there", "lib.data_parallel.bucketed",
        "        for work in self.works:",
        "        for flat in self.flat_buffers:\n            flat /= 2\n"
        "        for work in self.works:",
        "overlapped_in_torch", "written before wait: aten::div_",
    ),
    Mistake(
        "parameters are used before they are gathered", "lib.zero.prefetch",
        "        for work in self.gathers.pop(index, []):\n            work.wait()",
        "        self.gathers.pop(index, [])", "prefetching", "read before wait",
    ),
    Mistake(
        "an activation is changed while it is sent", "lib.pipeline.relay_step",
        "        p2p.send(y, rank + 1, group)",
        "        leaving = p2p.post([(y, rank + 1)], [], group)\n        y.data.mul_(2)\n        "
        "leaving.wait()",
        "relay", "written while its send is under way",
    ),
    Mistake(
        "an activation is used before it has come", "lib.pipeline.execute",
        "            arriving.wait()",
        "            arriving.wait", "pipeline", "read before wait",
    ),
]  # fmt: skip
# what must pass with nothing replaced
USES = list(dict.fromkeys((m.module, m.use, m.nproc) for m in MISTAKES))


def edited(module: str, line: str = "", instead: str = "") -> types.ModuleType:
    """A copy of `module` in which `line`, which must stand there once, is `instead`."""
    source = inspect.getsource(importlib.import_module(module))
    assert source.count(line) == 1 or not line, (
        f"{line!r} stands {source.count(line)} times in {module}"
    )
    source = source.replace(line, instead) if line else source
    copy, file = types.ModuleType(module + "_planted"), f"planted_{module.split('.')[-1]}.py"
    copy.__file__ = file
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, "exec"), copy.__dict__)
    return copy


def run(use, threshold, module=None, line="", instead=""):
    """On a rank: `use` under the rules, with a copy of `module`."""
    from tests.emulation import strict, strict_stream

    os.environ[strict_stream.THRESHOLD] = threshold
    strict.install()
    torch.manual_seed(0)
    use(edited(module, line, instead)) if module else use()
    strict.leave()


def swap(p2p):
    """Read what came."""
    rank, n = dist.get_rank(), dist.get_world_size()
    came = p2p.send_recv(torch.full((4,), float(rank)), (rank + 1) % n, (rank - 1) % n)
    assert (came + 1).tolist() == [(rank - 1) % n + 1.0] * 4


swap_apart = swap


def swap_connected(p2p):
    """Between two ranks that have exchanged messages before."""
    from lib.collectives import p2p as right

    right.send_recv(torch.ones(1), 1 - dist.get_rank(), 1 - dist.get_rank()).tolist()
    swap(p2p)


def recorded_backward(record):
    """torch's DDP with this ledger: its reducer calls all_reduce from autograd's thread."""
    from lib import ledger
    from lib.ledger import record as installed
    from lib.ledger.log import LogReader

    log = installed._recorder.log
    installed._recorder.close()
    installed._recorder = None
    record.install(log)
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
    loss = net(torch.ones(1, 4)).sum()
    # the rules' own, which is written in Python: its frames would be below
    with _disable_current_modes():
        loss.backward()
    reduced = [
        entry for entry in LogReader(log.folder, log.rank).entries() if entry.op == "all_reduce"
    ]
    assert [entry.function for entry in reduced] == ["recorded_backward"], (
        "the line is that of loss.backward()"
    )
    record.uninstall()
    ledger.install(log)


def exchange_unread(p2p):
    other = 1 - dist.get_rank()
    p2p.exchange([(torch.ones(4), other)], [(torch.empty(4), other)])


def reduce_scatter(ring):
    n = dist.get_world_size()
    assert ring.ring_reduce_scatter(torch.ones(4 * n)).tolist() == [float(n)] * 4


def all_gather(ring):
    rank, n = dist.get_rank(), dist.get_world_size()
    assert ring.ring_all_gather(torch.full((1,), float(rank))).tolist() == [
        float(r) for r in range(n)
    ]


def all_to_all(pairwise):
    rank, n = dist.get_rank(), dist.get_world_size()
    assert pairwise.all_to_all_at_once(torch.full((n,), float(rank))).tolist() == [
        float(r) for r in range(n)
    ]


def _a_step(model):
    model(torch.ones(2, 4)).sum().backward()
    model.average_gradients()
    return [float(p.grad.sum()) for p in model.parameters()]


def overlapped_in_lib(overlapped):
    layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    _a_step(overlapped.OverlappedDataParallel(layers, capacity=8))


def overlapped_in_torch(overlapped):
    """Transported by torch's own asynchronous all-reduce."""
    start = lambda all_reduce, tensor, group: dist.all_reduce(tensor, group=group, async_op=True)
    layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    _a_step(overlapped.OverlappedDataParallel(layers, capacity=8, start=start))


def prefetching(prefetch):
    layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    model = prefetch.PrefetchingFSDP(layers, list(layers))
    model(torch.ones(2, 4)).sum().backward()
    model.average_gradients()


def paced_after_a_message(paced):
    """A layer of 0.3 s on a rank whose input comes after 0.6 s."""
    from lib.collectives import p2p

    x, layer = torch.ones(1, 4), paced.PacedLayer(4, 0.3, 0.0)
    p2p.send_recv(torch.ones(1), 1 - dist.get_rank(), 1 - dist.get_rank()).tolist()
    if dist.get_rank():
        time.sleep(0.6)
        p2p.send(x, 0)
    else:
        began = time.monotonic()
        layer(p2p.recv(x, 1))
        assert time.monotonic() - began > 0.85, "the host slept while the message was under way"


def relay(relay_step):
    relay_step.relay_step(torch.nn.Linear(4, 4), torch.ones(2, 4), None, lambda y, target: y.sum())


def pipeline(execute):
    """Two stages, two micro-batches; forward adds one, backward gives back what came."""
    from lib.pipeline.actions import Dependencies
    from lib.pipeline.links import connect
    from lib.pipeline.schedules import gpipe
    from lib.pipeline.transfers import transfers

    rank, schedule = dist.get_rank(), gpipe(2, 2)
    compute = lambda action, given: torch.ones(3) if given is None else given + 1
    shape_of = lambda action: ((3,), torch.float32)
    execute.execute(transfers(schedule)[rank], Dependencies(schedule), compute, shape_of, connect())
