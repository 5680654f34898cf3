"""Lab 2, section 12, bonus: zb_v(p, m), two stages per rank in a V and every backward in halves.

    rank i has stages      i and 2p-1-i
    idle time of a rank    (p-1) max(I, 2(I-W)) of one stage's, if I >= F >= W and m >= 2p-1
    kept                   2p stages x micro-batches at most, F done and W not

Any lists that manage both, with every kind in the order of the micro-batches, are right.
"""

from lib.check.causes import hints, of_name
from lib.check.exercise import Exercise
from lib.check.lab2 import schedules
from lib.check.lab2.on_ranks import gradients
from lib.check.shown import claims
from lib.pipeline.actions import v_shape
from lib.pipeline.schedules import zb_v

# p, m; fewer than 2p-1 last
JOBS = [(2, 3), (2, 4), (3, 5), (4, 8), (1, 4), (8, 16), (4, 4), (3, 1), (4, 2), (1, 1)]


def _shown(show, schedule, kinds, p, m):
    """The 2p are every rank's, whichever of them lib's own comes to."""
    fullest = max(range(p), key=lambda rank: schedules.most_kept(schedule[rank])[0])
    schedules.keeps(show, "kept", schedule, fullest)
    if m >= 2 * p - 1:
        schedules.idle(show, schedule, kinds)


_FEW = schedules.in_sizes(lambda p, m: m < 2 * p - 1)
MEASURE = schedules.measure(zb_v, "FIW", _shown, JOBS, stages=2, placement=v_shape)
EXERCISE = Exercise(
    name="zb_v", reference=zb_v, measure=MEASURE, worlds=(),
    leaves_out=schedules.LEAVES_OUT,
    bonus=True,
    claims=claims(
        MEASURE,
        ("every action once, on its rank", 1, "F, I, W; p = 1, 2, 3, 4, 8; m = 1 to 16",
         *schedules.EVERY_ACTION),
        ("needs before it, no deadlock", 1, "on every rank and between them", *schedules.NEEDS),
        ("2p kept at most", 2, "stages x micro-batches, F done and W not", *schedules.KEPT),
        ("idle (p-1) max(I, 2(I-W))", 3, "simulated, m >= 2p-1: 1, 1, 1 and 3, 4, 2", "idle"),
        ("the whole batch's gradients", 1, "executed on 2 and 4 ranks",
         gradients(MEASURE, [(2, 3), (4, 8), (4, 2)], 2, v_shape)),
    ),
    hints=hints(
        "lab2", "zb_v", "schedules", "of_any_p", "halves",
        **schedules.OF_ANY_P, **schedules.FORM,
        **{"fewer than 2p-1 micro-batches": _FEW},
        **schedules.ACTIONS,
        a_whole_backward=of_name("kinds"),
        W_left_out=of_name("missing W"),
        some_left_out=of_name("missing"),
        backward_first=of_name("begins backward", "I before F"),
        the_upper_gradient_first=of_name("I before I"),
        the_lower_stage_first=of_name("F before F"),
        W_before_its_I=of_name("W before I"),
        turns_that_do_not_fit=of_name("deadlock"),
        not_in_order=of_name("out of order"),
        too_much_kept=of_name("kept"),
        W_in_the_way=of_name("idle"),
    ),
)  # fmt: skip
