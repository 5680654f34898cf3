"""Lab 1, section 7: sample_indices(n, epoch, rank, world_size, seed), which examples are whose in which epoch.

The function is called here for every rank of a case, one after the other; no ranks are started.
"""

import random
from collections import Counter
from itertools import pairwise

import torch

from lib.check.framework import Claim, Exercise, Problem
from lib.check.lab1.sample_indices_hints import HINTS
from lib.data_parallel import sampler

SIZES = [(12, 4), (10, 4), (1000, 8), (5, 1), (3, 8), (1, 4)]  # n, N: N divides n first, then not, then n < N
EPOCHS, SEEDS = (0, 1, 2), (0, 1)
CASES = [(n, N, epoch, seed) for n, N in SIZES for epoch in EPOCHS for seed in SEEDS]
LARGE = (1000, 8)  # two permutations of so many are not alike by chance


def _measure(fn):
    """{case: what each rank was given, twice}, and whether torch's own generator was left as it was."""
    seen, untouched = {}, True
    outside = random.getstate()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)  # what an answer draws without a seed of its own is at least the same in every check
        random.seed(1)
        for n, N, epoch, seed in CASES:
            before = torch.get_rng_state()
            twice = [[fn(n, epoch, rank, N, seed) for rank in range(N)] for _ in range(2)]
            untouched = untouched and torch.equal(torch.get_rng_state(), before)
            seen[n, N, epoch, seed] = [[_plain(out) for out in ranks] for ranks in twice]
    random.setstate(outside)
    return seen, untouched


def _plain(out):
    """A list of ints; what is not a 1-D tensor of whole numbers, in words."""
    if type(out) is not torch.Tensor:
        return "None" if out is None else f"a {type(out).__name__}"
    if out.ndim != 1 or out.is_floating_point() or out.dtype == torch.bool:
        return f"a tensor {str(out.dtype).removeprefix('torch.')} {tuple(out.shape)}"
    return out.tolist()


def _words(n, N, epoch, seed):
    return f"n={n}, {N} rank{'s'[: N > 1]}, epoch {epoch}, seed {seed}"


def _every_example(runs):
    seen, _ = runs[0].results[0]
    for case, (ranks, again) in seen.items():
        n, N = case[:2]
        for rank, out in enumerate(ranks):
            if type(out) is str:
                text = f"{_words(*case)}: rank {rank} got {out}, expected a tensor int64 ({-(-n // N)},)"
                return Problem("form", text, {"got": out})
        counts = Counter(i for out in ranks for i in out)
        facts = {"n": n, "N": N, "repeats": ranks == again, "alike": N > 1 and all(out == ranks[0] for out in ranks)}
        stranger = next((i for out in ranks for i in out if not 0 <= i < n), None)
        if stranger is not None:
            rank = next(r for r, out in enumerate(ranks) if stranger in out)
            return Problem("range", f"{_words(*case)}: rank {rank} got example {stranger}; there are 0 to {n - 1}")
        absent = [i for i in range(n) if i not in counts]
        most = -(-sum(counts.values()) // n)  # how often it is seen at most, where the padding is spread evenly
        often = [i for i in range(n) if counts[i] > most]
        facts |= {"absent": absent, "often": often}
        if facts["alike"] and n > N:
            return Problem("parts", f"{_words(*case)}: all ranks got the same\n{_table(ranks)}", facts)
        if absent or often:
            wrong = [f"{_say(absent)} on no rank"] if absent else []
            wrong += [f"example {often[0]} {counts[often[0]]} times, expected {_times(most)}"] if often else []
            return Problem("parts", f"{_words(*case)}: {' and '.join(wrong)}\n{_table(ranks)}", facts)
    return None


def _say(absent):
    return f"example {absent[0]} is" if len(absent) == 1 else f"{len(absent)} examples ({_few(absent)}) are"


def _times(most):
    return "once" if most == 1 else f"at most {most}"


def _few(numbers):
    return ", ".join(map(str, numbers[:4])) + (", ..." if len(numbers) > 4 else "")


def _table(ranks):
    shown = [f"rank {r}: {_few(out)}" for r, out in enumerate(ranks[:4])]
    return "; ".join(shown + ["..."] * (len(ranks) > 4))


def _equal_lengths(runs):
    seen, _ = runs[0].results[0]
    for case, (ranks, _) in seen.items():
        n, N = case[:2]
        lengths = [len(out) for out in ranks]
        if lengths != [-(-n // N)] * N:
            text = f"{_words(*case)}: the ranks got {lengths} examples, expected ceil({n}/{N}) = {-(-n // N)} each"
            return Problem("lengths", text, {"n": n, "N": N, "lengths": lengths})
    return None


def _neighbours(ranks):
    """(a, b): b comes right after a on some rank."""
    return {pair for out in ranks for pair in pairwise(out)}


def _new_order(runs):
    seen, _ = runs[0].results[0]
    orders = {epoch: seen[*LARGE, epoch, 0][0] for epoch in EPOCHS}
    sizes = f"n={LARGE[0]}, {LARGE[1]} ranks"
    steps = {b - a for a, b in _neighbours(orders[0])}
    if len(steps) < 10:  # contiguous or dealt out in turn: the step is the same everywhere
        return Problem("sorted", f"{sizes}, epoch 0: rank 1 got {_few(orders[0][1])}: the examples in order")
    for before, epoch in ((0, 1), (1, 2)):
        old, new = orders[before], orders[epoch]
        where = f"{sizes}: epoch {epoch}, rank 1 got {_few(new[1])}; in epoch {before} it got {_few(old[1])}"
        if new == old:
            return Problem("same order", where)
        if all(sorted(a) == sorted(b) for a, b in zip(old, new, strict=True)):
            return Problem("same examples", f"{where}\nOn every rank the same examples as before, in another order.")
        kept = len(_neighbours(old) & _neighbours(new)) / len(_neighbours(old))
        if kept > 0.1:
            return Problem("moved", f"{where}\n{kept:.0%} of the examples follow the same example as before.")
    return None


def _repeatable(runs):
    seen, untouched = runs[0].results[0]
    for case, (ranks, again) in seen.items():
        for rank, (first, second) in enumerate(zip(ranks, again, strict=True)):
            if first != second:
                text = f"{_words(*case)}: rank {rank} got {_few(first)}, and {_few(second)} when asked again"
                return Problem("unlike", text, {"repeats": False})
    for epoch in EPOCHS:
        if seen[*LARGE, epoch, 0] == seen[*LARGE, epoch, 1]:
            got = _few(seen[*LARGE, epoch, 0][0][0])
            return Problem("seed", f"n={LARGE[0]}, epoch {epoch}: seeds 0 and 1 both give rank 0 {got}")
    if not untouched:
        text = "a call changed the state of torch's own generator, torch.get_rng_state()"
        return Problem("generator", text)
    return None


EXERCISE = Exercise(
    name="sample_indices",
    reference=sampler.sample_indices,
    measure=_measure,
    worlds=(),
    claims=(
        Claim("every example on one rank", 4, "n = 12, 10, 1000, 5, 3, 1; 1, 4, 8 ranks; 3 epochs", _every_example),
        Claim("as many on every rank", 2, "ceil(n/N), also where n < N", _equal_lengths),
        Claim("a new order in every epoch", 2, "and other examples on every rank", _new_order),
        Claim("a pure function", 2, "same arguments, same examples; seeds differ", _repeatable),
    ),
    hints=HINTS,
)
