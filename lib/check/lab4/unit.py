"""Lab 4, section 4: a Unit by itself, method by method, and under lib's FSDP.

    flat 0    w (2, 3), b (3), s ()    n = 10; in turn 1 rank 0 does not use `s`
    flat 1    f (5)                    frozen
    flat 2    u (3)                    in turn 1 not used by rank 0
    turn 2    rank 0 uses nothing

Nothing is read before it is known that there is memory for it: to read what has none would end the
process.
"""

import inspect

import torch
import torch.distributed as dist
from torch import nn

from lib import backend, zero
from lib.check import symptoms as s
from lib.check.cases import FINE, form_of, groups_and_control, in_step
from lib.check.claims import claim, compared
from lib.check.comm import Recorder
from lib.check.exercise import Exercise, Hint, Problem
from lib.check.lab4.fsdp_models import ADAMW, Training
from lib.check.lab4.fsdp_training import MAY_CALL, PHASES, found, part, section, trained
from lib.check.pure import noting_calls
from lib.check.traffic import fitting, only_calls
from lib.training.buckets import slots

SHAPES = [{"w": (2, 3), "b": (3,), "s": ()}, {"f": (5,)}, {"u": (3,)}]
ALONE, TURNS, METHODS = "by itself", (1, 2), ("unshard", "reshard", "reduce_gradients")
CASES = (
    *(Training(members, what=ALONE) for members in ((0, 1), (0, 1, 2), (1, 3), (2,))),
    Training((0, 1, 2, 3), what=ADAMW),
)
SECTIONS = ("made", *(f"{method}(), call {turn}" for turn in TURNS for method in METHODS), *PHASES)


def inherits(fn, libs, *names):
    """Is one of these methods of the class lib's own?"""
    return any(getattr(fn, name, None) is getattr(libs, name) for name in names)


def _measure(fn):
    def one(case, groups):
        if inherits(fn, zero.Unit, *METHODS):
            return {"ok": False, "unshard": Problem("built-in", "a method of the answer is lib's")}
        if case.what != ALONE:
            record = trained(case, type("FSDP", (zero.FSDP,), {"unit_type": fn}), groups)
            return record | {"reshard": record.get("memory")}
        with noting_calls(
            inspect.unwrap(zero.Unit.reshard)
        ) as libs:  # its decorator is that of attach, too
            record = _ByItself(case, *groups).walk(fn)
        return record | (
            {"unshard": Problem("built-in", "the answer calls lib's reshard")} if libs else {}
        )

    return in_step(CASES, groups_and_control, one, wire=dist.new_group())


