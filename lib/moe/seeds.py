"""Mixture against dense at equal lengths: validation losses of three seeds, as stored, and how they are made.

    run                        in place of MLPs of width 256                          parameters   used per token
    dense                      the same                                               108,800      all
    8 experts                  in block 1: 8 of width 128, 2 a token, balanced        208,832      108,800 + router
    8 experts, not balanced    the same without the auxiliary loss                    208,832      108,800 + router
    32 experts                 in block 1: 32 of width 128, 2 a token, balanced       608,192      108,800 + router
    dense, 2.5 times as wide   in both blocks: width 644                              208,904      all

A seed decides the weights and the batches: runs of one seed read the same text in the same order, so differences are
taken seed by seed. AdamW at one rate after a warm-up; the whole validation part is read. One process computes what
ranks compute, but for the order of sums, and for slots: it has one set of 32 sequences where each rank has its own.

`python -m lib.moe` trains all anew, one core and about ten minutes, and writes seeds.json, which `stored` reads.
"""

import datetime
import json
import platform
from dataclasses import replace
from pathlib import Path

import torch

from lib import text as texts
from lib.model import GPT, Shape, cross_entropy
from lib.moe.gates import top_k_gate
from lib.moe.gpt import MoEGPT

FILE = Path(__file__).with_name("seeds.json")
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


def make(run, seed):
    """The model of a run of RUNS and a seed: a GPT, or a MoEGPT whose capacity is twice the even load."""
    experts, auxiliary, width = RUNS[run]
    if not experts:
        return GPT(replace(SHAPE, mlp_hidden=width), seed)
    top_2 = lambda logits: top_k_gate(logits, 2)
    return MoEGPT(SHAPE, experts, top_2, factor=2, auxiliary=auxiliary, z=0.0, seed=seed, expert_hidden=width)


def windows(text, part=slice(None)):
    """Tokens and targets of the text's validation part, all of it without overlap, (windows, T) each; or a part.

    On torch's default device, which on a rank is the rank's own.
    """
    T = SHAPE.seq_len
    n = (len(text.validation) - 1) // T
    both = text.validation[: n * T], text.validation[1 : n * T + 1]
    return tuple(line.view(n, T)[part].to(torch.get_default_device()) for line in both)


@torch.no_grad()
def validation_loss(model, tokens, targets):
    """Nats per character of these windows (n, T), read 32 at a time, as the model was trained."""
    parts = zip(tokens.split(BATCH), targets.split(BATCH), strict=True)
    return sum(cross_entropy(model(x), y, "sum").item() for x, y in parts) / targets.numel()


def train(run, seed, steps=STEPS, every=EVERY):
    """[validation loss after `every`, 2 `every`, ... steps] of this run and seed, in one process."""
    text, model = texts.load(), make(run, seed)
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=RATE), []
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = RATE * min(1, (step + 1) / WARM_UP)
        optimizer.zero_grad()
        model.loss(*texts.batch(text.train, step, 0, 1, BATCH, SHAPE.seq_len, seed)).backward()
        optimizer.step()
        if (step + 1) % every == 0:
            losses.append(validation_loss(model, *windows(text)))
    return losses


def stored():
    """What is stored: {"date", "torch", "python", "steps": [50, 100, ...], "losses": {run: [losses of each seed]}}."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def store():
    """Train every run with every seed, say each one's last loss, and write the file."""
    torch.set_num_threads(1)
    losses = {}
    for run in RUNS:
        losses[run] = [train(run, seed) for seed in SEEDS]
        print(f"{run}: validation losses {', '.join(f'{of[-1]:.4f}' for of in losses[run])}", flush=True)
    write(losses)


def write(losses):
    """Write {run: [losses of each seed]} to the file, with date and versions."""
    record = {
        "what": "lib.moe.seeds: validation losses by run, seed and step, written by `python -m lib.moe`",
        "torch": torch.__version__.split("+")[0],
        "python": platform.python_version(),
        "date": datetime.date.today().isoformat(),
        "seeds": list(SEEDS),
        "steps": list(range(EVERY, STEPS + 1, EVERY)),
        "losses": {run: [[round(loss, 4) for loss in of] for of in seeds] for run, seeds in losses.items()},
    }
    FILE.write_text(json.dumps(record) + "\n", encoding="utf-8")
