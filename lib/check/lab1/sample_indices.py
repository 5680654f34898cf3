"""Lab 1, section 7: sample_indices(n, epoch, rank, world_size, seed), which examples are whose in
which epoch.

The function is called here for every rank of a case, one after the other; no ranks are started.
"""

import random
from collections import Counter
from itertools import pairwise

import torch

from lib.check import symptoms as s
from lib.check.cases import form_of
from lib.check.claims import claim, without_ranks
from lib.check.exercise import Exercise, Hint, Problem
from lib.check.left_out import NO_RANKS, but
from lib.data_parallel import sampler

# n, N: N divides n first, then not, then n < N
SIZES = [(12, 4), (10, 4), (1000, 8), (5, 1), (3, 8), (1, 4)]
EPOCHS, SEEDS = (0, 1, 2), (0, 1)
CASES = [(n, N, epoch, seed) for n, N in SIZES for epoch in EPOCHS for seed in SEEDS]
LARGE = (1000, 8)  # two permutations of so many are not alike by chance


def _measure(fn):
    """{case: what each rank was given, three times}, and whether torch's own generator was left as
    it was.

    The third time is the second's tensors once more, after all other calls.
    """
    seen, held, untouched = {}, {}, True
    outside = random.getstate()
    with torch.random.fork_rng(devices=[]):
        # what an answer draws without a seed of its own is at least the same in every check
        torch.manual_seed(1)
        random.seed(1)
        for n, N, epoch, seed in CASES:
            before = torch.get_rng_state()
            twice = [[fn(n, epoch, rank, N, seed) for rank in range(N)] for _ in range(2)]
            untouched = untouched and torch.equal(torch.get_rng_state(), before)
            held[n, N, epoch, seed] = twice[1]
            seen[n, N, epoch, seed] = [[_plain(out) for out in ranks] for ranks in twice]
    random.setstate(outside)
    for case, ranks in held.items():
        seen[case].append([_plain(out) for out in ranks])
    return seen, untouched


def _plain(out):
    """A list of ints; what is not a 1-D tensor of whole numbers, in words."""
    whole = type(out) is torch.Tensor and not out.is_floating_point() and out.dtype != torch.bool
    return out.tolist() if whole and out.ndim == 1 else form_of(out)


def _words(n, N, epoch, seed):
    return f"n={n}, {N} rank{'s'[: N > 1]}, epoch {epoch}, seed {seed}"


