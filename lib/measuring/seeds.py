"""Stores the validation losses of training runs with several seeds. Such runs take too long for a
cell, so a command does the training and writes a file, which the cell reads.

    SEEDS = Seeds(file, "python -m lib.moe", runs, seeds=(0, 1, 2), steps=(50, 100))
    SEEDS.store(train)  # in the command: trains every run with every seed, and writes the file with
                        # date and versions
    SEEDS.stored()      # in the cell: reads it
    SEEDS.heading()     # the line under which the cell prints it

A seed decides the weights and the batches. Runs with the same seed read the same text in the same
order, so they should be compared seed by seed. The loss is that of the text's entire validation
part, which `windows` splits into sequences and `validation_loss` reads.
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
    """A file of losses. command: the command that writes it. runs: the names of the runs. steps:
    the numbers of steps after which the loss is taken."""

    file: Path
    command: str
    runs: Iterable[str]
    seeds: tuple[int, ...]
    steps: tuple[int, ...]

    def store(self, train: Callable[[str, int], list[float]]) -> None:
        """Call train(run, seed) -> [the loss after each of `steps`] for every run and seed, and
        write the file. Prints the last losses of each run."""
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
        """The content of the file: {"what", "date", "torch", "python", "seeds", "steps", "losses":
        {run: [[loss after each step] of each seed]}}."""
        return json.loads(self.file.read_text(encoding="utf-8"))

    def heading(self) -> str:
        """One line that says when and with which versions the file was written, and how many seeds
        and steps it contains."""
        made = self.stored()
        return (
            f"stored: {made['date']}, torch {made['torch']}, Python {made['python']}; "
            f"{len(made['seeds'])} seeds; validation loss after {made['steps'][-1]:,} steps:"
        )


def stamp() -> dict[str, str]:
    """{"torch", "python", "date"}: the current versions and date, to be stored with a result."""
    torch_version = torch.__version__.split("+")[0]
    return {
        "torch": torch_version,
        "python": platform.python_version(),
        "date": datetime.date.today().isoformat(),
    }


def windows(text, seq_len, part=slice(None)):
    """Tokens and targets of the text's validation part, (windows, seq_len) each, as consecutive
    sequences that do not overlap. part: a slice, if only some of them are wanted.

    They are on torch's default device, which on a rank is the rank's own.
    """
    n = (len(text.validation) - 1) // seq_len
    both = text.validation[: n * seq_len], text.validation[1 : n * seq_len + 1]
    return tuple(line.view(n, seq_len)[part].to(torch.get_default_device()) for line in both)


@torch.no_grad()
def validation_loss(model, tokens, targets, batch=32):
    """Mean loss of these windows, in nats per character. tokens, targets: (n, T), of which the
    model reads `batch` at a time."""
    parts = zip(tokens.split(batch), targets.split(batch), strict=True)
    return sum(cross_entropy(model(x), y, "sum").item() for x, y in parts) / targets.numel()
