"""Lab 2, section 12, bonus: zb_v(p, m), two stages per rank, placed in a V, and every backward in
two halves.

    rank i has stages      i and 2p-1-i
    idle time of a rank    (p-1) max(I, 2(I-W)), with the times of one stage, if I >= F >= W and
                           m >= 2p-1
    kept                   at most 2p stages x micro-batches with F done and W not

Any valid schedule is right if it stays within these limits on idle time and on what is kept, and
runs every kind in the order of the micro-batches.
"""

from lib.check.causes import hints
from lib.check.lab2 import schedules
from lib.check.lab2.on_ranks import gradients
from lib.pipeline.actions import v_shape
from lib.pipeline.schedules import zb_v

# p, m; the cases with m < 2p-1 come after most others
JOBS = [(2, 3), (2, 4), (3, 5), (4, 8), (1, 4), (8, 16), (4, 4), (3, 1), (4, 2), (1, 1)]


def _shown(show, schedule, kinds, p, m):
    """Show only how much the fullest rank keeps, because every rank may keep as much as the fullest
    in lib's own schedule. The idle time is shown only if m >= 2p-1."""
    fullest = max(range(p), key=lambda rank: schedules.most_kept(schedule[rank])[0])
    schedules.keeps(show, "kept", schedule, fullest)
    if m >= 2 * p - 1:
        schedules.idle(show, schedule, kinds)


MEASURE = schedules.measure(zb_v, "FIW", _shown, JOBS, stages=2, placement=v_shape)
EXERCISE = MEASURE.exercise(
    ("every action once, on its rank", 1, "F, I, W; p = 1, 2, 3, 4, 8; m = 1 to 16",
     *schedules.EVERY_ACTION),
    ("needs before it, no deadlock", 1, "on every rank and between them", *schedules.NEEDS),
    ("2p kept at most", 2, "stages x micro-batches, F done and W not", *schedules.KEPT),
    ("idle (p-1) max(I, 2(I-W))", 3, "simulated, m >= 2p-1: 1, 1, 1 and 3, 4, 2", "idle"),
    ("the whole batch's gradients", 1, "executed on 2 and 4 ranks",
     gradients(MEASURE, [(2, 3), (4, 8), (4, 2)], 2, v_shape)),
    hints=hints("lab2", "of_any_p", "zb_v", "schedules", "halves"), leaves_out=schedules.LEAVES_OUT,
    bonus=True,
)  # fmt: skip
