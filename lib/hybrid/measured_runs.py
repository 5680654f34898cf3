"""Hybrid training measured on this machine: the parts of a step, each by itself, and full steps, to
see whether a cost model that adds up the parts predicts the full step.

    parts     embedding | a stage's layers | head, loss    both ways, for each micro-batch of a step
              copies into buckets, the optimizer           per parameter
              all-reduces of 1 number, and of LARGE        alpha and beta
    full      Hybrid.backward, Hybrid.step

`lib.cost.measured` predicts the full step from these parts, the number of micro-batches and layers,
the waits of stages for each other, and the bytes sent. The parts are measured under the conditions
of a full step. All ranks run at the same time, because ranks on one machine share its memory
bandwidth and caches. As many layers run in a row as a stage has, because by the time backward
reaches the first layer, the caches no longer have its data. And the parts are measured in turns,
round after round, so that a second in which the machine is slow affects all of them.

Ranks that split a layer wait for the slowest one at each all-reduce, and averaging their times
would lose that wait. Therefore the parts all-reduce a single number wherever tensor parallelism
sends an activation, so that a layer's time includes the wait and alpha.
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

LARGE = 1 << 20  # elements of the all-reduce from which beta is computed: 4 MB


def measured_runs(runs, shape, rows, rounds):
    """Measure each of `runs` in turns. Returns on every rank {name: {"compute": (rounds, 5),
    "link": (rounds, 2), "step": (rounds,)}}, as lists. Each value is in seconds, or for beta in
    seconds per byte, and is the largest of any rank.

    runs: {name: (sizes, b)}, the mesh `mesh_of(**sizes)` and the rows of a micro-batch. shape: of
    the GPT; sequences have seq_len tokens. rows: of the whole batch. "compute": forward, backward,
    first, last, update, as in `lib.cost.measured.Compute`. "link": the alpha and beta of a ring
    that takes as long as `collectives.all_reduce`. The first round is a warm-up and not returned.
    Sends: what `Hybrid` sends, all-reduces and barriers. Raises ValueError as `Mesh`, `local_batch`
    and `Hybrid` do.
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
    """A Hybrid with AdamW on one mesh, for full steps, and a probe for the parts: a GPT with the
    layers of one stage, whose all-reduces send a single number."""

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
        """Seconds of one full step."""
        began = time.monotonic()
        self.hybrid.backward(self.tokens, self.targets).item()
        self.hybrid.step()
        backend.synchronize()
        return time.monotonic() - began

    def compute(self):
        """[forward, backward, first, last, update] in seconds. The first four are means over the
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
        """[alpha, beta] of a ring that takes as long as `collectives.all_reduce`. With tensor
        parallelism alpha is 0, because the times of `compute` already include it."""
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
        """[forward, backward, first, last], seconds for one micro-batch, tokens and targets of
        (b, T) each. forward and backward are those of one layer."""
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
        # We assume that backward takes twice as long as forward, so forward is a third of the sum.
        return [
            forward / len(part.blocks),
            backward / len(part.blocks),
            (embedded + first) / 3,
            last / 3,
        ]


def meet(tensor, group=None, op=None):
    """Stands in for an all-reduce: the ranks wait for each other and send one number, and `tensor`
    does not change."""
    if dist.get_world_size(group) > 1:
        collectives.all_reduce(tensor.new_zeros(1), group)
    return tensor


def nothing(tensor, group=None):
    """Stands in for an all-reduce: sends nothing, so that only the rank's compute is measured."""
    return tensor


def now():
    """The time in seconds, after the device has finished what was queued."""
    backend.synchronize()
    return time.monotonic()
