"""What functions on ranks are checked on: groups of one launch, sizes, dtypes, inputs whose sums
tell who is in them.

Rank r of N gives at element e  4^r * k(e) * fine,  where k(e) = 1 + e mod 11. For example, four
ranks at element 4, with fine = 1:

    rank           0    1    2    3
    gives          5   20   80  320      sum  425      425 / 5 = 85 = 1111 in base 4
    without 1      5    .   80  320           405      405 / 5 = 81 = 1101 in base 4

A sum divided by k(e) is a number in base 4 whose digit r says how often rank r is in it: every
wrong sum of whole parts has a value of its own (`explain.py` reads it). Neighbouring elements
differ, and so do the chunks.

`fine` makes values that no narrower type holds: float64 has 1 + 2^-30, which float32 rounds to 1,
and int64 2^40 + 1, which no float holds beside a sum. All stays exact: 20 bits and 30 more.

What is given and what is expected is made on the CPU. Ranks here are ranks within the group. The
last group's are not 0 to N-1 in the world: whoever mixes them up is found out.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist

from lib import backend, ledger
from lib.ledger.source import position as place

WORLD = 8
GROUPS = ((0, 1), (0, 1, 2), (0, 1, 2, 3), tuple(range(WORLD)), (1, 3, 4, 6))
GROUPS_SAY = "2, 3, 4, 8 ranks, a subgroup"
ALONE = (5,)  # N = 1
PERIOD = 11  # of k: no two chunks of the sizes used here begin at the same k
FINE = {torch.float64: 1 + 2.0**-30, torch.int64: 2**40 + 1}


@dataclass(frozen=True)
class Case:
    """One call: on which global ranks, of how many elements. what: whatever else tells it
    from the other cases."""

    members: tuple[int, ...]
    n: int = 0
    dtype: torch.dtype = torch.float64
    what: str = ""
    root: int = 0
    again: int = 0  # the same call once more; its values are others

    @property
    def world_size(self) -> int:
        return len(self.members)

    @property
    def divides(self) -> bool:
        return self.n % self.world_size == 0

    @property
    def counts_up(self) -> bool:
        """Are the group's ranks the world's, 0 to N-1?"""
        return self.members == tuple(range(self.world_size))

    @property
    def group(self) -> str:
        ranks = "1 rank" if self.world_size == 1 else f"{self.world_size} ranks"
        return ranks if self.counts_up else f"group {self.members}"

    @property
    def name(self) -> str:
        """Also the label of the case's section in the ledger."""
        again = "once more" if self.again else ""
        return ", ".join(
            filter(None, [self.group, self.what, f"size {self.n}", name_of(self.dtype), again])
        )

    def rank(self, number) -> str:
        return f"rank {number}" if self.counts_up else f"rank {number} of the group"


class Setting(Case):
    """A case that has no size: a layout, a model, in the words of `what`."""

    @property
    def name(self) -> str:
        return ", ".join(filter(None, [self.group, self.what, "once more" if self.again else ""]))


SIZES_SAY = "sizes 0 to 1000; float32, float64, int64"


def in_step(cases, groups_of, one, wire=None):
    """On every rank: the cases in order, all ranks together, up to the first that is wrong on any
    rank.

    groups_of(cases) -> {case: the group(s) that `one` is given}; one(case, group) -> {"ok": bool,
    ...}, called on the case's ranks. wire: a group of all ranks to agree on, where answers may call
    torch's collectives on the world's. Returns one record per case that was run, None where this
    rank had no part in it.
    """
    groups, seen = groups_of(cases), []
    for case in cases:
        mine = dist.get_rank() in case.members
        seen.append(one(case, groups[case]) if mine else None)
        all_right = torch.tensor(int(not mine or seen[-1]["ok"]), device=backend.device())
        dist.all_reduce(all_right, dist.ReduceOp.MIN, group=wire)
        if not all_right:
            break
    return seen


