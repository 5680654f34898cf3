"""Answers to Lab 0's blame: wrong ones, each with the hint that it must get, and right
ones, unlike each other."""

from collections import Counter


def _look(dumps, members=None, waits=True, compare=True, by_reach=True, usual=None, pick=None):
    """Answers that differ in a detail; `usual` and `pick` choose among kinds of call and among
    those to blame."""
    found = {}
    for group, nth in sorted(
        {(r["group"], r["nth"]) for records in dumps.values() for r in records}
    ):
        there = {
            rank: r
            for rank in sorted(dumps)
            for r in dumps[rank]
            if (r["group"], r["nth"]) == (group, nth)
        }
        kinds = {rank: (r["op"], r["elements"]) for rank, r in there.items()}
        right = usual(kinds) if usual else Counter(kinds.values()).most_common(1)[0][0]
        numbers = {
            rank: [r["nth"] for r in records if r["group"] == group]
            for rank, records in dumps.items()
        }
        gone = lambda rank, n=numbers, nth=nth: (
            max(n[rank], default=0) < nth if by_reach else nth not in n[rank]
        )
        missing = [rank for rank in members or next(iter(there.values()))["members"] if gone(rank)]
        enough = any if waits == "until one is completed" else all
        if waits and enough(r["state"] == "completed" for r in there.values()):
            missing = []
        ranks = missing + [rank for rank, kind in kinds.items() if compare and kind != right]
        if ranks:
            found.setdefault(group, []).append(
                (nth, right[0], sorted(pick(ranks, there) if pick else ranks))
            )
    return found


def _firsts(found):
    return {group: troubles[0] for group, troubles in found.items()}


def takes_any_rank_for_a_member(dumps):
    return _firsts(_look(dumps, members=list(dumps)))


def blames_who_is_behind(dumps):
    return _firsts(_look(dumps, waits=False))


def stops_at_the_first_completed(dumps):
    """In a broadcast the root completes before the others come."""
    return _firsts(_look(dumps, waits="until one is completed"))


def looks_for_the_number_alone(dumps):
    return _firsts(_look(dumps, by_reach=False))


def compares_nothing(dumps):
    return _firsts(_look(dumps, compare=False))


def believes_the_lowest_rank(dumps):
    return _firsts(_look(dumps, usual=lambda kinds: kinds[min(kinds)]))


def believes_the_highest_of_two(dumps):
    return _firsts(
        _look(dumps, usual=lambda kinds: Counter(reversed(kinds.values())).most_common(1)[0][0])
    )


def names_one_rank(dumps):
    return _firsts(_look(dumps, pick=lambda ranks, there: ranks[:1]))


def names_those_who_wait(dumps):
    return _firsts(_look(dumps, pick=lambda ranks, there: set(there) - set(ranks)))


def names_the_last(dumps):
    return {group: troubles[-1] for group, troubles in _look(dumps).items()}


def stops_at_the_first_group(dumps):
    return dict(list(_firsts(_look(dumps)).items())[:1])


def counts_from_0(dumps):
    return {
        group: (nth - 1, op, ranks) for group, (nth, op, ranks) in _firsts(_look(dumps)).items()
    }


def names_every_group(dumps):
    groups = {r["group"] for records in dumps.values() for r in records}
    return {group: (0, "", []) for group in groups} | _firsts(_look(dumps))


def forgets_sizes(dumps):
    plain = {rank: [r | {"elements": 0} for r in records] for rank, records in dumps.items()}
    return _firsts(_look(plain))


def looks_only_where_somebody_waits(dumps):
    waits = {
        (r["group"], r["nth"])
        for records in dumps.values()
        for r in records
        if r["state"] != "completed"
    }
    found = {
        group: [t for t in troubles if (group, t[0]) in waits]
        for group, troubles in _look(dumps).items()
    }
    return _firsts({group: troubles for group, troubles in found.items() if troubles})


def finds_nothing(dumps):
    return {}


def blames_who_has_the_fewest_records(dumps):
    longest = max(dumps.values(), key=len)
    short = [rank for rank, records in dumps.items() if len(records) < len(longest)]
    return {"0": (longest[-1]["nth"], longest[-1]["op"], short)} if short else {}


def returns_the_ranks_alone(dumps):
    return [2]


