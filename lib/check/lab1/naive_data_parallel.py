"""Lab 1, section 3: broadcast_parameters(module, group) and average_gradients(parameters, group, all_reduce).

average_gradients gets `model.parameters()` as it is, a generator.
"""

import contextlib

import torch
import torch.distributed as dist

from lib import backend
from lib.check import symptoms as s
from lib.check.cases import called, groups_and_control, in_step
from lib.check.claims import claim, each, kept
from lib.check.comm import MAY_CALL, Clash, Recorder
from lib.check.exercise import Bundle, Exercise, Hint, Problem
from lib.check.lab1 import broadcast_parameters, means, models
from lib.check.lab1.means import ALONE, GROUPS, GROUPS_SAY, WORLD, Step, value
from lib.check.traffic import fitting, only_calls
from lib.data_parallel import naive

N_ALL = sum(p.numel() for p in models.Small().parameters())
N_TRAINED = sum(p.numel() for p in models.Small().parameters() if p.requires_grad)
IDLE = "rank 0 without gradients"
CASES = (
    *(Step(members, N_TRAINED) for members in GROUPS),
    Step(GROUPS[0], N_TRAINED, again=1),
    Step(GROUPS[1], N_TRAINED, what=IDLE),
    Step(ALONE, N_TRAINED),
)


def _parts(case):
    """What each rank contributes, [{name: gradient}]."""
    shards = [[models.shard(rank, case.again)] for rank in range(case.world_size)]
    parts = models.of_each_rank(shards, fine=models.FINE)
    if case.what == IDLE:
        parts[0] = {name: torch.zeros_like(g) for name, g in parts[0].items()}
    return parts


def _measure(fn):
    held = []

    def one(case, groups):
        group, control = groups
        rank, device = dist.get_rank(control), backend.device()
        recorder, model = Recorder(control, [case.members]), models.Small(0, models.FINE).to(device)
        if case.what != IDLE or rank:
            x, y, with_branch = models.shard(rank, case.again)
            models.loss_of(model, (x.to(device), y.to(device), with_branch)).backward()
        with torch.no_grad():
            for p in model.parameters():
                p += rank  # or nobody would see that the parameters are averaged instead
        before = means.state(model)

        def given(tensor, group=None):
            """Sums in place and returns nothing, as torch's does."""
            recorder.all_reduce(tensor, group)

        with contextlib.suppress(Clash):  # it is in the record
            called(case, fn, model.parameters(), group, given)
        recorder.end()
        got, record = models.gradients(model), recorder.record()
        problem = models.wrong_gradient(f"{case.name}: {case.rank(rank)}", rank, got, _parts(case))
        record |= {"problem": problem, "touched": not means.same(before, means.state(model))}
        if problem:
            problem.facts |= {"touched": record["touched"], "case": case, "silent": not record["calls"]}
        if record["calls"]:  # one by one in whatever order, or together: what counts is how much
            narrowest = min(record["calls"], key=lambda call: call.dtype.itemsize)
            record["calls"] = [narrowest._replace(elements=sum(call.elements for call in record["calls"]))]
        record["ok"] = problem is None and record["stray"] is None
        held.append((record, model, got))
        return record

    records = in_step(CASES, groups_and_control, one, dist.new_group())
    for record, model, got in held:
        now = models.gradients(model)
        record["kept"] = all(g is None or torch.equal(g, now[name]) for name, g in got.items())
    return records


def _untouched(case, rank, record):
    if not record["touched"]:
        return None
    return Problem("touched", f"{case.name}: {case.rank(rank)} changed a parameter, not only .grad")


def _after_one_sum(p):
    """Did None stop it when its first call had returned? On the wire that is two calls of the recorder's."""
    book = s.failed(p) and s.failed(p).book
    if not book or not s.refused("None")(p):
        return False
    return 0 < min(sum(e.op != "mark" for e in book.of(rank)) for rank in s.members(p)) <= 2


def _elements(p):
    return sum(elements for _, _, elements in p.facts["got"]) if p.kind == "calls" else 0


AVERAGE_GRADIENTS = Exercise(
    name="average_gradients",
    reference=naive.average_gradients,
    measure=_measure,
    worlds=(WORLD,),
    may_call=("naive_data_parallel.given", *MAY_CALL),
    leaves_out={
        "under way": "it returns when the mean is there: no two calls are under way",
        "returned": "it returns nothing: the caller's gradients hold the result",
        "memory": "the docstring leaves open how much it sends at once",
        "attributes": "a function has none",
    },
    claims=(
        claim("the mean in every .grad", 6, f"1 rank, {GROUPS_SAY}; tied, unused, frozen ones",
            fitting(CASES), means.as_found(CASES), kept(CASES)),
        claim("the all_reduce it was given", 3, "each trained parameter once, frozen ones never",
            only_calls(CASES, lambda case, rank: [("all_reduce", "", case.n)])),
        claim("parameters left alone", 1, "only .grad changes", each(CASES, _untouched)),
    ),
    hints=(
        Hint("called lib's", s.kind("built-in"), "build it from the all_reduce that the function is given."),
        s.NO_GROUP,
        Hint("the parameter, not its gradient", s.either(s.kind("touched"), s.fact("touched")),
            "a parameter itself has changed. Gradients are averaged, p.grad; it is the optimizer that changes p."),
        Hint("what all_reduce returns",
            s.either(_after_one_sum, lambda p: value("absent")(p) and p.facts["rank"] not in p.facts["unused"]),
            "all_reduce(tensor, group) sums in place, and need not return anything: use the tensor that you gave it."),
        Hint("a parameter without gradient", s.either(value("absent"), s.refused("None")),
            "where this rank did not use a parameter, p.grad is None. It contributes zeros, and must hold the mean "
            "afterwards, or the ranks' models part: p.grad = torch.zeros_like(p)."),
        Hint("an op for all_reduce", s.raised("TypeError"),
            "the all_reduce that you are given takes (tensor, group) and sums. Divide yourself."),
        s.NARROW,
        means.NOT_DIVIDED, means.DIVIDED_TWICE, means.WORLD_SIZE,
        Hint("another divisor", value("factor"),
            "the sum is right, but divided by another number than N, the group's number of ranks."),
        Hint("an iterator used up", value("own", "silent"),
            "all_reduce was never called. `parameters` may be a generator, as model.parameters() is, and can be gone "
            "through once: parameters = list(parameters)."),
        Hint("nothing written back", value("own"),
            "the gradient has nothing of the other ranks in it: the sum went to a copy. What all_reduce was given must "
            "be, or be copied into, p.grad."),
        Hint("skipped on some ranks", means.UNLIKE,
            "all ranks must call all_reduce equally often, with equal sizes. A rank whose p.grad is None may not skip "
            "it: it contributes zeros, p.grad = torch.zeros_like(p)."),
        Hint("frozen ones too", s.either(s.kind("frozen"), lambda p: _elements(p) == N_ALL),
            "a parameter with requires_grad False has no gradient: leave it alone, and do not send it."),
        s.NOT_KEPT,
        Hint("not the all_reduce it was given", s.kind("another way"),
            "whoever calls your function chooses the algorithm: call the argument `all_reduce`, not one that you "
            "imported."),
        Hint("sent more than once", lambda p: _elements(p) > N_TRAINED,
            "one all-reduce of each trained parameter's gradient is enough."),
        *s.ANYWHERE,
    ),
)  # fmt: skip
EXERCISE = Bundle("naive_data_parallel", (broadcast_parameters.EXERCISE, AVERAGE_GRADIENTS))
