"""Lab 4, section 4: a Unit by itself, method by method, and under lib's FSDP.

    flat 0    w (2, 3), b (3), s ()    n = 10
    flat 1    f (5)                    frozen
    flat 2    u (3)
    turn 1    rank 0 uses only w and b; in the other turns it uses no parameter
    turn 2    the unit is unsharded twice, and the shards change in between
    turn 3    the unit is resharded before its gradients are reduced, as FSDP does

The script reads a parameter or a shard only if all of its elements have memory, because reading
freed memory would crash the process.
"""

from functools import partial
from types import SimpleNamespace

import torch
from torch import nn

from lib import backend, zero
from lib.check.cases import draw
from lib.check.causes import hints
from lib.check.lab4.fsdp_models import ADAMW, Training
from lib.check.lab4.fsdp_training import EXCUSED, MAY_CALL, trained
from lib.check.shown import calls
from lib.check.side_by_side import SideBySide

SHAPES = [{"w": (2, 3), "b": (3,), "s": ()}, {"f": (5,)}, {"u": (3,)}]
ALONE = "by itself"
WHOLE, REDUCED, SHARDED = "unsharded", "reduced", "sharded"
METHODS = {"unshard": WHOLE, "reduce_gradients": REDUCED, "reshard": SHARDED}
TURNS = {
    1: tuple(METHODS), 2: ("unshard", *METHODS), 3: ("unshard", "reshard", "reduce_gradients"),
}  # fmt: skip
CASES = (
    *(Training(members, what=ALONE) for members in ((0, 1), (0, 1, 2), (1, 3), (2,))),
    Training((0, 1, 2, 3), what=ADAMW),
)
LOOKS = (
    "flat.full", "memory", "parameter", "views", "is_unsharded", "shard", ".grad", "full .grad",
)  # fmt: skip


def _of(state, *looks):
    return [f"{state}: {look}" for look in looks or LOOKS]


LOST = _of(SHARDED, "flat.full", "shard")  # if these are wrong, unshard cannot work


def script(make, case, group, show):
    if case.what == ALONE:
        return by_itself(make, case, group, show)
    return trained(type("FSDP", (zero.FSDP,), {"unit_type": make}), case, group, show)


def by_itself(make, case, group, show):
    """Run all turns. The usual one is: new shards, unshard, backward, reduce_gradients, reshard."""
    ones = partial(torch.ones, dtype=torch.float64, device=backend.device())
    flats = [
        zero.Flat([nn.Parameter(ones(shape), i != 1) for shape in of.values()], group)
        for i, of in enumerate(SHAPES)
    ]
    wholes = [flat.full for flat in flats]
    show.gates = SimpleNamespace(hold=lambda call: _has_enough(wholes))
    look = partial(_look, show, flats, wholes)
    with show.during("Unit(...), which reshards") as run:
        unit = run(make, flats, show.all_gather, show.reduce_scatter)
    look(SHARDED, unit)
    for turn, methods in TURNS.items():
        for number, method in enumerate(methods):
            if show.wrong(*LOST, *_of(WHOLE), *_of(REDUCED)):
                return
            if method == "unshard":  # the shards get new values, as after a step
                for i, flat in enumerate(flats):
                    line = draw(10 * (turn + number) + i, flat.padded)
                    flat.shard.detach().copy_(line.chunk(flat.world_size)[show.place])
            if number and methods[number - 1] == "unshard" != method:
                _backward(flats, show.place, turn)
            show.begin()
            with show.during(f"turn {turn}, {method}()") as run:
                run(getattr(unit, method))
            look(METHODS[method], unit)
            sent = [f"{c.op} of {c.elements} {str(c.dtype)[6:]}" for c in show.calls]
            show("calls", ", ".join(sorted(sent)) or "none")
        yield


def _has_enough(wholes):
    """Called before each collective. Raises MemoryError if a flat.full has too little memory, but
    not if it has none."""
    for whole in wholes:
        got = whole.untyped_storage().nbytes()
        if got and not _has_memory(whole):
            text = f"flat.full has memory of {got} bytes; its {whole.numel()} elements need"
            raise MemoryError(f"{text} {whole.nbytes}")


def _backward(flats, rank, turn):
    """Give a gradient to every parameter that this rank uses."""
    for i, (flat, names) in enumerate(zip(flats, SHAPES, strict=True)):
        for name, p in zip(names, flat.parameters, strict=True):
            if flat.requires_grad and (rank or (turn == 1 and name in "wb")):
                p.grad = draw(100 * rank + 10 * turn + i, *p.shape)


def _look(show, flats, wholes, state, unit):
    """Show everything in LOOKS, for the claim on this state."""
    found = {look: {} for look in LOOKS}
    is_same = all(flat.full is whole for flat, whole in zip(flats, wholes, strict=True))
    found["flat.full"] = "" if is_same else "flat.full is another tensor"
    found["is_unsharded"] = f"{getattr(unit, 'is_unsharded', 'not there')}"
    for i, (flat, whole) in enumerate(zip(flats, wholes, strict=True)):
        storage = whole.untyped_storage()
        found["memory"][f"of flat {i}"] = storage.nbytes()
        found["shard"][f"of flat {i}"] = _readable(flat.shard)
        found[".grad"][f"of shard {i}"] = flat.shard.grad
        for name, p in zip(SHAPES[i], flat.parameters, strict=True):
            # another tensor may be uninitialised, and its values then differ from run to run
            found["parameter"][name] = _readable(p) if is_same else None
            is_view = p.untyped_storage().data_ptr() == storage.data_ptr()
            found["views"][name] = "" if is_view or not p.numel() else f"{name} is no view"
            found["full .grad"][name] = f"{name} has a full .grad" * (p.grad is not None)
    for look, value in found.items():
        show(f"{state}: {look}", value)


def _readable(tensor):
    return tensor if _has_memory(tensor) else "no memory"


def _has_memory(tensor):
    """Is there memory for all of its elements?"""
    end = (tensor.storage_offset() + tensor.numel()) * tensor.element_size()
    return not tensor.numel() or tensor.untyped_storage().nbytes() >= end


MEASURE = SideBySide(
    script, zero.Unit, CASES, writes=tuple(METHODS), excused=EXCUSED, slack={"alive": 0}
)
LEAVES_OUT = {
    "generators": "no method is given an iterator; the constructor is lib's",
    "returned": "nothing is returned",
}
UNIT = MEASURE.exercise(
    ("unshard: the whole, in place", 3, "groups of 2 and 3", *_of(WHOLE), *LOST),
    ("reduce_gradients: the mean", 3, "added to the shards; unused, frozen", *_of(REDUCED)),
    ("reshard: no memory but the shards", 3, "parameters are empty",
     *_of(SHARDED), *(f"alive by {turn - 1}" for turn in TURNS), "alive at the end"),
    ("trains as one process does", 2, f"4 ranks, under lib's FSDP, {ADAMW}",
     "parameters", "gradients left", "output"),
    ("sends each flat once", 1, "by what it was given",
     calls(MEASURE, nothing_else=False), "calls"),
    hints=hints("lab4", "Unit"), worlds=(4,), may_call=MAY_CALL, leaves_out=LEAVES_OUT,
)  # fmt: skip
