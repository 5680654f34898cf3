"""Lab 1, section 7: sample_indices(n, epoch, rank, world_size, seed), which rank sees which
examples in which epoch.

No ranks are started: the function is called in the kernel for every rank of a case, one after the
other. There are many right ways to draw and to deal out the examples, so properties are shown
instead of values.
"""

import builtins
import contextlib
import itertools
from collections import Counter
from unittest import mock

import torch

from lib.check.cases import form_of
from lib.check.causes import hints
from lib.check.left_out import NO_RANKS, NO_TENSORS, but
from lib.check.side_by_side import SideBySide, here
from lib.data_parallel import sampler

SIZES = {  # name: (n, N), where N divides n, or does not, or n < N
    f"n={n}, {N} rank{'s'[: N > 1]}": (n, N)
    for n, N in [(12, 4), (10, 4), (1000, 8), (5, 1), (3, 8), (1, 4)]
}
CASES = here(*SIZES)
LARGE = CASES[2]  # so many examples that two permutations are not alike by chance
EPOCHS, SEEDS = (0, 1, 2), (0, 1)
PARTS = (
    "a tensor", "no such example", "drawn anew", "alike", "twice on a rank", "the tail",
    "some often, others never", "too often",
)  # fmt: skip
LENGTHS = "unequal lengths", "lengths"
ORDER = "in order", "the same order", "the same examples", "moved along"
PURE = "asked again", "another process", "another seed", "seed + epoch"


def script(make, case, show):
    n, N = SIZES[case.what]
    drawn = {}
    for seed, epoch in itertools.product(SEEDS, EPOCHS):
        with show.during(f"epoch {epoch}, seed {seed}") as run:
            ranks, again = (
                [_plain(run(make, n, epoch, rank, N, seed)) for rank in range(N)] for _ in range(2)
            )
        odd = next((r for r, out in enumerate(ranks) if type(out) is str), None)
        wanted = f"expected a tensor int64 ({-(-n // N)},)"
        show("a tensor", f"rank {odd} got {ranks[odd]}, {wanted}" if odd is not None else "")
        if show.wrong("a tensor"):
            return
        wrong = _parts(n, N, ranks, again) | _lengths(n, N, ranks)
        if case == LARGE and epoch:
            wrong |= _order(drawn[seed, epoch - 1], ranks)
        if ranks != again:
            wrong["asked again"] = f"got {_table(ranks)}, and when asked again {_table(again)}"
        show.said((*PARTS[1:], *LENGTHS, *ORDER, "asked again"), wrong)
        drawn[seed, epoch] = ranks
    if case == LARGE:
        _pure(make, n, N, drawn, show)


def _plain(out):
    """The result as a list of ints or, if it is not a 1-D tensor of int64, its form in words."""
    whole = type(out) is torch.Tensor and out.dtype == torch.int64
    return out.tolist() if whole and out.ndim == 1 else form_of(out)


