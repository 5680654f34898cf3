"""Compares models with experts to a dense one after equally many steps: trains them with three
seeds, and stores their validation losses.

    run                       in place of MLPs of width 256            parameters  used per token
    dense                     the same                                 108,800     all
    8 experts                 block 1: 8, width 128, top-2, balanced   208,832     108,864 + router
    8 experts, not balanced   the same without the auxiliary loss      208,832     108,864 + router
    32 experts                block 1: 32, width 128, top-2, balanced  608,192     108,864 + router
    dense, 2.5 times as wide  both blocks: width 644                   208,904     all

All use AdamW at a constant rate after a warm-up. We train in one process. It computes what ranks
would compute, except for the order of sums and for the sets: its 32 sequences share the experts'
slots, whereas on ranks each rank's sequences would be a set of their own. lib/measuring/seeds.py
says how the losses are stored and compared.

`python -m lib.moe` repeats all trainings, about ten minutes on one core, and writes seeds.json,
which `stored` reads.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lib.measuring import mfu as mfus
from lib.measuring import seeds
from lib.measuring.rounds import in_turns
from lib.measuring.seeds import validation_loss
from lib.moe.gates import top_k_gate
from lib.moe.gpt import MoEGPT
from lib.training import text as texts
from lib.training.model import GPT, Shape
from lib.training.text import Text

SHAPE = Shape(vocab_size=104, seq_len=32, n_layers=2, hidden=64, n_heads=4)
RUNS = {  # experts in block 1, the auxiliary loss's factor, the width of an expert or of every MLP
    "dense": (0, 0.0, 256),
    "8 experts": (8, 0.01, 128),
    "8 experts, not balanced": (8, 0.0, 128),
    "32 experts": (32, 0.01, 128),
    "dense, 2.5 times as wide": (0, 0.0, 644),
}
SEEDS, STEPS, EVERY = (0, 1, 2), 1500, 50
BATCH, RATE, WARM_UP = 32, 3e-3, 20
STORED = seeds.Seeds(
    Path(__file__).with_name("seeds.json"),
    "python -m lib.moe",
    RUNS,
    SEEDS,
    tuple(range(EVERY, STEPS + 1, EVERY)),
)


def make(run: str, seed: int) -> GPT:
    """The model of a run of RUNS with this seed: a GPT, or a MoEGPT whose experts have slots for
    twice their even load."""
    experts, auxiliary, width = RUNS[run]
    if not experts:
        return GPT(replace(SHAPE, mlp_hidden=width), seed)
    top_2 = lambda logits: top_k_gate(logits, 2)
    return MoEGPT(
        SHAPE, experts, top_2, factor=2, auxiliary=auxiliary, z=0.0, seed=seed, expert_hidden=width
    )


def windows(text: Text, part: slice = slice(None)) -> Any:
    """`seeds.windows` of the runs' length: tokens and targets of the validation part,
    (windows, T) each."""
    return seeds.windows(text, SHAPE.seq_len, part)


def train(run, seed, steps=STEPS, every=EVERY):
    """[validation loss after `every`, 2 `every`, ... steps] of this run and seed,
    in one process."""
    text, model = texts.load(), make(run, seed)
    optimizer, unseen, losses = torch.optim.AdamW(model.parameters(), lr=RATE), windows(text), []
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = RATE * min(1, (step + 1) / WARM_UP)
        optimizer.zero_grad()
        model.loss(*texts.batch(text.train, step, 0, 1, BATCH, SHAPE.seq_len, seed)).backward()
        optimizer.step()
        if (step + 1) % every == 0:
            losses.append(validation_loss(model, *unseen))
    return losses


def stored() -> Any:
    """The contents of seeds.json: see `seeds.Seeds.stored`."""
    return STORED.stored()


def store():
    """Train every run with every seed, and write the file."""
    torch.set_num_threads(1)
    STORED.store(train)


def losses() -> dict[str, np.ndarray]:
    """{run: (seeds, steps) validation losses}, as stored."""
    return {run: np.array(of) for run, of in stored()["losses"].items()}


def gains() -> dict[str, np.ndarray]:
    """{run: (seeds,) how far the run's last loss is below that of "dense" with the same seed, in
    nats per character}."""
    found = losses()
    return {run: (found["dense"] - of)[:, -1] for run, of in found.items() if run != "dense"}


class StepRounds:
    """When called, times a training step of "dense", one of "8 experts" and a large matmul, in
    turns and in this process. Returns {"dense", "8 experts", "matmul": (rounds,) seconds}."""

    # of a step; both runs use equally many weights per token, except for the router's
    operations = BATCH * SHAPE.seq_len * mfus.operations_per_token(SHAPE)

    def __init__(self, rounds: int = 10) -> None:
        a, b = torch.randn(2, mfus.CPU, mfus.CPU)
        steps = {run: _stepping(run) for run in ("dense", "8 experts")}
        self.rounds, self.sides = rounds, {**steps, "matmul": lambda: a @ b}
        for step in steps.values():
            step()  # the first one also allocates

    def __call__(self) -> dict[str, np.ndarray]:
        return in_turns(self.sides, self.rounds)

    def mfu(self, run: str) -> Any:
        """A function that computes the MFU of a run, (rounds,), from the seconds; the peak is the
        large matmul's rate."""
        peak = 2 * mfus.CPU**3
        return lambda t: self.operations / t[run] / (peak / t["matmul"])


def loss_after(run: str, steps: float) -> float:
    """The mean stored validation loss of a run after this many steps, interpolated between those
    stored."""
    return float(np.interp(steps, stored()["steps"], losses()[run].mean(0)))


def _stepping(run):
    model, text = make(run, 0), texts.load()
    optimizer = torch.optim.AdamW(model.parameters())
    tokens, targets = texts.batch(text.train, 0, 0, 1, BATCH, SHAPE.seq_len)

    def step():
        optimizer.zero_grad()
        model.loss(tokens, targets).backward()
        optimizer.step()

    return step
