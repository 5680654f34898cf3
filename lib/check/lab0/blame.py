"""Lab 0, section 9, bonus: blame(dumps), who is missing in which collective, from the dumps of a
Flight Recorder."""

import copy

from lib.check import symptoms as s
from lib.check.claims import claim, without_ranks
from lib.check.exercise import Exercise, Hint, Problem
from lib.check.lab0.blame_cases import CASES
from lib.check.left_out import NO_RANKS
from lib.ledger.flight import blame
from lib.ledger.words import ranks_text


def _measure(fn):
    return {name: fn(copy.deepcopy(dumps)) for name, (dumps, _) in CASES.items()}


def _read(got):
    """{group: (nth, op, [ranks])}, of any sequences or sets; None if it has another form."""
    plain = lambda ranks: (
        sorted(map(int, ranks)) if isinstance(ranks, set | frozenset) else [*map(int, ranks)]
    )
    try:
        return {group: (int(nth), op, plain(ranks)) for group, (nth, op, ranks) in got.items()}
    except (AttributeError, TypeError, ValueError):
        return None


def _in_cases(*names):
    @without_ranks
    def judge(seen):
        for name in names:
            (dumps, expected), got = CASES[name], _read(seen[name])
            text = f"{name}: expected {expected}, got "
            if got is None:
                return Problem("returned", f"{text}{seen[name]!r:.80}", {"got": seen[name]})
            wrong = next(
                (group for group in (*expected, *got) if expected.get(group) != got.get(group)),
                None,
            )
            if wrong is not None:
                facts = {
                    "want": expected.get(wrong),
                    "have": got.get(wrong),
                    "calls": _calls(dumps, wrong),
                }
                facts |= {"others": len(got) - (wrong in got), "group": wrong}
                about = facts["want"] or facts["have"]
                return Problem(
                    "value", f"{text}{got}{_said(facts['calls'], wrong, about[0])}", facts
                )
        return None

    return judge


def _calls(dumps, group):
    """{rank: {nth: record}} of one group."""
    return {
        rank: {r["nth"]: r for r in records if r["group"] == group}
        for rank, records in dumps.items()
    }


def _said(calls, group, nth):
    """What the dumps say about one collective, in a line; nothing if there is no
    such collective."""
    alike = {}
    for rank in sorted(calls):
        if nth in calls[rank]:
            record = calls[rank][nth]
            alike.setdefault(
                f"{record['op']} of {record['elements']}, {record['state']}", []
            ).append(rank)
    words = [f"{what} on {ranks_text(ranks)}" for what, ranks in alike.items()]
    return f"\n  group {group}, nth {nth}: {'; '.join(words)}" if words else ""


def _value(fits):
    """Fits a wrong value if fits(what should be said of the group, what was said, {rank: {nth:
    record}}) does."""
    return lambda p: p.kind == "value" and fits(p.facts["want"], p.facts["have"], p.facts["calls"])


def _members(calls):
    return next((record["members"] for mine in calls.values() for record in mine.values()), ())


def _came(ranks, nth, calls):
    return bool(ranks) and all(nth in calls.get(rank, {}) for rank in ranks)


