"""Lab 4, section 4: Unit, which gathers and frees parameters, and FSDP, which decides when.

Each is judged with lib's version of the other. A Unit is run by itself and under lib's FSDP
(unit.py), and an FSDP is run with lib's Units, which are watched (fsdp_training.py).
"""

from functools import partial

from lib import zero
from lib.check.causes import hints
from lib.check.exercise import Bundle
from lib.check.lab4 import fsdp_training as training
from lib.check.lab4.fsdp_models import CASES, GROUPS_SAY
from lib.check.lab4.unit import LEAVES_OUT, UNIT
from lib.check.shown import calls
from lib.check.side_by_side import SideBySide

METHODS = (
    "before_forward", "after_forward", "before_backward", "after_backward", "pre_forward",
    "post_forward",
)  # fmt: skip


def script(make, case, group, show):
    watch = partial(training.Watch, counted=case == CASES[0])
    return training.trained(training.with_libs_units(make), case, group, show, watch)


MEASURE = SideBySide(
    script, zero.FSDP, CASES, writes=METHODS,
    excused=training.EXCUSED
    | dict.fromkeys(("alive", "alive at the end"), "what is alive is counted in every layer"),
)  # fmt: skip
FSDP = MEASURE.exercise(
    ("trains as one process does", 5, f"{GROUPS_SAY}; tied, frozen, unused",
     *training.COMPUTED),
    ("one unit whole at a time", 3, "and the root; none in the end", *training.MEMORY),
    ("sends 3 (N-1)/N psi", 2, "each unit gathered twice, reduced once",
     calls(MEASURE, nothing_else=False), *training.SENT),
    hints=hints("lab4", "FSDP"), worlds=(4,),
    may_call=(
        *training.MAY_CALL, "fsdp_training.reduces", "unit.unshard", "unit.reduce_gradients",
    ),
    leaves_out=LEAVES_OUT | {"empty rank": "every rank runs the same units: a rule of FSDP; a Unit "
                                           "meets it"},
)  # fmt: skip
EXERCISE = Bundle("fsdp", (UNIT, FSDP))
