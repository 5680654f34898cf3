"""What the functions that average gradients have in common: the measurement, two claims, and the mistakes.

Every rank runs forward and backward of `models.Small` on its own shard, then the student's function, which is given
the all-reduce to use. That one sums over the right group in any case, and notes on what it was called.
"""

import torch
import torch.distributed as dist

from lib import backend, collectives
from lib.check.framework import Hint, Problem
from lib.check.lab0.cases import called, groups_of, in_step, seen
from lib.check.lab0.mistakes import failed, hung
from lib.check.lab1.cases import WORLD
from lib.check.lab1.models import gradients, loss_of, of_each_rank, shard, wrong_gradient

GIVEN = "averaging.__call__"  # what the ledger calls it


class Given:
    """all_reduce(tensor, group): sums in place, returns nothing, as torch's does; calls: what it was called on."""

    def __init__(self, group):
        self.group, self.calls, self.other_group = group, [], None

    def __call__(self, tensor, group=None):
        self.calls.append((tensor.shape, tensor.dtype))
        ranks = dist.get_process_group_ranks(group)
        if ranks != dist.get_process_group_ranks(self.group):  # to sum over these would hang, and tell less
            self.other_group = ranks
        collectives.all_reduce(tensor, self.group)


def measured(cases, build, choose, fn):
    """On every rank, for each case: the mistake in the gradients, if any; what was called; is the rest untouched?

    build(): the model; choose(model): the parameters that `fn` is given.
    """

    def one(case, group):
        rank, device = case.members.index(dist.get_rank()), backend.device()
        model = build().to(device)
        x, y, with_branch = shard(rank)
        loss_of(model, (x.to(device), y.to(device), with_branch)).backward()
        with torch.no_grad():
            for p in model.parameters():
                p += rank  # or nobody would see that the parameters are averaged instead
        before = _state(model)
        given = Given(group)
        called(case, fn, choose(model), group, given)
        untouched = all(map(_same, before, _state(model)))
        problem = _wrong_group(case, rank, given) or wrong_gradient(
            f"{case.where}: {case.rank(rank)}", rank, gradients(model), _parts(case.world_size)
        )
        if problem:
            problem.facts |= {"touched": not untouched, "case": case}
        return {"ok": problem is None, "problem": problem, "calls": given.calls, "untouched": untouched}

    return in_step(cases, groups_of, one, dist.new_group())


def _parts(world_size):
    return of_each_rank([[shard(rank)] for rank in range(world_size)])


def _state(model):
    """Every tensor but the gradients, and whether it wants one."""
    return [(t.detach().clone(), t.requires_grad) for t in [*model.parameters(), *model.buffers()]]


def _same(a, b):
    return torch.equal(a[0], b[0]) and a[1] == b[1]


def _wrong_group(case, rank, given):
    if given.other_group is None:
        return None
    text = f"{case.where}: {case.rank(rank)} called all_reduce on ranks {given.other_group}, expected {[*case.members]}"
    return Problem("group", text)


def means(cases):
    """The claim: on every rank every .grad is the mean over ranks, of the parameters that are trained."""

    def judge(runs):
        for _, _, records in seen(runs, cases):
            problem = next((record["problem"] for record in records if record["problem"]), None)
            if problem:
                return problem
        return None

    return judge


def untouched(cases):
    """The claim: parameters and buffers are what they were."""

    def judge(runs):
        for _, case, records in seen(runs, cases):
            for rank, record in enumerate(records):
                if not record["untouched"]:
                    return Problem("touched", f"{case.where}: {case.rank(rank)} changed a parameter, not only .grad")
        return None

    return judge


def another_way(run, case):
    """A Problem if a rank communicated otherwise than by the all_reduce that it was given."""
    for rank, member in enumerate(case.members):
        for entry in run.ledger.section(case.name).of(member):
            if entry.via != GIVEN:
                words = (
                    f"{case.where}: {case.rank(rank)} called {entry.via or entry.op}, not the all_reduce it was given"
                )
                return Problem("another way", words)
    return None


