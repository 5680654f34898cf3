"""Known mistakes of shares.

B = 10, v = 3 2 1  in proportion 5 3.3 1.7
rounded            5 3 2      their sum is B here, by luck
rounded down       5 3 1      and the rest to one rank: 6 3 1, 5 3 2
largest remainder  5 3 2      the rest to those who lost most: good for seats in a parliament, not
                              for time
equal              4 3 3
"""

from math import ceil, floor

from mistakes import Mistake

WAYS = (floor, round, ceil, lambda share: floor(share + 0.5))  # to a whole number
WHOM = (
    lambda speeds: 0,
    lambda speeds: -1,
    lambda speeds: speeds.index(max(speeds)),
    lambda speeds: speeds.index(min(speeds)),
)
ORDERS = (
    lambda r, speeds: r,
    lambda r, speeds: -r,
    lambda r, speeds: -speeds[r],
    lambda r, speeds: speeds[r],
)


def _proportion(B, speeds):
    return [B * v / sum(speeds) for v in speeds]


def _rounded(way):
    """Each share by itself."""
    return lambda B, speeds, most=None: [way(share) for share in _proportion(B, speeds)]


def _rest_to(way, whom):
    """Rounded; what then lacks, or is too much, goes to one rank: whom(speeds)."""

    def rule(B, speeds, most=None):
        b = _rounded(way)(B, speeds)
        b[whom(speeds)] += B - sum(b)
        return b

    return rule


def _largest_remainder(B, speeds, most=None):
    """Rounded down; the rest one each to those that lost most by it."""
    exact = _proportion(B, speeds)
    b = [floor(share) for share in exact]
    for r in sorted(range(len(b)), key=lambda r: b[r] - exact[r])[: B - sum(b)]:
        b[r] += 1
    return b


def _equal(first):
    """As many each; of what is left one each to the first ranks, or to the last."""

    def rule(B, speeds, most=None):
        N = len(speeds)
        b = [B // N + (r < B % N) for r in range(N)]
        return b if first else b[::-1]

    return rule


def _dealt(cost=lambda b, v: (b + 1) / v, order=None):
    """One row after another to argmin cost(rows so far, speed), without `most`; order: in which
    speeds are sorted."""

    def rule(B, speeds, most=None):
        speeds = sorted(speeds, reverse=order == "falling") if order else speeds
        b = [0] * len(speeds)
        for _ in range(B):
            b[min(range(len(b)), key=lambda r: (cost(b[r], speeds[r]), r))] += 1
        return b

    return rule


def _clamped(B, speeds, most=None):
    """The shares without `most`, and then at most that."""
    b = _dealt()(B, speeds)
    return [min(rows, room) for rows, room in zip(b, most, strict=True)] if most else b


def _clamped_rest_to(order):
    """Clamped; what lacks goes to the ranks in this order, to each up to its room."""

    def rule(B, speeds, most=None):
        b, most = _clamped(B, speeds, most), most or [B] * len(speeds)
        for r in sorted(range(len(b)), key=lambda r: order(r, speeds)):
            b[r] += min(B - sum(b), most[r] - b[r])
        return b

    return rule


def _all(hint, text, *rules):
    return [Mistake(hint, rule, text) for rule in rules]


MISTAKES = (
    *_all("equal shares",
          "you give every rank as many. The slowest then keeps all others waiting: use `speeds`.",
          _equal(True), _equal(False), _dealt(lambda b, v: b)),
    *_all("all to the fastest",
          "the fastest is done last if it gets everything: what counts is rows over speed, of the "
          "slowest.",
          _dealt(lambda b, v: -v)),
    *_all("sorted by speed",
          "those are the right numbers on the wrong ranks: b[r] belongs to speeds[r], in the order "
          "that was given.",
          _dealt(order="rising"), _dealt(order="falling")),
    *_all("who is done with what it has",
          "you give the next row to the rank that is done first *without* it, b / v. A slow rank "
          "may then need more time for it than anybody has yet: compare (b + 1) / v, with it.",
          _dealt(lambda b, v: b / v)),
    *_all("rounded",
          "each share is rounded by itself, so that their sum is B only by luck: B = 10 on four "
          "equal ranks is 2.5 each.", *map(_rounded, WAYS)),
    *_all("the rest to one rank",
          "what rounding leaves all goes to one rank, which may then be the slowest. Deal row by "
          "row instead.",
          *(_rest_to(way, whom) for way in WAYS for whom in WHOM)),
    *_all("largest remainder",
          "the rest goes to the ranks that rounding cost most rows. What counts is seconds: 6 rows "
          "at 10 and 1 per second are 5.45 and 0.55, yet rank 1's row takes 1 s, and rank 0 has "
          "all 6 done in 0.6 s.",
          _largest_remainder),
    *_all("`most` is not used",
          "those are the shares without `most`. A rank with b[r] == most[r] takes no further row.",
          _dealt()),
    *_all("clamped afterwards",
          "min(b, most) takes rows from a rank, and these must go to others, again to whom they "
          "cost least. Look at `most` while you deal, not "
          "afterwards.", _clamped, *map(_clamped_rest_to, ORDERS)),
)  # fmt: skip
