"""A Unit by itself, method by method: what unshard, reshard and reduce_gradients do to three flats.

    flat 0    w (2, 3), b (3), s ()    n = 10; on rank 0 `s` is not used
    flat 1    f (5)                    frozen
    flat 2    u (3)                    not used on rank 0

Nothing is read before it is known that there is memory for it: to read what has none would end the process.
"""

from dataclasses import replace

import torch
from torch import nn

from lib import backend, zero
from lib.buckets import slots
from lib.check.framework import Problem
from lib.check.lab0.cases import called, form_of
from lib.check.lab1.calls import noting_calls
from lib.check.lab3.compare import multiples, wrong
from lib.check.lab3.groups import agreed
from lib.check.lab4.fsdp_given import Given, has_memory

SHAPES = [{"w": (2, 3), "b": (3,), "s": ()}, {"f": (5,)}, {"u": (3,)}]


def alone(case, fn, rank, group, wire):
    """{"ok", "unshard", "reshard", "reduce", "calls": None, or the Problem}, up to the first."""
    given = Given(group, wire)
    flats = _Flats(case, rank, given)
    with noting_calls(zero.Unit.reshard) as libs:
        record = flats.walk(fn)
    if libs:
        record["unshard"] = Problem("built-in", "the answer calls lib's reshard, or inherits it")
    record["unshard"] = given.wrong_group(flats.where) or record["unshard"]
    return {**record, "ok": agreed(right_but_for_calls(record), wire), "wire": wire.group_name}


def right_but_for_calls(record):
    """Can it go on?"""
    return not any(problem for claim, problem in record.items() if claim != "calls")


