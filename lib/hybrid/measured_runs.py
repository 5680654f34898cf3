"""The course's own runs on this machine: the parts of a step, measured separately, and full
steps to compare them with.

    apart     embedding | a stage's layers | head, loss    and back, for every micro-batch of a step
              copies into buckets, the optimizer           per parameter
              all-reduces of 1 number, and of LARGE        alpha and beta
    full      Hybrid.backward, Hybrid.step

`lib.cost.measured` puts the first together to the second: m micro-batches, L layers, stages that
wait for each other, bytes. Things are measured as they occur: all ranks at the same time, for ranks
that compute side by side share caches and memory; as many layers in a row as a stage has, for the
memory of the first is cold when backward comes to it; and one part after the other, again and
again, so that a slow second is slow for all.

Ranks that split a layer wait for the slower one at each all-reduce, and no mean of their times
contains that wait. So where tensor parallelism sends an activation, the parts send one number: the
wait, and alpha, are in the layer's time.
"""

import itertools
import statistics
import time
from dataclasses import replace

import torch
import torch.distributed as dist

from lib import backend, collectives
from lib.data_parallel import reduce_bucket
from lib.hybrid.paced import slowest
from lib.hybrid.train import Hybrid, local_batch, mesh_of
from lib.tensor_parallel import parallel_gpt, vocab_parallel_cross_entropy
from lib.training.model import GPT

LARGE = 1 << 20  # numbers of the all-reduce that beta comes from: 4 MB


def measured_runs(runs, shape, rows, rounds):
    """On every rank: {name: {"compute": (rounds, 5), "link": (rounds, 2), "step": (rounds,)}},
    lists of seconds.

    Each is the slowest rank's.

    runs: {name: (sizes, b)}: `mesh_of(**sizes)`, and the rows of a micro-batch. shape: of the GPT,
    sequences of seq_len; rows: of the whole batch. compute: forward, backward, first, last, update,
    as `lib.cost.measured.Compute`. link: alpha, beta of a ring that takes as long as
    `collectives.all_reduce`. The first round is not kept. Sends: as `Hybrid`, all-reduces and
    barriers. Raises ValueError as `Mesh`, `local_batch` and `Hybrid` do.
    """
    made = {name: MeasuredRun(*run, shape, rows) for name, run in runs.items()}
    found = {name: {"compute": [], "link": [], "step": []} for name in runs}
    for i in range(1 + rounds):
        for name, run in made.items():
            for what, clock in (("compute", run.compute), ("link", run.link), ("step", run.step)):
                dist.barrier()
                seconds = clock()
                if i:
                    found[name][what].append(seconds)
    return {
        name: {what: slowest(seconds) for what, seconds in each.items()}
        for name, each in found.items()
    }


class MeasuredRun:
    """A Hybrid with AdamW on one mesh; and the probe, a GPT of one stage's layers that
    sends single numbers."""

    def __init__(self, sizes, b, shape, rows):
        mesh = mesh_of(**sizes)
        numbers = torch.Generator("cpu").manual_seed(0)
        batch = torch.randint(
            shape.vocab_size, (2, rows, shape.seq_len), generator=numbers, device="cpu"
        )
        self.tokens, self.targets = (local_batch(each.to(backend.device()), mesh) for each in batch)
        self.hybrid = Hybrid(GPT(shape), mesh, self.tokens, b, torch.optim.AdamW)
        stage = replace(shape, n_layers=shape.n_layers // mesh.size("pp"))
        self.probe = parallel_gpt(GPT(stage), self.hybrid.tp, all_reduce=meet)
        self.optimizer = torch.optim.AdamW(self.probe.parameters())

    def step(self):
        """Seconds of one step."""
        began = time.monotonic()
        self.hybrid.backward(self.tokens, self.targets).item()
        self.hybrid.step()
        backend.synchronize()
        return time.monotonic() - began

    def compute(self):
        """[forward, backward, first, last, update], seconds: the mean over the
        micro-batches of a step."""
        cut = list(
            zip(self.tokens.split(self.hybrid.b), self.targets.split(self.hybrid.b), strict=True)
        )
        self.optimizer.zero_grad()
        each = torch.tensor([self.of_parts(*microbatch) for microbatch in cut]).mean(0).tolist()
        began = time.monotonic()
        parameters = list(self.probe.parameters())
        reduce_bucket(parameters, self.hybrid.data, all_reduce=nothing)
        self.optimizer.step()
        backend.synchronize()
        held = sum(p.numel() for p in self.hybrid.part.parameters()) / sum(
            p.numel() for p in parameters
        )
        return [*each, held * (time.monotonic() - began)]

    def link(self, times=5):
        """[alpha, beta] of a ring that takes as long as `collectives.all_reduce`; alpha 0 where
        compute has it."""
        N, seconds = dist.get_world_size(), []
        for numbers in (1, LARGE):
            tensor, clock = torch.zeros(numbers), [now()]
            for _ in range(times):
                collectives.all_reduce(tensor)
                clock.append(now())
            seconds.append(statistics.median(b - a for a, b in itertools.pairwise(clock)))
        short, long = seconds
        # 2 (N-1) (alpha + bytes / N beta)
        alpha, beta = short / (2 * (N - 1)), (long - short) / (2 * (N - 1)) * N / (4 * LARGE)
        return [alpha if dist.get_world_size(self.hybrid.tp) == 1 else 0.0, beta]

    def of_parts(self, tokens, targets):
        """[forward, backward, first, last], seconds for one micro-batch, (b, T) each."""
        part, clock = self.probe, [now()]
        vectors = part.embedding(tokens)  # (b, T, D)
        clock.append(now())
        x = vectors.detach().requires_grad_()
        y = x
        for block in part.blocks:
            y = block(y)  # (b, T, D)
        clock.append(now())
        z = y.detach().requires_grad_()
        logits = part.head(part.norm(z))  # (b, T, V/tp)
        vocab_parallel_cross_entropy(logits, targets, self.hybrid.tp, all_reduce=meet).backward()
        clock.append(now())
        y.backward(z.grad)
        clock.append(now())
        vectors.backward(x.grad)
        clock.append(now())
        embedded, forward, last, backward, first = (b - a for a, b in itertools.pairwise(clock))
        # a backward is taken to be twice a forward
        return [
            forward / len(part.blocks),
            backward / len(part.blocks),
            (embedded + first) / 3,
            last / 3,
        ]


def meet(tensor, group=None, op=None):
    """In place of an all-reduce: the ranks meet, one number is sent, and `tensor`
    stays as it is."""
    if dist.get_world_size(group) > 1:
        collectives.all_reduce(tensor.new_zeros(1), group)
    return tensor


def nothing(tensor, group=None):
    """In place of an all-reduce: what is left is what the rank computes."""
    return tensor


def now():
    """Seconds, once the device has caught up."""
    backend.synchronize()
    return time.monotonic()
