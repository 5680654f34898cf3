"""The mistakes that are made in shares, told by the shares that come of them, and the hint for each."""

from lib.check.framework import Hint
from lib.check.lab2.hints import all_seen, is_kind
from lib.check.lab6 import shares_known as known


def _as_if(*rules):
    """Fits if, in all cases, the shares are what one of these rules gives."""
    fits = [all_seen(lambda got, *case, rule=rule: got == rule(*case)) for rule in rules]
    return lambda p: p.kind in ("sum", "pace", "over") and any(fit(p) for fit in fits)


def _falling(got, B, speeds, most):
    """Does a faster rank never get more than a slower one?"""
    pairs = [(i, j) for i in range(len(got)) for j in range(len(got)) if speeds[i] > speeds[j]]
    return all(got[i] <= got[j] for i, j in pairs)


def _limited(p):
    return p.facts["case"][2] is not None


HINTS = (
    Hint("called lib's", is_kind("built-in"), "B rounds of a loop, each of which gives one rank one more row."),
    Hint("nothing returned", is_kind("nothing"), "the function must end with `return b`."),
    Hint("not whole numbers", is_kind("form"), "one int for each rank, in the order of `speeds`: a row is not halved."),
    Hint(
        "never ends",
        is_kind("endless"),
        "a loop until all rows are dealt never ends if the rank whose turn it is has no room. Look only at ranks with "
        "b[r] < most[r], and see first whether sum(most) is enough.",
    ),
    Hint(
        "equal shares",
        _as_if(known.equal(True), known.equal(False)),
        "you give every rank as many. The slowest then keeps all others waiting: use `speeds`.",
    ),
    Hint(
        "slow ranks get more",
        lambda p: p.kind in ("sum", "pace") and all_seen(_falling)(p),
        "speeds are rows per second, not seconds per row: the faster rank gets more.",
    ),
    Hint(
        "all to the fastest",
        _as_if(known.dealt(lambda b, v: -v)),
        "the fastest is done last if it gets everything: what counts is rows over speed, of the slowest.",
    ),
    Hint(
        "a row for everybody",
        lambda p: p.kind in ("sum", "pace") and all_seen(lambda got, *case: min(got) > 0)(p),
        "a rank that is very slow gets no row: it would take longer for one than the others for all.",
    ),
    Hint(
        "sorted by speed",
        _as_if(known.dealt(order="rising"), known.dealt(order="falling")),
        "those are the right numbers on the wrong ranks: b[r] belongs to speeds[r], in the order that was given.",
    ),
    Hint(
        "who is done with what it has",
        _as_if(known.dealt(lambda b, v: b / v)),
        "you give the next row to the rank that is done first *without* it, b / v. A slow rank may then need more time "
        "for it than anybody has yet: compare (b + 1) / v, with it.",
    ),
    Hint(
        "rounded",
        _as_if(*map(known.rounded, known.WAYS)),
        "each share is rounded by itself, so that their sum is B only by luck: B = 10 on four equal ranks is 2.5 each.",
    ),
    Hint(
        "the rest to one rank",
        _as_if(*(known.rest_to(way, whom) for way in known.WAYS for whom in known.WHOM)),
        "what rounding leaves all goes to one rank, which may then be the slowest. Deal row by row instead.",
    ),
    Hint(
        "largest remainder",
        _as_if(known.largest_remainder),
        "the rest goes to the ranks that rounding cost most rows. What counts is seconds: 6 rows at 10 and 1 per "
        "second are 5.45 and 0.55, yet rank 1's row takes 1 s, and rank 0 has all 6 done in 0.6 s.",
    ),
    Hint(
        "`most` is not used",
        lambda p: _as_if(known.dealt())(p) and _limited(p),
        "those are the shares without `most`. A rank with b[r] == most[r] takes no further row.",
    ),
    Hint(
        "clamped afterwards",
        lambda p: _as_if(known.clamped, *map(known.clamped_rest_to, known.ORDERS))(p) and _limited(p),
        "min(b, most) takes rows from a rank, and these must go to others, again to whom they cost least. Look at "
        "`most` while you deal, not afterwards.",
    ),
    Hint(
        "one row over",
        is_kind("over"),
        "a rank takes a row only while b[r] < most[r]: before it is given, not after.",
    ),
    Hint(
        "fewer than none",
        is_kind("negative"),
        "a correction has taken more rows than the rank had: deal, do not correct.",
    ),
    Hint(
        "rows lost or made", is_kind("sum"), "every row is on one rank: exactly B of them are dealt, one after another."
    ),
    Hint(
        "not the fastest",
        is_kind("pace"),
        "a step ends with the last rank, max of b / v. The next row goes where (b + 1) / v is least.",
    ),
    Hint(
        "ties to the last",
        is_kind("ties"),
        "of equally fast ranks the first gets more: min((seconds, r)) prefers the smaller r, and <= the later one.",
    ),
    Hint("no error", is_kind("not refused"), "if sum(most) < B: raise ValueError(...), before any row is dealt."),
    Hint(
        "not a ValueError",
        is_kind("another error"),
        'look at once: if sum(most) < B: raise ValueError(f"{B} rows, but memory for {sum(most)}").',
    ),
    Hint(
        "arguments changed",
        is_kind("changed"),
        "`speeds` and `most` are the caller's lists: count in a list of your own, b.",
    ),
)
