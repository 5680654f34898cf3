"""Lab 2, section 4: one_f_one_b(p, m), warmup, steady, cooldown.

    rank i   p-1-i forwards | one forward, one backward, ... | the backwards that are left

Only 1F1B passes: it is the one schedule that runs both kinds in order, has at most min(m, p-i)
micro-batches in flight at stage i, and has a bubble no longer than GPipe's. Rank p-1 may keep only
one micro-batch at a time and may not be idle between its first action and its last, so it runs F B
F B ... That fixes when rank p-2 has to run its forwards and backwards, and so on down to rank 0.
"""

from lib.check.causes import hints
from lib.check.lab2 import schedules
from lib.check.lab2.on_ranks import gradients
from lib.pipeline.schedules import one_f_one_b

MEASURE = schedules.measure(one_f_one_b, "FB", schedules.amounts)
EXERCISE = MEASURE.exercise(
    ("every action once, on its rank", 3, schedules.CASES_SAY, *schedules.EVERY_ACTION),
    ("needs before it, no deadlock", 3, "on every rank and between them", *schedules.NEEDS),
    ("at most min(m, p-i) in flight", 7, "at stage i: F done and B not", *schedules.KEPT),
    ("bubble (p-1)/(m+p-1)", 5, "simulated: B = 2F, B = F", "idle"),
    ("the whole batch's gradients", 2, "executed on 2 and 4 ranks",
     gradients(MEASURE, [(2, 3), (4, 8), (4, 2)])),
    hints=hints("lab2", "of_any_p", "one_f_one_b", "schedules", "whole_backwards"),
    leaves_out=schedules.LEAVES_OUT,
)  # fmt: skip
