"""Validation losses of several seeds, as stored: what takes too long for a cell is trained by a
command.

    SEEDS = Seeds(file, "python -m lib.moe", runs, seeds=(0, 1, 2), steps=(50, 100))
    SEEDS.store(train)  # the command: trains every run with every seed, and writes the file with
                        # date and versions
    SEEDS.stored()      # the cell: reads it
    SEEDS.heading()     # the line under which the cell prints it

A seed decides the weights and the batches: runs of one seed read the same text in the same order,
so differences are taken seed by seed. The loss is that of all of the text's validation part, which
`windows` cuts and `validation_loss` reads.
"""

import datetime
import json
import platform
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import torch

from lib.training.model import cross_entropy


class Seeds(NamedTuple):
    """Where losses of some runs are stored, and by which command; `runs` are names, `steps` where
    the loss is taken."""

    file: Path
    command: str
    runs: Iterable[str]
    seeds: tuple[int, ...]
    steps: tuple[int, ...]

    def store(self, train: Callable[[str, int], list[float]]) -> None:
        """Write train(run, seed) -> the losses at `steps` of every run and seed; says each
        run's last ones."""
        losses = {}
        for run in self.runs:
            losses[run] = [[round(loss, 4) for loss in train(run, seed)] for seed in self.seeds]
            print(
                f"{run}: validation losses {', '.join(f'{of[-1]:.4f}' for of in losses[run])}",
                flush=True,
            )
        what = f"validation losses by run, seed and step, written by `{self.command}`"
        record = {
            "what": what,
            **stamp(),
            "seeds": self.seeds,
            "steps": self.steps,
            "losses": losses,
        }
        self.file.write_text(json.dumps(record) + "\n", encoding="utf-8")

    def stored(self) -> dict:
        """What is stored: {"date", "torch", "python", "seeds", "steps", "losses": {run:
        [losses of each seed]}}."""
        return json.loads(self.file.read_text(encoding="utf-8"))

    def heading(self) -> str:
        """When and with what it was made, of how many seeds and steps: one line."""
        made = self.stored()
        return (
            f"stored: {made['date']}, torch {made['torch']}, Python {made['python']}; "
            f"{len(made['seeds'])} seeds; validation loss after {made['steps'][-1]:,} steps:"
        )


def stamp() -> dict[str, str]:
    """{"torch", "python", "date"}: what a stored result was made with, and when."""
    torch_version = torch.__version__.split("+")[0]
    return {
        "torch": torch_version,
        "python": platform.python_version(),
        "date": datetime.date.today().isoformat(),
    }


def windows(text, seq_len, part=slice(None)):
    """Tokens and targets of the text's validation part, all of it without overlap, (windows,
    seq_len) each; or a part.

    On torch's default device, which on a rank is the rank's own.
    """
    n = (len(text.validation) - 1) // seq_len
    both = text.validation[: n * seq_len], text.validation[1 : n * seq_len + 1]
    return tuple(line.view(n, seq_len)[part].to(torch.get_default_device()) for line in both)


@torch.no_grad()
def validation_loss(model, tokens, targets, batch=32):
    """Nats per character of these windows (n, T), read `batch` at a time."""
    parts = zip(tokens.split(batch), targets.split(batch), strict=True)
    return sum(cross_entropy(model(x), y, "sum").item() for x, y in parts) / targets.numel()