def groups_of(cases):
    """Each case's group; None, as the default argument is, for all ranks."""
    members = dict.fromkeys(case.members for case in cases)
    made = {m: dist.new_group(m) for m in members if len(m) < dist.get_world_size()}
    return {case: made.get(case.members) for case in cases}


def groups_and_control(cases):
    """{case: (its group, None for all ranks; another group of the same ranks, which no
    answer knows)}"""
    control = {
        members: dist.new_group(members)
        for members in dict.fromkeys(case.members for case in cases)
    }
    return {case: (group, control[case.members]) for case, group in groups_of(cases).items()}


class NotWaitedFor(RuntimeError):
    """An answer has returned, and what it began may still be in flight: all that comes
    after would wait for it."""


def called(case, fn, *args, **kwargs):
    """What the student's function returns; what it sends is in the ledger's section `case.name`.

    Raises NotWaitedFor, naming the line, where it has begun an op and not waited for it.
    """
    ledger.mark(case.name)
    out = fn(*args, **kwargs)
    if left := ledger.not_waited_for():
        op, where = left[0].op, place(left[0].file, left[0].line, left[0].function)
        raise NotWaitedFor(
            f"{op}, {where}\n  the function has returned, and nothing waited for this {op}. "
            "Try: call .wait() on the work before you return"
        )
    ledger.mark("")
    return out


def of_world(cases, world_size):
    """The cases on so many ranks: a tuple, or a function of their number."""
    return cases(world_size) if callable(cases) else cases


def seen(runs, cases):
    """(run, case, [record of rank 0 of its group, ...]) for the cases that were
    run; cases: `of_world`'s."""
    for run in runs:
        for number, case in enumerate(of_world(cases, run.world_size)[: len(run.results[0])]):
            yield run, case, [run.results[member][number] for member in case.members]


def k(n, dtype=torch.int64):
    return 1 + torch.arange(n, dtype=dtype, device="cpu") % PERIOD  # (n,)


def part(rank, n, dtype, fine=True):
    """What a rank gives. (n,)"""
    return (4**rank * k(n)).to(dtype) * (FINE.get(dtype, 1) if fine else 1)


def total(world_size, n, dtype, fine=True):
    """The sum over all ranks. (n,)"""
    return sum(part(rank, n, torch.int64, False) for rank in range(world_size)).to(dtype) * (
        FINE.get(dtype, 1) if fine else 1
    )


def own(rank, n, dtype):
    """What tells whose it is: 1000 (rank+1) + 0, 1, 2, ..., times `fine`. (n,)"""
    return (1000 * (rank + 1) + torch.arange(n, device="cpu")).to(dtype) * FINE.get(dtype, 1)


def owner(value, world_size):
    """The rank whose `own` this value is one of, or None."""
    whole = (
        value.item() // FINE[torch.int64]
        if value.dtype == torch.int64
        else value.item() / FINE.get(value.dtype, 1)
    )
    return (
        int(whole) // 1000 - 1
        if 1000 <= whole < 1000 * (world_size + 1) and whole % 1 == 0
        else None
    )


def draw(seed, *shape, top=3):
    """Whole numbers of -top..top, without 0, times what float32 does not hold. float64, the
    same on every rank."""
    generator = torch.Generator("cpu").manual_seed(seed)
    size, sign = (
        torch.randint(high, shape, generator=generator, device="cpu") for high in (top, 2)
    )
    return ((1 + size) * (2 * sign - 1)).to(backend.device(), torch.float64) * FINE[torch.float64]


def number(value) -> str:
    """405.0 or 405; what is no whole number in six digits."""
    value = value.item()
    return str(value) if isinstance(value, int) or value.is_integer() else f"{value:.6g}"


def name_of(dtype) -> str:
    return str(dtype).removeprefix("torch.")


def form_of(out) -> str:
    """`float32 (3,)`, or the type of what is no tensor."""
    if type(out) is not torch.Tensor:
        return "None" if out is None else type(out).__name__
    return f"{name_of(out.dtype)} {tuple(out.shape)}"
