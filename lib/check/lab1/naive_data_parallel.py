"""Lab 1, section 3: broadcast_parameters(module, group)
and average_gradients(parameters, group, all_reduce).

average_gradients is given `model.parameters()`, which is a generator.
"""

from functools import partial
from math import prod

from lib.check.causes import hints
from lib.check.comm import MAY_CALL
from lib.check.exercise import Bundle
from lib.check.lab1 import broadcast_parameters, means
from lib.check.shown import calls
from lib.check.side_by_side import SideBySide
from lib.data_parallel import replicate

# the tensors may be sent one by one or in a flat buffer
elements = lambda shapes: f"{sum(map(prod, shapes))} elements"
MEASURE = SideBySide(
    partial(means.script, lambda model: model.parameters(), elements),
    replicate.average_gradients, means.CASES, excused=means.A_MODEL | means.TWO_CALLS,
)  # fmt: skip
AVERAGE_GRADIENTS = MEASURE.exercise(
    ("the mean in every .grad", 6, f"1 rank, {means.GROUPS_SAY}; tied, unused, frozen ones",
     "all_reduce", "the gradient", "the frozen gradient", "the first gradient later"),
    ("parameters left alone", 1, "only .grad changes", "the parameters"),
    ("the all_reduce it was given", 3, "each trained parameter once, frozen ones never",
     calls(MEASURE, nothing_else=False), "what is sent"),
    hints=hints("lab1", "given", "mean", "average_gradients"), worlds=(means.WORLD,),
    may_call=("means.given", *MAY_CALL),
    leaves_out={
        "under way": "it returns when the mean is there: no two calls are under way",
        "returned": "it returns nothing: the caller's gradients hold the result",
        "memory": "the docstring leaves open how much it sends at once",
    },
)  # fmt: skip
EXERCISE = Bundle("naive_data_parallel", (broadcast_parameters.EXERCISE, AVERAGE_GRADIENTS))