@without_ranks
def _every_example(measured):
    seen, _ = measured
    for case, (ranks, again, _) in seen.items():
        n, N = case[:2]
        for rank, out in enumerate(ranks):
            if type(out) is str:
                text = (
                    f"{_words(*case)}: rank {rank} got {out}, expected a tensor int64 "
                    f"({-(-n // N)},)"
                )
                return Problem("form", text)
        counts = Counter(i for out in ranks for i in out)
        facts = {
            "n": n,
            "N": N,
            "drawn": ranks != again,
            "alike": N > 1 and all(out == ranks[0] for out in ranks),
        }
        stranger = next((i for out in ranks for i in out if not 0 <= i < n), None)
        if stranger is not None:
            rank = next(r for r, out in enumerate(ranks) if stranger in out)
            return Problem(
                "range",
                f"{_words(*case)}: rank {rank} got example {stranger}; there are 0 to {n - 1}",
            )
        absent = [i for i in range(n) if i not in counts]
        # how often it is seen at most, where the padding is spread evenly
        most = -(-sum(counts.values()) // n)
        often = [i for i in range(n) if counts[i] > most]
        repeats = n % N == 0 and any(len({*out}) < len(out) for out in ranks)
        facts |= {"absent": absent, "often": often, "repeats": repeats}
        if facts["alike"] and n > N:
            return Problem(
                "parts", f"{_words(*case)}: all ranks got the same\n{_table(ranks)}", facts
            )
        if absent or often:
            wrong = [f"{_say(absent)} on no rank"] if absent else []
            wrong += (
                [f"example {often[0]} {counts[often[0]]} times, expected {_times(most)}"]
                if often
                else []
            )
            return Problem(
                "parts", f"{_words(*case)}: {' and '.join(wrong)}\n{_table(ranks)}", facts
            )
    return None


def _say(absent):
    return (
        f"example {absent[0]} is"
        if len(absent) == 1
        else f"{len(absent)} examples ({_few(absent)}) are"
    )


def _times(most):
    return "once" if most == 1 else f"at most {most}"


def _few(numbers):
    return ", ".join(map(str, numbers[:4])) + (", ..." if len(numbers) > 4 else "")


def _table(ranks):
    shown = [f"rank {r}: {_few(out)}" for r, out in enumerate(ranks[:4])]
    return "; ".join(shown + ["..."] * (len(ranks) > 4))


@without_ranks
def _equal_lengths(measured):
    seen, _ = measured
    for case, (ranks, *_) in seen.items():
        n, N = case[:2]
        lengths = [len(out) for out in ranks]
        if lengths != [-(-n // N)] * N:
            text = (
                f"{_words(*case)}: the ranks got {lengths} examples, expected ceil({n}/{N}) = "
                f"{-(-n // N)} each"
            )
            return Problem("lengths", text, {"n": n, "N": N, "lengths": lengths})
    return None


def _neighbours(ranks):
    """(a, b): b comes right after a on some rank."""
    return {pair for out in ranks for pair in pairwise(out)}


@without_ranks
def _new_order(measured):
    seen, _ = measured
    orders = {epoch: seen[*LARGE, epoch, 0][0] for epoch in EPOCHS}
    sizes = f"n={LARGE[0]}, {LARGE[1]} ranks"
    steps = {b - a for a, b in _neighbours(orders[0])}
    if len(steps) < 10:  # contiguous or dealt out in turn: the step is the same everywhere
        return Problem(
            "sorted", f"{sizes}, epoch 0: rank 1 got {_few(orders[0][1])}: the examples in order"
        )
    for before, epoch in ((0, 1), (1, 2)):
        old, new = orders[before], orders[epoch]
        where = (
            f"{sizes}: epoch {epoch}, rank 1 got {_few(new[1])}; in epoch {before} it got "
            f"{_few(old[1])}"
        )
        if new == old:
            return Problem("same order", where)
        if all(sorted(a) == sorted(b) for a, b in zip(old, new, strict=True)):
            return Problem(
                "same examples",
                f"{where}\nOn every rank the same examples as before, in another order.",
            )
        kept = len(_neighbours(old) & _neighbours(new)) / len(_neighbours(old))
        if kept > 0.1:
            return Problem(
                "moved", f"{where}\n{kept:.0%} of the examples follow the same example as before."
            )
    return None


@without_ranks
def _repeatable(measured):
    seen, untouched = measured
    for case, (ranks, again, later) in seen.items():
        for rank, (first, second, third) in enumerate(zip(ranks, again, later, strict=True)):
            if first != second:
                text = (
                    f"{_words(*case)}: rank {rank} got {_few(first)}, and {_few(second)} when "
                    f"asked again"
                )
                return Problem("unlike", text, {"drawn": True})
            if second != third:
                text = (
                    f"{_words(*case)}: rank {rank} got {_few(second)}, which later calls made "
                    f"{_few(third)}"
                )
                return Problem("not kept", text)
    for epoch in EPOCHS:
        if seen[*LARGE, epoch, 0] == seen[*LARGE, epoch, 1]:
            got = _few(seen[*LARGE, epoch, 0][0][0])
            return Problem(
                "seed", f"n={LARGE[0]}, epoch {epoch}: seeds 0 and 1 both give rank 0 {got}"
            )
    if not untouched:
        text = "a call changed the state of torch's own generator, torch.get_rng_state()"
        return Problem("generator", text)
    return None


EXERCISE = Exercise(
    name="sample_indices", reference=sampler.sample_indices, measure=_measure, worlds=(),
    leaves_out=but(NO_RANKS, "again", "alone", "returned"),
    claims=(
        claim("every example on one rank", 4, "n = 12, 10, 1000, 5, 3, 1; 1, 4, 8 ranks; 3 epochs",
              _every_example),
        claim("as many on every rank", 2, "ceil(n/N), also where n < N", _equal_lengths),
        claim("a new order in every epoch", 2, "and other examples on every rank", _new_order),
        claim("a pure function", 2, "same arguments, same examples; seeds differ", _repeatable),
    ),
    hints=(
        Hint("no tensor", s.kind("form"),
             "the function must end with `return` of a tensor of whole numbers, (ceil(n/N),): "
             "torch.tensor(a_list)."),
        Hint("not repeatable", s.fact("drawn"),
            "the permutation comes from a generator that has gone on since the last call. Make one "
            "in the function, torch.Generator().manual_seed(a number from seed and epoch), and "
            "give it to torch.randperm."),
        Hint("everything on every rank", s.kind("parts", alike=True),
             "all ranks get the same. Each keeps its part of the permutation: places rank, rank + "
             "N, rank + 2N, ..."),
        Hint("padded with numbers that are no examples", s.kind("range"),
            "pad with examples of this epoch: the first few of the permutation once more."),
        Hint("the tail is dropped",
             lambda p: p.fact("absent") and not p.fact("often") and p.fact("n") % p.fact("N"),
             "n // N examples for each rank leave up to N-1 that no rank sees. Round up, and pad "
             "the permutation."),
        Hint("drawn with repetition", s.kind("parts", repeats=True),
             "a rank has the same example twice, though nothing is padded: torch.randperm(n) has "
             "each once."),
        Hint("every rank its own permutation", s.fact("absent"),
             "some examples come twice and others never: the ranks have not shuffled alike. The "
             "permutation must not depend on the rank; only the part taken of it does."),
        Hint("one example pads", s.fact("often"),
            "the padding repeats one example, which then counts for more in the epoch's mean. Pad "
            "with different ones, the first few of the permutation, and begin again only where n < "
            "N."),
        Hint("padded once only", lambda p: p.kind == "lengths" and p.fact("n") < p.fact("N"),
             "order[:missing] has at most n elements, and here more are missing than n: repeat the "
             "permutation as often as needed, then cut."),
        Hint("padded where nothing is missing",
             lambda p: p.kind == "lengths" and p.fact("n") % p.fact("N") == 0,
            "N - n % N is N where N divides n. What is missing is -n % N, or ceil(n/N) * N - n."),
        Hint("not padded",
             lambda p: p.kind == "lengths" and min(p.fact("lengths")) < max(p.fact("lengths")),
             "a rank with fewer examples takes fewer steps, and the others wait for it in their "
             "all-reduce. Pad the permutation to a multiple of N first."),
        Hint("not shuffled", s.kind("sorted"),
            "deal out a permutation, torch.randperm(n, generator=...), not the examples in order."),
        Hint("the epoch is ignored", s.kind("same order"),
            "the order is that of the epoch before. Let the generator's seed depend on epoch too."),
        Hint("dealt before it is shuffled", s.kind("same examples"),
             "every rank always keeps its own examples. Shuffle all n first, the same way on every "
             "rank; then deal."),
        Hint("moved along", s.kind("moved"),
            "it is one order, begun at another place: neighbours stay neighbours, and batches stay "
            "the same. Draw a new permutation from seed and epoch."),
        Hint("the seed is ignored", s.kind("seed"),
             "another seed must give another order. Let the generator's seed depend on both, seed "
             "and epoch."),
        Hint("torch.manual_seed", s.kind("generator"),
             "torch.manual_seed sets the generator that dropout and initialisation draw from, in "
             "every epoch anew. Use one of your own: torch.Generator().manual_seed(...)."),
        s.NOT_KEPT,
        *s.ANYWHERE,
    ),
)  # fmt: skip
