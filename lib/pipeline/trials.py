"""What Lab 2 measures: its model in stages against a single process, and what a schedule keeps.

All but the first three run on ranks, `launch.run(gradient_error, ..., nproc=4)`, and return what
one rank has found. batch: (tokens, targets) of the full batch, (B, T) each, the same on all ranks.
"""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from lib import ledger
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


def layer_seconds(layers, inputs, rounds):
    """Time of one forward and one backward of each layer, (rounds, layers) in seconds. inputs: one
    per layer."""
    for x, layer in zip(inputs, layers, strict=True):
        there_and_back(layer, [x])  # the first time is never like the others
    return [
        [there_and_back(layer, [x]) for x, layer in zip(inputs, layers, strict=True)]
        for _ in range(rounds)
    ]


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
    # the first is noted inside of the first forward
    return max(sizes), sizes[1]


def flops(layer, x):
    """Operations of the matmuls of one forward and backward, recomputation included."""
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
    """The model's stages, one for each rank, after its head has got a weight of its own."""
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
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()


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

    Noted after every action, and after each forward that is repeated. wrap: such as Recomputed,
    around each stage.
    """
    links, (tokens, targets), found = connect(), batch, {}
    step = tokens.chunk(m), targets.chunk(m), cross_entropy
    for name, schedule in schedules.items():
        plain = split_gpt(GPT(shape), balance([1] * shape.n_layers, len(links.ranks)))
        machine = Pipeline([wrap(stage) for stage in plain], links, tokens.chunk(m))
        mine, stage, sizes = plain[links.rank], machine.stages[links.rank], []
        machine.run(schedule, *step)  # the first step is never like the others
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
