"""Lab 2, section 9, bonus: zb_h1(p, m), 1F1B with every backward in two halves, of which the second
is delayed.

    idle time of a rank  (p-1)(F + I - W) if m >= p and W is the shortest of the three; in 1F1B it
                         is (p-1)(F + I + W)
    kept                 on every rank at most min(m, p) micro-batches with F done and W not, which
                         is the peak of 1F1B's rank 0

Any lists that stay within both, and run every kind in the order of the micro-batches, are right.
"""

from lib.check.causes import hints
from lib.check.lab2 import schedules
from lib.check.lab2.on_ranks import gradients
from lib.pipeline.schedules import zb_h1

MEASURE = schedules.measure(zb_h1, "FIW", schedules.amounts)
EXERCISE = MEASURE.exercise(
    ("every action once, on its rank", 1, f"F, I, W; {schedules.CASES_SAY}",
     *schedules.EVERY_ACTION),
    ("needs before it, no deadlock", 1, "on every rank and between them", *schedules.NEEDS),
    ("no more kept than in 1F1B", 2, "min(m, p), F done and W not", *schedules.KEPT),
    ("idle for (p-1)(F+I-W)", 3, "simulated, m >= p: 1, 1, 1 and 3, 4, 2", "idle"),
    ("the whole batch's gradients", 1, "executed on 2 and 4 ranks",
     gradients(MEASURE, [(2, 3), (4, 8), (4, 2)])),
    hints=hints("lab2", "of_any_p", "zb_h1", "schedules", "halves"),
    leaves_out=schedules.LEAVES_OUT, bonus=True,
)  # fmt: skip
