"""Lab 1, section 2: weighted_loss(loss_sum, count, group, all_reduce), and until_all_done.

All losses are made before the first goes backward.
"""

import contextlib

import torch
import torch.distributed as dist

from lib import backend
from lib.check import symptoms as s
from lib.check.cases import FINE, Setting, called, form_of, groups_and_control, in_step, name_of
from lib.check.claims import claim, each
from lib.check.comm import MAY_CALL, Clash, Recorder
from lib.check.exercise import Bundle, Exercise, Hint, Problem
from lib.check.explain import fraction, narrowed, rounded_words, two
from lib.check.lab1 import until_all_done
from lib.check.lab1.means import ALONE, GROUPS_SAY, WORLD
from lib.check.traffic import fitting, only_calls
from lib.data_parallel import sampler

SHARDS = {  # how many examples each rank has, and their dtype
    Setting(members, dtype=torch.int64, what=f"counts {', '.join(map(str, counts))}"): (
        counts,
        dtype,
    )
    for members, counts, dtype in [
        ((0, 1, 2, 3), (3, 1, 0, 4), torch.float64),
        ((0, 1, 2, 3), (2, 2, 2, 2), torch.float64),
        ((0, 1, 2), (4, 0, 3), torch.float32),
        ((1, 3), (3, 2), torch.float64),
        (ALONE, (3,), torch.float64),
        ((0, 1, 2, 3), (70001, 3, 0, 40000), torch.float64),
    ]
}
CASES = tuple(SHARDS)


def _sum(case, rank):
    """The sum of the losses of this rank's examples, for w = 1: 12 (rank + 1) (1 + 2 + ...)."""
    counts, dtype = SHARDS[case]
    return 6 * (rank + 1) * counts[rank] * (counts[rank] + 1) * FINE.get(dtype, 1)


def _measure_losses(fn):
    held = {}

    def one(case, groups):
        group, control = groups
        (counts, dtype), rank, recorder = (
            SHARDS[case],
            dist.get_rank(control),
            Recorder(control, [case.members]),
        )
        w = torch.ones((), dtype=dtype, device=backend.device(), requires_grad=True)
        # a rank without examples has a loss too: 0, with gradient 0
        loss_sum = w * _sum(case, rank)
        args, loss = ([] if group is None else [group]), None
        with contextlib.suppress(Clash):  # it is in the record
            loss = called(case, fn, loss_sum, counts[rank], *args, all_reduce=recorder.all_reduce)
        recorder.end()
        held[case] = loss, w
        return recorder.record() | {"ok": recorder.clash is None, "problem": None, "form": None}

    records = in_step(CASES, groups_and_control, one, dist.new_group())
    for case, record in zip(CASES, records, strict=False):
        if record and not record["clash"]:
            record["problem"], record["form"] = _wrong_loss(
                case, case.members.index(dist.get_rank()), *held[case]
            )
    return records


def _wrong_loss(case, rank, loss, w):
    """(the Problem with its gradient or value, None if there is none; that with its form)"""
    (counts, dtype), N, own = SHARDS[case], case.world_size, _sum(case, rank)
    C, where = sum(counts), f"{case.name}: {case.rank(rank)}"
    facts = {
        "case": case,
        "count": counts[rank],
        "total": C,
        "world_size": N,
        "factor": None,
        "nan": False,
    }
    if type(loss) is not torch.Tensor:
        return Problem(
            "returned", f"{where} returned {form_of(loss)}, expected a loss", facts
        ), None
    if loss.requires_grad:
        loss.sum().backward()
    if w.grad is None:
        return Problem(
            "no graph",
            f"{where}: backward from the loss it returned does not reach loss_sum",
            facts,
        ), None
    want = torch.tensor(own * N / C, dtype=torch.float64)
    right = lambda got: torch.isclose(
        got, want, rtol=1e-6 if dtype == torch.float32 else 1e-12, atol=0
    )
    pair = {"gradient": w.grad.double().cpu(), "value": loss.detach().sum().double().cpu()}
    for what, got in pair.items():
        if not right(got):
            x, y = two(want, got)
            text = f"{where}, loss_sum = {own:g}: expected the {what} {x}, got {y}"
            facts |= {
                "nan": bool(got.isnan()),
                "narrowed": narrowed(got, want),
                "value": bool(right(pair["value"])),
            }
            if facts["narrowed"]:
                text += f"\n{rounded_words(dtype)}"
            elif own:
                facts["factor"] = got.item() / own
                shares = f"{fraction(N / C)} and {fraction(facts['factor'])} of loss_sum"
                text += f"\nThat is {shares}. N = {N} ranks have C = {C} examples: N/C = {N}/{C}."
            return Problem(what, text, facts), None
    wanted = f"{name_of(dtype)} ()"
    if form_of(loss) == wanted:
        return None, None
    return None, Problem(
        "form",
        f"{where} returned {form_of(loss)}, expected {wanted}, as loss_sum is",
        {"case": case},
    )


