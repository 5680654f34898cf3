"""Lab 4, section 2: Zero1(parameters, make_optimizer, group, reduce_scatter, all_gather), a rank's
shard of the update."""

import torch

from lib.check import symptoms as s
from lib.check.causes import hints, of_name
from lib.check.comm import MAY_CALL
from lib.check.exercise import Exercise
from lib.check.lab4.zero_models import EXCUSED, SEVERAL, STEPS, Made, Setup, slack
from lib.check.shown import calls, claims
from lib.check.side_by_side import SideBySide
from lib.zero import zero1, zero2

WORLD = 4
SECOND = Setup("SGD", 72)  # the second of two models
SETUPS = {
    setup.case(members): setup
    for members, setup in (
        ((0, 1, 2), Setup("SGD", 72)), ((0, 1, 2), Setup("SGD")), ((0, 1, 2, 3), Setup("AdamW")),
        ((1, 3), Setup("AdamW")), ((2,), Setup("AdamW")), ((0, 1, 2), Setup("SGD", idle=1)),
        ((0, 1, 2), Setup("SGD", models=2)), ((0, 1, 2), Setup("AdamW", microbatches=2)),
    )
}  # fmt: skip
CASES = tuple(SETUPS)
ONE_BATCH = [case for case in CASES if SEVERAL not in case.what]
# whose two halves of average_gradients() are called by themselves, as Zero2 does
TAKEN_APART = CASES[1]
SHARDS = (
    "elements given to make_optimizer", "elements of state", "calls of make_optimizer",
    "self.optimizer",
)  # fmt: skip


def script(make, case, group, show):
    """One or two models, each with a Zero1 of its own; two steps."""
    setup, jobs = SETUPS[case], []
    for one in [setup, SECOND][: setup.models]:
        model, made = one.model(), Made(one.optimizer)
        ways = {"reduce_scatter": show.reduce_scatter, "all_gather": show.all_gather}
        with show.during("__init__", section=True) as run:
            zero = run(make, model.parameters(), made, group, **ways)
        show("parameters", model.named_parameters())
        jobs.append((one, model, made, zero))
    yield
    if show.wrong("parameters"):
        return
    for step in range(1, STEPS + 1):
        show.begin(f"step {step}")
        for one, model, _, _ in jobs:
            for batch in filter(None, one.batches(show.place, step - 1)):
                one.loss(model, batch).backward()
        for _, model, made, zero in jobs:
            with show.during(f"step {step}, average_gradients()") as run:
                run(zero.average_gradients)
            shards, named = made.shards, model.named_parameters()
            left = [n for n, p in named if p.grad is not None and all(p is not s for s in shards)]
            show("gradients left", f".grad is still there of {', '.join(left)}" if left else "")
            found = [shard.grad for shard in shards if shard.grad is not None]
            show("the norm of the mean gradient", show.length(found))
        for _, model, made, zero in jobs:
            with show.during(f"step {step}, step()") as run:
                run(zero.step)
            show("parameters", model.named_parameters())
            kept = [shard.grad for shard in made.shards if shard.grad is not None]
            show("the norm after step()", show.length(kept))
            shown_of_optimizer(made, zero, show)
            for tensor in [*model.parameters(), *made.shards]:
                tensor.grad = None
        yield
        if show.wrong("parameters"):
            return
    if case == TAKEN_APART:
        halves(model, zero, show)


def shown_of_optimizer(made, zero, show):
    show("elements given to make_optimizer", sum(map(torch.numel, made.shards)))
    show("elements of state", made.state)
    show("calls of make_optimizer", made.count)
    kept = getattr(zero, "optimizer", None) is made.optimizer
    lost = "self.optimizer is not what make_optimizer returned; later cells read it"
    show("self.optimizer", "" if kept else lost)


def halves(model, zero, show):
    """flatten_gradients() and add_gradient(), called by themselves."""
    flat, trained = getattr(zero, "flats", [zero])[0], []  # lib's has flats
    for parameter in model.parameters():
        if parameter.requires_grad:
            trained.append(parameter)
            parameter.grad = torch.ones_like(parameter)
    with show.during("flatten_gradients()") as run:
        show("the buffer", run(getattr(flat, "flatten_gradients", lambda: "no such method")))
    left = any(p.grad is not None for p in trained)
    show("gradients left", "flatten_gradients() leaves a .grad that is not None" if left else "")
    for _ in range(2):
        with show.during("add_gradient(ones)") as run:
            run(flat.add_gradient, torch.ones_like(flat.shard))
        show("the shard's gradient", flat.shard.grad)


def _in_the_padding(p):
    """Is only the last element of the buffer wrong?"""
    values = p.fact("values") if p.fact("name") == "the buffer" else None
    return bool(values) and torch.equal(values[0][:-1], values[1][:-1])


MEASURE = SideBySide(
    script, zero1.Zero1, CASES, (zero1.__name__, zero2.__name__), excused=EXCUSED,
    slack={"alive": slack},
)  # fmt: skip
EXERCISE = Exercise(
    name="Zero1", reference=zero1.Zero1, worlds=(WORLD,), measure=MEASURE,
    # A flat of lib's may be part of an answer.
    may_call=(
        *MAY_CALL, "zero1.all_gather", "flat.__init__", "zero1.reduce_gradients",
        "zero1.gather_parameters", "flat.gather",
    ),
    leaves_out={"returned": "nothing is returned: the model and the shard hold the result"},
    claims=claims(
        MEASURE,
        ("as one process, step by step", 7,
         "1 to 4 ranks, a subgroup; SGD, AdamW; tied, frozen, unused", ("parameters", ONE_BATCH)),
        ("micro-batches add up", 2, "two of them, then one step", "parameters"),
        ("1/N of the optimizer's state", 8, "padded/N elements, and AdamW's two moments of them",
         *SHARDS, "alive by 1", "alive by 2"),
        ("the mean in the shard", 3, "in its .grad; the parameters' gradients are gone",
         "gradients left", "the norm of the mean gradient", "the norm after step()"),
        ("one message each way", 4, "padded elements each, by those it was given", calls(MEASURE)),
    ),
    hints=hints(
        "lab4", "Zero1",
        ranks_of_the_world__not_of_the_group=s.both(s.kind("raised"), s.mixed_up_ranks),
        padding_with_values=_in_the_padding,
        a_rank_without_gradients=s.both(
            of_name("parameters"), s.in_case(CASES, lambda case: "without" in case.what, "value")
        ),
    ),
)  # fmt: skip