def _parts(n, N, ranks, again):
    """{one of PARTS: what is wrong} if the ranks' parts together are not an evenly padded
    permutation, else {}."""
    counts = Counter(i for out in ranks for i in out)
    if strangers := [i for i in counts if not 0 <= i < n]:
        return {"no such example": f"got example {strangers[0]}; there are 0 to {n - 1}"}
    most = -(-counts.total() // n)  # how often an example may come if the padding is spread evenly
    absent = [i for i in range(n) if counts[i] == 0]
    often = [i for i in range(n) if counts[i] > most]
    alike = N > 1 and n > N and all(out == ranks[0] for out in ranks)
    if not (absent or often or alike):
        return {}
    wrong = [f"example {_few(absent)} is on no rank"] * bool(absent)
    wrong += [f"example {i} comes {counts[i]} times, not {most}" for i in often[:1]]
    if ranks != again:
        name = "drawn anew"
    elif alike:
        name, wrong = "alike", ["all ranks got the same"]
    elif n % N == 0 and any(len({*out}) < len(out) for out in ranks):
        name = "twice on a rank"
    elif absent:
        name = "the tail" if not often and n % N else "some often, others never"
    else:
        name = "too often"
    return {name: f"{' and '.join(wrong)}\n{_table(ranks)}"}


def _few(numbers):
    return ", ".join(map(str, numbers[:4])) + (", ..." if len(numbers) > 4 else "")


def _table(ranks):
    shown = [f"rank {r}: {_few(out)}" for r, out in enumerate(ranks[:4])]
    return "; ".join(shown + ["..."] * (len(ranks) > 4))


def _lengths(n, N, ranks):
    """{one of LENGTHS: what is wrong}, or {}."""
    lengths, each = [len(out) for out in ranks], -(-n // N)
    if lengths == [each] * N:
        return {}
    text = f"the ranks got {lengths} examples, expected ceil({n}/{N}) = {each} each"
    return {LENGTHS[len({*lengths}) == 1]: text}


def _order(old, new):
    """{one of ORDER: what is wrong}, or {}. old, new: the ranks' examples in the epoch before, and
    in this one."""
    if len({b - a for a, b in _neighbours(old)}) < 10:  # in order, contiguous or dealt out in turn
        return {"in order": f"in the epoch before rank 1 got {_few(old[1])}: the examples in order"}
    where = f"rank 1 got {_few(new[1])}; in the epoch before it got {_few(old[1])}"
    if new == old:
        return {"the same order": where}
    if all(sorted(a) == sorted(b) for a, b in zip(old, new, strict=True)):
        words = "On every rank the same examples as before, in another order."
        return {"the same examples": f"{where}\n{words}"}
    kept = len(_neighbours(old) & _neighbours(new)) / len(_neighbours(old))
    words = f"{kept:.0%} of the examples follow the same example as before."
    return {"moved along": f"{where}\n{words}"} if kept > 0.1 else {}


def _neighbours(ranks):
    """{(a, b), ...}: the pairs in which b directly follows a on some rank."""
    return {pair for out in ranks for pair in itertools.pairwise(out)}


def _pure(make, n, N, drawn, show):
    """drawn: {(seed, epoch): the examples of each rank}"""
    with show.during("rank 0, epoch 1, seed 1") as run, _another_process():
        same = _plain(run(make, n, 1, 0, N, 1)) == drawn[1, 1][0]
    show("another process", "" if same else "another process gets other examples")
    same = any(drawn[0, epoch] == drawn[1, epoch] for epoch in EPOCHS)
    show("another seed", "seeds 0 and 1 give the same examples in the same order" if same else "")
    words = "seed 0 in epoch 1 gives the same examples as seed 1 in epoch 0"
    show("seed + epoch", words if drawn[0, 1] == drawn[1, 0] else "")


@contextlib.contextmanager
def _another_process():
    """Within this context, hash() returns what it might return in another process: only numbers,
    and tuples of them, keep their hash."""
    here, numbers = hash, (int, float)

    def there(x):
        parts = x if isinstance(x, tuple) else (x,)
        return here(x) + (not all(isinstance(one, numbers) for one in parts))

    with mock.patch.object(builtins, "hash", there):
        yield


MEASURE = SideBySide(script, sampler.sample_indices, CASES, groups=None, excused=NO_TENSORS)
EXERCISE = MEASURE.exercise(
    ("every example on one rank", 4, "n = 12, 10, 1000, 5, 3, 1; 1, 4, 8 ranks; 3 epochs",
     *PARTS),
    ("as many on every rank", 2, "ceil(n/N), also where n < N", *LENGTHS),
    ("a new order in every epoch", 2, "and other examples on every rank", *ORDER),
    ("a pure function", 2, "same arguments, same examples; seeds differ", *PURE),
    hints=hints("lab1", "sample_indices"), leaves_out=but(NO_RANKS, "again", "alone", "returned"),
)  # fmt: skip
