"""How a function that has a backward is called on ranks: two calls are under way at once before any
goes backward.

    forward   call 0, over the case's group  call 1, over a pair of its ranks, with another shape,
                                             if it has pairs
    backward  call 0                         call 1

Whoever keeps the group or a tensor on the class, on the function or in a global is right in every
case but this one. What the answer is given to send with is `comm.Recorder`'s. Records have what
`claims` and `traffic` ask for, and what `values` here asks for: got, {(name, number of the call):
tensor}.
"""

import traceback
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.distributed as dist

from lib import backend
from lib.check import comm
from lib.check import symptoms as s
from lib.check.cases import Case, called, form_of, groups_and_control, in_step, seen
from lib.check.claims import element, form
from lib.check.comm import Clash, Recorder
from lib.check.exercise import Problem
from lib.check.explain import fraction, rounded_words, shares, who
from lib.check.footprint import Footprint
from lib.check.guard import is_students
from lib.check.traffic import astray

# of the largest number expected, or of 1: some gradients are zero but for rounding
TOLERANCE = 1e-12
SINGLE = 2.0**-20  # what float32 loses, and a little more
SAMPLE = 12  # elements of a tensor that are in a trace


@dataclass(frozen=True)
class Turn(Case):
    """One call over `members`; and, if there are pairs, a second one over them while the
    first is under way."""

    pairs: tuple[tuple[int, ...], ...] = ()

    @property
    def name(self):
        return ", ".join(
            filter(None, [self.group, self.what, "two calls under way" if self.pairs else ""])
        )

    @property
    def seed(self):
        """Another one in each case, so that no call gives what an earlier one did."""
        return 100 * sum(1 << member for member in self.members) + 50 * len(self.pairs)

    def calls(self, rank):
        """[(number of ranks, rank in them), ...] of this rank of the group, call by call."""
        pair = next((pair for pair in self.pairs if self.members[rank] in pair), ())
        return [(self.world_size, rank)] + (
            [(len(pair), pair.index(self.members[rank]))] if pair else []
        )

    def groups(self):
        """The sets of ranks over which an answer may call on this rank."""
        return [self.members, *(pair for pair in self.pairs if dist.get_rank() in pair)]


GROUPS = ((0, 1), (0, 1, 2), (0, 1, 2, 3), (1, 3))
GROUPS_SAY = "1, 2, 3, 4 ranks, a subgroup"
ALONE = Turn((2,))  # last in CASES: there whoever sends nothing is right too
TURNS = (*map(Turn, GROUPS), Turn(GROUPS[2], pairs=((0, 2), (1, 3))))
CASES = (*TURNS, ALONE)
MAPPINGS = tuple(
    f"mappings.{name}_group" for name in ("copy_to", "reduce_from", "split_to", "gather_from")
)
MAY_CALL = (*comm.MAY_CALL, *MAPPINGS, "shards.gather_along_dim")
FUNCTION = {
    "empty rank": "every rank has as many elements as the others",
    "generators": "no argument is an iterator",
    "returned": "the docstring promises no copy where N is 1",
    "memory": "all that is sent is counted, and nothing else makes anything large",
}
COMMON = (
    s.CALLED_LIB,
    s.under_way(CASES, lambda case: bool(case.pairs)),
    s.NO_GROUP,
    s.WHOSE_RANKS,
    s.TWO_ONLY,
    s.alone(CASES),
    s.NARROW,
)


class Truth(NamedTuple):
    """What is given and expected in one call of one rank. inputs: {argument: tensor},
    floats learn; then more."""

    inputs: dict
    out: torch.Tensor | None
    dy: torch.Tensor | None  # what comes from above
    gradients: dict  # {argument: tensor}
    parts: dict  # {"out" or argument: [what each rank adds to it]}; {}: no sums
    more: tuple = ()  # arguments between the inputs and the group
    named: dict = {}  # noqa: RUF012  arguments given by name; with any, the group is given by name too

    def call(self, case, fn, inputs, group, **named):
        """What fn returns for these inputs; what it sends is in the ledger's
        section `case.name`."""
        if self.named:
            return called(case, fn, *inputs, *self.more, group=group, **self.named, **named)
        return called(case, fn, *inputs, *self.more, group, **named)


