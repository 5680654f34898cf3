"""Lab 4, section 14: Muon, a step with owned matrices; with `owners` (owners.py), who owns which.

The check says who owns which. A rank may own none, and use some of the matrices not at all. What
Newton-Schulz makes of a sum is what it makes of the mean, so both are right.
"""

from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from lib import zero
from lib.check import symptoms as s
from lib.check.cases import Setting, called, draw, groups_and_control, in_step
from lib.check.claims import claim, compared, each, noted
from lib.check.comm import MAY_CALL, Recorder
from lib.check.exercise import Bundle, Exercise, Hint, Problem
from lib.check.lab4.owners import OWNERS
from lib.check.traffic import fitting, only_calls
from lib.zero import muon

SHAPES = ((3, 4), (5, 2), (4, 4), (2, 3), (1, 6), (5, 2))
# modulo N: with 4 ranks the last one owns none; rank 0 two of one shape
OWNED_BY = 2, 0, 2, 1, 0, 0
LR, MOMENTUM, DECAY, STEPS = 2.0**-6, 0.95, 0.125, 2
CASES = tuple(
    Setting(members, what=what)
    for members, what in (
        ((0, 1, 2), ""), ((0, 1, 2, 3), ""), ((0, 1), ""), ((1, 3), ""), ((2,), ""),
        ((0, 1, 2), "rank 0 without gradients"),
    )
)  # fmt: skip


def _owner(N):
    return [rank % N for rank in OWNED_BY]


def _gradient(case, rank, step, i):
    """None where this rank does not use the matrix."""
    if rank == 0 and (case.what or (i, step) == (1, 0)):
        return None
    return draw(1000 * rank + 100 * step + i, *SHAPES[i])


def _right(case):
    """[[each matrix] after each step] of one process."""
    matrices = [draw(i, *shape, top=2) for i, shape in enumerate(SHAPES)]
    kept, seen = [torch.zeros_like(m) for m in matrices], []
    for step in range(STEPS):
        for i, matrix in enumerate(matrices):
            parts = [_gradient(case, rank, step, i) for rank in range(case.world_size)]
            gradient = sum((part for part in parts if part is not None), torch.zeros_like(matrix))
            muon.update(matrix, gradient / case.world_size, kept[i], LR, MOMENTUM, DECAY)
        seen.append([matrix.clone() for matrix in matrices])
    return seen


class Given(Recorder):
    """Also a reduce: the sum on one rank. When: what the check is doing."""

    when = ""

    def reduce(self, tensor, dst, group=None):
        """In place on rank dst of the group."""
        self.phase = f"{self.when}, to rank {dst}"
        ranks, parts = self._do("all_reduce", tensor, group, dist.ReduceOp.SUM, extra=[dst])
        self.calls[-1] = self.calls[-1]._replace(op="reduce")
        to = [self.extras[rank][0] for rank in ranks]
        if len({*to}) > 1:
            told = ", ".join(
                f"rank {rank}: to rank {one}" for rank, one in zip(ranks, to, strict=True)
            )
            self.clash = self.clash or Problem(
                "clash", f"a reduce, but {told}", {"over": [], "ops": ["reduce"]}, [to]
            )
        if ranks.index(self.rank) == dst:
            tensor.detach().copy_(
                self._reduced(ranks, parts, dist.ReduceOp.SUM, tensor).view(tensor.shape)
            )
        return tensor

    def broadcast(self, tensor, src, group=None):
        self.phase = f"{self.when}, from rank {src}"
        return super().broadcast(tensor, src, group)


def _measure(fn):
    return in_step(CASES, groups_and_control, partial(_one, fn), wire=dist.new_group())


