"""Lab 2, section 6: interleaved(p, m, v), v smaller stages on every rank.

    rank i has stages  i, i+p, i+2p, ...  p micro-batches through the first,
                                          the same p through the second, ...

A schedule is right if it is idle no longer than Megatron-LM's and keeps no more. The warmup of
Megatron-LM's schedule is chosen for messages that take time. A shorter warmup with the same bubble,
which is possible if messages take no time, is right as well. With v = 1 the schedule is 1F1B,
because Megatron-LM's interleaved schedule requires v > 1.
"""

from lib.check.causes import hints
from lib.check.lab2 import schedules
from lib.check.lab2.on_ranks import gradients
from lib.pipeline.schedules import interleaved

# p, m, v
JOBS = [
    (2, 2, 2), (2, 4, 2), (3, 6, 2), (4, 8, 2), (2, 4, 3), (4, 8, 4), (1, 3, 2), (3, 3, 2),
    (3, 6, 1), (3, 4, 1), (4, 2, 1),
]  # fmt: skip
# Neither p nor m // p divides m. lib's own function accepts an m that p does not divide if m // p
# does (so many equal groups), so such an m is no case.
REFUSED = [(2, 5, 2), (3, 7, 2), (4, 9, 3)]
# ordered=False: within a group the micro-batches may have any order that is the same on all ranks
MEASURE = schedules.measure(interleaved, "FB", schedules.amounts, JOBS, REFUSED, ordered=False)
EXERCISE = MEASURE.exercise(
    ("every action once, on its rank", 3, "p = 1 to 4; m = 2 to 8; v = 1, 2, 3, 4",
     *schedules.EVERY_ACTION),
    ("needs before it, no deadlock", 3, "on every rank and between them", *schedules.NEEDS),
    ("no more kept", 3, "rank i: (v-1)p + 2(p-1-i) + 1 at most", *schedules.KEPT),
    ("bubble (p-1)/(vm+p-1)", 5, "simulated: B = 2F, B = F", "idle"),
    ("p must divide m", 2, "where v > 1; else a ValueError", "the error raised"),
    ("the whole batch's gradients", 2, "on 2 and 4 ranks, 2(vp-1)m messages",
     gradients(MEASURE, [(2, 4, 2), (4, 8, 2)])),
    hints=hints("lab2", "of_any_p", "interleaved", "schedules", "whole_backwards"),
    leaves_out=schedules.LEAVES_OUT,
)  # fmt: skip