class _ByItself:
    """The flats of one case, and what they should hold."""

    def __init__(self, case, group, control):
        self.case, self.rank, self.N = case, dist.get_rank(control), case.world_size
        self.where, self.names = (
            f"{case.name}: {case.rank(self.rank)}",
            [list(shapes) for shapes in SHAPES],
        )
        self.recorder = Recorder(control, [case.members], before=self._memory_for_all)
        ones = lambda shape: torch.ones(shape, dtype=torch.float64, device=backend.device())
        leaves = [
            [nn.Parameter(ones(s), requires_grad=i != 1) for s in of.values()]
            for i, of in enumerate(SHAPES)
        ]
        self.flats = [zero.Flat(parameters, group) for parameters in leaves]
        self.wholes, self.record = [flat.full for flat in self.flats], {}

    def walk(self, fn):
        """Two turns: new shards, unshard, backward, reduce_gradients, reshard."""
        make = lambda: fn(self.flats, self.recorder.all_gather, self.recorder.reduce_scatter)
        self.unit = part(self.case, "made", self.recorder, make)
        self._look("reshard", "Unit(...), which reshards", self._sharded)
        for turn in TURNS:
            self._step_shards(turn)
            self._do("unshard", turn, "unshard", self._whole, turn)
            wants = self._backward(turn) if self._goes_on() else []
            self._do("reduce_gradients", turn, "reduce", self._reduced, wants)
            before = [flat.shard.detach().clone() for flat in self.flats if _has_memory(flat.shard)]
            self._do("reshard", turn, "reshard", self._sharded, before)
        ok = self.recorder.agreed(
            not any(problem for claim, problem in self.record.items() if claim != "called")
        )
        return self.record | self.recorder.record() | {"ok": ok}

    def _goes_on(self):
        bad = self.recorder.clash or any(self.record.get(name) for name in ("unshard", "reduce"))
        return self.recorder.agreed(not bad)

    def _do(self, method, turn, claim, look, *args):
        """The answer's method, if all was right so far on all ranks; then what it
        has done is looked at."""
        if not self._goes_on():
            return
        begun, what = len(self.recorder.calls), f"{method}(), call {turn}"
        part(self.case, what, self.recorder, getattr(self.unit, method))
        if self.recorder.clash is None:
            self._look(claim, what, look, *args)
            self._calls(what, method, self.recorder.calls[begun:])

    def _look(self, claim, what, look, *args):
        """look(when, *args) -> Problem: the claim's first is in the record."""
        problem = look(f"{self.where}: after {what}, ", *args)
        if problem:
            self.record.setdefault(claim, problem)
            if problem.kind in ("shard gone", "another whole"):  # there is nothing left to unshard
                self.record.setdefault("unshard", problem)

    def _calls(self, what, method, calls):
        got = sorted((call.op, call.elements) for call in calls)
        of_method = {
            "unshard": [("all_gather", flat.padded // self.N) for flat in self.flats],
            "reduce_gradients": [
                ("reduce_scatter", flat.padded) for flat in self.flats if flat.requires_grad
            ],
        }
        want = sorted(of_method.get(method, []))
        if got != want:
            told = lambda calls: "; ".join(f"{op} of {n} elements" for op, n in calls) or "nothing"
            text = f"{self.where}: {what} called {told(got)}\nexpected {told(want)}"
            self.record.setdefault("called", Problem("calls", text, {"more": len(got) > len(want)}))

    def _memory_for_all(self, call):
        for whole in self.wholes:
            got = whole.untyped_storage().nbytes()
            if got and not _has_memory(whole):
                raise MemoryError(
                    f"flat.full has memory of {got} bytes; its {whole.numel()} elements need "
                    f"{whole.nbytes}"
                )

    def _line(self, i, turn):
        """What flat i's full should be in this turn. (padded,)"""
        line = (
            torch.arange(1, self.flats[i].padded + 1, dtype=torch.float64, device=backend.device())
            + 100 * turn
        )
        return line * FINE[torch.float64]

    def _step_shards(self, turn):
        """As an optimizer does: other numbers in the shards."""
        for i, flat in enumerate(self.flats):
            if _has_memory(flat.shard):
                flat.shard.detach().copy_(self._line(i, turn).chunk(self.N)[self.rank])

    def _gradient(self, i, rank, turn):
        """Rank's gradient of flat i in this turn. (padded,); zeros where it does not use
        the parameter."""
        flat = self.flats[i]
        line = (
            (torch.arange(flat.padded, dtype=torch.float64, device=backend.device()) + 1)
            * (rank + 2)
            * turn
        )
        line[flat.n :] = 0
        if rank == 0:
            # s of flat 0, u of flat 2; everything
            line[flat.n - 1 if i == 0 and turn == 1 else 0 :] = 0
        return line * FINE[torch.float64]

    def _backward(self, turn):
        """[(flat, its name, the .grad that its shard should have then), ...]: gradients add
        up from turn to turn."""
        wants = []
        for i, flat in enumerate(self.flats):
            pieces = slots(self._gradient(i, self.rank, turn)[: flat.n], flat.slots)
            used = [
                (p * g).sum()
                for p, g in zip(flat.parameters, pieces, strict=True)
                if flat.requires_grad and g.any()
            ]
            if used:
                sum(used).backward()
            total = (
                sum(
                    self._gradient(i, rank, t) for rank in range(self.N) for t in range(1, turn + 1)
                )
                / self.N
            )
            wants += (
                [(flat, f"flat {i}", total.chunk(self.N)[self.rank])] if flat.requires_grad else []
            )
        return wants

    def _whole(self, when, turn):
        for i, (flat, whole) in enumerate(zip(self.flats, self.wholes, strict=True)):
            if flat.full is not whole:
                return Problem("another whole", f"{when}flat.full is another tensor")
            if not _has_memory(whole):
                return Problem("no memory", f"{when}flat.full has no memory")
            pieces = slots(self._line(i, turn)[: flat.n], flat.slots)
            for name, p, want in zip(self.names[i], flat.parameters, pieces, strict=True):
                if p.shape != want.shape:
                    return Problem(
                        "not attached",
                        f"{when}{name}: expected {form_of(want)}, got {form_of(p.detach())}",
                    )
                if p.untyped_storage().data_ptr() != whole.untyped_storage().data_ptr():
                    return Problem("not attached", f"{when}{name} is not a view of flat.full")
                if problem := compared(f"{when}{name}", p, want):
                    problem.facts["gathered"] = True
                    return problem
        return self._flag(when, True)

    def _reduced(self, when, wants):
        for flat, name, want in wants:
            if flat.shard.grad is None:
                return Problem("no gradient", f"{when}the shard of {name} has no gradient")
            if problem := compared(f"{when}the .grad of {name}'s shard", flat.shard.grad, want):
                problem.facts["reduced"] = True
                return problem
            if any(p.grad is not None for p in flat.parameters):
                return Problem("kept", f"{when}a parameter of {name} still has its full gradient")
        return None

    def _sharded(self, when, before=None):
        for i, (flat, whole) in enumerate(zip(self.flats, self.wholes, strict=True)):
            if flat.full is not whole:
                return Problem("another whole", f"{when}flat.full is another tensor")
            if not _has_memory(flat.shard):
                return Problem("shard gone", f"{when}the shard of flat {i} has no memory")
            if got := whole.untyped_storage().nbytes():
                return Problem("not freed", f"{when}flat.full still has {got} bytes", {"got": got})
            for name, p in zip(self.names[i], flat.parameters, strict=True):
                if p.numel():
                    return Problem(
                        "not empty",
                        f"{when}{name} is still {tuple(p.shape)}, of memory that is gone",
                    )
            if before and not torch.equal(before[i], flat.shard):
                return Problem("shard changed", f"{when}the shard of flat {i} has changed")
        return self._flag(when, False)

    def _flag(self, when, want):
        got = getattr(self.unit, "is_unsharded", "not there")
        return None if got is want else Problem("flag", f"{when}is_unsharded is {got}")


def _has_memory(tensor):
    """Is there memory for all of its elements?"""
    needed = (
        (tensor.storage_offset() + tensor.numel()) * tensor.element_size() if tensor.numel() else 0
    )
    return tensor.untyped_storage().nbytes() >= needed


CALLS_LIB = s.CALLED_LIB.saying(
    "write the methods yourself; what else the class inherits may be used."
)
NOT_GIVEN = s.NOT_GIVEN.saying(
    "the caller chooses the collectives: self.all_gather and self.reduce_scatter."
)
LEAVES_OUT = {
    "generators": "no method is given an iterator; the constructor is lib's",
    "returned": "nothing is returned",
}
UNIT = Exercise(
    name="Unit", reference=zero.Unit, measure=_measure, worlds=(4,), may_call=MAY_CALL,
    leaves_out=LEAVES_OUT,
    claims=(
        claim("unshard: the whole, in place", 3, "groups of 2 and 3", found(CASES, "unshard"),
              fitting(CASES)),
        claim("reduce_gradients: the mean", 3, "added to the shards; unused, frozen",
              found(CASES, "reduce")),
        claim("reshard: no memory but the shards", 3, "parameters are empty",
              found(CASES, "reshard")),
        claim("trains as one process does", 2, f"4 ranks, under lib's FSDP, {ADAMW}",
              found(CASES, "value")),
        claim("sends each flat once", 1, "by what it was given",
              only_calls(CASES, None, SECTIONS, section), found(CASES, "called")),
    ),
    hints=(
        CALLS_LIB,
        s.NO_GROUP.saying("each flat knows its group: flat.group."),
        s.NARROW,
        Hint("elements for bytes", s.raised("MemoryError"),
             "a storage counts bytes: resize_(flat.padded * flat.full.element_size()). Allocate "
             "first, then gather into it."),
        Hint("no memory to gather into", s.kind("died", "no memory"),
             "reshard has freed flat.full's memory. Before you copy into it: "
             "flat.full.untyped_storage().resize_(flat.padded * flat.full.element_size())."),
        Hint("another tensor for full", s.kind("another whole"),
             "autograd's graph may hold views of flat.full: fill that tensor, "
             "flat.full.copy_(...), and free and allocate its memory by resize_. `flat.full = ...` "
             "makes another tensor."),
        Hint("not attached", s.kind("not attached"),
             "after the gather the parameters must become views of flat.full again, in their "
             "shapes: flat.attach()."),
        Hint("the flag", s.kind("flag"),
             "unshard sets self.is_unsharded to True, reshard to False: FSDP asks it."),
        Hint("a sum, no mean", s.both(s.fact("reduced"), lambda p: (p.fact("factor") or 0) > 1),
             "divide by the number of ranks, once: flat.flatten_gradients() does."),
        Hint("another rank's gradient", s.either(s.fact("reduced"), s.kind("form")),
             "reduce_scatter(buffer, group) sums the ranks' buffers and gives rank r chunk r, "
             "(padded/N,)."),
        Hint("another part gathered", s.fact("gathered"),
             "each rank gives flat.shard; all_gather concatenates the ranks' shards, which gives "
             "the full flat parameter."),
        Hint("an unused parameter", s.refused("None"),
             "a parameter that this rank did not use has .grad None, and counts as zeros: "
             "flat.flatten_gradients() does that."),
        Hint("padding left out", s.refused("shape"),
             "N need not divide the flat's n elements: the buffer has flat.padded, so that every "
             "rank's shard has padded/N."),
        Hint("nothing is reduced", s.kind("no gradient"),
             "every flat with flat.requires_grad sends its buffer of gradients, whatever this rank "
             "used of it, and keeps its shard: flat.add_gradient(shard)."),
        Hint("full gradients stay", s.kind("kept", "unreduced"),
             "they are as large as the full parameters. flat.flatten_gradients() sets them to "
             "None."),
        Hint("a second copy", s.kind("alive"),
             "something is kept besides the shards: what was gathered, or a buffer of gradients. "
             "Keep no reference to it."),
        Hint("not freed", s.kind("not freed"),
             "flat.full.untyped_storage().resize_(0) gives the memory back. Parameters that are "
             "empty free nothing by themselves: flat.full still holds it."),
        Hint("parameters of freed memory", s.kind("not empty"),
             "give every parameter an empty tensor: parameter.data = flat.shard.detach()[:0]. Code "
             "that uses it then gets an error, and does not read freed memory."),
        Hint("the shard is lost", s.kind("shard gone", "shard changed"),
             "the shard always stays: it is what the optimizer steps on, and what the next unshard "
             "gathers."),
        Hint("frozen flats too", s.kind("calls", more=True),
             "each flat is gathered once; and of the flats only those with flat.requires_grad have "
             "gradients to send."),
        Hint("another number of calls", s.kind("calls"),
             "self.all_gather(flat.shard, flat.group) for each flat; self.reduce_scatter(buffer, "
             "flat.group) for each that is trained, with the full buffer, (padded,)."),
        s.NOT_ALL_RANKS.saying(
            "all ranks must gather and reduce the same flats in the same order, whatever is in "
            "them: a flat whose parameters this rank did not use too."),
        NOT_GIVEN,
        *s.ANYWHERE,
    ),
)  # fmt: skip
