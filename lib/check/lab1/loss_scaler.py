"""Lab 1, section 11, bonus: LossScaler(scale, growth, backoff, growth_interval), scale_loss(loss),
step(optimizer, ...).

    no overflow   S stays as it is                       are gradients unscaled, and only once?
    overflows     on all ranks, then on one              does every rank skip the step?
    scale         growth_interval 2, S grows and falls   does S go down and up when it should?

S itself is judged only in the third kind of case. What the first two show does not depend on S,
except for one fp16 loss, which a second scaler scales by its default scale.
"""

import math
from typing import NamedTuple

import torch

from lib import backend
from lib.check.cases import Setting, form_of
from lib.check.causes import hints
from lib.check.claims import is_number
from lib.check.comm import MAY_CALL
from lib.check.explain import cut
from lib.check.lab1.means import ALONE, GROUPS, GROUPS_SAY, WORLD
from lib.check.shown import calls
from lib.check.side_by_side import SideBySide
from lib.training.precision import loss_scaler

GOOD, OVERFLOWS, SCALE = "no overflow", "overflows", "scale"
INF, NAN, FINITE = float("inf"), float("nan"), 3e38  # the sum of two FINITE is inf in fp32
ALL, FIRST, LAST = "all ranks", "rank 0", "the last rank"
S, GROWTH, BACKOFF = 8.0, 4.0, 2.0**-4  # with these, S also falls below 1


class Overflow(NamedTuple):
    """A value that is written into one element of one gradient, on all ranks or on one.

    FINITE, in contrast, is written into two elements of each of two gradients. It is no overflow,
    but an answer that adds elements up, within a gradient or across gradients, gets inf.
    """

    value: float
    who: str = ALL
    parameter: int = 0  # 0, 1 or 2; the last is in another parameter group

    def on(self, rank, world_size):
        return {ALL: True, FIRST: rank == 0, LAST: rank == world_size - 1}[self.who]

    def __str__(self):
        if self.value == FINITE:
            return f"no overflow, but {FINITE:g} in two elements of each of two gradients"
        return f"{self.value} in the gradient of parameter {self.parameter} on {self.who}"


STEPS = {  # None: a step without an overflow
    GOOD: (None, None),
    OVERFLOWS: (
        None, Overflow(INF), Overflow(NAN), Overflow(-INF), Overflow(INF, ALL, 2), None,
        Overflow(INF, LAST, 1), Overflow(NAN, FIRST, 2), None, Overflow(FINITE),
    ),
    SCALE: (None, None, None, None, None, Overflow(INF), None, None, Overflow(INF, LAST),
            Overflow(NAN), None, None),
}  # fmt: skip
CASES = (
    Setting(GROUPS[0], what=GOOD),
    *(Setting(members, what=OVERFLOWS) for members in (*GROUPS, ALONE)),
    Setting(GROUPS[0], what=SCALE),
)
BUILT = (loss_scaler.__name__, "torch.amp.grad_scaler", "torch.cuda.amp.grad_scaler")
IN_FP16 = "0.25 in fp16, scaled by the default"
SCALED, GRADIENT = "the scaled loss, over S", "the scaled gradient, over S"
NAMES = (
    "whose scaler", "attributes", IN_FP16, SCALED, "graph", GRADIENT, "the ranks together",
    "the step", "what the optimizer gets:", "what the step leaves:", "S", "the count",
)  # fmt: skip


class Noting(torch.optim.SGD):
    """SGD with momentum on two parameter groups. asked: the gradients at each call of step() so
    far."""

    def __init__(self, parameters):
        super().__init__(
            [{"params": parameters[:2]}, {"params": parameters[2:]}], lr=0.25, momentum=0.5
        )
        self.parameters, self.asked = parameters, []

    @torch.optim.Optimizer.profile_hook_step
    def step(self):
        self.asked.append([None if p.grad is None else p.grad.clone() for p in self.parameters])
        super().step()

    # Without this hook and attribute, torch would add them when the first optimizer is created, and
    # would thereby change a class of lib.
    step.hooked = True

    def everything(self):
        """[(name, parameter or momentum)]"""
        found = [(f"parameter {i}", p) for i, p in enumerate(self.parameters)]
        for i, p in enumerate(self.parameters):
            found += [(f"{name} {i}", one) for name, one in self.state.get(p, {}).items()]
        return found


def gradients_of(rank, number):
    """Gradients (3,), (2, 2) and (1,) that differ from rank to rank. All elements are powers of
    two, so scaling by a power of two does not round them."""
    counted = (torch.arange(math.prod(one)).reshape(one) for one in ((3,), (2, 2), (1,)))
    return [2.0 ** (n % 3 + rank - number % 2).to(backend.device()) for n in counted]


