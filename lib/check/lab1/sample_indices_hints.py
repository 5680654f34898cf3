"""The mistakes that are made in sample_indices, told by what came of them, and the hint for each."""

from lib.check.framework import Hint


def _parts(fits):
    return lambda p: p.kind == "parts" and fits(p.facts)


def _lengths(fits):
    return lambda p: p.kind == "lengths" and fits(p.facts)


HINTS = (
    Hint(
        "no tensor",
        lambda p: p.kind == "form",
        "the function must end with `return` of a tensor of whole numbers, (ceil(n/N),): torch.tensor(a_list).",
    ),
    Hint(
        "not repeatable",
        lambda p: p.facts.get("repeats") is False,
        "the permutation comes from a generator that has gone on since the last call. Make one in the function, "
        "torch.Generator().manual_seed(a number from seed and epoch), and give it to torch.randperm.",
    ),
    Hint(
        "everything on every rank",
        _parts(lambda f: f["alike"]),
        "all ranks get the same. Each keeps its part of the permutation: places rank, rank + N, rank + 2N, ...",
    ),
    Hint(
        "padded with numbers that are no examples",
        lambda p: p.kind == "range",
        "pad with examples of this epoch: the first few of the permutation once more.",
    ),
    Hint(
        "the tail is dropped",
        _parts(lambda f: f["absent"] and not f["often"] and f["n"] % f["N"]),
        "n // N examples for each rank leave up to N-1 that nobody sees. Round up, and pad the permutation.",
    ),
    Hint(
        "every rank its own permutation",
        _parts(lambda f: f["absent"]),
        "some examples come twice and others never: the ranks have not shuffled alike. The permutation must not "
        "depend on the rank; only the part taken of it does.",
    ),
    Hint(
        "one example pads",
        _parts(lambda f: f["often"]),
        "the padding repeats one example, which then counts for more in the epoch's mean. Pad with different ones, "
        "the first few of the permutation, and begin again only where n < N.",
    ),
    Hint(
        "padded once only",
        _lengths(lambda f: f["n"] < f["N"]),
        "order[:missing] has at most n elements, and here more are missing than n: repeat the permutation as often "
        "as needed, then cut.",
    ),
    Hint(
        "padded where nothing is missing",
        _lengths(lambda f: f["n"] % f["N"] == 0),
        "N - n % N is N where N divides n. What is missing is -n % N, or ceil(n/N) * N - n.",
    ),
    Hint(
        "not padded",
        _lengths(lambda f: min(f["lengths"]) < max(f["lengths"])),
        "a rank with fewer examples takes fewer steps, and the others wait for it in their all-reduce. Pad the "
        "permutation to a multiple of N first.",
    ),
    Hint(
        "not shuffled",
        lambda p: p.kind == "sorted",
        "deal out a permutation, torch.randperm(n, generator=...), not the examples in order.",
    ),
    Hint(
        "the epoch is ignored",
        lambda p: p.kind == "same order",
        "the order is that of the epoch before. Let the generator's seed depend on epoch too.",
    ),
    Hint(
        "dealt before it is shuffled",
        lambda p: p.kind == "same examples",
        "every rank always keeps its own examples. Shuffle all n first, the same way on every rank; then deal.",
    ),
    Hint(
        "moved along",
        lambda p: p.kind == "moved",
        "it is one order, begun at another place: neighbours stay neighbours, and batches stay the same. Draw a "
        "new permutation from seed and epoch.",
    ),
    Hint(
        "the seed is ignored",
        lambda p: p.kind == "seed",
        "another seed must give another order. Let the generator's seed depend on both, seed and epoch.",
    ),
    Hint(
        "torch.manual_seed",
        lambda p: p.kind == "generator",
        "torch.manual_seed sets the generator that dropout and initialisation draw from, in every epoch anew. Use "
        "one of your own: torch.Generator().manual_seed(...).",
    ),
)
