"""Lab 1, section 2: weighted_loss(loss_sum, count, group) and until_all_done(batches, group)."""

import torch
import torch.distributed as dist

from lib import backend
from lib.check.framework import Bundle, Claim, Exercise, Hint, Problem
from lib.check.lab0.cases import called, form_of, groups_of, in_step, name_of, number, seen
from lib.check.lab0.mistakes import hung
from lib.check.lab1 import until_all_done
from lib.check.lab1.cases import GROUPS_SAY, WORLD, Case, group_argument
from lib.check.lab1.models import fraction
from lib.check.lab1.wire import COLLECTIVES, numbers_all_reduced
from lib.data_parallel import uneven

# What tells the cases apart: how many examples each rank has, and their dtype.
SHARDS = {
    Case("weighted_loss", members, f"counts {', '.join(map(str, counts))}"): (counts, dtype)
    for members, counts, dtype in [
        ((0, 1, 2, 3), (3, 1, 0, 4), torch.float64),
        ((0, 1, 2, 3), (2, 2, 2, 2), torch.float64),
        ((0, 1, 2), (4, 0, 2), torch.float32),
        ((1, 3), (3, 1), torch.float64),
    ]
}
CASES = list(SHARDS)


def _sum(rank, count):
    """The sum of the losses of rank `rank`'s examples, for w = 1."""
    return sum(12 * (rank + 1) * (i + 1) for i in range(count))


def _measure(fn):
    def one(case, group):
        (counts, dtype), rank = SHARDS[case], case.members.index(dist.get_rank())
        w = torch.ones((), dtype=dtype, device=backend.device(), requires_grad=True)
        loss_sum = w * _sum(rank, counts[rank])  # a rank without examples has a loss too: 0, with gradient 0
        loss = called(case, fn, loss_sum, counts[rank], *group_argument(group))
        problem, form = _wrong_loss(case, rank, loss, w)
        return {"ok": problem is None, "problem": problem, "form": form}

    return in_step(CASES, groups_of, one, dist.new_group())


def _wrong_loss(case, rank, loss, w):
    """(the Problem with its gradient or value, None if there is none; its form, if that is not loss_sum's)"""
    (counts, dtype), N = SHARDS[case], case.world_size
    count, C, own = counts[rank], sum(counts), _sum(rank, counts[rank])
    where = f"{case.where}: {case.rank(rank)}"
    facts = {"case": case, "count": count, "total": C, "world_size": N, "factor": None}
    if type(loss) is not torch.Tensor:
        return Problem("no tensor", f"{where} returned {form_of(loss)}, expected a loss", facts), None
    if not loss.requires_grad:
        return Problem("no graph", f"{where}: the loss it returned has no gradient: backward cannot start there"), None
    loss.sum().backward()
    for what, got in (("gradient", w.grad), ("value", loss.detach().sum())):
        got, want = got.double().cpu(), torch.tensor(own * N / C, dtype=torch.float64)
        if not torch.isclose(got, want, rtol=1e-6 if dtype == torch.float32 else 1e-12, atol=0):
            text = f"loss_sum = {own}: expected the {what} {number(want)}, got {number(got)}"
            if own:
                facts["factor"] = got.item() / own
                shares = f"{fraction(N / C)} and {fraction(facts['factor'])} of loss_sum"
                text = f"{text}\nThat is {shares}. N = {N} ranks have C = {C} examples: N/C = {N}/{C}."
            return Problem(what, f"{where}, {text}", facts), None
    return None, form_of(loss) if form_of(loss) != f"{name_of(dtype)} ()" else None


def _gradient(runs):
    for _, _, records in seen(runs, CASES):
        problem = next((record["problem"] for record in records if record["problem"]), None)
        if problem:
            return problem
    return None


def _form(runs):
    for _, case, records in seen(runs, CASES):
        for rank, record in enumerate(records):
            if record["form"]:
                wanted = f"{name_of(SHARDS[case][1])} (), as loss_sum is"
                return Problem("form", f"{case.where}: {case.rank(rank)} returned {record['form']}, expected {wanted}")
    return None