def in_the_order_found(dumps):
    """Those that made another call first, then those that are missing."""
    found = number_by_number(dumps)
    return {
        group: (nth, op, ranks[::-1] if len({*ranks}) == 2 and nth == 2 else ranks)
        for group, (nth, op, ranks) in found.items()
    }


def reads_the_last_record(dumps):
    last = {rank: records[-1]["nth"] for rank, records in dumps.items()}
    return number_by_number(dumps) if last else {}


def returns_nothing(dumps):
    print(_firsts(_look(dumps)))


def not_written(dumps):
    raise NotImplementedError


def begins_where_the_first_rank_does(dumps):
    """It leaves out what the first rank's recorder has overwritten."""
    first = {}
    for rank in sorted(dumps):
        for record in dumps[rank]:
            first.setdefault(record["group"], record["nth"])
    kept = lambda records: [r for r in records if r["nth"] >= first[r["group"]]]
    return number_by_number({rank: kept(records) for rank, records in dumps.items()})


WRONG = {
    begins_where_the_first_rank_does: "the last, not the first",
    takes_any_rank_for_a_member: "not a member",
    blames_who_is_behind: "only behind",
    stops_at_the_first_completed: "the missing are not found",
    in_the_order_found: "not sorted",
    reads_the_last_record: "an index that does not exist",
    looks_for_the_number_alone: "overwritten, not missing",
    compares_nothing: "ops and sizes not compared",
    believes_the_lowest_rank: "the usual call",
    names_one_rank: "one rank only",
    names_those_who_wait: "those who wait",
    names_the_last: "the last, not the first",
    stops_at_the_first_group: "one group only",
    counts_from_0: "counted from 0",
    names_every_group: "an entry for nothing",
    finds_nothing: "the missing are not found",
    returns_the_ranks_alone: "another form",
    returns_nothing: "nothing returned",
    not_written: "not written",
    forgets_sizes: "ops and sizes not compared",
    looks_only_where_somebody_waits: "ops and sizes not compared",
    believes_the_highest_of_two: "the usual call",
    blames_who_has_the_fewest_records: "only behind",
}


def number_by_number(dumps):
    """For each group: upward from the lowest number, until something is wrong."""
    result = {}
    groups = {r["group"]: r["members"] for records in dumps.values() for r in records}
    for group, members in groups.items():
        mine = {m: {r["nth"]: r for r in dumps[m] if r["group"] == group} for m in members}
        for nth in range(max(max(calls, default=0) for calls in mine.values()) + 1):
            there = [m for m in sorted(members) if nth in mine[m]]
            kinds = [(mine[m][nth]["op"], mine[m][nth]["elements"]) for m in there]
            waits = any(mine[m][nth]["state"] != "completed" for m in there)
            bad = [m for m in members if waits and all(n < nth for n in mine[m])]
            bad += [
                m
                for m, kind in zip(there, kinds, strict=True)
                if kind != max(kinds, key=kinds.count)
            ]
            if bad:
                kind = max(kinds, key=kinds.count)
                result[group] = (nth, kind[0], sorted(bad))
                break
    return result


def everything_at_once(dumps):
    """A list of all troubles, of which the first of each group is kept; ranks as a set."""
    records = [(r["group"], r["nth"], rank, r) for rank in sorted(dumps) for r in dumps[rank]]
    last = {}
    for group, nth, rank, _ in records:
        last[group, rank] = max(nth, last.get((group, rank), 0))
    troubles = {}
    # so that the lowest number is written last
    for group, nth, _, r in sorted(records, key=lambda item: -item[1]):
        alike = [(rank, other) for g, n, rank, other in records if (g, n) == (group, nth)]
        votes = {}
        for rank, other in alike:
            votes.setdefault((other["op"], other["elements"]), []).append(rank)
        usual = max(votes, key=lambda kind: (len(votes[kind]), -min(votes[kind])))
        ranks = {rank for kind, voters in votes.items() for rank in voters if kind != usual}
        if {other["state"] for _, other in alike} - {"completed"}:
            ranks |= {m for m in r["members"] if last.get((group, m), 0) < nth}
        if ranks:
            troubles[group] = [nth, usual[0], ranks]
    return troubles


RIGHT = [number_by_number, everything_at_once]
