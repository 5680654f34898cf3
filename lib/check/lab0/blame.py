"""Lab 0, section 9, bonus: blame(dumps), who is missing in which collective, from the dumps of a
Flight Recorder."""

import copy
import re

from lib.check import symptoms as s
from lib.check.causes import hints, of_name
from lib.check.exercise import Exercise
from lib.check.lab0.blame_cases import ANOTHER, CASES, FIRST, NEVER, NOBODY
from lib.check.left_out import NO_RANKS, NO_TENSORS
from lib.check.shown import claims
from lib.check.side_by_side import SideBySide, here
from lib.ledger.flight import blame
from lib.ledger.words import ranks_text

SOMETHING, FORM = "something is returned", "{group: (nth, op, ranks)}"
NONE_EMPTY, MEMBERS, SORTED = "no empty entry", "members of the group", "sorted ranks"
WRONG, NTH, OP, RANKS = "groups with something wrong", "nth", "op", "ranks"
NAMES = (SOMETHING, FORM, NONE_EMPTY, MEMBERS, WRONG, NTH, OP, RANKS, SORTED)


def script(make, case, show):
    dumps = CASES[case.what]
    out = show.run(make, copy.deepcopy(dumps))
    got = _read(out)
    show(SOMETHING, "" if out is not None else "got None; where nothing went wrong {} is right")
    show(FORM, "" if got is not None or out is None else f"got {out!r:.80}, expected {FORM}")
    if got is None:
        return
    empty = [group for group, (_, _, ranks) in got.items() if not ranks]
    show(NONE_EMPTY, f"got {got}: group {empty[0]} has nobody to blame" if empty else "")
    strange = [g for g, (_, _, ranks) in got.items() if {*ranks} - {*_members(dumps, g)}]
    show(MEMBERS, f"got {got}: not all of these are in group {strange[0]}" if strange else "")
    told = [_told(dumps, group, nth) for group, (nth, _, _) in got.items()]
    beside = "\n".join([f"You return {got}", *filter(None, told)])
    show(WRONG, ", ".join(sorted(got)) or "none", beside=beside)
    show(NTH, {group: nth for group, (nth, _, _) in got.items()}, beside=beside)
    show(OP, {group: op for group, (_, op, _) in got.items()}, beside=beside)
    show(RANKS, {g: str(sorted(ranks)) for g, (_, _, ranks) in got.items()}, beside=beside)
    mixed = next((ranks for _, _, ranks in got.values() if ranks != sorted(ranks)), None)
    show(SORTED, f"got {got}" if mixed else "")


def _read(got):
    """{group: (nth, op, [ranks])}, of any sequences or sets; None if it has another form."""
    plain = lambda ranks: (
        sorted(map(int, ranks)) if isinstance(ranks, set | frozenset) else [*map(int, ranks)]
    )
    try:
        return {str(g): (int(nth), str(op), plain(ranks)) for g, (nth, op, ranks) in got.items()}
    except (AttributeError, TypeError, ValueError):
        return None


def _of_group(dumps, group):
    return [(rank, one) for rank in sorted(dumps) for one in dumps[rank] if one["group"] == group]


def _members(dumps, group):
    return next((one["members"] for _, one in _of_group(dumps, group)), ())


def _told(dumps, group, nth):
    """What the dumps say about one collective, in a line; nothing if there is no
    such collective."""
    alike = {}
    for rank, one in _of_group(dumps, group):
        if one["nth"] == nth:
            what = f"{one['op']} of {one['elements']}, {one['state']}"
            alike.setdefault(what, []).append(rank)
    words = [f"{what} on {ranks_text(ranks)}" for what, ranks in alike.items()]
    return f"  group {group}, nth {nth}: {'; '.join(words)}" if words else ""


def _about(cases):
    return [(name, here(*cases)) for name in NAMES]


def _others(p):
    """Are other ranks blamed than those that never came, and none of these?"""
    ranks = lambda said: {*re.findall(r"\d+", str(said))}
    never = getattr(p.fact("case"), "what", "") in NEVER
    return never and of_name(RANKS)(p) and not ranks(p.fact("got")) & ranks(p.fact("want"))


MEASURE = SideBySide(script, blame, here(*CASES), groups=None, excused=NO_TENSORS)
EXERCISE = Exercise(
    name="blame", reference=blame, measure=MEASURE, worlds=(), bonus=True,
    leaves_out=NO_RANKS | {"returned": "a dict, of any sequences or sets"},
    claims=claims(
        MEASURE,
        ("who never came", 2, "4 and 8 ranks; one or two missing, one without a record",
         *_about(NEVER)),
        ("nobody to blame", 1, "all completed; a rank that is only behind", *_about(NOBODY)),
        ("the first of several", 2, "ranks that call ahead; recorders that keep 3 calls",
         *_about(FIRST)),
        ("another op, another size", 2, "also where all completed, or one is missing too",
         *_about(ANOTHER)),
        ("each group by itself", 1, "all ranks and pairs; a group of ranks 1 and 3"),
    ),
    hints=hints(
        "lab0", "blame",
        nothing_returned=of_name(SOMETHING),
        another_form=of_name(FORM),
        an_entry_for_nothing=of_name(NONE_EMPTY),
        not_a_member=of_name(MEMBERS),
        not_sorted=of_name(SORTED),
        only_behind=s.both(of_name(WRONG), s.fact("want", "none")),
        the_missing_are_not_found=s.both(of_name(WRONG), s.fact("got", "none")),
        one_group_only=of_name(WRONG),
        counted_from_0=lambda p: of_name(NTH)(p) and p.facts["got"] == p.facts["want"] - 1,
        **{"the last, not the first": lambda p: of_name(NTH)(p)
           and p.facts["got"] > p.facts["want"]},
        the_usual_call=of_name(OP),
        those_who_wait=_others,
    ),
)  # fmt: skip
