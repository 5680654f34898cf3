"""Lab 1, section 3: broadcast_parameters(module, group), after which all ranks have rank 0's
model."""

import torch
from torch import nn

from lib import backend
from lib.check.cases import FINE, Setting, seen
from lib.check.causes import hints
from lib.check.comm import COLLECTIVES
from lib.check.exercise import Problem
from lib.check.lab1.means import A_MODEL, ALONE, GROUPS, GROUPS_SAY, TWO_CALLS, WORLD
from lib.check.lab1.models import Small
from lib.check.side_by_side import SideBySide
from lib.data_parallel import replicate

KINDS = PARAMETER, FROZEN, BUFFER, UNLISTED = (
    "a parameter", "a frozen parameter", "a buffer", "a hidden buffer",  # not in the state_dict
)  # fmt: skip
OTHERS = {"scale": FROZEN, "norm.cache": UNLISTED}
MODELS = 2


class _Model(Small):
    """The small model with a batch norm, so that there are buffers in a submodule. One of them has
    shape (), and one is not persistent."""

    def __init__(self, seed):
        super().__init__(seed, FINE[torch.float64])
        self.norm = nn.BatchNorm1d(3, affine=False).double()
        self.norm.register_buffer("cache", torch.zeros(3, dtype=torch.float64), persistent=False)
        for number, buffer in enumerate([self.seen, *self.norm.buffers()]):
            buffer.copy_(buffer + (1 + seed + number) * FINE[buffer.dtype])


def _tensors(model):
    """{name: tensor}; a tied parameter is listed only under its first name."""
    return dict([*model.named_parameters(), *model.named_buffers()])


def _kind(name, tensor):
    return OTHERS.get(name, PARAMETER if isinstance(tensor, nn.Parameter) else BUFFER)


SIZE = MODELS * sum(tensor.numel() for tensor in _tensors(_Model(0)).values())
CASES = tuple(Setting(members, SIZE) for members in (*GROUPS, ALONE))


def script(make, case, group, show):
    """The answer is called with two models, one after the other."""
    for number in range(MODELS):
        model = _Model(20 + 10 * number + show.place).to(backend.device())
        before = {n: (t, t.data_ptr(), t.requires_grad) for n, t in _tensors(model).items()}
        show.run(make, model, *([] if group is None else [group]))
        after = _tensors(model)
        for kind in KINDS:
            show(kind, {n: t for n, t in after.items() if _kind(n, t) == kind})
        moved = [
            n for n, (t, place, _) in before.items()
            if after.get(n) is not t or t.data_ptr() != place
        ]  # fmt: skip
        words = "there is another tensor in its place; expected the old one, written to"
        show("the same tensors", f"{moved[0]}: {words}" if moved else "")
        asks = [n for n, (t, _, learns) in before.items() if t.requires_grad != learns]
        show("requires_grad", f"{asks[0]}: its requires_grad has changed" if asks else "")


def elements(runs):
    """A judge: together the ranks send (N-1) n elements, by broadcasts or by messages."""
    for run, case, _ in seen(runs, CASES):
        N, section = case.world_size, run.ledger.section(case.name)
        logs = [section.of(member) for member in case.members]
        others = {e.op for log in logs for e in log if not e.is_message} - {"broadcast"}
        got = sum(e.numel for log in logs for e in log if e.op == "send")
        got += (N - 1) * sum(e.numel for e in logs[0] if e.op == "broadcast")
        want = (N - 1) * case.n
        if others or got != want:
            did = f"called {min(others)}" if others else f"sent {got} elements"
            text = (
                f"{case.name}: the ranks {did}, expected that the {case.n} elements of rank 0's "
                f"{MODELS} models reach each other rank once, (N-1)n = {want} elements"
            )
            return Problem("elements", text)
    return None


MEASURE = SideBySide(
    script, replicate.broadcast_parameters, CASES,
    excused=A_MODEL | TWO_CALLS,
)  # fmt: skip
EXERCISE = MEASURE.exercise(
    ("rank 0's model on every rank", 3, f"1 rank, {GROUPS_SAY}; tied, frozen, buffers",
     *KINDS),
    ("in place", 1, "the same tensors, their requires_grad unchanged",
     "the same tensors", "requires_grad"),
    ("elements on the wire", 2, "(N-1)n over all ranks", elements),
    hints=hints("lab1", "broadcast_parameters"), worlds=(WORLD,), may_call=COLLECTIVES,
    leaves_out={
        "under way": "a function that returns when it is done, and has no backward",
        "empty rank": "every rank holds the same model",
        "generators": "no argument is an iterator",
        "returned": "it returns nothing: the module holds the result",
        "given used": "no function is given to it",
        "memory": "one tensor after the other or all at once: the docstring leaves it open",
    },
)  # fmt: skip
