"""Every probe of lib/check/probes.py is proved able to fail: an answer that is right in its values,
and wrong in what the probe looks at, is rejected for just that."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist

from lib import launch
from lib.check import guard, probes
from lib.check.cases import Setting
from lib.check.exercise import Exercise
from lib.check.exercises import FUNCTIONS
from lib.check.framework import evaluate
from lib.check.lab4 import fsdp_training
from lib.check.lab6 import norm_over_mesh
from lib.check.shown import calls, claims
from lib.check.side_by_side import SideBySide, here
from lib.check.wire import Wire

CASES = here("30 rows", "40 rows", "no rows")
ROWS = dict(zip(CASES, (30, 40, 0), strict=True))


def scaled(x, factors):
    """x (n, 2) times factors[0], as a new tensor."""
    return x * factors[0]


def script(make, case, show):
    rows = next(ROWS[one] for one in CASES if case.what.startswith(one.what))
    x = show.give("x", torch.randn(rows, 2, dtype=torch.float64), learns=True)
    y = show.run(make, x, [2, 5])
    show("y", y)
    yield
    show.backward(y)
    yield


def exercise(**settings):
    measure = SideBySide(script, scaled, CASES, groups=None, **settings)
    return Exercise(
        name="scaled", reference=scaled, measure=measure, worlds=(), hints=(),
        claims=claims(measure, ("the values", 2, "", "y", "x"), ("everything else", 1, "")),
    )  # fmt: skip


KEPT = []


def changes_x(x, factors):
    y = x * 2
    x.detach().add_(0.5)
    return y


def changes_the_list(x, factors):
    return x * factors.pop(0)


def leaves_the_graph_without_rows(x, factors):
    return x * 2 if len(x) else x.new_zeros(0, 2)


def seeds_torch(x, factors):
    torch.manual_seed(1)
    return x * 2


def draws_in_python(x, factors):
    random.random()
    return x * 2


def draws_in_numpy(x, factors):
    np.random.rand()
    return x * 2


def keeps_a_list(x, factors):
    KEPT.append(x * 2)
    return KEPT[-1] + 0


class Expanded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.large = x.new_ones(500)
        return x * 2

    @staticmethod
    def backward(ctx, dy):
        return dy * 2


def keeps_on_ctx(x, factors):
    return Expanded.apply(x)


def of_float64_only(x, factors):
    return x.double() * 2


def of_float32_at_least(x, factors):
    return x * 2 if x.dtype != torch.bfloat16 else (x.float() * 2.2).bfloat16()


def contiguous_only(x, factors):
    return x.view(-1).view(x.shape) * 2 if x.is_contiguous() else x * 3


class Newest:
    factor = None


class OfTheNewest(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        Newest.rows = len(x)
        return x * 2

    @staticmethod
    def backward(ctx, dy):
        return dy * (2 if len(dy) == Newest.rows else 3)


def shares_state_between_calls(x, factors):
    return OfTheNewest.apply(x)


CACHED: dict = {}  # a result of n rows is made once, and written again


def writes_its_last_result_again(x, factors):
    out = CACHED.setdefault((len(x), x.dtype), x.detach().clone())
    return Into.apply(x, out)


class Into(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, out):
        return out.copy_(x).mul_(2).view(x.shape)

    @staticmethod
    def backward(ctx, dy):
        return dy * 2, None


@pytest.mark.parametrize(
    ("answer", "name"),
    [
        (changes_x, "arguments"),
        (changes_the_list, "arguments"),
        (leaves_the_graph_without_rows, "graph"),
        (seeds_torch, "generators"),
        (draws_in_python, "generators"),
        (draws_in_numpy, "generators"),
        (keeps_a_list, "alive at the end"),
        (keeps_on_ctx, "alive by 0"),
    ],
    ids=lambda one: getattr(one, "__name__", one),
)
def test_a_probe_of_a_call_or_a_script_is_able_to_fail(answer, name):
    found = evaluate(exercise(), answer)
    assert not found.passed, "\n".join(found.lines)
    assert name in {wrong for record in exercise().measure(answer) for wrong in record["wrong"]}


@pytest.mark.parametrize(
    ("answer", "variant"),
    [
        (of_float64_only, "float32"),
        (of_float32_at_least, "bfloat16"),
        (contiguous_only, "strided"),
        (shares_state_between_calls, "two at once"),
        (writes_its_last_result_again, "once more"),
    ],
    ids=lambda one: getattr(one, "__name__", one),
)
def test_a_variant_of_the_first_case_is_able_to_fail(answer, variant):
    one = exercise()
    records = zip(one.measure.runs(), one.measure(answer), strict=True)
    wrong = {case.what: record["wrong"] for case, record in records}
    assert not evaluate(one, answer).passed
    assert wrong[f"30 rows, {variant}"]
    excused = exercise(excused={variant: "for this test"})
    assert variant not in str([case.what for case in excused.measure.runs()])


def test_a_right_answer_passes_and_an_unknown_probe_is_refused():
    assert evaluate(exercise(), lambda x, factors: 2 * x.contiguous()).passed
    with pytest.raises(ValueError, match="no probe is called"):
        exercise(excused={"colour": "there is none"})


# on ranks

GROUPS = (Setting((0, 1), what="two ranks"), Setting((0, 1, 2), what="three ranks"))


def total(x, group, all_reduce):
    return all_reduce(x.clone(), group)


def total_script(make, case, group, show):
    x = show.give("x", torch.arange(4.0, dtype=torch.float64) * 3**show.place)
    y = show.run(make, x, group, show.all_reduce)
    show("the sum", y)


TOTAL = SideBySide(
    total_script, total, GROUPS,
    excused=dict.fromkeys(("strided", "float32", "bfloat16", "two at once"), "for this test"),
)  # fmt: skip
ON_RANKS = Exercise(
    name="total", reference=total, measure=TOTAL, worlds=(3,), hints=(),
    may_call=("comm.all_reduce", "framework._measure_all", "all_reduce"),
    claims=claims(TOTAL, ("the sum", 2, "", "the sum"), ("once", 1, "", calls(TOTAL))),
)  # fmt: skip


def twice(x, group, all_reduce):
    all_reduce(x.clone(), group)
    return all_reduce(x.clone(), group)


def in_place(x, group, all_reduce):
    return all_reduce(x, group)


def by_torch(x, group, all_reduce):
    y = x.clone()
    dist.all_reduce(y, group=group)
    return y


def maximum(x, group, all_reduce):
    return all_reduce(x.clone(), group, op=dist.ReduceOp.MAX)


def on_all_but_the_last_rank(x, group, all_reduce):
    last = dist.get_rank(group) == dist.get_world_size(group) - 1
    return x.clone() if last else all_reduce(x.clone(), group)


@pytest.mark.parametrize(
    ("answer", "points", "kind"),
    [
        (twice, 2, "calls"),
        (in_place, 2, "said"),
        (by_torch, 2, "another way"),
        (maximum, 0, "value"),
        (on_all_but_the_last_rank, 0, "clash"),
    ],
    ids=lambda one: getattr(one, "__name__", one),
)
def test_on_ranks_values_and_what_was_called_are_compared(answer, points, kind):
    outcome = evaluate(ON_RANKS, answer)
    assert (outcome.points, outcome.problem.kind) == (points, kind), "\n".join(outcome.lines)


def test_on_ranks_a_right_answer_passes():
    outcome = evaluate(ON_RANKS, lambda x, group, all_reduce: all_reduce(x + 0, group))
    assert outcome.passed, "\n".join(outcome.lines)


def test_ranks_keep_what_libs_own_has_shown_for_the_next_check():
    def checked_three_times():
        ran = []

        def libs(x, group, all_reduce):
            ran.append(True)
            return total(x, group, all_reduce)

        def judged(answer):
            measure = SideBySide(total_script, libs, GROUPS, excused=TOTAL.excused)
            return all(one["ok"] for one in measure(answer) if one), len(ran)

        right = lambda *args: total(*args)
        return judged(right), judged(maximum), judged(right)

    for first, second, third in launch.run(checked_three_times, nproc=3)[:2]:
        right, runs = first
        assert right and runs > len(GROUPS)
        assert second == (False, runs) and third == (True, runs)


def test_the_kernel_keeps_what_libs_own_has_shown_for_each_state_of_torchs_defaults():
    ran = []

    def libs(x):
        ran.append(True)
        return 2 * x

    def of_default_dtype(make, case, show):
        show("y", show.run(make, show.give("x", torch.ones(3))))

    def passes(answer):
        measure = SideBySide(of_default_dtype, libs, CASES, groups=None)
        claims_ = claims(measure, ("twice x", 1, "", "y"))
        return evaluate(Exercise("libs", measure, (), claims_, (), reference=libs), answer).passed

    right, wrong = lambda x: x + x, lambda x: 3 * x
    assert passes(right) and len(ran) > len(CASES)
    once = len(ran)
    assert not passes(wrong) and passes(right) and len(ran) == once
    torch.set_default_dtype(torch.float64)
    try:
        assert passes(right) and not passes(wrong) and len(ran) == 2 * once
    finally:
        torch.set_default_dtype(torch.float32)
    assert passes(right) and len(ran) == 2 * once


def test_if_libs_own_fails_the_answer_is_not_blamed_and_nothing_is_kept(monkeypatch):
    monkeypatch.setattr(guard, "is_students", lambda file: False)  # as for lib's files
    fails = [True]

    def libs(x, factors):
        if fails:
            raise OSError("the disk is full")
        return scaled(x, factors)

    def judged():
        measure = SideBySide(script, libs, CASES, groups=None)
        claims_ = claims(measure, ("the values", 1, "", "y"))
        return evaluate(Exercise("libs", measure, (), claims_, (), reference=libs), by_hand)

    by_hand = lambda x, factors: x + x
    outcome = judged()
    assert outcome.problem.kind == "unreadable" and "the disk is full" in outcome.problem.text
    fails.clear()
    assert judged().passed


def test_no_two_exercises_share_what_ranks_keep():
    measures = [e.measure for e in FUNCTIONS.values() if isinstance(e.measure, SideBySide)]
    keys = [(measure.reference, measure.cases) for measure in measures]
    assert len(set(keys)) == len(keys) > 90


def test_the_norm_of_all_ranks_tensors_is_one_number():
    def norm():
        from lib.check.side_by_side import ShowOnRanks

        show = ShowOnRanks(Wire([0, 1], ""), GROUPS[0], None)
        return show.length([torch.full((2,), 1.0 + dist.get_rank())])

    assert launch.run(norm, nproc=2) == [10**0.5] * 2


def test_a_norm_that_is_nan_on_one_rank_alone_differs():
    def told():
        from lib.check.side_by_side import ShowOnRanks

        show = ShowOnRanks(Wire(range(3), ""), GROUPS[0], None)
        return norm_over_mesh.differ(torch.tensor([1.0, float("nan"), 1.0][dist.get_rank()]), show)

    assert all("nan" in one and "1.0" in one for one in launch.run(told, nproc=3))


def test_what_the_check_itself_gathers_is_not_counted():
    """Or right answers of FSDP's Unit would be refused for the check's whole parameters."""
    held, made = [], probes.Made()

    def gathered(shard):
        held.extend([shard.clone(), shard.clone()])
        return held

    with made:
        model = torch.nn.Linear(3, 2, bias=False)
        weights = [model.weight]
        flat = SimpleNamespace(shard=torch.ones(3), n=6, slots=weights, parameters=weights)
        before = made.alive()
        show = SimpleNamespace(made=made, gathered=gathered)
        fsdp_training.whole_parameters(SimpleNamespace(module=model, flats=[flat]), show)
    assert len(held) == 2 and made.alive() == before