def _one_number(runs):
    for run, case, _ in seen(runs, CASES):
        problem = numbers_all_reduced(run, case, 1)
        if problem:
            return problem
    return None


def _is(wanted):
    """Fits if the loss is loss_sum * wanted(count, C, N), on a rank with examples."""

    def fits(p):
        f = p.facts
        return bool(f.get("factor")) and abs(f["factor"] / wanted(f["count"], f["total"], f["world_size"]) - 1) < 1e-6

    return fits


WEIGHTED_LOSS = Exercise(
    name="weighted_loss",
    reference=uneven.weighted_loss,
    measure=_measure,
    worlds=(WORLD,),
    may_call=COLLECTIVES,
    claims=(
        Claim("the batch's gradient", 4, f"{GROUPS_SAY}; 0 to 4 examples a rank", _gradient),
        Claim("one all-reduce of one number", 1, "on every rank, with examples or without", _one_number),
        Claim("a loss like loss_sum", 1, "shape (), float32 and float64", _form),
    ),
    hints=(
        Hint("called lib's", lambda p: p.kind == "built-in", "build it from one all-reduce of the count."),
        Hint(
            "the world's size, not the group's",
            lambda p: p.facts.get("world_size") != WORLD and _is(lambda c, C, N: WORLD / C)(p),
            "N is the number of ranks of the group: dist.get_world_size(group).",
        ),
        Hint(
            "a mean of means",
            lambda p: (
                _is(lambda c, C, N: 1 / c)(p)
                or (p.kind == "raised" and "ZeroDivisionError" in p.text)
                or (p.kind == "gradient" and "got nan" in p.text)
            ),
            "loss_sum / count is the rank's own mean, and a rank without examples has none. Divide by the number of "
            "examples of all ranks, C.",
        ),
        Hint(
            "N forgotten",
            _is(lambda c, C, N: 1 / C),
            "the gradients of the ranks will be averaged, which divides by N once more: N * loss_sum / C.",
        ),
        Hint(
            "weighted twice",
            lambda p: _is(lambda c, C, N: c / C)(p) or _is(lambda c, C, N: N * c / C)(p),
            "loss_sum is a sum over this rank's examples: a rank with more of them counts more already. Only a mean "
            "would need the weight count / C.",
        ),
        Hint(
            "its own count for the total",
            _is(lambda c, C, N: N / c),
            "you divide by this rank's count. The all-reduce of a tensor sums in place: use that tensor afterwards.",
        ),
        Hint(
            "the counts averaged",
            _is(lambda c, C, N: N * N / C),
            "the mean count is C/N, not C. Either N * loss_sum / C, or loss_sum / (C/N), not both.",
        ),
        Hint(
            "counts not used",
            lambda p: _is(lambda c, C, N: 1)(p) or _is(lambda c, C, N: 1 / N)(p),
            "the sum of the losses must be divided by the number of examples of all ranks, C: all-reduce the counts.",
        ),
        Hint(
            "the loss itself all-reduced",
            lambda p: p.kind in ("value", "gradient"),
            "each rank returns a loss of its own examples, N/C times their sum; all-reduce the count, not the loss.",
        ),
        Hint(
            "cut from the graph",
            lambda p: p.kind == "no graph",
            "backward must reach the model: return loss_sum times a number. .item(), .detach() or torch.tensor(loss) "
            "cut it off.",
        ),
        Hint(
            "a rank without examples left out",
            lambda p: hung(p) or p.kind in ("mismatch", "died"),
            "every rank of the group must call the all-reduce, also one whose count is 0, and with `group`.",
        ),
        Hint("nothing returned", lambda p: p.kind == "no tensor", "the function must end with `return ...`, a tensor."),
        Hint(
            "more than the count",
            lambda p: p.kind == "wire",
            "the only number that the ranks must share is how many examples there are: torch.tensor([count]).",
        ),
        Hint(
            "another shape or dtype",
            lambda p: p.kind == "form",
            "the total is a tensor of its own shape and dtype: multiply by a Python number, total.item().",
        ),
    ),
)
EXERCISE = Bundle("unequal_shards", (WEIGHTED_LOSS, until_all_done.EXERCISE))
