"""Lab 3, section 1: f, copy_to_group(x, group, all_reduce),
and g, reduce_from_group(x, group, all_reduce).

    f  x on all ranks  y = x          loss_r = sum of w_r y  dx = sum_r w_r  w_r differs by rank
    g  x_r on rank r   y = sum_r x_r  loss   = sum of w y    dx_r = w        w is the same on all

In the case "beside a residual" x has two more uses, the losses are w_r (y + x) and then v_r x:
autograd hands the same gradient w_r to y and to x, and whoever sums into it has changed the other,
but not v_r; a hook on x itself sums all three. In "transposed" no x is contiguous, and no gradient
that arrives.
"""

from dataclasses import replace
from functools import partial

from lib.check import symptoms as s
from lib.check.cases import Case
from lib.check.causes import hints, in_variant
from lib.check.exercise import Bundle, Exercise
from lib.check.lab3 import groups as g
from lib.check.shown import calls, claims
from lib.check.side_by_side import SideBySide
from lib.check.tensors import draw
from lib.tensor_parallel import mappings

RESIDUAL, TRANSPOSED, NOTHING = "beside a residual", "transposed", "rank 0 has zeros"
COPY_CASES, REDUCE_CASES = (
    (
        *(Case(ranks, 24) for ranks in g.GROUPS),
        *(Case(g.ALL, 24, what=what) for what in whats),
        Case(g.ALL, 0),
    )
    for whats in ((RESIDUAL, TRANSPOSED, NOTHING, g.AT_ONCE), (TRANSPOSED, NOTHING, g.AT_ONCE))
)


def script(x_differs, make, case, groups, show):
    """x_differs: x does by rank, and the gradient does not; or the other way round."""
    losses = []
    show.begin("forward")
    for group, N, rank, of in g.calls(show, groups):
        shape = (case.n + 12 * bool(of)) // 12, 3, 4
        same = draw(case.n + 10 * N + case.again, *shape)
        mine = draw(1 + rank, *shape) * (case.what != NOTHING or rank > 0)
        x, w = (mine, same) if x_differs else (same, mine)
        x = show.give(f"x{of}", x, learns=True)
        x = x.transpose(0, 2) if case.what == TRANSPOSED else x
        y = show.run(make, x, group, g.in_place(show))
        show("y", y)
        if show.wrong("y"):
            return
        more = [(x * draw(50 + rank, *shape)).sum()] if case.what == RESIDUAL else []
        y = y + x if case.what == RESIDUAL else y
        y = y.transpose(0, 2) if case.what == TRANSPOSED else y
        losses += [(y * w.to(y.dtype)).sum(), *more]
    yield
    show.begin("backward")
    show.backward(*losses)


def _measure(reference, cases, x_differs):
    together = cases[0], replace(cases[0], again=1)  # of one shape: a buffer of it is kept
    return SideBySide(
        partial(script, x_differs), reference, cases, groups=g.groups, together=together
    )


def _exercise(measure, *rows, **predicates):
    name = measure.reference.__name__
    return Exercise(
        name=name, reference=measure.reference, measure=measure, worlds=(g.WORLD,),
        may_call=g.MAY_CALL, leaves_out=g.FUNCTION,
        claims=claims(measure, *rows),
        hints=hints(
            "lab3", name,
            the_group_is_not_passed_on=s.kind("group"),
            what_the_collective_returns=s.refused("None"),
            a_copy_of_what_is_not_contiguous=s.either(
                in_variant("strided", TRANSPOSED), s.refused("view")),
            **predicates,
            right_on_2_ranks_only=s.in_case(
                (), lambda case: case.world_size > 2 and not case.what, "value"),
            not_on_every_rank=s.kind("clash"),
            not_what_it_was_given=s.kind("another way"),
            sent_more_than_once=s.kind("calls"),
        ),
    )  # fmt: skip


COPY = _measure(mappings.copy_to_group, COPY_CASES, False)
REDUCE = _measure(mappings.reduce_from_group, REDUCE_CASES, True)
COPY_TO_GROUP = _exercise(
    COPY,
    ("x forward, the sum backward", 5, f"{g.GROUPS_SAY}; {RESIDUAL}, {TRANSPOSED}",
     "y", "x", "x, the pair", "graph"),
    ("one all-reduce, backward", 2, "of n elements; forward nothing", calls(COPY)),
    ("x left alone", 1, "", "arguments"),
)  # fmt: skip
REDUCE_FROM_GROUP = _exercise(
    REDUCE,
    ("the sum forward, dy backward", 5, f"{g.GROUPS_SAY}; {TRANSPOSED}",
     "y", "x", "x, the pair", "graph"),
    ("one all-reduce, forward", 2, "of n elements; backward nothing", calls(REDUCE)),
    ("x left alone", 1, "the caller's part stays partial", "arguments", "storage"),
    gathered=s.kind("form", dtype=False),
)  # fmt: skip
EXERCISE = Bundle("f_and_g", (COPY_TO_GROUP, REDUCE_FROM_GROUP))
