"""Lab 3, section 1: f, copy_to_group(x, group, all_reduce),
and g, reduce_from_group(x, group, all_reduce).

    f  x on all ranks  y = x          loss_r = sum of w_r y  dx = sum_r w_r  w_r differs by rank
    g  x_r on rank r   y = sum_r x_r  loss   = sum of w y    dx_r = w        w is the same on all

In the case "beside a residual" x has a second use, loss_r = sum of w_r (y + x): autograd hands the
same gradient to both uses, and whoever sums into it has changed the other's.
"""

from lib.check import symptoms as s
from lib.check.cases import Case, draw
from lib.check.claims import claim, left_alone, new
from lib.check.exercise import Bundle, Hint
from lib.check.lab3 import both_ways as ways
from lib.check.traffic import only_calls
from lib.tensor_parallel import mappings

RESIDUAL, TRANSPOSED, NOTHING = "beside a residual", "transposed", "rank 0 has zeros"
COPY_CASES, REDUCE_CASES = (
    (
        *(Case(ranks, 24) for ranks in ways.GROUPS),
        *(Case(ways.ALL, 24, what=what) for what in whats),
        Case(ways.ALL, 0),
    )
    for whats in (
        (RESIDUAL, TRANSPOSED, NOTHING, ways.AT_ONCE),
        (TRANSPOSED, NOTHING, ways.AT_ONCE),
    )
)


def _drawn(case, rank):
    """x or w, alike on all ranks; each rank's part; and how x is given: (n/12, 3,
    4), or transposed."""
    shape = case.n // 12, 3, 4
    parts = [draw(ways.seed(case) + 1 + r, *shape) for r in range(case.world_size)]
    if case.what == NOTHING:
        parts[0].zero_()
    return (
        draw(ways.seed(case), *shape),
        parts,
        lambda t: t.transpose(0, 2) if case.what == TRANSPOSED else t,
    )


def _of_f(case, rank):
    x, parts, turned = _drawn(case, rank)
    x, own, again = x.requires_grad_(), parts[rank], case.what == RESIDUAL
    return ways.Setting(
        given=turned(x),
        arguments={"x": x},
        outputs={"y": turned(x.detach().clone())},
        loss=lambda ys: ((turned(ys[0]) + x if again else turned(ys[0])) * own).sum(),
        gradients={"x": sum(parts) + own if again else sum(parts)},
        terms={"x.grad": parts},
    )


def _of_g(case, rank):
    w, parts, turned = _drawn(case, rank)
    x = parts[rank].clone().requires_grad_()
    return ways.Setting(
        given=turned(x),
        arguments={"x": x},
        outputs={"y": turned(sum(parts))},
        loss=lambda ys: (turned(ys[0]) * w).sum(),
        gradients={"x": w},
        terms={"y": list(map(turned, parts))},
    )


def _start(fn, setting, group, recorder):
    return fn(setting.given, group, ways.in_place(recorder))


COMMON = (
    s.CALLED_LIB.saying("write it yourself: a torch.autograd.Function with a forward and a "
                        "backward of your own."),
    s.NO_GROUP, s.NOT_ALL_RANKS,
    Hint("what all_reduce returns", s.refused("None"),
         "all_reduce(tensor, group) sums in place, and need not return anything: go on with the "
         "tensor that you gave it."),
    s.RETURNED_NONE.saying("the tensor that was summed into is what is returned: all_reduce itself "
                           "may give None."),
    s.NARROW, s.WRONG_DTYPE,
    Hint("backward returns nothing", s.kind("no graph", of="x.grad"),
         "autograd knows your function, but no gradient comes of its backward: return the tensor "
         "itself, and not what all_reduce returns."),
    s.NO_GRAPH.saying(
        "what all_reduce does is unknown to autograd, and detach() cuts the graph. A "
        "torch.autograd.Function says what backward is: return MyFunction.apply(x)."),
    Hint("a copy of what is not contiguous",
         s.in_case(COPY_CASES, lambda case: case.what == TRANSPOSED, "value", "raised"),
         "a transposed tensor has no flat view: .view fails, and .reshape(-1) is a copy, whose sum "
         "is lost. all_reduce takes any shape: give it x.clone()."),
    ways.two_at_once(COPY_CASES),
)  # fmt: skip
LAST = (
    Hint("right on 2 ranks only", s.in_case(COPY_CASES, lambda case: case.world_size > 2, "value"),
         "on 2 ranks it was right. Every rank's part belongs in the sum, and each once: that is "
         "all_reduce."),
    Hint("another result", s.kind("value", "form"),
         "f: y = x, and dx is the sum of the ranks' dy. g: y is the sum of the ranks' x, and dx = "
         "dy."),
    s.NOT_GIVEN, ways.SENT_OFTEN,
    Hint("x overwritten", s.kind("input"),
         "all_reduce works in place. The caller's x is not yours to change: clone it first."),
    s.SHARED, s.NOT_KEPT, *s.ANYWHERE,
)  # fmt: skip

COPY_TO_GROUP = ways.exercise(
    mappings.copy_to_group, COPY_CASES, _of_f, _start,
    (
        claim("x forward, the sum backward", 5, f"{ways.GROUPS_SAY}; {RESIDUAL}, {TRANSPOSED}",
              *ways.right(COPY_CASES)),
        claim("one all-reduce, backward", 2, "of n elements; forward nothing",
              only_calls(COPY_CASES, ways.once("backward"))),
        claim("x left alone", 1, "", left_alone(COPY_CASES)),
    ),
    (*COMMON, *LAST),
)  # fmt: skip
REDUCE_FROM_GROUP = ways.exercise(
    mappings.reduce_from_group, REDUCE_CASES, _of_g, _start,
    (
        claim("the sum forward, dy backward", 5, f"{ways.GROUPS_SAY}; {TRANSPOSED}",
            *ways.right(REDUCE_CASES)),
        claim("one all-reduce, forward", 2, "of n elements; backward nothing",
              only_calls(REDUCE_CASES, ways.once("forward"))),
        claim("x left alone", 1, "the caller's part stays partial", left_alone(REDUCE_CASES),
              new(REDUCE_CASES)),
    ),
    (
        *COMMON,
        Hint("gathered", s.both(s.fact("of", "y"), ways.larger),
             "the ranks' tensors are terms of one sum, each as large as the result. They are "
             "added, not concatenated."),
        *LAST,
    ),
)  # fmt: skip
EXERCISE = Bundle("f_and_g", (COPY_TO_GROUP, REDUCE_FROM_GROUP))
