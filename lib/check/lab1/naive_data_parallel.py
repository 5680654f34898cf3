"""Lab 1, section 3: broadcast_parameters(module, group)
and average_gradients(parameters, group, all_reduce).

average_gradients gets `model.parameters()` as it is, a generator.
"""

import torch

from lib.check import symptoms as s
from lib.check.cases import Setting
from lib.check.causes import hints, of_name
from lib.check.comm import MAY_CALL
from lib.check.exercise import Bundle, Exercise
from lib.check.lab1 import broadcast_parameters, means
from lib.check.lab1.means import ALONE, FLOAT32, GROUPS, GROUPS_SAY, IDLE, WORLD, times
from lib.check.shown import calls, claims
from lib.check.side_by_side import SideBySide
from lib.data_parallel import replicate

CASES = (
    *(Setting(members) for members in GROUPS),
    Setting(GROUPS[1], what=FLOAT32),
    Setting(GROUPS[1], what=IDLE),
    Setting(ALONE),
)


def script(make, case, group, show):
    """Two models of the same sizes, one after the other; then the first is looked at once more."""
    made = [means.model(case, show.place) for _ in range(2)]
    for number, model in enumerate(made):
        means.backward(model, case, show.place, number)
        model.scale.grad = torch.full_like(model.scale, show.place)  # of before it was frozen
        shapes = []
        show.run(make, model.parameters(), group, means.silent(show, shapes))
        show("the gradient", means.gradients(model))
        show("the frozen gradient", model.scale.grad)
        show("elements sent", sum(shape.numel() for shape in shapes))
        show("the parameters", [*model.named_parameters(), *model.named_buffers()])
        show("what learns", str([n for n, p in model.named_parameters() if p.requires_grad]))
    show("the first gradient later", means.gradients(made[0]))


MEASURE = SideBySide(
    script, replicate.average_gradients, CASES,
    excused=dict.fromkeys(("strided", "float32", "bfloat16"), "it is given a model's parameters")
    | dict.fromkeys(("two at once", "once more"), "two calls stand in each script"),
)  # fmt: skip
AVERAGE_GRADIENTS = Exercise(
    name="average_gradients", reference=replicate.average_gradients, measure=MEASURE,
    worlds=(WORLD,),
    may_call=("means.given", *MAY_CALL),
    leaves_out={
        "under way": "it returns when the mean is there: no two calls are under way",
        "returned": "it returns nothing: the caller's gradients hold the result",
        "memory": "the docstring leaves open how much it sends at once",
    },
    claims=claims(
        MEASURE,
        ("the mean in every .grad", 6, f"1 rank, {GROUPS_SAY}; tied, unused, frozen ones",
         "the gradient", "the frozen gradient", "the first gradient later"),
        ("the all_reduce it was given", 3, "each trained parameter once, frozen ones never",
         calls(MEASURE, nothing_else=False), "elements sent"),
        ("parameters left alone", 1, "only .grad changes", "the parameters", "what learns"),
    ),
    hints=hints(
        "lab1", "average_gradients",
        the_group_is_not_passed_on=s.kind("group"),
        the_parameter_for_its_gradient=of_name("the parameters", "what learns"),
        a_parameter_without_gradient=s.either(
            s.both(of_name("the gradient"), s.kind("returned")), s.refused("None")
        ),
        an_op_for_it=s.raised("TypeError"),
        not_divided=times(lambda N: N),
        divided_twice=times(lambda N: 1 / N),
        another_divisor=s.fact("factor"),
        skipped_on_some_ranks=s.either(s.kind("clash", "mismatch", "died"), s.hung),
        frozen_ones_too=of_name("the frozen"),
        one_buffer_for_all_calls=of_name("the first gradient later"),
        not_what_it_was_given=s.kind("another way"),
        sent_more_than_once=of_name("elements sent"),
    ),
)  # fmt: skip
EXERCISE = Bundle("naive_data_parallel", (broadcast_parameters.EXERCISE, AVERAGE_GRADIENTS))