@dataclass(frozen=True)
class ForwardBackward:
    """A measure. truth(case, N, rank, number of the call) -> Truth; given(Recorder) -> {argument:
    what it sends with}.

    backward: the case as which the ledger notes what goes backward. footprint: whether records have
    it. A record: those of `Recorder.record`; got {("out" or argument, number): tensor, or its
    form}; refused, what autograd said of a gradient; changed, kept; largest, held: Footprint's.
    """

    cases: tuple[Turn, ...]
    truth: Callable
    given: Callable = lambda recorder: {}
    backward: Callable = lambda case: case
    footprint: bool = False

    def __call__(self, fn):
        held = []

        def one(case, groups):
            record, out = self._record(fn, case, *groups)
            held.append((record, out))
            return record

        records = in_step(self.cases, _groups, one, wire=dist.new_group())
        for record, out in held:
            record["kept"] = all(
                torch.equal(out[i].detach().cpu(), record["got"]["out", i]) for i in out
            )
        return records

    def _record(self, fn, case, groups, control):
        recorder, got, out, refused = Recorder(control, case.groups()), {}, {}, None
        truths = self.truths(case, case.members.index(dist.get_rank()))
        given = [{name: _leaf(tensor) for name, tensor in truth.inputs.items()} for truth in truths]
        footprint = (
            Footprint([x for one in given for x in one.values()])
            if self.footprint
            else nullcontext()
        )

        def forward():
            for i, group in enumerate(groups):
                returned = truths[i].call(
                    case, fn, given[i].values(), group, **self.given(recorder)
                )
                got["out", i] = plain(returned)
                out.update({i: returned} if torch.is_tensor(returned) else {})
            return all(same(got["out", i], truth.out) for i, truth in enumerate(truths))

        def backward():
            for i, truth in enumerate(truths):
                if out[i].requires_grad:
                    called(self.backward(case), out[i].backward, truth.dy.to(out[i].device))
            got.update(
                {
                    (n, i): plain(given[i][n].grad)
                    for i, truth in enumerate(truths)
                    for n in truth.gradients
                }
            )
            return True

        for recorder.phase, run in (("forward", forward), ("backward", backward)):
            try:
                with footprint:
                    right = run()
            except Clash:
                right = False
            except RuntimeError as error:
                if any(
                    is_students(frame.filename)
                    for frame in traceback.extract_tb(error.__traceback__)
                ):
                    raise
                right, refused = False, str(error)
            recorder.end()
            if self.footprint and recorder.phase == "forward":
                footprint.look(*out.values(), *filter(torch.is_tensor, got.values()))
            if not (right := recorder.agreed(right and not recorder.stray)):
                break
        changed = [
            n
            for i, t in enumerate(truths)
            for n in t.inputs
            if not torch.equal(given[i][n].cpu(), t.inputs[n])
        ]
        record = {"ok": right, "got": got, "refused": refused, "changed": changed, "kept": True}
        if self.footprint:
            record |= {"largest": footprint.largest, "held": footprint.kept}
        return recorder.record() | record, out

    def truths(self, case, rank):
        return [self.truth(case, *place, number) for number, place in enumerate(case.calls(rank))]


def _groups(cases):
    """{case: ([its group, its pair's if it has pairs], a control group)}"""
    found = {
        case: ([group], control) for case, (group, control) in groups_and_control(cases).items()
    }
    for case, (groups, _) in found.items():
        groups += [
            g
            for pair, g in [(pair, dist.new_group(pair)) for pair in case.pairs]
            if dist.get_rank() in pair
        ]
    return found


def _leaf(tensor):
    there = tensor.to(backend.device(), copy=True)
    return there.requires_grad_() if there.is_floating_point() else there


def plain(returned):
    return returned.detach().cpu().clone() if type(returned) is torch.Tensor else form_of(returned)


def same(got, want):
    """The same tensor, up to rounding?"""
    alike = torch.is_tensor(got) and got.shape == want.shape and got.dtype == want.dtype
    return alike and bool(_close(want)(got, want).all())