def _is(wanted):
    """Fits if the loss is loss_sum * wanted(count, C, N), on a rank with examples."""

    def fits(p):
        right = p.fact("factor") and wanted(
            p.facts["count"], p.facts["total"], p.facts["world_size"]
        )
        return bool(right) and abs(p.facts["factor"] / right - 1) < 1e-6

    return fits


WEIGHTED_LOSS = Exercise(
    name="weighted_loss", reference=sampler.weighted_loss, measure=_measure_losses, worlds=(WORLD,),
    may_call=MAY_CALL,
    leaves_out={
        "generators": "no argument is an iterator",
        "memory": "it sends one number, and keeps none",
    },
    claims=(
        claim("the batch's gradient", 4, f"1 rank, {GROUPS_SAY}; 0 to 70001 examples a rank",
            fitting(CASES), each(CASES, lambda case, rank, record: record["problem"])),
        claim("one all-reduce of one number", 1, "on every rank, with examples or without",
            only_calls(CASES, lambda case, rank: [("all_reduce", "", 1)])),
        claim("a loss like loss_sum", 1, "shape (), float32 and float64",
            each(CASES, lambda case, rank, record: record["form"])),
    ),
    hints=(
        s.CALLED_LIB.saying("build it from one all-reduce of the count."), s.NO_GROUP, s.NARROW,
        Hint("the world's size, not the group's",
            lambda p: p.fact("world_size") != WORLD and _is(lambda c, C, N: WORLD / C)(p),
            "N is the number of ranks of the group: dist.get_world_size(group)."),
        Hint("a mean of means",
             s.either(s.raised("ZeroDivisionError"), s.fact("nan"),
                      _is(lambda c, C, N: c and 1 / c)),
            "loss_sum / count is the rank's own mean, and a rank without examples has none. Divide "
            "by the number of examples of all ranks, C."),
        Hint("N forgotten", _is(lambda c, C, N: 1 / C),
             "the gradients of the ranks will be averaged, which divides by N once more: N * "
             "loss_sum / C."),
        Hint("weighted twice", s.either(_is(lambda c, C, N: c / C), _is(lambda c, C, N: N * c / C)),
             "loss_sum is a sum over this rank's examples: a rank with more of them counts more "
             "already. Only a mean would need the weight count / C."),
        Hint("its own count for the total", _is(lambda c, C, N: c and N / c),
             "you divide by this rank's count. The all-reduce of a tensor sums in place: use that "
             "tensor afterwards."),
        Hint("the counts averaged", _is(lambda c, C, N: N * N / C),
             "the mean count is C/N, not C. Either N * loss_sum / C, or loss_sum / (C/N), not "
             "both."),
        Hint("counts not used", s.either(_is(lambda c, C, N: 1), _is(lambda c, C, N: 1 / N)),
             "the sum of the losses must be divided by the number of examples of all ranks, C: "
             "all-reduce the counts."),
        Hint("one number for all calls", s.kind("gradient", value=True),
             "the loss is right, but backward multiplies by another number: one kept on a class or "
             "in a global is the last call's. Let autograd do it: loss_sum times a number."),
        Hint("another number of examples", s.both(s.kind("gradient"), s.fact("factor")),
             "multiply by N / C: C is the sum of all ranks' counts as they are, also where one is "
             "0."),
        Hint("the loss itself all-reduced", s.kind("value", "gradient"),
             "each rank returns a loss of its own examples, N/C times their sum; all-reduce the "
             "count, not the loss."),
        Hint("cut from the graph", s.kind("no graph"),
             "backward must reach the model: return loss_sum times a number. .item(), .detach() or "
             "torch.tensor(loss) cut it off."),
        Hint("a rank without examples left out", s.either(s.hung,
            s.kind("clash", "mismatch", "died")),
            "every rank of the group must call the all-reduce, also one whose count is 0, and with "
            "`group`."),
        s.RETURNED_NONE.saying("the function must end with `return ...`, a tensor."),
        s.NOT_GIVEN,
        Hint("more than the count", s.kind("calls"),
             "the only number that the ranks must share is how many examples there are: "
             "torch.tensor([count])."),
        Hint("another shape or dtype", s.kind("form"),
             "the total is a tensor of its own shape and dtype: multiply by a Python number, "
             "total.item()."),
        *s.ANYWHERE,
    ),
)  # fmt: skip
EXERCISE = Bundle("unequal_shards", (WEIGHTED_LOSS, until_all_done.EXERCISE))
