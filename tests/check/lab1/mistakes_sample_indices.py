"""Known mistakes of sample_indices, each named after its cause."""

from mistakes import Mistake, edit

SEEDED, KEY = (
    'torch.Generator("cpu").manual_seed(seed * 1_000_003 + epoch)',
    "seed * 1_000_003 + epoch",
)
PADDED = "order.repeat(-(-length * world_size // n))[: length * world_size]"
DEALT = "return padded[rank::world_size]"
SHUFFLED = 'torch.randperm(n, generator=generator, device="cpu")'
MISTAKES = (
    Mistake("no tensor", edit(DEALT, "return")),
    Mistake("no tensor", edit(DEALT, "return padded[rank::world_size].tolist()")),
    Mistake("no tensor", edit(DEALT, "return padded[rank::world_size].int()")),
    Mistake("not repeatable", edit(SHUFFLED, "torch.randperm(n)")),
    Mistake("not repeatable", edit(DEALT,
        "mine = padded[rank::world_size]\n    return mine[torch.randperm(length)]")),
    Mistake("everything on every rank", edit(DEALT, "return order")),
    Mistake("everything on every rank", edit(DEALT, "return padded[:length]")),
    Mistake("padded with numbers that are no examples",
        edit(PADDED, "torch.cat([order, torch.full((-n % world_size,), -1)])")),
    Mistake("padded with numbers that are no examples", edit(SHUFFLED, f"1 + {SHUFFLED}")),
    Mistake("the tail is dropped",
            edit(DEALT, "return order[rank * (n // world_size) : (rank + 1) * (n // world_size)]")),
    Mistake("drawn with repetition", edit(SHUFFLED,
        'torch.randint(n, (n,), generator=generator, device="cpu")')),
    Mistake("every rank its own permutation", edit(KEY, f"{KEY} + rank")),
    Mistake("every rank its own permutation", edit(DEALT, "return padded[rank : rank + length]")),
    Mistake("one example pads", edit(PADDED,
        "torch.cat([order, order[-1:].repeat(-n % world_size)])")),
    Mistake("padded once only", edit(PADDED, "torch.cat([order, order[: -n % world_size]])")),
    Mistake("padded where nothing is missing",
            edit(PADDED,
                 "torch.cat([order, order.repeat(world_size)[: world_size - n % world_size]])")),
    Mistake("not padded", edit(DEALT, "return order[rank::world_size]")),
    Mistake("not padded", edit(DEALT, "return order.tensor_split(world_size)[rank]")),
    Mistake("not shuffled", edit(SHUFFLED, "torch.arange(n)")),
    Mistake("not shuffled", edit(SHUFFLED, "torch.arange(n)").then(DEALT,
        "return padded.view(world_size, -1)[rank]")),
    Mistake("the epoch is ignored", edit(KEY, "seed")),
    Mistake("the epoch is ignored", edit(KEY, "seed + (epoch << 32)")),
    Mistake("the seed is ignored", edit(KEY, "(seed << 32) + epoch")),
    Mistake("a hash of text", edit(KEY, "hash(f'{seed} {epoch}') % 2**32")),
    Mistake("seed and epoch added", edit(KEY, "seed ^ epoch")),
    Mistake("moved along", edit(KEY, "seed").then(SHUFFLED, f"{SHUFFLED}.roll(epoch)")),
    Mistake("the seed is ignored", edit(KEY, "epoch")),
    Mistake("seed and epoch added", edit(KEY, "seed + epoch")),
    Mistake("torch.manual_seed", edit(SEEDED, f"torch.manual_seed({KEY})")),
)  # fmt: skip
