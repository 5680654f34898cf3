"""What Lab 2 measures: its model in stages against a single process, and what a schedule keeps.

Functions that take a batch run on ranks, `launch.run(gradient_error, ..., nproc=4)`, and return
what this rank has found. batch: (tokens, targets) of the full batch, (B, T) each, the same on all
ranks.
"""

import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from lib import ledger
from lib.measuring.errors import error
from lib.measuring.rounds import in_turns
from lib.pipeline.actions import loop
from lib.pipeline.asynchronous import PipeDream
from lib.pipeline.balance import balance
from lib.pipeline.links import connect
from lib.pipeline.measured import recorded
from lib.pipeline.paced_run import run_paced
from lib.pipeline.split import split_gpt
from lib.pipeline.stage import Pipeline
from lib.training.model import GPT, cross_entropy
from lib.training.recompute import SavedBytes


def layer_times(layers, inputs, rounds=7):
    """{"layers": (rounds, layers)}: milliseconds of one forward and one backward of each layer.
    inputs: one per layer."""
    once = lambda: [1e3 * there_and_back(*pair) for pair in zip(layers, pairs, strict=True)]
    pairs = [[x] for x in inputs]
    once()  # a warm-up, which is not measured
    return {"layers": np.array([once() for _ in range(rounds)])}


def medians(times):
    """[median time of layer 0, 1, ...] from `layer_times`."""
    return np.median(times["layers"], axis=0).tolist()


def faster(times, cuts):
    """The pace of the first of two splits, divided by that of the second, in each round: (rounds,).

    times: from `layer_times`. cuts(costs) -> {name: split}, two splits of layers with these costs,
    which are the medians of `times`. A pace is the time of the slowest stage.
    """
    first, second = (
        np.max([times["layers"][:, list(stage)].sum(axis=1) for stage in stages], axis=0)
        for stages in cuts(medians(times)).values()
    )
    return first / second


def stage_times(ways, xs, rounds=8):
    """{name: (rounds,)} seconds that each of `ways` {name: stage} takes for all xs, forward and
    backward."""
    return in_turns(
        {name: lambda way=way: there_and_back(way, xs) for name, way in ways.items()}, rounds
    )


def memory_and_time(ways, xs, times):
    """(measured, formula), each {name: (bytes, seconds)}, for `plots.recompute`.

    ways: {"keep all": stage, "recompute": Recomputed(stage)}. times: from `stage_times`. Without
    recomputation len(xs) micro-batches are kept; with it their inputs, and during a backward all of
    one micro-batch, for 4/3 of the time.
    """
    keep, redo = ways
    (most, one), (least, _) = (in_flight(way, xs) for way in ways.values())
    seconds = float(np.median(times[keep]))
    slower = seconds * float(np.median(times[redo] / times[keep]))
    inputs = (len(xs) - 1) * xs[0].nbytes
    return (
        {keep: (most, seconds), redo: (least, slower)},
        {keep: (len(xs) * one, seconds), redo: (inputs + one, seconds * 4 / 3)},
    )


def in_flight(stage, xs):
    """A stage with len(xs) micro-batches in flight, as rank 0 has them in 1F1B: all forwards, then
    all backwards.

    Returns (the most bytes kept for backward, those after the first forward).
    """
    sizes = []
    with SavedBytes(besides=stage.parameters()) as saved:
        note = lambda *_: sizes.append(saved.nbytes())
        inner = getattr(stage, "module", stage)  # recomputation peaks in the middle of backward
        hook = inner.register_forward_hook(note)
        there_and_back(stage, xs, note)
        hook.remove()
    # sizes[0] was noted inside the first forward
    return max(sizes), sizes[1]


def flops(layer, x):
    """FLOPs of the matmuls in one forward and backward, recomputation included."""
    with FlopCounterMode(display=False) as counter:
        layer(x).sum().backward()
    return counter.get_total_flops()


def there_and_back(stage, xs, after_forward=lambda: None):
    """Seconds that a stage takes for the forwards of all xs, and then for their backwards."""
    began, ys = time.perf_counter(), []
    for x in xs:
        ys.append(stage(x))
        after_forward()
    while ys:
        y = ys.pop(0)
        y.backward(torch.ones_like(y))
        del y
    return time.perf_counter() - began


def untied(model):
    """Give the model's head a weight of its own, and return the model's stages, one per rank."""
    model.head.weight = nn.Parameter(model.head.weight.detach().clone())
    return split_gpt(model, balance([1] * len(model.blocks), dist.get_world_size()))