def _one(fn, case, groups):
    (group, control), rank = groups, case.members.index(dist.get_rank())
    if getattr(fn, "step", None) is zero.Muon.step:
        return {
            "ok": False,
            "value": Problem("built-in", "the answer's step is lib's"),
            "clash": None,
            "stray": None,
        }
    given, owner = Given(control, [case.members], raises=False), _owner(case.world_size)
    matrices = [nn.Parameter(draw(i, *shape, top=2)) for i, shape in enumerate(SHAPES)]
    ways = {"reduce": given.reduce, "broadcast": given.broadcast}
    answer = called(case, fn, matrices, LR, MOMENTUM, DECAY, owner, group, **ways)
    plain, updates = answer.update, []
    answer.update = lambda *args, **named: (
        updates.append(len(given.calls)),
        plain(*args, **named),
    )[1]
    record = {"value": None, "kept": None, "calls of": [], "updates": []}
    for step, right in enumerate(_right(case)):
        before = [p.detach().clone() for p in matrices]
        for i, p in enumerate(matrices):
            p.grad = _gradient(case, rank, step, i)
        given.when, begun = f"step {step + 1}", len(given.calls)
        updates.clear()
        called(case, answer.step)
        given.end()
        record["calls of"].append([call[:3] for call in given.calls[begun:]])
        record["updates"].append([at - begun for at in updates])
        where = f"{case.name}, step {step + 1}: {case.rank(rank)}"
        record["value"] = _wrong(where, matrices, before, right, owner, rank, step)
        if record["value"]:
            record["value"].facts["more updates"] = len(updates) > owner.count(rank)
        record["kept"] = record["kept"] or _left(where, answer, matrices, owner, rank)
        if not given.agreed(
            record["value"] is None and given.clash is None and given.stray is None
        ):
            break
    record |= given.record()
    if case.world_size == 1:
        record["calls"] = []  # one rank alone may send to itself, or nothing
    record["ok"] = record["value"] is None and given.clash is None and given.stray is None
    return record


def _wrong(where, matrices, before, right, owner, rank, step):
    """The Problem of the first wrong matrix, of those that this rank owns first."""
    own_first = sorted(range(len(matrices)), key=lambda i: owner[i] != rank)
    for i in own_first:
        if problem := compared(
            f"{where}, matrix {i}, of rank {owner[i]}", matrices[i].detach(), right[i]
        ):
            still = torch.equal(matrices[i], before[i])
            problem.facts |= {"own": owner[i] == rank, "still": still, "step": step}
            decayed = before[i] * (1 - LR * DECAY)
            problem.facts["zeros"] = torch.allclose(matrices[i].detach(), decayed, rtol=1e-12)
            return problem
    return None


def _left(where, answer, matrices, owner, rank):
    own = [i for i, o in enumerate(owner) if o == rank]
    kept = [i for i, p in enumerate(matrices) if any(p is key for key in answer.momenta)]
    if set(kept) - set(own):
        text = f"{where} keeps momentum of matrices {kept}, and owns {own}"
        return Problem("momentum", text, {"more": True})
    left = [i for i, p in enumerate(matrices) if p.grad is not None]
    return (
        Problem("left", f"{where}: after step(), .grad is still there of matrices {left}")
        if left
        else None
    )


def _order(case, rank, record):
    """A judge: each reduce once, then the updates, then each broadcast once."""
    for step, calls in enumerate(record["calls of"] if case.world_size > 1 else []):
        want = {
            op: sorted(
                (op, f"step {step + 1}, {to} rank {o}", torch.Size(shape).numel())
                for o, shape in zip(_owner(case.world_size), SHAPES, strict=True)
            )
            for op, to in (("reduce", "to"), ("broadcast", "from"))
        }
        got = {op: sorted(call for call in calls if call[0] == op) for op in want}
        where, ops = f"{case.name}, step {step + 1}: {case.rank(rank)}", [op for op, *_ in calls]
        for op in want:
            if got[op] != want[op]:
                told = lambda some: (
                    "; ".join(f"{n} elements {at.split(', ')[1]}" for _, at, n in some) or "nothing"
                )
                text = f"{where} called {op}: {told(got[op])}\nexpected {told(want[op])}"
                return Problem(
                    "calls",
                    text,
                    {"op": op, "got": len(got[op]), "want": len(want[op])},
                    [op, got[op]],
                )
        if ops != sorted(ops, reverse=True):
            text = (
                f"{where} called {', '.join(ops)}: an owner cannot begin before the one before it "
                f"has ended"
            )
            return Problem("in turn", text)
        n = len(SHAPES)
        if between := [at for at in record["updates"][step] if at != n]:
            text = (
                f"{where} called update() after {between[0]} calls, expected it after {n}: all "
                f"reduces, no broadcast"
            )
            return Problem("in turn", text)
    return None


