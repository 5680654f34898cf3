"""Lab 1, section 13, bonus: outer_step(parameters, start, velocity, lr, momentum, group,
all_reduce), which ends a round of DiLoCo.

Each case has three rounds. In place of the inner steps, random numbers that differ from rank to
rank are added to the parameters before each outer step.
"""

import torch

from lib import backend
from lib.check.cases import Setting
from lib.check.causes import hints
from lib.check.comm import MAY_CALL
from lib.check.lab1.means import ALONE, GROUPS, GROUPS_SAY, WORLD
from lib.check.shown import calls
from lib.check.side_by_side import SideBySide
from lib.check.tensors import draw
from lib.data_parallel.diloco import outer_step

SHAPES = ((3, 4), (5,), (), (2, 1, 2))
ELEMENTS = sum(torch.Size(shape).numel() for shape in SHAPES)
ROUNDS = 3
MEAN, NESTEROV = "lr 1, no momentum", "lr 0.7, momentum 0.9"
HOW = {MEAN: (1.0, 0.0), NESTEROV: (0.7, 0.9)}
CASES = (
    *(Setting(members, what=MEAN) for members in (*GROUPS, ALONE)),
    *(Setting(members, what=NESTEROV) for members in (GROUPS[0], GROUPS[-1])),
)
PLAIN = [case for case in CASES if case.what == MEAN]
STATE = ("parameter", "start", "velocity", "memory")


def script(make, case, group, show):
    lr, momentum = HOW[case.what]
    start = [
        show.give(f"start {i}", draw(7 + i, *shape).to(backend.device()))
        for i, shape in enumerate(SHAPES)
    ]
    velocity = [torch.zeros_like(w) for w in start]
    parameters = [torch.nn.Parameter(w.clone()) for w in start]
    for number in range(1, ROUNDS + 1):
        with torch.no_grad():
            for i, p in enumerate(parameters):  # in place of this rank's inner steps
                p += draw(100 * show.place + 10 * number + i, *p.shape).to(p)
        # the answer gets an iterator and two copied lists, but the original tensors
        with show.during(f"round {number}") as run:
            lists = iter(parameters), [*start], [*velocity]
            run(make, *lists, lr, momentum, group, show.all_reduce)
        for name, tensors in zip(STATE, (parameters, start, velocity), strict=False):
            show(name, [(str(i), tensor) for i, tensor in enumerate(tensors)])
        pairs = enumerate(zip(parameters, start, strict=False))
        one = [i for i, (p, w) in pairs if torch.is_tensor(w) and p.data_ptr() == w.data_ptr()]
        show("memory", f"parameter {one[0]} and start {one[0]} are one tensor" if one else "")
        show("elements sent", sum(call.elements for call in show.all_calls))
        yield


MEASURE = SideBySide(
    script, outer_step, CASES, excused={"bfloat16": "the mean of so few bits depends on the order"}
)
EXERCISE = MEASURE.exercise(
    ("the mean of all ranks", 3, f"1 rank, {GROUPS_SAY}; lr 1, no momentum",
     (STATE, PLAIN)),
    ("Nesterov's momentum", 3, "lr 0.7, momentum 0.9; three rounds", *STATE),
    ("one all-reduce of each parameter", 2,
     f"{ELEMENTS} elements a round, by the all_reduce it was given",
     calls(MEASURE), "elements sent"),
    hints=hints("lab1", "given", "outer_step"), bonus=True, worlds=(WORLD,), may_call=MAY_CALL,
    leaves_out={
        "empty rank": "every rank has all parameters",
        "returned": "it returns nothing: the caller's tensors hold the result",
        "memory": "a difference for each parameter, which the docstring leaves open",
    },
)  # fmt: skip
