"""Which positions of the sequence each rank has, and how many (query, key) pairs it must compute
for them.

T = 8 tokens over cp = 2 ranks. Token t sees tokens 0..t, so late tokens are more work than early
ones:

                         rank 0      rank 1     pairs seen
    contiguous(8, 2)     0 1 2 3     4 5 6 7    10 and 26: the last rank works most, all wait for it
    zigzag(8, 2)         0 1 6 7     2 3 4 5    18 and 18: an early block and a late one each

With cp blocks, rank r of the contiguous layout sees r full blocks and half of its own. The zigzag
makes 2cp blocks and gives rank r block r and block 2cp-1-r, so that an early block with little work
is paired with a late one that has much.

A layout is plain data: [positions of rank 0, of rank 1, ...], ascending on each rank, together
0..T-1.

Sources: Brandon et al. 2023, "Striped attention" (the imbalance, and interleaved tokens against
it); the zigzag order is that of Zhu's ring-flash-attention and of Llama 3 (Dubey et al. 2024,
section 3.3.2).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence


def contiguous(T: int, cp: int) -> list[list[int]]:
    """Rank r has the r-th of cp runs of tokens; the first T mod cp runs have one token more.
    [[position, ...] per rank]. Raises ValueError unless 1 <= cp <= T."""
    if not 1 <= cp <= T:
        raise ValueError(
            f"{T} tokens over cp={cp} ranks: each rank needs one at least, use cp between 1 and {T}"
        )
    return [list(range(T)[_cut(T, cp, r)]) for r in range(cp)]


def zigzag(T: int, cp: int) -> list[list[int]]:
    """Of 2cp runs of tokens, rank r has run r and run 2cp-1-r. [[position, ...] per rank]

    Every rank sees T(T+1)/(2cp) pairs if 2cp divides T. Raises ValueError unless 1 <= cp <= T/2.
    """
    if not 1 <= cp <= T // 2:
        raise ValueError(
            f"{T} tokens in 2cp={2 * cp} runs: each needs one token at least, use cp up to {T // 2}"
        )
    runs = [list(range(T)[_cut(T, 2 * cp, i)]) for i in range(2 * cp)]
    return [runs[r] + runs[2 * cp - 1 - r] for r in range(cp)]


def _cut(n, pieces, i):
    """The slice of run i, if n tokens are split into `pieces` runs as by `tensor_split`."""
    size, more = divmod(n, pieces)
    begin = i * size + min(i, more)
    return slice(begin, begin + size + (i < more))


def rectangle(queries, keys):
    """(a, b): of these positions only queries[a:] see any of the keys, and only keys[:b] are seen
    by any query.

    Nothing outside of this rectangle has to be computed. Inside it every query sees at least the
    first key.
    """
    if keys[0] > queries[-1]:
        return len(queries), 0
    return bisect_left(queries, keys[0]), bisect_right(keys, queries[-1])


def pairs_seen(layout: Sequence[Sequence[int]]) -> list[list[int]]:
    """[[pairs of step 0, of step 1, ...] per rank]: how many pairs (query, key) there are in which
    the key is not later than the query.

    At step s rank r has the keys of rank r - s. All the numbers add up to T(T+1)/2.
    """
    cp = len(layout)
    seen = lambda queries, keys: sum(bisect_right(keys, q) for q in queries)
    return [[seen(layout[r], layout[(r - step) % cp]) for step in range(cp)] for r in range(cp)]
