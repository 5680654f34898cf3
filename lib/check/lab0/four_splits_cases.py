"""What the four splits are checked on, and what is right: results, shares of the work, what is sent.

x (B, K) times w (K, M), or x through four layers (K, K); rank r of N.
"""

from functools import reduce

import torch

SIZES = [(4, 5, 8, torch.float32), (8, 7, 12, torch.float64)]  # B, K, M: 2 and 4 divide B and M, not K
LAYERS = 4


def draw(B, K, M, dtype):
    """x (B, K), w (K, M) and LAYERS layers (K, K): small whole numbers, so that sums are exact in any order."""
    numbers = {"generator": torch.Generator("cpu").manual_seed(10 * B + K), "device": "cpu"}
    some = lambda rows, columns, top: torch.randint(-top, top + 1, (rows, columns), **numbers).to(dtype)
    return some(B, K, 9), some(K, M, 9), [some(K, K, 2) for _ in range(LAYERS)]


def through(x, layers):
    return reduce(torch.matmul, layers, x)


def piece(t, rank, world_size, dim=0):
    return t.tensor_split(world_size, dim)[rank]


def layers_of(layers, rank, world_size):
    per_rank = len(layers) // world_size
    return layers[rank * per_rank : (rank + 1) * per_rank]


# What rank `r` of `N` returns; its share of the multiply-adds, at most; what it gives to be sent: (op, elements, peer).
RETURNS = {
    "split_rows": lambda x, w, layers, r, N: piece(x @ w, r, N),
    "split_columns": lambda x, w, layers, r, N: x @ w,
    "split_inner": lambda x, w, layers, r, N: x @ w,
    "pipeline": lambda x, w, layers, r, N: through(x, layers[: LAYERS // N * (r + 1)]),
}
SHARE = {
    "split_rows": lambda B, K, M, N: B // N * K * M,
    "split_columns": lambda B, K, M, N: B * K * M // N,
    "split_inner": lambda B, K, M, N: B * -(-K // N) * M,  # K need not divide: the largest piece
    "pipeline": lambda B, K, M, N: LAYERS // N * B * K * K,
}
GIVES = {
    "split_rows": lambda B, K, M, r, N: [],
    "split_columns": lambda B, K, M, r, N: [("all_gather", B * M // N, None)],
    "split_inner": lambda B, K, M, r, N: [("all_reduce", B * M, None)],
    "pipeline": lambda B, K, M, r, N: [("send", B * K, r + 1)] if r < N - 1 else [],
}


def words(name, B, K, M, _):
    """A case in words, and its section in the ledger."""
    return f"x ({B}, {K}), " + (f"{LAYERS} layers ({K}, {K})" if name == "pipeline" else f"w ({K}, {M})")
