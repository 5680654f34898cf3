"""Lab 4, section 14: Muon, a step in which each matrix is updated by the rank that owns it; and
`owners` (owners.py), which assigns matrices to ranks.

Muon is given the assignment. A rank may own no matrix, and may have no gradient for some matrices.
Newton-Schulz gives the same result for the sum of the gradients as for their mean, so both are
right.
"""

from torch import nn

from lib.check.cases import Setting, draw
from lib.check.causes import hints
from lib.check.comm import MAY_CALL, ROOTED
from lib.check.exercise import Bundle
from lib.check.lab4.owners import OWNERS
from lib.check.shown import calls
from lib.check.side_by_side import SideBySide
from lib.zero import muon

SHAPES = ((3, 4), (5, 2), (4, 4), (2, 3), (1, 6), (5, 2))
# the owners, modulo N. The last of 4 ranks owns none, and rank 0 owns two of the same shape
OWNED_BY = 2, 0, 2, 1, 0, 0
LR, MOMENTUM, DECAY, STEPS = 2.0**-6, 0.95, 0.125, 2
NO_GRADIENTS = "rank 0 without gradients"
CASES = tuple(
    Setting(members, what=what)
    for members, what in (
        ((0, 1, 2), ""), ((0, 1, 2, 3), ""), ((0, 1), ""), ((1, 3), ""), ((2,), ""),
        ((0, 1, 2), NO_GRADIENTS),
    )
)  # fmt: skip
ORDER = ("reduce", "update", "broadcast")


def _gradient(case, rank, step, i):
    """None where this rank does not use the matrix."""
    if rank == 0 and (case.what or (i, step) == (1, 0)):
        return None
    return draw(1000 * rank + 100 * step + i, *SHAPES[i])


def script(make, case, group, show):
    owner = [rank % case.world_size for rank in OWNED_BY]
    matrices = [nn.Parameter(draw(i, *shape, top=2)) for i, shape in enumerate(SHAPES)]
    ways = {"reduce": show.reduce, "broadcast": show.broadcast}
    answer = show.run(make, matrices, LR, MOMENTUM, DECAY, owner, group, **ways)
    updates = _noted_updates(answer, matrices, show)
    for step in range(STEPS):
        for i, p in enumerate(matrices):
            p.grad = _gradient(case, show.place, step, i)
        show.begin()
        updates.clear()
        with show.during(f"step {step + 1}") as run:
            run(answer.step)
        left_out = [i for i, o in enumerate(owner) if o == show.place and i not in updates]
        show("left out", f"the owner of matrices {left_out} has not updated them" * bool(left_out))
        for name, is_it in (("own", show.place.__eq__), ("another's", show.place.__ne__)):
            show(f"{name} matrix", {f"{i}": matrices[i] for i, o in enumerate(owner) if is_it(o)})
        if case.world_size > 1:  # a single rank may send to itself, or not at all
            show("the dtypes sent", ", ".join(sorted({str(c.dtype)[6:] for c in show.calls})))
            sent = [f"{c.op} of {c.elements} {ROOTED[c.op]} {c.counts[0]}" for c in show.calls]
            show("each once", "; ".join(sorted(sent)))
            show("together", _in_turn([call.op for call in show.calls], updates.values()))
        kept = [i for i, p in enumerate(matrices) if any(p is key for key in answer.momenta)]
        more = [i for i in kept if owner[i] != show.place]
        show("momentum", f"keeps momentum of matrices {more}, and does not own them" * bool(more))
        left = [i for i, p in enumerate(matrices) if p.grad is not None]
        show("gradients left", f".grad is still there of matrices {left}" * bool(left))
        yield
        if show.wrong("own matrix", "another's matrix"):
            return


def _noted_updates(answer, matrices, show):
    """{index of a matrix: how many collectives were called before its update}, filled while the
    answer runs."""
    found, update = {}, answer.update

    def noted(matrix, *args, **named):
        index = next((i for i, p in enumerate(matrices) if p is matrix), None)
        found[index] = len(show.calls)
        return update(matrix, *args, **named)

    answer.update = noted
    return found


def _in_turn(ops, updates):
    """A sentence that says why the owners cannot work at the same time; "" if they can."""
    for at in sorted(updates, reverse=True):
        ops.insert(at, "update")
    in_order = ops == sorted(ops, key=ORDER.index)
    return "" if in_order else f"{', '.join(ops)}: an owner waits for the update of another"


MEASURE = SideBySide(
    script, muon.Muon, CASES, writes=("step",),
    excused=dict.fromkeys(("strided", "float32", "bfloat16"), "it is given matrices and gradients")
    | {"once more": "nothing is returned"},
)  # fmt: skip
MUON = MEASURE.exercise(
    ("as one process, step by step", 3,
     "1 to 4 ranks, a subgroup; unused matrices, a rank that owns none",
     "left out", "own matrix", "another's matrix"),
    ("to the owner, and back", 2, "each matrix once each way, all reduces first",
     calls(MEASURE, nothing_else=False), "the dtypes sent", "each once", "together"),
    ("momentum on the owner alone", 1, "and every .grad is None afterwards"),
    hints=hints("lab4", "Muon"), worlds=(4,), bonus=True, may_call=MAY_CALL,
    leaves_out={
        "generators": "__init__ is given",
        "returned": "nothing is returned: the matrices hold the result",
        "attributes": "step() reads them, and makes none",
    },
)  # fmt: skip
EXERCISE = Bundle("muon", (OWNERS, MUON), bonus=True)
