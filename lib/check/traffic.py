"""Judges of what was sent.

elements, ring   read from the ranks' logs how many elements were sent to which rank of the group
astray, beside   use the records of `comm.Recorder`: do the ranks' calls match, are they on the
                 ranks of the group, and did an answer send by means that it was not given?
"""

from lib.check.cases import seen
from lib.check.exercise import Problem
from lib.check.explain import who

THE_CHECKS = ("framework.", "side_by_side.", "cases.", "probes.")


def sent(run, case):
    """[[(to, elements), ...] of rank 0, ...]: the messages that each rank of the group sends, in
    order. All ranks are group ranks."""
    section = run.ledger.section(case.name)
    rank_of = {member: rank for rank, member in enumerate(case.members)}
    return [
        [(rank_of[e.peer], e.numel) for e in section.of(member) if e.op == "send"]
        for member in case.members
    ]


def elements(cases, total, formula, most=None, most_formula=""):
    """A judge: together the ranks send total(N, n) elements and, if `most` is given, no rank sends
    more than most(N, n)."""

    def judge(runs):
        for run, case, _ in seen(runs, cases):
            by_rank = [sum(numel for _, numel in mine) for mine in sent(run, case)]
            N, n, got = case.world_size, case.n, sum(by_rank)
            facts = {"case": case, "sent": got, "expected": total(N, n)}
            facts["padded"] = n % N > 0 and got == total(N, n + -n % N)
            trace = [case.name, by_rank]
            if got != total(N, n):
                text = f"{case.name}: the ranks sent {got} elements in total, expected "
                text += f"{formula} = {total(N, n)}\nBy rank: {by_rank}"
                return Problem("elements", text, facts, trace)
            if most and max(by_rank) > most(N, n):
                rank = by_rank.index(max(by_rank))
                text = f"{case.name}: {case.rank(rank)} sent {max(by_rank)} elements, expected "
                text += f"at most {most_formula} = {most(N, n)}\nBy rank: {by_rank}"
                return Problem("one rank", text, facts, trace)
        return None

    return judge


def ring(cases, rounds=None):
    """A judge: each rank sends only to its right neighbour and, if every chunk has an element,
    sends rounds(N) messages.

    rounds=None: the number of messages is not judged.
    """

    def judge(runs):
        for run, case, _ in seen(runs, cases):
            N = case.world_size
            for rank, mine in enumerate(sent(run, case)):
                where, right = f"{case.name}: {case.rank(rank)}", (rank + 1) % N
                peers = sorted({to for to, _ in mine})
                facts = {"case": case, "peers": peers, "rank": rank}
                wrong_peer = next((to for to, _ in mine if to != right), None)
                if wrong_peer is not None:
                    text = f"{where} sends to rank {wrong_peer}; in the ring only to rank {right}"
                    return Problem("neighbours", f"{text}\nIt sends to {who(peers)}.", facts)
                if rounds and case.n >= N and len(mine) != rounds(N):
                    text = f"{where} sent {len(mine)} messages, expected {rounds(N)}, one a round"
                    return Problem("rounds", text, facts)
        return None

    return judge


def astray(where, case, record):
    """The Problem if this record says that the ranks' calls do not match, or that a call was on
    other ranks than the group's; else None."""
    if record["clash"] is not None:
        clash = record["clash"]
        return Problem("clash", in_words(where, clash), {"case": case} | clash.facts, clash.trace)
    if record["stray"]:
        op, ranks = record["stray"]
        called = f"{where} called {op or 'what it was given'} on ranks {list(ranks)}"
        text = f"{called}, expected {[*case.members]}"
        return Problem("group", text, {"case": case, "ranks": ranks})
    return None


def in_words(where, clash):
    """The text of a clash, preceded by `where` without its rank, because a clash names its ranks
    itself."""
    return f"{where.rpartition(': rank ')[0] or where}: {clash.text}"


def beside(run, case, where, rank, record, phases=("",), section=None):
    """The Problem if a rank sent anything by other means than those it was given, else None."""
    for phase in phases:
        label = section(case, phase) if section else case.name
        if label not in run.ledger.marks:
            continue
        for entry in run.ledger.section(label).of(case.members[rank]):
            if entry.group != record["wire"]:
                of_the_check = entry.via.startswith(THE_CHECKS)  # no line of the answer led to it
                called = entry.op if of_the_check else entry.via or entry.op
                facts = {"case": case, "called": called, "phase": phase}
                return Problem(
                    "another way", f"{where} called {called}, which it was not given", facts
                )
    return None
