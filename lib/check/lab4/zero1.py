"""Lab 4, section 2: Zero1(parameters, make_optimizer, group, reduce_scatter, all_gather), with
which each rank updates only its shard. One or two models are trained, each with its own Zero1."""

import torch

from lib.check.causes import hints
from lib.check.comm import MAY_CALL
from lib.check.lab4 import zero_models as models
from lib.check.lab4.zero_models import Setup
from lib.check.shown import calls
from lib.check.side_by_side import SideBySide
from lib.zero import zero1, zero2

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
ONE_BATCH = [case for case in CASES if models.SEVERAL not in case.what]
# here the two halves of average_gradients() are also called separately, as in Zero2
TAKEN_APART = CASES[1]
SHARDS = (
    "elements given to make_optimizer", "elements of state", "calls of make_optimizer",
    "self.optimizer",
)  # fmt: skip


def script(make, case, group, show):
    setup = SETUPS[case]
    jobs = [
        (one, *models.wrapped(make, one, group, show)) for one in [setup, SECOND][: setup.models]
    ]
    yield
    if show.wrong("parameters"):
        return
    for step in range(1, models.STEPS + 1):
        show.begin(f"step {step}")
        for one, model, *_ in jobs:
            for batch in filter(None, one.batches(show.place, step - 1)):
                one.loss(model, batch).backward()
        for _, model, made, zero in jobs:
            with show.during(f"step {step}, average_gradients()") as run:
                run(zero.average_gradients)
            models.show_gradients(show, model, made)
        for _, model, made, zero in jobs:
            with show.during(f"step {step}, step()") as run:
                run(zero.step)
            show("parameters", model.named_parameters(), beside=made.told())
            show("the norm after step()", show.length(made.gradients))
            show("elements given to make_optimizer", sum(map(torch.numel, made.shards)))
            show("elements of state", made.state)
            show("calls of make_optimizer", made.count)
            kept = getattr(zero, "optimizer", None) is made.optimizer
            lost = "self.optimizer is not what make_optimizer returned; later cells read it"
            show("self.optimizer", "" if kept else lost)
            for tensor in [*model.parameters(), *made.shards]:
                tensor.grad = None
        yield
        if show.wrong("parameters"):
            return
    if case == TAKEN_APART:
        halves(model, zero, show)


def halves(model, zero, show):
    """Call flatten_gradients() and add_gradient(), the two halves of average_gradients()."""
    flat = getattr(zero, "flats", [zero])[0]  # in lib's Zero1, the flat has these methods
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.grad = torch.ones_like(parameter)
    with show.during("flatten_gradients()") as run:
        show("the buffer", run(getattr(flat, "flatten_gradients", lambda: "no such method")))
    left = any(p.grad is not None for p in trained)
    show("gradients left", "flatten_gradients() leaves a .grad that is not None" if left else "")
    for _ in range(2):
        with show.during("add_gradient(ones)") as run:
            run(flat.add_gradient, torch.ones_like(flat.shard))
        show("the shard's gradient", flat.shard.grad)


MEASURE = SideBySide(
    script, zero1.Zero1, CASES, (zero1.__name__, zero2.__name__), excused=models.EXCUSED,
    slack={"alive": models.slack},
)  # fmt: skip
EXERCISE = MEASURE.exercise(
    ("as one process, step by step", 7,
     "1 to 4 ranks, a subgroup; SGD, AdamW; tied, frozen, unused", ("parameters", ONE_BATCH)),
    ("micro-batches add up", 2, "two of them, then one step", "parameters"),
    ("1/N of the optimizer's state", 8, "padded/N elements, and AdamW's two moments of them",
     *SHARDS, "alive by 1", "alive by 2"),
    ("the mean in the shard", 3, "in its .grad; the parameters' gradients are gone",
     "gradients left", "the norm of the mean gradient", "the norm after step()"),
    ("one message each way", 4, "padded elements each, by those it was given", calls(MEASURE)),
    hints=hints("lab4", "Zero1"), worlds=(models.WORLD,),
    # an answer may use lib's Flat
    may_call=(*MAY_CALL, *models.MAY_CALL, "zero1.all_gather"),
    leaves_out={"returned": "nothing is returned: the model and the shard hold the result"},
)  # fmt: skip
