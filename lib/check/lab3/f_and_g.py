"""Lab 3, section 1: f, copy_to_group(x, group, all_reduce), and g, reduce_from_group(x, group, all_reduce).

    f    x on all ranks    y = x           loss_r = sum of w_r y      dx = sum_r w_r       w_r: another on each rank
    g    x_r on rank r     y = sum_r x_r   loss   = sum of w y        dx_r = w             w:   the same on all

In the case "beside a residual" x has a second use, loss_r = sum of w_r (y + x): autograd hands the same gradient to
both uses, and whoever sums into it has changed the other's.
"""

import torch

from lib.check.framework import Bundle, Claim, Exercise, Problem
from lib.check.lab1.calls import noting_calls
from lib.check.lab3.compare import multiples, wrong
from lib.check.lab3.f_and_g_hints import COPY_HINTS, REDUCE_HINTS
from lib.check.lab3.given import MAY_CALL, Given, only_these
from lib.check.lab3.groups import GROUPS, GROUPS_SAY, WORLD, Case, agreed, backward, draw, forward, found, measured
from lib.tensor_parallel import mappings

SHAPE = (2, 3, 4)
N_ELEMENTS = 24
RESIDUAL, TRANSPOSED = "beside a residual", "transposed"
OWN = "this rank's own part"


def _cases(name, *more):
    return [*(Case(name, members) for members in GROUPS), *(Case(name, GROUPS[2], what) for what in more)]


COPY_CASES = _cases("copy_to_group", RESIDUAL, TRANSPOSED)
REDUCE_CASES = _cases("reduce_from_group", TRANSPOSED)


def _measure(cases, lib_function, data, fn):
    """data(case, rank) -> (x, the loss's weights, y expected, x.grad expected, {words: y}, {words: x.grad})."""

    def one(case, rank, group, wire):
        x, w, want_y, want_dx, known_y, known_dx = data(case, rank)
        where, given = f"{case.where}: {case.rank(rank)}", Given(group)
        record = {"calls": given.calls, "problem": None, "touched": None}
        leaf, turned = x.clone().requires_grad_(), case.what == TRANSPOSED
        with noting_calls(lib_function) as calls:
            y = forward(case, fn, leaf.transpose(0, 2) if turned else leaf, group, given)
        if calls:
            record["problem"] = Problem("built-in", f"{where}: the answer calls lib's {lib_function.__name__}")
        else:
            record["problem"] = given.wrong_group(where) or wrong(
                f"{where}: y", y.transpose(0, 2) if turned and _is_like(y, leaf) else y, want_y, known_y
            )
        if not torch.equal(leaf.detach(), x):
            record["touched"] = Problem("touched", f"{where}: x itself has changed, the tensor that was given")
        if record["problem"] is None and not y.requires_grad:
            record["problem"] = Problem(
                "no graph", f"{where}: y has no gradient: autograd does not know how it was made"
            )
        record["ok"] = agreed(record["problem"] is None, wire)
        if not record["ok"]:
            return record
        given.way = "backward"
        y = y.transpose(0, 2) if turned else y
        backward(case, ((y + leaf if case.what == RESIDUAL else y) * w).sum())
        record["problem"] = given.wrong_group(where) or wrong(f"{where}: x.grad", leaf.grad, want_dx, known_dx)
        record["ok"] = record["problem"] is None
        return record

    return measured(cases, one)


def _is_like(y, x):
    return torch.is_tensor(y) and y.dim() == x.dim()


def _of_f(case, rank):
    N, x = case.world_size, draw(0, *SHAPE)
    parts = [draw(1 + r, *SHAPE) for r in range(N)]
    total, own = sum(parts), parts[rank]
    known = {OWN: own, "zeros": 0 * own, **multiples(total, N)}
    if case.what == RESIDUAL:
        known = {"the sum, twice": 2 * total, "twice this rank's own part": 2 * own}
    return x, own, x, total + own if case.what == RESIDUAL else total, multiples(x, N), known


def _of_g(case, rank):
    N, w = case.world_size, draw(0, *SHAPE)
    parts = [draw(1 + r, *SHAPE) for r in range(N)]
    total, own = sum(parts), parts[rank]
    side_by_side = {f"all parts side by side on dim {dim}": torch.cat(parts, dim) for dim in range(3)}
    known = {OWN: own, **side_by_side, "all parts stacked": torch.stack(parts), **multiples(total, N)}
    return own, w, total, w, known if N > 1 else {}, {"zeros": 0 * w, **multiples(w, N)}


def _measure_f(fn):
    return _measure(COPY_CASES, mappings.copy_to_group, _of_f, fn)


def _measure_g(fn):
    return _measure(REDUCE_CASES, mappings.reduce_from_group, _of_g, fn)


COPY_TO_GROUP = Exercise(
    name="copy_to_group",
    reference=mappings.copy_to_group,
    measure=_measure_f,
    worlds=(WORLD,),
    may_call=MAY_CALL,
    claims=(
        Claim("x forward, the sum backward", 5, f"{GROUPS_SAY}; {RESIDUAL}, {TRANSPOSED}", found(COPY_CASES)),
        Claim("one all-reduce, backward", 2, "of n elements; forward nothing", only_these(
            COPY_CASES, lambda case: {"forward": [], "backward": [N_ELEMENTS]})),
        Claim("x left alone", 1, "", found(COPY_CASES, "touched")),
    ),
    hints=COPY_HINTS,
)  # fmt: skip
REDUCE_FROM_GROUP = Exercise(
    name="reduce_from_group",
    reference=mappings.reduce_from_group,
    measure=_measure_g,
    worlds=(WORLD,),
    may_call=MAY_CALL,
    claims=(
        Claim("the sum forward, dy backward", 5, f"{GROUPS_SAY}; {TRANSPOSED}", found(REDUCE_CASES)),
        Claim("one all-reduce, forward", 2, "of n elements; backward nothing", only_these(
            REDUCE_CASES, lambda case: {"forward": [N_ELEMENTS], "backward": []})),
        Claim("x left alone", 1, "the caller's part stays partial", found(REDUCE_CASES, "touched")),
    ),
    hints=REDUCE_HINTS,
)  # fmt: skip
EXERCISE = Bundle("f_and_g", (COPY_TO_GROUP, REDUCE_FROM_GROUP))
