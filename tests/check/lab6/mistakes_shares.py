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


def _dealt(cost=lambda b, v: (b + 1) / v, order=None, limited=False, first=0):
    """`first` rows to each rank, then one after another to argmin cost(rows so far, speed). order:
    in which ranks are sorted by speed; limited: by `most`."""

    def rule(B, speeds, most=None):
        ranks = range(len(speeds))
        if order:
            ranks = sorted(ranks, key=lambda r: speeds[r], reverse=order == "falling")
        room = [most[r] if limited and most else B for r in ranks]
        b = [min(first, rows) for rows in room]
        for _ in range(B - sum(b)):
            free = [i for i, rows in enumerate(b) if rows < room[i]]
            b[min(free, key=lambda i: (cost(b[i], speeds[ranks[i]]), i))] += 1
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


def _all(hint, *rules):
    return [Mistake(hint, rule) for rule in rules]


MISTAKES = (
    *_all("equal shares",
          _equal(True), _equal(False), _dealt(lambda b, v: b)),
    *_all("all to the fastest",
          _dealt(lambda b, v: -v)),
    *_all("sorted by speed",
          _dealt(order="rising"), _dealt(order="falling"),
          _dealt(order="rising", limited=True), _dealt(order="falling", limited=True)),
    *_all("a row for everybody",
          _dealt(first=1, limited=True)),
    *_all("who is done with what it has",
          _dealt(lambda b, v: b / v)),
    *_all("rounded", *map(_rounded, WAYS)),
    *_all("the rest to one rank",
          *(_rest_to(way, whom) for way in WAYS for whom in WHOM)),
    *_all("largest remainder",
          _largest_remainder),
    *_all("`most` is not used",
          _dealt()),
    *_all("clamped afterwards", _clamped, *map(_clamped_rest_to, ORDERS)),
)  # fmt: skip
