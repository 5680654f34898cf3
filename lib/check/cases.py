"""Cases for functions on ranks: groups that share one launch, sizes, dtypes, and inputs whose sums
show which ranks contributed.

Rank r of N contributes at element e the value  4^r * k(e) * fine,  where k(e) = 1 + e mod 11. For
example, four ranks at element 4, with fine = 1:

    rank           0    1    2    3
    contributes    5   20   80  320      sum  425      425 / 5 = 85 = 1111 in base 4
    without 1      5    .   80  320           405      405 / 5 = 81 = 1101 in base 4

A sum divided by k(e) is a number in base 4 whose digit r counts how often rank r is in it, up to
three times. Every wrong sum of complete parts therefore has a value of its own, from which
`explain.py` reads the mistake. Neighbouring elements have different values, and so have the chunks.

`fine` makes values that no narrower type can represent. In float64 it is 1 + 2^-30, which float32
rounds to 1. In int64 it is 2^40 + 1, which float32 rounds as well, and so does float64 once it is
multiplied by a large sum. All results stay exact, because a sum needs at most 20 bits and `fine`
adds 30 (40 in int64).

Inputs and expected values are made on the CPU. A rank here is a rank within the group. In the last
group, group ranks differ from global ranks, so an answer that confuses the two fails there.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist

from lib import backend, ledger
from lib.check.wire import Wire
from lib.ledger.source import position

WORLD = 8
GROUPS = ((0, 1), (0, 1, 2), (0, 1, 2, 3), tuple(range(WORLD)), (1, 3, 4, 6))
GROUPS_SAY = "2, 3, 4, 8 ranks, a subgroup"
ALONE = (5,)  # N = 1
PERIOD = 11  # of k; no two chunks of the sizes used here begin with the same k
FINE = {torch.float64: 1 + 2.0**-30, torch.int64: 2**40 + 1}


@dataclass(frozen=True)
class Case:
    """One call: the global ranks of its group, and its number of elements. what: anything else that
    distinguishes it from the other cases."""

    members: tuple[int, ...]
    n: int = 0
    dtype: torch.dtype = torch.float64
    what: str = ""
    root: int = 0
    again: int = 0  # 1: the same call once more, with other values

    @property
    def world_size(self) -> int:
        return len(self.members)

    @property
    def divides(self) -> bool:
        return self.n % self.world_size == 0

    @property
    def counts_up(self) -> bool:
        """True if the ranks of the group are the global ranks 0 to N-1."""
        return self.members == tuple(range(self.world_size))

    @property
    def group(self) -> str:
        ranks = "1 rank" if self.world_size == 1 else f"{self.world_size} ranks"
        return ranks if self.counts_up else f"group {self.members}"

    @property
    def name(self) -> str:
        """The case in words, which is also the label of its section in the ledger."""
        again = "once more" if self.again else ""
        return ", ".join(
            filter(None, [self.group, self.what, f"size {self.n}", name_of(self.dtype), again])
        )

    def rank(self, number) -> str:
        return f"rank {number}" if self.counts_up else f"rank {number} of the group"


class Setting(Case):
    """A case without a size, such as a layout or a model, which `what` describes."""

    @property
    def name(self) -> str:
        return ", ".join(filter(None, [self.group, self.what, "once more" if self.again else ""]))


SIZES_SAY = "sizes 0 to 1000; float32, float64, int64"


def in_step(cases, groups_of, one):
    """Run the cases in order, with all ranks in step, up to the first case that is wrong on any
    rank. Called on every rank.

    groups_of: groups_of(cases) -> {case: the group(s) that `one` is given}.
    one: one(case, group) -> ({"ok": bool, ...}, more), called on the case's ranks. If the case is
        wrong on any rank, "ok" becomes False on all of them, and more() is added to their records.

    Returns one record per case that was run, with None for a case in which this rank took no part.
    """
    groups, seen, wire = groups_of(cases), [], Wire(range(dist.get_world_size()), "of all")
    for case in cases:
        mine = dist.get_rank() in case.members
        record, more = one(case, groups[case]) if mine else (None, None)
        seen.append(record)
        if not wire.agreed(not mine or record["ok"]):
            if mine:
                record |= {"ok": False} | more()
            break
    return seen


def groups_of(cases):
    """{case: its group}, where None, the collectives' default argument, means all ranks."""
    members = dict.fromkeys(case.members for case in cases)
    made = {m: dist.new_group(m) for m in members if len(m) < dist.get_world_size()}
    return {case: made.get(case.members) for case in cases}