MUON = Exercise(
    name="Muon", reference=zero.Muon, measure=_measure, worlds=(4,), bonus=True,
    may_call=(*MAY_CALL, "muon.reduce", "muon.broadcast", "muon._one"),
    leaves_out={
        "under way": "step() returns when the step is over: no two are under way",
        "generators": "__init__ is given",
        "returned": "nothing is returned: the matrices hold the result",
        "memory": "gradients are whole on every rank; the momentum that each keeps is looked at",
        "attributes": "step() reads them, and makes none",
    },
    claims=(
        claim("as one process, step by step", 3,
              "1 to 4 ranks, a subgroup; unused matrices, a rank that owns none",
              fitting(CASES), noted(CASES, "value")),
        claim("to the owner, and back", 2, "each matrix once each way, all reduces first",
              only_calls(CASES, None), each(CASES, _order)),
        claim("momentum on the owner alone", 1, "and every .grad is None afterwards",
              noted(CASES, "kept")),
    ),
    hints=(
        s.CALLED_LIB.saying("write step() yourself: two loops over all matrices, one between."),
        s.NO_GROUP.saying("hand self.group on: self.reduce(gradient, owner, self.group), and the "
                          "same to broadcast."),
        Hint("a matrix without gradient", s.either(s.refused("None"),
            s.raised("AttributeError", "TypeError")),
             "a matrix that this rank did not use has .grad None. It still takes part in the "
             "reduce, with zeros."),
        Hint("another matrix's gradient", s.either(s.refused("shape"), s.raised("IndexError")),
             "a gradient, or the zeros in its place, is of its matrix's shape: "
             "torch.zeros_like(matrix). Lists that go side by side have an entry for every matrix, "
             "in the same order."),
        Hint("a leaf changed in place", s.both(s.raised("RuntimeError"), s.refused("in place")),
             "matrices want a gradient: change them under torch.no_grad(), or give matrix.detach() "
             "to broadcast."),
        s.NARROW, s.WRONG_DTYPE,
        Hint("not every rank", s.kind("clash"),
             "all ranks of the group call every reduce and every broadcast, in one order and with "
             "the matrix's owner as the rank: also those that own nothing, and those that have no "
             "gradient."),
        Hint("one gradient for two matrices", s.in_case(CASES, lambda case: case.what, "value"),
             "a reduce leaves the sum in the tensor that it is given. Every matrix without "
             "gradient needs zeros of its own: a second matrix would find the first one's sum in "
             "them."),
        Hint("gradients of zeros", s.kind("value", own=True, zeros=True, step=0),
             "the owner has updated its matrix with zeros: read matrix.grad before it becomes "
             "None."),
        Hint("updated twice", s.both(s.fact("more updates"), s.kind("value", own=True,
            still=False)),
             "update() was called more often than this rank owns matrices: once for each, with the "
             "sum of all ranks' gradients. Each call moves its matrix and its momentum."),
        Hint("no reduce", s.kind("value", own=True, still=False, step=0),
             "the owner needs the sum of all ranks' gradients before it updates: one "
             "Newton-Schulz, of the whole sum. The mean of the ranks' own updates is something "
             "else."),
        Hint("the owner does nothing", s.kind("value", own=True, still=True, step=0),
             "a rank calls self.update(matrix, gradient) for each matrix that it owns by "
             "self.owner, also for one that it did not use itself."),
        Hint("not brought back", s.kind("value", own=False, still=True),
             "the owner has new weights, and nobody else knows: broadcast each matrix from its "
             "owner, into the matrix itself."),
        Hint("left over from the step before", lambda p: p.kind == "value" and p.fact("step",
            0) > 0,
             "right in the first step. What does the second one still see of it?"),
        Hint("broadcast too early", s.kind("value", own=False),
             "first the owners update, then broadcast: what was sent is not what the owner ends "
             "with."),
        s.NOT_GIVEN.also(s.refused("outside the group")),
        Hint("one after another", s.kind("in turn"),
             "a reduce or a broadcast waits for a rank that is still in its Newton-Schulz, and so "
             "do the owners behind it. First all reduces, then every owner updates its own at the "
             "same time, then all broadcasts."),
        Hint("not once each", s.kind("calls"),
             "one reduce to the owner and one broadcast from it for each matrix, of its mn "
             "elements."),
        Hint("momentum everywhere", s.kind("momentum"),
             "self.update keeps momentum of each matrix that it is given: call it for this rank's "
             "own alone."),
        Hint("gradients not dropped", s.kind("left"),
             "the next backward would add to what is left. Set every matrix's .grad to None."),
        *s.ANYWHERE,
    ),
)  # fmt: skip
EXERCISE = Bundle("muon", (OWNERS, MUON), bonus=True)
