"""`make demo`: four ranks train one GPT by data parallelism, written out in the plainest way, and
prove what they did.

    rank 0  batch 0 -> loss, gradients --+
    rank 1  batch 1 -> loss, gradients --+-- ring all-reduce, / N --> the same mean gradient,
    rank 2  batch 2 -> loss, gradients --+                            the same AdamW step
    rank 3  batch 3 -> loss, gradients --+

Each step every rank lays its gradients end to end in one buffer of n numbers, and the ring sums the
buffers. Then the claims: the loss falls below the entropy of the text; the first losses are those
of one process on the whole batch; all ranks end with the same parameters; each rank sent 2(N-1)/N *
n numbers per step, no more and no fewer.

    python -m lib.demo --ranks 4 --seconds 60 --out results/demo [--steps 200] [--text FILE]

on_ranks.py          what each rank does
claims.py            what is claimed of the run, printed and drawn
sharded.py           what Lab 4 trains and measures on ranks
stage_tables.py      what Lab 4 prints about it, next to the formulas
muon_runs.py         Lab 4's Muon next to AdamW, and the loads of owners
background_saves.py  Lab 4's checkpoints in the background
command.py           the command: its options, the ranks, a bar of their progress
"""

from lib.demo.claims import one_process, report
from lib.demo.command import main
from lib.demo.on_ranks import buffer_size, shape_for, train

__all__ = [
    "buffer_size", "main", "one_process", "report", "shape_for", "train",
]  # fmt: skip