def value(p, fits):
    return p.kind == "value" and bool(fits(p.facts))


def _factor(p, wanted):
    return value(p, lambda f: f["factor"] and abs(f["factor"] - wanted(f["world_size"])) < 1e-9)


WRONG_GROUP = Hint(
    "the group is not passed on", lambda p: p.kind == "group", "give `group` on: all_reduce(tensor, group)."
)
THE_PARAMETER = Hint(
    "the parameter, not its gradient",
    lambda p: p.kind == "touched" or p.facts.get("touched", False),
    "a parameter itself has changed. Gradients are averaged, p.grad; it is the optimizer that changes p.",
)
NOT_DIVIDED = Hint(
    "not divided",
    lambda p: _factor(p, lambda N: N),
    "all_reduce sums. The mean needs a division by the group's number of ranks, dist.get_world_size(group).",
)
DIVIDED_TWICE = Hint(
    "divided twice",
    lambda p: _factor(p, lambda N: 1 / N),
    "divide before the all-reduce or after it, not both. (The loss is the mean over the rank's own shard: leave it.)",
)
WORLD_SIZE = Hint(
    "the world's size, not the group's",
    lambda p: _factor(p, lambda N: N / WORLD),
    "in a smaller group it is the group's ranks that are summed: divide by dist.get_world_size(group).",
)
ANOTHER_DIVISOR = Hint(
    "another divisor",
    lambda p: value(p, lambda f: f["factor"]),
    "the sum is right, but divided by another number than N, the group's number of ranks.",
)
NOT_WRITTEN_BACK = Hint(
    "nothing written back",
    lambda p: value(p, lambda f: f["own"]),
    "the gradient has nothing of the other ranks in it: the sum went to a copy. What all_reduce was given must be, or "
    "be copied into, p.grad.",
)
RETURNED_NOTHING = Hint(
    "what all_reduce returns",
    lambda p: (
        value(p, lambda f: f["absent"] and f["rank"] not in f["unused"])
        or (p.kind == "raised" and "NoneType" in p.text and " all_reduce(" in p.text)
    ),
    "all_reduce(tensor, group) sums in place, and need not return anything: use the tensor that you gave it.",
)
NO_GRADIENT = Hint(
    "a parameter without gradient",
    lambda p: value(p, lambda f: f["absent"]) or (p.kind == "raised" and "NoneType" in p.text),
    "where this rank did not use a parameter, p.grad is None. It contributes zeros, and must hold the mean afterwards, "
    "or the ranks' models part: p.grad = torch.zeros_like(p).",
)
SKIPPED = Hint(
    "skipped on some ranks",
    lambda p: hung(p) or p.kind in ("mismatch", "died"),
    "all ranks must call all_reduce equally often, with equal sizes. A rank whose p.grad is None may not skip it: it "
    "contributes zeros, p.grad = torch.zeros_like(p).",
)
FROZEN = Hint(
    "frozen ones too",
    lambda p: p.kind == "frozen" or (p.kind == "elements" and p.facts["frozen"]),
    "a parameter with requires_grad False has no gradient: leave it alone, and do not send it.",
)
CALLS_LIB = Hint(
    "called lib's", lambda p: p.kind == "built-in", "build it from the all_reduce that the function is given."
)
ANOTHER_WAY = Hint(
    "not the all_reduce it was given",
    lambda p: p.kind == "another way",
    "whoever calls your function chooses the algorithm: call the argument `all_reduce`, not one that you imported.",
)
ONLY_SUMS = Hint(
    "an op for all_reduce",
    lambda p: p.kind == "raised" and failed(p) is not None and "argument 'op'" in p.text,
    "the all_reduce that you are given takes (tensor, group) and sums. Divide yourself.",
)
# First in the hints of every function that averages, in this order.
MISTAKES = (
    CALLS_LIB, WRONG_GROUP, THE_PARAMETER, ONLY_SUMS, NOT_DIVIDED, DIVIDED_TWICE, WORLD_SIZE, ANOTHER_DIVISOR,
)  # fmt: skip
