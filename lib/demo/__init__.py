"""`make demo`: four ranks train one GPT with data parallelism, in code that is as plain as
possible, and then we check that they did it right. The package also contains the runs that Lab 4
shows.

    rank 0  batch 0 -> loss, gradients --+
    rank 1  batch 1 -> loss, gradients --+-- ring all-reduce, / N --> the same mean gradient,
    rank 2  batch 2 -> loss, gradients --+                            the same AdamW step
    rank 3  batch 3 -> loss, gradients --+

In each step every rank writes its gradients, its loss and its clock into one flat buffer of n
elements, and a ring all-reduce sums the buffers. After the run four claims are checked: the
validation loss has fallen below the entropy of the text; the first losses and gradients are those
of a single process on the full batch; all ranks end with the same parameters; and each rank sent
exactly 2(N-1)/N * n elements per step.

    python -m lib.demo --ranks 4 --seconds 60 --out results/demo [--steps 200] [--text FILE]

on_ranks.py          what each rank does in the demo
claims.py            the claims about the demo's run, checked, printed and drawn
command.py           the command: its options, the ranks, a bar that shows their progress
sharded.py           what Lab 4 trains and measures on ranks
stage_tables.py      what Lab 4 prints about that, next to the formulas
muon_runs.py         Lab 4's Muon compared with AdamW, and how evenly its owners are loaded
background_saves.py  Lab 4's checkpoints that are written in the background
"""

from lib.demo.claims import one_process, report
from lib.demo.command import main
from lib.demo.on_ranks import buffer_size, shape_for, train

__all__ = [
    "buffer_size", "main", "one_process", "report", "shape_for", "train",
]  # fmt: skip