class _Flats:
    """The flats of one case, and what they should hold."""

    def __init__(self, case, rank, given):
        self.case, self.rank, self.given, self.N = case, rank, given, case.world_size
        self.where, self.names = f"{case.where}: {case.rank(rank)}", [list(shapes) for shapes in SHAPES]
        ones = lambda shape: torch.ones(shape, dtype=torch.float64, device=backend.device())
        leaves = [[nn.Parameter(ones(s), requires_grad=i != 1) for s in of.values()] for i, of in enumerate(SHAPES)]
        self.flats = given.flats = [zero.Flat(parameters, given.group) for parameters in leaves]
        self.wholes = [flat.whole for flat in self.flats]

    def walk(self, fn):
        """Twice: new shards, unshard, backward, reduce_gradients, reshard."""
        record = dict.fromkeys(("unshard", "reshard", "reduce", "calls"))
        on_all = lambda: agreed(not (record["unshard"] or record["reduce"]), self.given.wire)
        self.unit = self._called("made", fn, self.flats, self.given.all_gather, self.given.reduce_scatter)
        self._note_sharded(record, "Unit(...), which reshards")
        for turn in (1, 2):
            if on_all():
                self._step_shards(turn)
                self._called(f"unshard(), call {turn}", self.unit.unshard)
                record["unshard"] = self._unsharded(turn)
            if on_all():
                record["reduce"] = self._reduce(turn)
            if on_all():
                record["calls"] = record["calls"] or self._calls(turn)
                before = [flat.shard.detach().clone() for flat in self.flats]
                self._called(f"reshard(), call {turn}", self.unit.reshard)
                self._note_sharded(record, f"reshard(), call {turn}", before)
        return record

    def _note_sharded(self, record, *what):
        """What `_sharded` finds, in the record."""
        problem = self._sharded(*what)
        record["reshard"] = record["reshard"] or problem
        if problem and problem.kind in ("shard gone", "another whole"):  # there is nothing left to unshard
            record["unshard"] = record["unshard"] or problem

    def _called(self, what, fn, *args):
        """The answer's fn(*args), in a section of its own, with the calls of what it is given counted anew."""
        self.given.calls = []
        out = called(replace(self.case, what=f"{self.case.what}, {what}"), fn, *args)
        self.given.end()
        return out

    def _line(self, i, turn):
        """What flat i's whole should be in this turn. (padded,)"""
        return torch.arange(1, self.flats[i].padded + 1, dtype=torch.float64, device=backend.device()) + 100 * turn

    def _step_shards(self, turn):
        """As an optimizer does: other numbers in the shards."""
        for i, flat in enumerate(self.flats):
            flat.shard.detach().copy_(self._line(i, turn).chunk(self.N)[self.rank])

    def _unsharded(self, turn):
        when = f"{self.where}: after unshard(), call {turn}, "
        for i, (flat, whole) in enumerate(zip(self.flats, self.wholes, strict=True)):
            if flat.whole is not whole or not has_memory(whole):
                what = "is another tensor" if flat.whole is not whole else "has no memory"
                return Problem("no memory", f"{when}flat.whole {what}", {"other": flat.whole is not whole})
            pieces = slots(self._line(i, turn)[: flat.n], flat.slots)
            for name, p, want in zip(self.names[i], flat.parameters, pieces, strict=True):
                if p.shape != want.shape:
                    text = f"{when}{name}: expected {form_of(want)}, got {form_of(p.detach())}"
                    return Problem("not attached", text)
                if not has_memory(p) or p.untyped_storage().data_ptr() != whole.untyped_storage().data_ptr():
                    return Problem("not attached", f"{when}{name} is not a view of flat.whole")
                if problem := wrong(f"{when}{name}", p, want, {"the numbers of the turn before": want - 100}):
                    return problem
        if self.unit.is_unsharded is not True:
            return Problem("flag", f"{when}is_unsharded is {self.unit.is_unsharded}")
        self.gathers = self.given.calls
        return None

    def _reduce(self, turn):
        """Two backward passes in a row: the second adds to the first."""
        when, wants = f"{self.where}: after reduce_gradients(), call {turn}, ", []
        for i, flat in enumerate(self.flats):
            if flat.trained:
                self._backward(flat, turn)
                lines = [sum(self._gradient(i, r, t) for t in range(1, turn + 1)) for r in range(self.N)]
                latest = [self._gradient(i, r, turn) for r in range(self.N)]
                wants.append((i, sum(lines) / self.N, sum(latest) / self.N))
        self._called(f"reduce_gradients(), call {turn}", self.unit.reduce_gradients)
        for i, want, latest in wants:
            flat, want, latest = self.flats[i], *(line.chunk(self.N)[self.rank] for line in (want, latest))
            known = {**multiples(want, self.N), "the mean of the last backward alone": latest}
            if turn == 1:
                known.pop("the mean of the last backward alone")
            if flat.shard.grad is None:
                return Problem("no gradient", f"{when}the shard of flat {i} has no gradient")
            if problem := wrong(f"{when}the .grad of flat {i}'s shard", flat.shard.grad, want, known):
                return problem
            left = next((n for n, p in zip(self.names[i], flat.parameters, strict=True) if p.grad is not None), None)
            if left:
                return Problem("kept", f"{when}{left} still has its whole gradient")
        return None

    def _gradient(self, i, rank, turn):
        """Rank's gradient of flat i in this turn. (padded,); zeros where it does not use the parameter."""
        flat = self.flats[i]
        line = (torch.arange(flat.padded, dtype=torch.float64, device=backend.device()) + 1) * (rank + 2) * turn
        line[flat.n :] = 0
        if rank == 0:
            line[flat.n - 1 if i == 0 else 0 :] = 0  # s of flat 0, u of flat 2
        return line

    def _backward(self, flat, turn):
        i = self.flats.index(flat)
        line = self._gradient(i, self.rank, turn)
        pieces = slots(line[: flat.n], flat.slots)
        used = [(p * g).sum() for p, g in zip(flat.parameters, pieces, strict=True) if g.any()]
        if used:
            sum(used).backward()

    def _calls(self, turn):
        gathers = [("all_gather", flat.padded // self.N) for flat in self.flats]
        reduces = [("reduce_scatter", flat.padded) for flat in self.flats if flat.trained]
        problem = self._unlike(f"unshard(), call {turn}", self.gathers, gathers)
        return problem or self._unlike(f"reduce_gradients(), call {turn}", self.given.calls, reduces)

    def _unlike(self, what, got, want):
        if sorted(got) == sorted(want):
            return None
        told = lambda calls: "; ".join(f"{name} of {n} elements" for name, n in calls) or "nothing"
        text = f"{self.where}: {what} called {told(got)}\nexpected {told(want)}"
        return Problem("calls", text, {"got": got, "want": want})

    def _sharded(self, what, before=None):
        when = f"{self.where}: after {what}, "
        for i, (flat, whole) in enumerate(zip(self.flats, self.wholes, strict=True)):
            if flat.whole is not whole:
                return Problem("another whole", f"{when}flat.whole is another tensor")
            if not has_memory(flat.shard):
                return Problem("shard gone", f"{when}the shard of flat {i} has no memory")
            if whole.untyped_storage().nbytes():
                got = whole.untyped_storage().nbytes()
                return Problem("not freed", f"{when}flat.whole still has {got} bytes", {"got": got})
            for name, p in zip(self.names[i], flat.parameters, strict=True):
                if p.numel():
                    text = f"{when}{name} is still a {tuple(p.shape)} tensor, of memory that is gone"
                    return Problem("not empty", text)
            if before and not torch.equal(before[i], flat.shard):
                return Problem("shard changed", f"{when}the shard of flat {i} has changed")
        if self.unit.is_unsharded is not False:
            return Problem("flag", f"{when}is_unsharded is {self.unit.is_unsharded}")
        return None
