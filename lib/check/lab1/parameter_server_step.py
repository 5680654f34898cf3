"""Lab 1, section 10, bonus: parameter_server_step(parameters, optimizer, backward, group), in which
rank 0 holds the model.

The optimizer uses momentum. The ranks begin with different parameters. Only rank 0's count, and the
other ranks can get them only by the pull. There are two steps, or one on a single rank. The
gradients of the first are still in `.grad` when the second begins. Four ranks do a third step, in
which the last rank has no rows and therefore no gradient.
"""

from dataclasses import replace

import torch

from lib import backend
from lib.check import symptoms as s
from lib.check.cases import Setting
from lib.check.causes import hints
from lib.check.exercise import Problem
from lib.check.lab1 import models
from lib.check.lab1.means import A_MODEL, ALONE, GROUPS, GROUPS_SAY, WORLD
from lib.check.side_by_side import SideBySide
from lib.check.traffic import sent
from lib.data_parallel import parameter_server

STEPS = ("step 1", "step 2", "step 3, no rows on the last rank")
CASES = tuple(Setting(members) for members in (*GROUPS, ALONE))
PARTS = tuple(  # each has a section of its own in the ranks' logs
    replace(case, what=step)
    for case in CASES
    for step in STEPS[: {GROUPS[0]: 3, ALONE: 1}.get(case.members, 2)]
)
VALUES = ("calls of backward", "the parameters in backward", "the mean gradient", "the update")


def trained(model):
    return [(name, p) for name, p in model.named_parameters() if p.requires_grad]


def script(make, case, group, show):
    """Frozen parameters are the same on all ranks from the start, because no step sends them."""
    rank, given = show.place, [] if group is None else [group]
    model, own = models.Small(0, models.FINE), models.Small(rank, models.FINE)
    for (_, p), (_, mine) in zip(trained(model), trained(own), strict=True):
        p.data.copy_(mine)
    model.to(backend.device())
    optimizer = None
    if rank == 0:  # the steps are so small that the second gradient is no larger than the first
        optimizer = torch.optim.SGD([p for _, p in trained(model)], lr=2**-14, momentum=0.5)
    for number, part in enumerate((one for one in PARTS if one.members == case.members), 1):
        seen = []

        def backward(number=number, part=part, seen=seen):
            seen.append([(name, p.detach().clone()) for name, p in trained(model)])
            if part.what != STEPS[-1] or rank < case.world_size - 1:
                models.loss_of(model, models.shard(rank, number)).backward()

        counted = show.counted("backward", backward)
        with show.during(part.what, section=True) as run:
            run(make, list(model.parameters()), optimizer, counted, *given)
        show("the parameters in backward", seen[0] if seen else None)
        if rank == 0:
            show("the mean gradient", [(name, p.grad) for name, p in trained(model)])
            show("the update", trained(model))
        if show.wrong(*VALUES):
            return


N_TRAINED = sum(p.numel() for p in models.Small().parameters() if p.requires_grad)


def elements(runs):
    """A judge: rank 0 sends (N-1) n elements, and each other rank sends n elements to rank 0."""
    for run in runs:
        for case in PARTS:
            N, messages = case.world_size, sent(run, case)
            by_rank, others = [sum(n for _, n in mine) for mine in messages], messages[1:]
            want = [(N - 1) * N_TRAINED] + [N_TRAINED] * (N - 1)
            talk = any(to > 0 for mine in others for to, _ in mine)
            if by_rank != want or talk:
                text = f"{case.name}: the ranks sent {by_rank} elements; expected {want[0]} = "
                words = f"{text}(N-1)n by rank 0, and {N_TRAINED} by each other, to rank 0"
                return Problem("elements", words, {"case": case, "talk": by_rank == want})
    return None


MEASURE = SideBySide(
    script, parameter_server.parameter_server_step, CASES,
    excused={
        "arguments": "the parameters are changed in place",
        "alive at the end": "how the gradients are stored is free",
        "two at once": "a step is over when it returns",
        "once more": "steps follow each other, and nothing is returned",
    } | A_MODEL,
)  # fmt: skip
EXERCISE = MEASURE.exercise(
    ("one process's parameters", 3, f"on rank 0, after two steps; {GROUPS_SAY}", *VALUES),
    ("elements on the wire", 3, "(N-1)n out of rank 0, n to it out of each other", elements),
    hints=hints("lab1", "parameter_server_step"), worlds=(WORLD,), may_call=s.P2P, bonus=True,
    leaves_out={
        "under way": "a step is over when the function returns, its backward too",
        "generators": "the docstring gives it a list",
        "returned": "it returns nothing: parameters and `.grad` hold the result",
        "memory": "the docstring leaves open how much rank 0 receives at once",
    },
)  # fmt: skip