EXERCISE = Exercise(
    name="blame", reference=blame, measure=_measure, worlds=(), bonus=True,
    leaves_out=NO_RANKS | {"returned": "a dict, of any sequences or sets"},
    claims=(
        claim("who never came", 2, "4 and 8 ranks; one or two missing, one without a record",
              _in_cases("4 ranks, 1 is missing", "8 ranks, 2 are missing",
                        "a rank without a record")),
        claim("nobody to blame", 1, "all completed; a rank that is only behind",
              _in_cases("all completed", "rank 1 has yet to receive a broadcast that has left")),
        claim("the first of several", 2, "ranks that call ahead; recorders that keep 3 calls",
              _in_cases("ranks that call ahead without waiting", "recorders that keep 3 calls")),
        claim(
            "another op, another size",
            2,
            "also where all completed, or one is missing too",
            _in_cases(
                "another op", "another size, and all completed", "another op, and a rank missing",
                "2 ranks, 2 ops"
            ),
        ),
        claim("each group by itself", 1, "all ranks and pairs; a group of ranks 1 and 3",
              _in_cases("all ranks and pairs", "a group of ranks 1 and 3")),
    ),
    hints=(
        Hint("nothing returned", s.both(s.kind("returned"), lambda p: p.facts["got"] is None),
             "the function must end with `return ...`; where nothing went wrong it returns {}."),
        Hint("another form", s.kind("returned"),
             "return a dict, {group: (nth, op, ranks)}, with ranks a list, and {} where nothing "
             "went wrong."),
        Hint("not sorted",
             _value(lambda want, have, calls: None not in (want,
                 have) and have[2] != want[2] == sorted(have[2])),
             "these are the right ranks in another order: return sorted(ranks)."),
        Hint("an entry for nothing", _value(lambda want, have,
            calls: have is not None and not have[2]),
             "leave a group out if nothing went wrong in it."),
        Hint("not a member",
             _value(lambda want, have,
                 calls: have is not None and not set(have[2]) <= set(_members(calls))),
             "you blame a rank for a group that it is not in: only a record's members are to call "
             "it, and the n-th call of one group has nothing to do with the n-th of another."),
        Hint(
            "overwritten, not missing",
            _value(
                lambda want, have, calls: (
                    have is not None
                    and any(mine and have[0] < min(mine) for rank,
                        mine in calls.items() if rank in have[2])
                )
            ),
            "that rank has come, and gone on: it has records with higher numbers, and the older "
            "one was overwritten.",
        ),
        Hint("only behind", _value(lambda want, have, calls: want is None and have is not None),
             "every rank that called this collective has completed it, so no rank waits there. A "
             "rank that has not reached it yet is behind, which is no fault."),
        Hint("counted from 0",
             _value(lambda want, have, calls: None not in (want, have) and have == (want[0] - 1,
                 *want[1:])),
             "nth is the record's own number, which begins with 1."),
        Hint(
            "the last, not the first",
            _value(
                lambda want, have, calls: (
                    None not in (want, have) and have[0] > want[0] and not _came(want[2], want[0],
                    calls)
                )
            ),
            "several lack a rank. What came later follows from the first: return the lowest "
            "number.",
        ),
        Hint(
            "ops and sizes not compared",
            _value(
                lambda want, have, calls: (
                    want is not None
                    and (have is None or have[0] > want[0] or have[:2] == want[:2])
                    and any(
                        want[0] in calls[rank]
                        for rank in set(want[2]) - set(have[2] if have else ())
                    )
                    and not (have and set(have[2]) - set(want[2]))
                )
            ),
            "a rank has come, but with another op or size than the others. Compare them, also "
            "where all completed.",
        ),
        Hint(
            "those who wait",
            _value(
                lambda want, have, calls: (
                    None not in (want, have)
                    and have[0] == want[0]
                    and not set(have[2]) & set(want[2])
                    and not _came(want[2], want[0], calls)
                )
            ),
            "these ranks came, and wait. The ones to blame are the members that did not.",
        ),
        Hint(
            "the usual call",
            _value(
                lambda want, have, calls: (
                    None not in (want, have)
                    and have[0] == want[0]
                    and (have[1] != want[1] or bool(set(have[2]) - set(want[2])))
                )
            ),
            "the usual call is the most frequent one, and of two that are as frequent the lowest "
            "rank's. op is that of the usual call; to blame is who made another.",
        ),
        Hint("one rank only",
             _value(lambda want, have, calls: None not in (want,
                 have) and set(have[2]) < set(want[2])),
             "more ranks than that are to blame: return them all."),
        Hint("one group only",
             lambda p: p.kind == "value" and p.facts["have"] is None and p.facts["others"] > 0,
             "go on after the first: in each group there may be a collective that went wrong."),
        Hint("the missing are not found", s.kind("value"),
             "compare what each member has reached: a collective that a rank called and has not "
             "completed waits for every member whose numbers in this group end before it."),
        *s.ANYWHERE,
    ),
)  # fmt: skip