def relay_error(relay_step, shape, batch):
    """(loss on the last rank, largest error of this rank's gradients against a single process),
    relative to the largest element of them."""
    rank, (tokens, targets) = dist.get_rank(), batch
    model, alone = GPT(shape).double(), GPT(shape).double()
    stage, _ = untied(model)[rank], untied(alone)
    x = tokens if rank == 0 else torch.empty(*tokens.shape, shape.hidden, dtype=torch.float64)
    ledger.mark("step")
    loss = relay_step(stage, x, targets, cross_entropy)
    ledger.mark("")
    cross_entropy(alone(tokens), targets).backward()
    return loss, _error(model, alone, [stage])


def gradient_error(schedule, m, shape, batch, n_stages=4, placement=loop):
    """(error of this rank's gradients, loss on the rank that computes it) of `schedule` with m
    micro-batches, in float64.

    The error is the largest against a single process with the full batch, relative to the largest
    element of the gradients. The step is the section "step" of the ledger.
    """
    tokens, targets = batch
    model, alone = GPT(shape).double(), GPT(shape).double()
    stages = split_gpt(model, balance([1] * shape.n_layers, n_stages))
    machine = Pipeline(stages, connect(), tokens.chunk(m), placement)
    ledger.mark("step")
    loss = machine.run(schedule, tokens.chunk(m), targets.chunk(m), cross_entropy)
    ledger.mark("")
    cross_entropy(alone(tokens), targets).backward()
    return _error(model, alone, [stages[s] for s in machine.stages]), loss


def _error(model, alone, stages):
    """Largest error of these stages' gradients, relative to the largest element of them all."""
    mine = {p for stage in stages for p in stage.parameters()}
    both = zip(model.parameters(), alone.parameters(), strict=True)
    pairs = [(p.grad.flatten(), q.grad.flatten()) for p, q in both if p in mine]
    ours, theirs = (torch.cat(gradients) for gradients in zip(*pairs, strict=True))
    return error(ours, theirs)


def paced(cases):
    """[Bars of this rank, ...] of cases (schedule, times): stages that wait as long as `times`
    says."""
    links = connect()
    return [run_paced(schedule, times, links) for schedule, times in cases]


def runs(ranks):
    """[Simulation of case 0, 1, ...], as they ran, from what `paced` returned on every rank."""
    return [recorded([bar for bars in case for bar in bars]) for case in zip(*ranks, strict=True)]


def kept_bytes(schedules, shape, batch, m, wrap=lambda stage: stage):
    """{name: (most bytes kept for backward, those after the first forward, gradient)} on this rank.

    The bytes are noted after every action and after every forward, also one that recomputation
    repeats. wrap: applied to each stage, for example Recomputed.
    """
    links, (tokens, targets), found = connect(), batch, {}
    step = tokens.chunk(m), targets.chunk(m), cross_entropy
    for name, schedule in schedules.items():
        plain = split_gpt(GPT(shape), balance([1] * shape.n_layers, len(links.ranks)))
        machine = Pipeline([wrap(stage) for stage in plain], links, tokens.chunk(m))
        mine, stage, sizes = plain[links.rank], machine.stages[links.rank], []
        machine.run(schedule, *step)  # a warm-up, which is not measured
        mine.zero_grad()
        with SavedBytes(besides=[*mine.parameters(), tokens, targets]) as saved:
            note = lambda *_, saved=saved, stage=stage, sizes=sizes: sizes.append(
                saved.nbytes(also=stage.held())
            )
            mine.register_forward_hook(note)  # recomputation peaks in the middle of backward
            machine.run(schedule, *step, record=note)
        gradient = torch.cat([p.grad.flatten() for p in mine.parameters()])
        found[name] = max(sizes), sizes[1], gradient
    return found


def versions_read(stash, shape, batches):
    """({Action: version of the weights that it read}, most versions at a time) of this rank's stage
    in PipeDream. batches: [(tokens, targets) of mini-batch 0, 1, ...]."""
    tokens, targets = zip(*batches, strict=True)
    sgd = lambda parameters: torch.optim.SGD(parameters, lr=0.5)
    machine = PipeDream(untied(GPT(shape)), connect(), tokens, sgd, stash)
    machine.run(tokens, targets, cross_entropy)
    return machine.reads, machine.most_versions


def merged(ranks):
    """{Action: version} of all ranks, from what `versions_read` returned on each."""
    return {action: version for reads, _ in ranks for action, version in reads.items()}


def times_for(times, message, v=1):
    """(times, message) for another schedule of the same model, from those of a run with one stage
    per rank, as `times_of` gives them.

    With v stages per rank each takes a v-th of its rank's time; I and W are halves of a B. A
    message between the last rank and the first takes the mean time of the others.
    """
    p = len(times["F"])
    F, B = ([times[kind][s % p] / v for s in range(v * p)] for kind in "FB")
    half = [time / 2 for time in B]
    round_trip = [*message, sum(message) / len(message)]
    edges = [round_trip[s % p] for s in range(v * p - 1)]
    return {"F": F, "B": B, "I": half, "W": half}, edges