def script(make, case, group, show):
    with show.during("__init__") as run:
        scaler = run(make, S, GROWTH, BACKOFF, 2 if case.what == SCALE else 1000)
    theirs = show.lib and any(kind.__module__ in BUILT for kind in type(scaler).__mro__)
    show("whose scaler", "the answer makes a scaler of lib's or of torch's" if theirs else "")
    lacks = [name for name in ("scale_loss", "step") if not hasattr(scaler, name)]
    lacks += ["number in its attribute `scale`"] * (scale_of(scaler) is None)
    show("attributes", f"the scaler has no {lacks[0]}" if lacks else "")
    if show.wrong("whose scaler", "attributes"):
        return
    if case.what == GOOD:
        with show.during("scale_loss()") as run:
            scaled = run(make().scale_loss, torch.tensor(0.25, dtype=torch.float16))
        show(IN_FP16, scaled.item() if torch.is_tensor(scaled) else form_of(scaled))
    sizes = [(3,), (2, 2), (1,), (2,)]  # the last is never used, so its .grad stays None
    optimizer = Noting([torch.ones(n, device=backend.device()).requires_grad_() for n in sizes])
    for number, overflow in enumerate(STEPS[case.what]):
        step(scaler, optimizer, case, group, show, number, overflow)
        if show.wrong(*NAMES):
            return
        yield


def step(scaler, optimizer, case, group, show, number, overflow):
    show.begin(f"step {number + 1}")
    there = {"beside": f"In this step there is {overflow or 'no overflow'}."}
    parameters, asked = optimizer.parameters, len(optimizer.asked)
    optimizer.zero_grad()
    gradients = gradients_of(show.place, number)
    loss = sum((p * g).sum() for p, g in zip(parameters, gradients, strict=False))
    used = scale_of(scaler)
    with show.during(f"step {number + 1}, scale_loss()") as run:
        scaled = run(scaler.scale_loss, loss)
    is_one = used and torch.is_tensor(scaled) and scaled.numel() == 1
    show(SCALED, scaled.item() / used if is_one else form_of(scaled), tolerance=1e-6)
    if show.wrong(SCALED, "graph"):
        return
    scaled.backward()
    found = [p.grad for p in parameters[:3]]  # the fourth is never used
    show(GRADIENT, [(f"{i}", None if g is None else g / used) for i, g in enumerate(found)])
    if show.wrong(GRADIENT):
        return
    # the loss itself stays finite, as it does when the gradients overflow in fp16
    if overflow and overflow.on(show.place, case.world_size):
        finite = overflow.value == FINITE
        for gradient in found[:2] if finite else [found[overflow.parameter]]:
            gradient.view(-1)[-2 if finite else -1 :] = overflow.value

    def given(tensor, group=None):
        return show.all_reduce(tensor, group)

    with show.during(f"step {number + 1}, step()") as run:
        returned = run(scaler.step, optimizer, group, given)
    done = optimizer.asked[asked:]
    together = [show.agreed(bool(done)), show.agreed(not done)]
    apart = "" if any(together) else "some ranks called optimizer.step(), and others did not"
    show("the ranks together", apart, **there)
    show("the step", f"{len(done)} optimizer.step(), returns {cut(returned, 40)}", **there)
    of = [(f"the gradient of parameter {i}", g) for i, g in enumerate(done[0][:3] if done else ())]
    show("what the optimizer gets:", of, **there)
    show("what the step leaves:", optimizer.everything(), **there)
    if case.what == SCALE:
        show("on the wire", ", ".join(f"{one.op} of {one.elements}" for one in show.calls))
        show("S", now := scale_of(scaler), **there)
        count = 0 if now == used else getattr(scaler, "good_steps", 0)
        show("the count", f"good_steps is {count} after S has changed, expected 0" if count else "")


def scale_of(scaler):
    scale = getattr(scaler, "scale", None)
    scale = scale.item() if torch.is_tensor(scale) and scale.numel() == 1 else scale
    return float(scale) if is_number(scale) else None


MEASURE = SideBySide(
    script, loss_scaler.LossScaler, CASES, BUILT,
    excused=dict.fromkeys(("strided", "float32", "bfloat16"), "a gradient is fp32"),
)  # fmt: skip
OF_GOOD, OF_OVERFLOWS = (
    (NAMES, [case for case in MEASURE.runs() if case.what.startswith(what)])
    for what in (GOOD, OVERFLOWS)
)
EXERCISE = MEASURE.exercise(
    ("scaled, and unscaled once", 3, "the optimizer gets the loss's own gradients", OF_GOOD),
    ("an overflow skips the step", 5, f"inf, nan; on every rank; {GROUPS_SAY}", OF_OVERFLOWS),
    ("the scale goes down and up", 4,
     "backoff on overflow, growth after growth_interval steps", *NAMES),
    ("one number on the wire", 2, "one all-reduce of one element a step",
     calls(MEASURE, nothing_else=False), "on the wire"),
    hints=hints("lab1", "given", "LossScaler"), worlds=(WORLD,), bonus=True,
    may_call=(*MAY_CALL, "loss_scaler.given"),
    leaves_out={
        "precise": "powers of two, which no type rounds, and a flag on the wire",
        "empty rank": "after average_gradients all ranks have the same gradients; one that is None "
                      "everywhere is there",
        "generators": "no argument is an iterator",
        "memory": "it keeps a few numbers",
    },
)  # fmt: skip
