"""Lab 2, section 3: gpipe(p, m), all m forwards, then all m backwards.

The forwards may take the micro-batches in any order that is the same on all ranks, and the
backwards in another such order, because neither makes the pipeline slower.
"""

from lib.check.causes import hints
from lib.check.lab2 import schedules
from lib.check.lab2.on_ranks import gradients
from lib.pipeline.schedules import gpipe


def _shown(show, schedule, kinds, p, m):
    for rank, actions in enumerate(schedule):
        early = next((action for action in actions[:m] if action.kind == "B"), None)
        if early:
            text = f"rank {rank} runs {early} before its last forward\n"
            show("phases", text + schedules.row(schedule, rank, early))
            return
    schedules.idle(show, schedule, kinds)


MEASURE = schedules.measure(gpipe, "FB", _shown, ordered=False)
EXERCISE = MEASURE.exercise(
    ("every action once, on its rank", 3, schedules.CASES_SAY, *schedules.EVERY_ACTION),
    ("needs before it, no deadlock", 3, "on every rank and between them", *schedules.NEEDS),
    ("all forwards, then backwards", 6, "on every rank", "phases"),
    ("bubble (p-1)/(m+p-1)", 2, "simulated: B = 2F, B = F", "idle"),
    ("the whole batch's gradients", 2, "executed on 2 and 4 ranks",
     gradients(MEASURE, [(2, 3), (4, 8), (4, 2)])),
    hints=hints("lab2", "of_any_p", "gpipe", "schedules", "whole_backwards"),
    leaves_out=schedules.LEAVES_OUT,
)  # fmt: skip
