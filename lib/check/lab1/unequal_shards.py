"""Lab 1, section 2: weighted_loss(loss_sum, count, group, all_reduce), and until_all_done.

The loss is loss_sum times one number, so w = 1 is enough of a model: loss_sum = w * own.
"""

import torch

from lib import backend
from lib.check import symptoms as s
from lib.check.cases import FINE, Setting, form_of
from lib.check.causes import hints, of_name
from lib.check.comm import MAY_CALL
from lib.check.exercise import Bundle, Exercise
from lib.check.explain import fraction
from lib.check.lab1 import until_all_done
from lib.check.lab1.means import ALONE, GROUPS_SAY, WORLD
from lib.check.shown import calls, claims
from lib.check.side_by_side import SideBySide
from lib.check.tensors import TOLERANCE
from lib.data_parallel import sampler

FLOAT32 = "float32"
COUNTS = {  # how many examples each rank has
    Setting(members, what=", ".join(filter(None, [f"counts {', '.join(map(str, of))}", dtype]))): of
    for members, of, dtype in (
        ((0, 1, 2, 3), (3, 1, 0, 4), ""), ((0, 1, 2, 3), (2, 2, 2, 2), ""),
        ((0, 1, 2), (4, 0, 3), FLOAT32), ((1, 3), (3, 2), ""), (ALONE, (3,), ""),
        ((0, 1, 2, 3), (70001, 3, 0, 40000), ""),
    )
}  # fmt: skip
CASES = tuple(COUNTS)
LOSS, GRADIENT, FORM, WIRE = "the loss", "the gradient of w", "its form", "on the wire"


def script(make, case, group, show):
    counts, rank, N = COUNTS[case], show.place, case.world_size
    dtype = torch.float32 if FLOAT32 in case.what else torch.float64
    # a rank without examples has a loss, too: 0, with gradient 0
    own = 6 * (rank + 1) * counts[rank] * (counts[rank] + 1) * FINE.get(dtype, 1)
    w = show.give("w", torch.ones((), dtype=dtype, device=backend.device()), learns=True)
    args = [] if group is None else [group]
    loss = show.run(make, w * own, counts[rank], *args, all_reduce=show.all_reduce)
    is_one = torch.is_tensor(loss) and loss.numel() == 1
    got = loss.item() if is_one else form_of(loss)
    told = f"loss_sum is {own:g}, and N = {N} ranks have C = {sum(counts)} examples."
    told += f"\nThe loss is {fraction(got / own)} of loss_sum." if is_one and own else ""
    show(LOSS, got, tolerance=TOLERANCE[w.dtype], beside=told)
    show(FORM, form_of(loss))
    show(WIRE, ", ".join(f"{one.op} of {one.elements}" for one in show.calls))
    yield
    show.backward(loss)


def _factor(fits):
    """Is the loss another number than lib's, and fits(how many times that, the case)?"""

    def of(p):
        got, want = p.fact("got"), p.fact("want")
        numbers = p.fact("name") == LOSS and isinstance(got, float) and want
        return bool(numbers) and fits(got / want, p.fact("case"))

    return of


MEASURE = SideBySide(script, sampler.weighted_loss, CASES)
WEIGHTED_LOSS = Exercise(
    name="weighted_loss", reference=sampler.weighted_loss, measure=MEASURE, worlds=(WORLD,),
    may_call=MAY_CALL,
    leaves_out={
        "generators": "no argument is an iterator",
        "memory": "it sends one number, and keeps none",
    },
    claims=claims(
        MEASURE,
        ("the batch's gradient", 4, f"1 rank, {GROUPS_SAY}; 0 to 70001 examples a rank",
         LOSS, GRADIENT),
        ("one all-reduce of one number", 1, "on every rank, with examples or without",
         calls(MEASURE, nothing_else=False), WIRE),
        ("a loss like loss_sum", 1, "shape (), float32 and float64", FORM),
    ),
    hints=hints(
        "lab1", "weighted_loss",
        the_group_is_not_passed_on=s.kind("group"),
        a_rank_without_examples_left_out=s.either(s.hung, s.kind("clash", "mismatch", "died")),
        the_world_s_size__not_the_group_s=_factor(
            lambda x, case: case.world_size < WORLD and abs(x * case.world_size / WORLD - 1) < 1e-6
        ),
        a_mean_of_means=s.either(s.raised("ZeroDivisionError"), _factor(lambda x, case: x != x)),
        cut_from_the_graph=s.either(
            s.both(of_name(GRADIENT), s.kind("returned")),
            s.both(of_name(LOSS), s.fact("got", "float"))),
        one_number_for_all_calls=s.both(of_name(GRADIENT), s.kind("value")),
        another_number_of_examples=_factor(lambda x, case: True),
        not_what_it_was_given=s.kind("another way"),
        more_than_the_count=of_name(WIRE),
        another_shape_or_dtype=of_name(FORM),
    ),
)  # fmt: skip
EXERCISE = Bundle("unequal_shards", (WEIGHTED_LOSS, until_all_done.EXERCISE))
