"""Lab 1, section 4: plan_buckets(parameters, capacity) and
reduce_bucket(parameters, group, all_reduce)."""

from functools import partial

from torch import nn

from lib.check.causes import hints
from lib.check.comm import MAY_CALL
from lib.check.exercise import Bundle
from lib.check.lab1 import means, plan_buckets
from lib.check.shown import calls
from lib.check.side_by_side import SideBySide
from lib.data_parallel import bucketed


def bucket_of(model):
    """The parameters that require gradients, last first. One layer's weight is replaced by a weight
    that is not contiguous in memory; neither is its gradient, if it has one."""
    weight = model.leave.weight
    model.leave.weight = nn.Parameter(weight.detach().T.contiguous().T)
    if weight.grad is not None:
        model.leave.weight.grad = weight.grad.T.contiguous().T
    return [p for p in model.parameters() if p.requires_grad][::-1]


MEASURE = SideBySide(
    partial(means.script, bucket_of, str),
    bucketed.reduce_bucket, means.CASES, excused=means.A_MODEL | means.TWO_CALLS,
)  # fmt: skip
REDUCE_BUCKET = MEASURE.exercise(
    ("the mean in every .grad", 6, f"1 rank, {means.GROUPS_SAY}; unused, not contiguous ones",
     "all_reduce", "the gradient", "the first gradient later"),
    ("one all-reduce per bucket", 3, "of one flat tensor of exactly n elements",
     calls(MEASURE), "what is sent"),
    ("parameters left alone", 1, "only .grad changes", "the parameters"),
    hints=hints("lab1", "given", "mean", "reduce_bucket"), worlds=(means.WORLD,),
    may_call=("means.given", *MAY_CALL),
    leaves_out={
        "under way": "it returns when the mean is there: no two calls are under way",
        "generators": "the notebook gives it lists, the buckets of a plan",
        "returned": "it returns nothing: the caller's gradients hold the result",
    },
)  # fmt: skip
EXERCISE = Bundle("buckets", (plan_buckets.EXERCISE, REDUCE_BUCKET))