def _close(want):
    most = TOLERANCE * max(1.0, want.abs().max().item() if want.numel() else 0.0)
    return lambda got, want: (got - want).abs() <= most


def values(calls, name="out", cases=None):
    """A judge of results (name "out"), or of one argument's gradients: kinds "clash", "group",
    "value", "form", "returned", "no graph". cases: only these.

    facts: gradient; own (what this rank alone has), factor (got = factor x expected), absent (ranks
    missing), narrowed; elsewhere (the right numbers, in other places); calls, the record's.
    """

    def judge(runs):
        for _, case, records in seen(runs, calls.cases):
            if cases and case not in cases:
                continue
            for rank, record in enumerate(records):
                if found := _astray(name, case, rank, record):
                    return found
            for rank, record in enumerate(records):
                for i, truth in enumerate(truths := calls.truths(case, rank)):
                    if (name, i) not in record["got"]:  # something before it was wrong
                        continue
                    where = (
                        f"{case.name}: "
                        f"{case.rank(rank)}{f', call {i + 1}' if len(truths) > 1 else ''}"
                    )
                    if found := _wrong(where, name, case, rank, truth, record["got"][name, i]):
                        found.facts["calls"] = record["calls"]
                        found.trace = [
                            case.name,
                            name,
                            [_sample(r["got"].get((name, 0))) for r in records],
                        ]
                        return found
        return None

    return judge


def _astray(name, case, rank, record):
    where, clash = f"{case.name}: {case.rank(rank)}", record["clash"]
    if name == "out" and clash and clash.fact("phase") == "backward":
        return None
    if name != "out" and record.get("refused"):
        return Problem(
            "form", f"{where}: backward: {record['refused']}", {"case": case, "gradient": True}
        )
    return astray(where, case, record)


def _wrong(where, name, case, rank, truth, got):
    want, what = (
        (truth.out, "the result") if name == "out" else (truth.gradients[name], f"{name}.grad")
    )
    if same(got, want):
        return None
    found = form(where if name == "out" else f"{where}: {what}:", got, want, what) or element(
        f"{where}: {what}", got, want, _close(want)
    )
    found.facts |= {"case": case, "rank": rank, "gradient": name != "out"}
    if name != "out" and found.kind == "returned":
        found = Problem(
            "no graph", f"{where}: {what} is {got}, expected {form_of(want)}", found.facts
        )
    if found.kind == "value":
        words, more = _share(got, truth.parts.get(name, [want]), rank, want)
        found.text, found.facts = found.text.partition("\n")[0] + words, found.facts | more
    return found


def _share(got, parts, rank, want):
    """(what the numbers are, facts)"""
    facts = {"own": False, "factor": None, "absent": [], "narrowed": False}
    facts["elsewhere"] = torch.equal(got.flatten().sort().values, want.flatten().sort().values)
    if not got.isfinite().all():
        return "", facts
    if (
        want.dtype == torch.float64
        and ((got - want).abs() <= SINGLE * max(1.0, want.abs().max().item())).all()
    ):
        return f"\n{rounded_words(want.dtype)}", facts | {"narrowed": True}
    of, has = shares(got, parts) or {}, [r for r, part in enumerate(parts) if part.any()]
    if list(of) == [rank] and len(has) > 1 and abs(of[rank] - 1) < 1e-9:
        return "\nIt is what this rank itself has, without the other ranks' part.", facts | {
            "own": True
        }
    if of and len(of) == len(has) and max(of.values()) - min(of.values()) < 1e-9:
        factor = next(iter(of.values()))
        words = fraction(factor)
        return "" if "." in words else f"\nIt is {words} x expected.", facts | {"factor": factor}
    absent = [r for r in has if r not in of] if of else []
    return f"\nIt lacks what comes from {who(absent)}." if absent else "", facts | {
        "absent": absent
    }


def _sample(got):
    """For a trace: a tensor's form, first elements, and a number that all of them are in."""
    if not torch.is_tensor(got):
        return got
    flat = got.double().flatten()
    line = (flat * torch.arange(1.0, len(flat) + 1, dtype=torch.float64)).sum().item()
    return [form_of(got), *(round(x, 6) + 0.0 for x in (*flat[:SAMPLE].tolist(), line))]
