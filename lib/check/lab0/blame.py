"""Lab 0, section 10, bonus: blame(dumps), which finds in the dumps of a Flight Recorder which ranks
are to blame in which collective."""

import copy

from lib.check.causes import hints
from lib.check.lab0.blame_cases import ANOTHER, CASES, FIRST, NEVER, NOBODY
from lib.check.left_out import NO_RANKS, NO_TENSORS
from lib.check.shown import RETURNED
from lib.check.side_by_side import SideBySide, here
from lib.ledger.flight import blame
from lib.ledger.words import ranks_text

FORM = "{group: (nth, op, ranks)}"
EMPTY, MIXED, STRANGE = MISREAD = "no empty entry", "sorted ranks", "a recorded number"
WRONG, NTH, OP, RANKS = "groups with something wrong", "nth", "op", "ranks"
ALL = (RETURNED, FORM, *MISREAD, WRONG, NTH, OP, RANKS)


def script(make, case, show):
    dumps = CASES[case.what]
    out = show.run(make, {rank: copy.deepcopy(records) for rank, records in dumps.items()})
    got = _read(out)
    if not show.returned(out, got is not None, f"{FORM}, or {{}} if nothing went wrong", FORM):
        return
    if show.said(MISREAD, _misread(got, dumps)):
        return
    told = [_told(dumps, group, nth) for group, (nth, _, _) in got.items()]
    beside = "\n".join([f"You return {got}", *told])
    show(WRONG, ", ".join(sorted(got)) or "none", beside=beside)
    show(NTH, {group: nth for group, (nth, _, _) in got.items()}, beside=beside)
    show(OP, {group: op for group, (_, op, _) in got.items()}, beside=beside)
    show(RANKS, {group: str(ranks) for group, (_, _, ranks) in got.items()}, beside=beside)


def _read(got):
    """The answer's result as {group: (nth, op, [ranks])}, for any kinds of sequences or sets; None
    if it has another form."""
    plain = lambda ranks: sorted(ranks) if isinstance(ranks, set | frozenset) else ranks
    try:
        return {
            str(group): (int(nth), str(op), [*map(int, plain(ranks))])
            for group, (nth, op, ranks) in got.items()
        }
    except (AttributeError, TypeError, ValueError):
        return None


def _misread(got, dumps):
    """{name: what is wrong with an entry}, or {}."""
    for group, (nth, _, ranks) in got.items():
        if not ranks:
            return {EMPTY: f"got {got}: group {group} has no rank to blame"}
        if ranks != sorted(ranks):
            return {MIXED: f"got {got}: the ranks of group {group} are not sorted"}
        if not _told(dumps, group, nth):
            return {STRANGE: f"got {got}: no rank has a record of group {group} with nth {nth}"}
    return {}


def _told(dumps, group, nth):
    """What the dumps say about one collective, on one line; "" if it is not in the dumps."""
    alike = {}
    for rank in sorted(dumps):
        for one in dumps[rank]:
            if (one["group"], one["nth"]) == (group, nth):
                what = f"{one['op']} of {one['elements']}, {one['state']}"
                alike.setdefault(what, []).append(rank)
    words = [f"{what} on {ranks_text(ranks)}" for what, ranks in alike.items()]
    return f"  group {group}, nth {nth}: {'; '.join(words)}" if words else ""


MEASURE = SideBySide(script, blame, here(*CASES), groups=None, excused=NO_TENSORS)
EXERCISE = MEASURE.exercise(
    ("who never came", 2, "4 and 8 ranks; one or two missing, one without a record",
     (ALL, here(*NEVER))),
    ("nobody to blame", 1, "all completed; a rank that is only behind", (ALL, here(*NOBODY))),
    ("the first of several", 2, "ranks that call ahead; recorders that keep 3 calls",
     (ALL, here(*FIRST))),
    ("another op, another size", 2, "also where all completed, or one is missing too",
     (ALL, here(*ANOTHER))),
    ("each group by itself", 1, "all ranks and pairs; a group of ranks 1 and 3"),
    hints=hints("lab0", "blame"), bonus=True,
    leaves_out=NO_RANKS | {"returned": "a dict, of any sequences or sets"},
)  # fmt: skip
