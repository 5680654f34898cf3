"""Reads exposed communication (the seconds of messages that no compute hides) from a trace, for a
data-parallel wrapper of the course and for torch's DistributedDataParallel.

    the wrapper   its spans are written into the ledger's trace, in lanes next to its operations
    torch's       its trace is written by torch.profiler. A communication hook passes DDP's buckets
                  to our ring on the communication thread, so that an emulated link slows both alike

To verify the traces we also use a stopwatch, which gives the seconds of a step minus those of the
same layers without any message.
"""

import os
import tempfile
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, _ExperimentalConfig, profile, record_function

from lib import collectives, launch
from lib.collectives.slow_link import slow_link
from lib.ledger import trace
from lib.measuring.overlap import BACKWARD, ELEMENTS, FORWARD, paced_step
from lib.measuring.paced import PacedLayer

LAYERS = 4
CALLED = {  # the name of each part in the two traces
    "yours": {"forward": "forward", "backward": "backward", "network": "network"},
    "torch's": {"forward": "Paced", "backward": "PacedBackward", "network": "network"},
}


def paced_layers():
    return nn.Sequential(*(PacedLayer(ELEMENTS, FORWARD, BACKWARD) for _ in range(LAYERS)))


def torchs(layers):
    """(torch's DDP whose buckets are all-reduced by our ring, the list of works that its hook
    starts). Wait for the works after a step."""
    works: list = []
    model = nn.parallel.DistributedDataParallel(layers, bucket_cap_mb=0.45)

    def send(flat, future):
        with record_function("network"):
            collectives.ring_all_reduce(flat)
        future.set_result(flat / dist.get_world_size())

    def hook(_, bucket):
        future: torch.futures.Future = torch.futures.Future()
        works.append(collectives.start(send, bucket.buffer(), future))
        return future

    model.register_comm_hook(None, hook)
    return model, works


def step_seconds(model, works=()) -> float:
    """The seconds of forward and backward. DDP's backward waits for all of its buckets, so we wait
    for the works only after the clock has stopped."""
    dist.barrier()
    begin = time.perf_counter()
    model(torch.ones(1, 1)).sum().backward()
    seconds = time.perf_counter() - begin
    for work in works:
        work.wait()
    return seconds


def profiled(model, works, path) -> float:
    """The same as step_seconds(model, works), but rank 0 profiles the step, and writes
    torch.profiler's trace to `path`."""
    if dist.get_rank() > 0:
        return step_seconds(model, works)
    os.environ["KINETO_LOG_LEVEL"] = "99"  # or else the profiler prints when it starts and stops
    of_all_threads = _ExperimentalConfig(profile_all_threads=True)  # also the communication thread
    with profile(activities=[ProfilerActivity.CPU], experimental_config=of_all_threads) as seen:
        seconds = step_seconds(model, works)
    seen.export_chrome_trace(path)
    return seconds


def both_traced(Wrapper: Callable, path: str, bandwidth: float):
    """On each rank: (seconds of a step without messages, seconds of torch's DDP, the spans of the
    wrapper's step). path: to which rank 0 writes torch's trace."""
    model, works = torchs(paced_layers())
    step_seconds(model, works)  # DDP rebuilds its buckets after its first step
    alone = step_seconds(paced_layers())
    works.clear()
    with slow_link(ranks_per_node=1, seconds_per_message=0, bytes_per_second=bandwidth):
        spans = paced_step(Wrapper, n_layers=LAYERS)
        theirs = profiled(model, works, path)
    return alone, theirs, spans


class TracedRounds:
    """Rounds that measure both steps, for `measure`. A call returns {"yours", "torch's": exposed
    seconds by the trace, "yours, clock", "torch's, clock": by the stopwatch}, (rounds,) each.

    exposed: exposed(compute, messages) -> seconds, of two lists of (start, end).
    """

    def __init__(self, Wrapper, exposed, bandwidth=15e6, rounds=6, nproc=4):
        self.Wrapper, self.exposed, self.bandwidth = Wrapper, exposed, bandwidth
        self.rounds, self.nproc = rounds, nproc
        self.folder = tempfile.TemporaryDirectory()  # is removed together with this object
        self.paths = {
            name: os.path.join(self.folder.name, file)
            for name, file in (("yours", "yours.json"), ("torch's", "torchs.json"))
        }

    def intervals(self, name: str) -> dict[str, list[tuple[float, float]]]:
        """{"forward", "backward", "network": [(start, end), ...]} of rank 0, in seconds, read from
        the trace of the last round. name: "yours" or "torch's"."""
        return {
            what: trace.intervals(
                self.paths[name], lambda e, its=its: its in (e["name"], e.get("cat"))
            )
            for what, its in CALLED[name].items()
        }

    def __call__(self) -> dict[str, np.ndarray]:
        found: dict[str, list] = {}
        for _ in range(self.rounds):
            ranks = launch.run(
                both_traced, self.Wrapper, self.paths["torch's"], self.bandwidth,
                nproc=self.nproc, backend="gloo",
            )  # fmt: skip
            alone, theirs, spans = ranks[0]
            trace.write(ranks.ledger, self.paths["yours"], spans)
            took = {"yours": spans[-1][4] - min(s[3] for s in spans), "torch's": theirs}
            for name in self.paths:
                seen = self.intervals(name)
                by_trace = self.exposed(seen["forward"] + seen["backward"], seen["network"])
                found.setdefault(name, []).append(by_trace)
                found.setdefault(f"{name}, clock", []).append(took[name] - alone)
        return {name: np.array(seconds) for name, seconds in found.items()}

    def spans(self) -> dict[str, list[tuple]]:
        """{name: spans of rank 0}, read from the traces, as `plots.step_timeline` draws them."""
        return {
            name: [
                (0, "network" if what == "network" else "compute", what, start, end)
                for what, some in self.intervals(name).items()
                for start, end in some
            ]
            for name in self.paths
        }
