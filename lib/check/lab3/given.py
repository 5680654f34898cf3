"""The all_reduce that an answer is given, and what the answer put on the wire.

It sums over the right group in any case, and notes on what it was called. It is a ring: N ranks together send exactly
2(N-1) times the tensor, so whoever sends anything beside it is seen in the ranks' books.
"""

import torch.distributed as dist

from lib import collectives
from lib.check.framework import Hint, Problem
from lib.check.lab0.cases import seen
from lib.check.lab0.mistakes import hung
from lib.check.lab1.wire import COLLECTIVES
from lib.check.lab3.groups import WAYS, way_of

# What the ledger calls it when an answer's line calls it; when it is inside a layer of lib that the line calls; and
# when no line of the answer led there, because autograd called lib's own backward.
GIVEN, FORWARD, NO_LINE = "given.__call__", "linear.forward", "framework._measure_all"
MAPPINGS = tuple(f"mappings.{name}_group" for name in ("copy_to", "reduce_from", "split_to", "gather_from"))
MAY_CALL = (*COLLECTIVES, GIVEN, FORWARD, NO_LINE, *MAPPINGS)


class Given:
    """all_reduce(tensor, group, op): in place, returns nothing, as torch's does. calls: [elements, ...] of each way."""

    def __init__(self, group):
        self.group, self.way, self.calls, self.other_group = group, "forward", {way: [] for way in WAYS}, None

    def __call__(self, tensor, group=None, op=dist.ReduceOp.SUM):
        self.calls[self.way].append(tensor.numel())
        self.note(group)
        collectives.ring_all_reduce(tensor, self.group, op)

    def note(self, group):
        """Was it called for another group? To sum over that one would hang, and tell less."""
        ranks = dist.get_process_group_ranks(group)
        if ranks != dist.get_process_group_ranks(self.group):
            self.other_group = ranks

    def wrong_group(self, where):
        """A Problem if it was called for another group."""
        if self.other_group is None:
            return None
        expected = dist.get_process_group_ranks(self.group)
        return Problem("group", f"{where} used the ranks {self.other_group}, expected the group's, {expected}")


class GivenMapping(Given):
    """enter(x, group), lib's f, or leave(partial, group), lib's g; its all-reduces are noted, forward and backward."""

    def __init__(self, mapping, group):
        super().__init__(group)
        self.mapping = mapping

    def __call__(self, x, group=None):
        self.note(group)
        return self.mapping(x, self.group, super().__call__)


class GivenProduct(GivenMapping):
    """columns(x, linears, group) or rows(x, linear, group), as lib's; `layers` has what each call multiplied with."""

    def __init__(self, multiply, mapping, group):
        super().__init__(mapping, group)
        self.multiply, self.layers = multiply, []

    def __call__(self, x, layers, group=None):
        self.note(group)
        self.layers.append(layers)
        return self.multiply(x, layers, self.group, super().__call__)


def only_these(cases, elements):
    """The claim: each rank all-reduced elements(case) = {way: [n, ...]} by what it was given, and sent nothing else.

    A record has `calls`, as `Given`. On one rank there is nothing to send, and no need to call.
    """

    def judge(runs):
        for run, case, records in seen(runs, cases):
            for way in WAYS if case.world_size > 1 else ():
                problem = _traffic(run, case, way, records, elements(case)[way])
                if problem:
                    return problem
        return None

    return judge


def _traffic(run, case, way, records, want):
    section = run.ledger.section(way_of(case, way).name)
    for rank, record in enumerate(records):
        where, got = f"{case.where}, {way}: {case.rank(rank)}", record["calls"][way]
        strange = next((e for e in section.of(case.members[rank]) if not _by_given(e)), None)
        if strange is not None:
            return Problem("another way", f"{where} called {strange.via or strange.op}, not what it was given")
        if got != want:
            text = f"{where} all-reduced {got or 'no'} elements, expected {want or 'nothing'}"
            return Problem("calls", text, {"way": way, "got": got, "want": want})
    sent, formula = section.sent("elements"), 2 * (case.world_size - 1) * sum(want)
    if sent != formula:
        text = f"{case.where}, {way}: the ranks sent {sent} elements, expected 2(N-1) {sum(want)} = {formula}"
        return Problem("another way", text)
    return None


def _by_given(entry):
    """As far as the books tell: what is sent beside it is found by its elements."""
    return entry.op == "mark" or (entry.is_message and entry.via in (GIVEN, FORWARD, NO_LINE))


WRONG_GROUP = Hint("the group is not passed on", lambda p: p.kind == "group", "hand `group` on with every call.")
NOT_ALL_RANKS = Hint(
    "not on every rank",
    lambda p: hung(p) or p.kind in ("mismatch", "died"),
    "all ranks of the group must call it, equally often and with equal sizes; a rank that does not lets the others "
    "wait.",
)
RETURNED_NOTHING = Hint(
    "what all_reduce returns",
    lambda p: p.kind == "raised" and "NoneType" in p.text,
    "all_reduce(tensor, group) sums in place, and need not return anything: go on with the tensor that you gave it.",
)
ANOTHER_WAY = Hint(
    "not the one it was given",
    lambda p: p.kind == "another way" or (p.kind == "calls" and p.facts["want"] and not p.facts["got"]),
    "whoever calls your function chooses what sends: call the argument, not one that you imported.",
)
