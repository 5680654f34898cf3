"""Lab 1, section 3: broadcast_parameters(module, group), after which all ranks hold
rank 0's model."""

import torch
from torch import nn

from lib import backend
from lib.check import symptoms as s
from lib.check.cases import FINE, Setting, seen
from lib.check.causes import hints
from lib.check.comm import COLLECTIVES
from lib.check.exercise import Exercise, Problem
from lib.check.lab1.means import A_MODEL, ALONE, GROUPS, GROUPS_SAY, TWO_CALLS, WORLD
from lib.check.lab1.models import Small
from lib.check.shown import claims
from lib.check.side_by_side import SideBySide
from lib.data_parallel import replicate

FROZEN, UNLISTED = "a frozen parameter", "a hidden buffer"  # which no state_dict lists
OTHERS = {"scale": FROZEN, "norm.cache": UNLISTED}
MODELS = 2


class _Model(Small):
    """With a norm, whose buffers are in a module of its own: one is (), one is not persistent."""

    def __init__(self, seed):
        super().__init__(seed, FINE[torch.float64])
        self.norm = nn.BatchNorm1d(3, affine=False).double()
        self.norm.register_buffer("cache", torch.zeros(3, dtype=torch.float64), persistent=False)
        for number, buffer in enumerate([self.seen, *self.norm.buffers()]):
            buffer.copy_(buffer + (1 + seed + number) * FINE[buffer.dtype])


def _tensors(model):
    """{what it is: {name: tensor}}; a tied one has its first name."""
    found = {}
    for what, named in (
        ("a parameter", model.named_parameters()), ("a buffer", model.named_buffers()),
    ):  # fmt: skip
        for name, tensor in named:
            found.setdefault(OTHERS.get(name, what), {})[name] = tensor
    return found


def _flat(model):
    return {name: tensor for named in _tensors(model).values() for name, tensor in named.items()}


SIZE = MODELS * sum(tensor.numel() for tensor in _flat(_Model(0)).values())
TIED = MODELS * Small().shared.weight.numel()
CASES = tuple(Setting(members, SIZE) for members in (*GROUPS, ALONE))


def script(make, case, group, show):
    """Two models, one after the other."""
    for number in range(MODELS):
        model = _Model(20 + 10 * number + show.place).to(backend.device())
        before = {n: (t, t.data_ptr(), t.requires_grad) for n, t in _flat(model).items()}
        show.run(make, model, *([] if group is None else [group]))
        for what, named in _tensors(model).items():
            show(what, named)
        after = _flat(model)
        moved = [
            n for n, (t, place, _) in before.items()
            if after.get(n) is not t or t.data_ptr() != place
        ]  # fmt: skip
        words = "there is another tensor in its place; expected the old one, written to"
        show("the same tensors", f"{moved[0]}: {words}" if moved else "")
        asks = [n for n, (t, _, learns) in before.items() if t.requires_grad != learns]
        show("requires_grad", f"{asks[0]}: its requires_grad has changed" if asks else "")


def elements(runs):
    """A judge: (N-1) n together, by broadcasts or by messages."""
    for run, case, _ in seen(runs, CASES):
        N, section = case.world_size, run.ledger.section(case.name)
        books = [section.of(member) for member in case.members]
        for rank, entries in enumerate(books):
            other = [e.op for e in entries if not e.is_message and e.op != "broadcast"]
            if other:
                words = "expected that rank 0's tensors are sent, and nobody else's"
                text = f"{case.name}: {case.rank(rank)} called {other[0]}, {words}"
                return Problem("elements", text, {"everyone": True})
        got = sum(e.numel for entries in books for e in entries if e.op == "send")
        got += (N - 1) * sum(e.numel for e in books[0] if e.op == "broadcast")
        want = (N - 1) * case.n
        if got != want:
            text = (
                f"{case.name}: {got} elements were sent, expected (N-1)n = {want}: the {case.n} of "
                f"{MODELS} models to each rank but 0"
            )
            facts = {"tied": got == want + (N - 1) * TIED, "everyone": got >= 2 * want}
            return Problem("elements", text, facts)
    return None


MEASURE = SideBySide(
    script, replicate.broadcast_parameters, CASES,
    excused=A_MODEL | TWO_CALLS,
)  # fmt: skip
EXERCISE = Exercise(
    name="broadcast_parameters", reference=replicate.broadcast_parameters, measure=MEASURE,
    worlds=(WORLD,),
    may_call=COLLECTIVES,
    leaves_out={
        "under way": "a function that returns when it is done, and has no backward",
        "empty rank": "every rank holds the same model",
        "generators": "no argument is an iterator",
        "returned": "it returns nothing: the module holds the result",
        "given used": "no function is given to it",
        "memory": "one tensor after the other or all at once: the docstring leaves it open",
    },
    claims=claims(
        MEASURE,
        ("rank 0's model on every rank", 3, f"1 rank, {GROUPS_SAY}; tied, frozen, buffers",
         "a parameter", FROZEN, "a buffer", UNLISTED),
        ("in place", 1, "the same tensors, their requires_grad unchanged",
         "the same tensors", "requires_grad"),
        ("elements on the wire", 2, "(N-1)n over all ranks", elements),
    ),
    hints=hints(
        "lab1", "broadcast_parameters",
        a_root_of_the_world=s.either(
            s.refused("outside the group"), s.both(s.kind("value"), s.mixed_up_ranks)
        ),
        nothing_is_delivered=s.both(s.kind("value"), s.fact("right_on", [0])),
    ),
)  # fmt: skip
