"""DiLoCo compared with data parallelism after equally many steps: trains both with three seeds, and
stores their validation losses.

    data parallel  4 ranks average the gradients in every step
    DiLoCo         4 ranks average the weights after every 20 steps: an outer step with eta 1, mu 0

In both, a step trains on 12 sequences, 3 for each rank, so equally many steps see equally many
tokens. We train in one process, which computes what the ranks would compute, except for the order
of sums: the mean gradient of equal shares is the gradient of the whole batch, and an outer step
with eta 1 and mu 0 takes the mean of the weights. lib/measuring/seeds.py says how the losses are
stored and compared.

`python -m lib.data_parallel` repeats all trainings and writes seeds.json. It takes about three
minutes on one core.
"""

import time
from pathlib import Path

import torch
import torch.distributed as dist

from lib import backend, collectives
from lib.collectives.slow_link import slow_link
from lib.data_parallel.bucketed import BucketedDataParallel
from lib.measuring import seeds
from lib.training import text as texts
from lib.training.model import GPT, Shape, cross_entropy

RUNS = {"data parallel": 1, "DiLoCo": 20}  # H, the steps from one synchronisation to the next
N, BATCH, SEQ_LEN, RATE = 4, 12, 32, 3e-3
SEEDS, STEPS, EVERY = (0, 1, 2), 600, 20
STORED = seeds.Seeds(
    Path(__file__).with_name("seeds.json"),
    "python -m lib.data_parallel",
    RUNS,
    SEEDS,
    tuple(range(EVERY, STEPS + 1, EVERY)),
)


def shape_of(text):
    """The Shape of the GPT that is trained on this Text."""
    return Shape(len(text.vocabulary), seq_len=SEQ_LEN, n_layers=2, hidden=32, n_heads=4)


def train(run, seed, steps=STEPS):
    """Train this run of RUNS with this seed in one process. Returns [validation loss after EVERY,
    2 EVERY, ... steps]."""
    text, H, losses = texts.load(), RUNS[run], []
    unseen = seeds.windows(text, SEQ_LEN)
    # the replicas of data parallelism are equal: one model stands for all of them
    models = [GPT(shape_of(text), seed) for _ in range(N if H > 1 else 1)]
    optimizers = [torch.optim.AdamW(model.parameters(), lr=RATE) for model in models]
    for step in range(1, steps + 1):
        for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            optimizer.zero_grad()
            tokens, targets = texts.batch(text.train, step, rank, len(models), BATCH, SEQ_LEN, seed)
            cross_entropy(model(tokens), targets).backward()
            optimizer.step()
        if step % H == 0:
            average_parameters(models)
        if step % EVERY == 0:
            losses.append(seeds.validation_loss(models[0], *unseen, batch=256))
    return losses


@torch.no_grad()
def average_parameters(models):
    """The outer step with eta 1 and mu 0: sets every model's parameters to the mean over all
    models."""
    for same in zip(*(model.parameters() for model in models), strict=True):
        mean = torch.stack(same).mean(0)
        for p in same:
            p.copy_(mean)


def over_a_slow_link(H, outer_step, steps=60, bandwidth=10e6):
    """Train on ranks over an emulated slow link. Returns on each rank [(seconds that these EVERY
    steps took, validation loss after them), ...].

    H: local steps for each outer step; with H = 1 the gradients are averaged in every step instead.
    outer_step: called as `diloco.outer_step` is. bandwidth: of the link, in bytes per second.
    """
    text, rank, N, found = texts.load(), dist.get_rank(), dist.get_world_size(), []
    model = BucketedDataParallel(GPT(shape_of(text)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    unseen = seeds.windows(text, SEQ_LEN, slice(rank, None, N))
    start = [p.detach().clone() for p in model.parameters()]
    velocity = [torch.zeros_like(w) for w in start]
    with slow_link(ranks_per_node=1, seconds_per_message=0, bytes_per_second=bandwidth):
        begin = time.perf_counter()
        for step in range(1, steps + 1):
            optimizer.zero_grad()
            tokens, targets = texts.batch(text.train, step, rank, N, BATCH, SEQ_LEN)
            cross_entropy(model(tokens), targets).backward()
            if H == 1:
                model.average_gradients()
            optimizer.step()
            if H > 1 and step % H == 0:
                outer_step(
                    model.parameters(), start, velocity, 1.0, 0.0, None, collectives.all_reduce
                )
            if step % EVERY == 0:
                backend.synchronize()  # a GPU may still be at work on the last update
                seconds = time.perf_counter() - begin
                mean = torch.tensor([seeds.validation_loss(model, *unseen, batch=256) / N])
                found.append((seconds, collectives.all_reduce(mean).item()))
                begin = time.perf_counter()
    return found


def store():
    """Train every run with every seed, and write the file."""
    torch.set_num_threads(1)
    STORED.store(train)
