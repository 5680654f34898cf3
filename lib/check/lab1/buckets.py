"""Lab 1, section 4: plan_buckets(parameters, capacity) and
reduce_bucket(parameters, group, all_reduce)."""

from torch import nn

from lib.check import symptoms as s
from lib.check.cases import Setting
from lib.check.causes import hints, of_name
from lib.check.comm import MAY_CALL
from lib.check.exercise import Bundle, Exercise
from lib.check.lab1 import means, plan_buckets
from lib.check.lab1.means import ALONE, FLOAT32, GROUPS, GROUPS_SAY, IDLE, WORLD, times
from lib.check.shown import calls, claims
from lib.check.side_by_side import SideBySide
from lib.data_parallel import bucketed

CASES = (
    *(Setting(members) for members in GROUPS),
    Setting(GROUPS[1], what=FLOAT32),
    Setting(GROUPS[1], what=IDLE),
    Setting(ALONE),
)


def script(make, case, group, show):
    """Two buckets of the same sizes, one after the other; then the first is looked at once more."""
    made = [_model(case, show.place) for _ in range(2)]
    for number, model in enumerate(made):
        means.backward(model, case, show.place, number)
        bucket, shapes = [p for p in model.parameters() if p.requires_grad][::-1], []
        show.run(make, bucket, group, means.silent(show, shapes))
        show("the gradient", means.gradients(model))
        show("the shape of what is sent", str([tuple(shape) for shape in shapes]))
    show("the first gradient later", means.gradients(made[0]))


def _model(case, rank):
    """The weights of one layer, and so its gradients, do not lie in memory in their order."""
    model = means.model(case, rank)
    model.leave.weight = nn.Parameter(model.leave.weight.detach().T.contiguous().T)
    return model


MEASURE = SideBySide(
    script, bucketed.reduce_bucket, CASES,
    excused=dict.fromkeys(("strided", "float32", "bfloat16"), "it is given a model's parameters")
    | dict.fromkeys(("two at once", "once more"), "two calls stand in each script"),
)  # fmt: skip
REDUCE_BUCKET = Exercise(
    name="reduce_bucket", reference=bucketed.reduce_bucket, measure=MEASURE,
    worlds=(WORLD,), may_call=("means.given", *MAY_CALL),
    leaves_out={
        "under way": "it returns when the mean is there: no two calls are under way",
        "generators": "the notebook gives it lists, the buckets of a plan",
        "returned": "it returns nothing: the caller's gradients hold the result",
    },
    claims=claims(
        MEASURE,
        ("the mean in every .grad", 6, f"1 rank, {GROUPS_SAY}; unused, not contiguous ones",
         "the gradient", "the first gradient later"),
        ("one all-reduce per bucket", 3, "of one flat tensor of exactly n elements",
         calls(MEASURE), "the shape of what is sent"),
        ("parameters left alone", 1, "only .grad changes", "arguments"),
    ),
    hints=hints(
        "lab1", "reduce_bucket",
        the_group_is_not_passed_on=s.kind("group"),
        the_parameter_for_its_gradient=of_name("arguments"),
        not_divided=times(lambda N: N),
        divided_twice=times(lambda N: 1 / N),
        another_divisor=s.fact("factor"),
        a_parameter_without_gradient=s.either(s.kind("returned"), s.refused("None")),
        an_op_for_it=s.raised("TypeError"),
        a_rank_that_returns_early=lambda p: p.kind == "clash" and p.fact("over"),
        sizes_that_differ_between_ranks=s.either(s.kind("clash", "mismatch", "died"), s.hung),
        one_buffer_for_all_calls=of_name("the first gradient later"),
        pieces_in_the_wrong_places=s.both(of_name("the gradient"), s.kind("value")),
        not_what_it_was_given=s.kind("another way"),
        one_message_per_parameter=lambda p: p.kind == "calls" and len(p.facts["got"]) > 2,
        another_flat_tensor=s.either(s.kind("calls"), of_name("the shape")),
    ),
)  # fmt: skip
EXERCISE = Bundle("buckets", (plan_buckets.EXERCISE, REDUCE_BUCKET))
