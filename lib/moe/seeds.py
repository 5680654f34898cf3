"""Mixture against dense at equal lengths: validation losses of three seeds, as stored, and how they
are made.

    run                       in place of MLPs of width 256            parameters  used per token
    dense                     the same                                 108,800     all
    8 experts                 block 1: 8, width 128, top-2, balanced   208,832     108,800 + router
    8 experts, not balanced   the same without the auxiliary loss      208,832     108,800 + router
    32 experts                block 1: 32, width 128, top-2, balanced  608,192     108,800 + router
    dense, 2.5 times as wide  both blocks: width 644                   208,904     all

AdamW at one rate after a warm-up. One process computes what ranks compute, but for the order of
sums, and for slots: it has one set of 32 sequences where each rank has its own. How seeds are
stored and compared: lib/measuring/seeds.py.

`python -m lib.moe` trains all anew, one core and about ten minutes, and writes seeds.json, which
`stored` reads.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from lib.measuring import seeds
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
    """The model of a run of RUNS and a seed: a GPT, or a MoEGPT whose capacity is
    twice the even load."""
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
    """What is stored: see `seeds.Seeds.stored`."""
    return STORED.stored()


def store():
    """Train every run with every seed, and write the file."""
    torch.set_num_threads(1)
    STORED.store(train)
