"""Who sent how much to whom: the claims that the ranks' books decide.

    elements    all ranks together, and the rank that sends most
    ring        rank r sends to rank r+1 only, one message in each round

N ranks, n elements. Elements are counted in every case; messages where every chunk has an element (n >= N), so that an
answer may send an empty chunk or not.
"""

from lib.check.framework import Problem
from lib.check.lab0.cases import seen
from lib.check.lab0.sums import who


def sent(run, case):
    """[[(to, elements), ...] of rank 0, ...]: what each rank of the group sent, in order, in group ranks."""
    book = run.ledger.section(case.name)
    rank_of = {member: rank for rank, member in enumerate(case.members)}
    return [[(rank_of[e.peer], e.numel) for e in book.of(member) if e.op == "send"] for member in case.members]


def elements(runs, cases, total, formula, most=None, most_formula=""):
    """A Problem unless the ranks send total(N, n) elements together and, if given, at most most(N, n) each."""
    for run, case, _ in seen(runs, cases):
        by_rank = [sum(numel for _, numel in mine) for mine in sent(run, case)]
        N, n, got = case.world_size, case.n, sum(by_rank)
        facts = {"case": case, "sent": got, "expected": total(N, n), "by_rank": by_rank, "total": total}
        if got != total(N, n):
            text = f"{case.name}: the ranks sent {got} elements together, expected {formula} = {total(N, n)}"
            return Problem("elements", f"{text}\nBy rank: {by_rank}", facts)
        if most and max(by_rank) > most(N, n):
            rank = by_rank.index(max(by_rank))
            text = f"{case.name}: {case.rank(rank)} sent {max(by_rank)} elements, at most {most_formula} = {most(N, n)}"
            return Problem("one rank", f"{text}\nBy rank: {by_rank}", facts)
    return None


def ring(runs, cases, rounds):
    """A Problem unless each rank sends to its right neighbour only, and rounds(N) messages."""
    for run, case, _ in seen(runs, cases):
        N = case.world_size
        for rank, mine in enumerate(sent(run, case)):
            right, facts = (rank + 1) % N, {"case": case, "peers": sorted({to for to, _ in mine}), "rank": rank}
            stranger = next((to for to, _ in mine if to != right), None)
            if stranger is not None:
                text = f"{case.name}: {case.rank(rank)} sends to rank {stranger}; in the ring only to rank {right}"
                return Problem("neighbours", f"{text}\nIt sends to {who(facts['peers'])}.", facts)
            if case.n >= N and len(mine) != rounds(N):
                text = f"{case.name}: {case.rank(rank)} sent {len(mine)} messages, expected {rounds(N)}, one a round"
                return Problem("rounds", text, facts)
    return None