class NotWaitedFor(RuntimeError):
    """An answer has returned while an op that it started may still be in flight, so everything that
    comes after would have to wait for it."""


def called(case, fn, *args, **kwargs):
    """Call the student's function and return its result. What it sends is in the ledger's section
    `case.name`.

    Raises NotWaitedFor, which names the line, if it started an op and did not wait for it.
    """
    ledger.mark(case.name)
    out = fn(*args, **kwargs)
    if left := ledger.not_waited_for():
        op, where = left[0].op, position(left[0].file, left[0].line, left[0].function)
        raise NotWaitedFor(
            f"{op}, {where}\n  the function has returned, and nothing waited for this {op}. "
            "Try: call .wait() on the work before you return"
        )
    ledger.mark("")
    return out


def of_world(cases, world_size):
    """The cases of a launch of this many ranks. cases: a tuple, or a function of the number of
    ranks."""
    return cases(world_size) if callable(cases) else cases


def seen(runs, cases):
    """Yield (run, case, [record of rank 0 of its group, ...]) for the cases that were run. cases:
    as for `of_world`."""
    for run in runs:
        for number, case in enumerate(of_world(cases, run.world_size)[: len(run.results[0])]):
            yield run, case, [run.results[member][number] for member in case.members]


def k(n, dtype=torch.int64):
    return 1 + torch.arange(n, dtype=dtype, device="cpu") % PERIOD  # (n,)


def part(rank, n, dtype, fine=True):
    """What a rank contributes. (n,)"""
    return (4**rank * k(n)).to(dtype) * (FINE.get(dtype, 1) if fine else 1)


def total(world_size, n, dtype, fine=True):
    """The sum over all ranks. (n,)"""
    counted = sum(part(rank, n, torch.int64, False) for rank in range(world_size))
    return counted.to(dtype) * (FINE.get(dtype, 1) if fine else 1)


def own(rank, n, dtype):
    """Values that identify their rank: 1000 (rank+1) + 0, 1, 2, ..., times `fine`. (n,)"""
    return (1000 * (rank + 1) + torch.arange(n, device="cpu")).to(dtype) * FINE.get(dtype, 1)


def owner(value, world_size):
    """The rank whose `own` can contain this value, or None."""
    fine, is_integer = FINE.get(value.dtype, 1), value.dtype == torch.int64
    plain = value.item() // fine if is_integer else value.item() / fine
    known = 1000 <= plain < 1000 * (world_size + 1) and plain % 1 == 0
    return int(plain) // 1000 - 1 if known else None


def draw(seed, *shape, top=3):
    """Random integers from -top to top without 0, times a factor that float32 cannot represent.
    float64, the same on every rank."""
    generator = torch.Generator("cpu").manual_seed(seed)
    below = lambda high: torch.randint(high, shape, generator=generator, device="cpu")
    size, sign = below(top), below(2)
    return ((1 + size) * (2 * sign - 1)).to(backend.device(), torch.float64) * FINE[torch.float64]


def number(value) -> str:
    """The value as text: 405.0 or 405, and six significant digits if it is not an integer."""
    value = value.item()
    return str(value) if isinstance(value, int) or value.is_integer() else f"{value:.6g}"


def name_of(dtype) -> str:
    return str(dtype).removeprefix("torch.")


def form_of(out) -> str:
    """`float32 (3,)` for a plain tensor; for anything else, the name of its type."""
    if type(out) is not torch.Tensor:
        return "None" if out is None else type(out).__name__
    return f"{name_of(out.dtype)} {tuple(out.shape)}"
