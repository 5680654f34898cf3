"""What Lab 1's functions put on the wire, by the ranks' books; an answer may use torch's collectives or lib's.

    torch's op      one entry per rank, with its payload: n elements
    lib's           sends, counted: 2(N-1) n elements over all ranks for an all-reduce, (N-1) n for a broadcast

(Recursive doubling sends a few elements more than 2(N-1) n: counts are rounded to whole all-reduces.)
"""

from lib import collectives
from lib.check.framework import Problem
from lib.collectives import p2p
from lib.ledger.record import OPS


def _via(fn):
    return f"{fn.__module__.split('.')[-1]}.{fn.__name__}"


_FUNCTIONS = [getattr(collectives, name) for name in collectives.__all__]
COLLECTIVES = (*OPS.values(), *map(_via, [*_FUNCTIONS, p2p.send, p2p.recv, p2p.send_recv, p2p.exchange]))
_ALL_REDUCES = tuple(_via(fn) for fn in _FUNCTIONS if fn.__name__.endswith("all_reduce"))


def _book(run, case):
    """[[entry, ...] of rank 0 of the group, ...]"""
    section = run.ledger.section(case.name)
    return [section.of(member) for member in case.members]


def numbers_all_reduced(run, case, most):
    """A Problem unless the ranks communicated by all-reduces only, of `most` numbers together at most."""
    sent, by_torch = 0, 0
    for rank, entries in enumerate(_book(run, case)):
        for entry in entries:
            if entry.op == "all_reduce":
                by_torch = max(by_torch, sum(e.numel for e in entries if e.op == "all_reduce"))
            elif entry.is_message and (not entry.via or entry.via.startswith("p2p.") or entry.via in _ALL_REDUCES):
                sent += entry.numel if entry.op == "send" else 0
            else:
                words = f"called {entry.via or entry.op}, expected all-reduces of one number"
                return Problem("wire", f"{case.where}: {case.rank(rank)} {words}", {"op": entry.op})
    got = by_torch + round(sent / (2 * (case.world_size - 1)))
    if got > most:
        return Problem(
            "wire", f"{case.where}: the ranks all-reduced {got} numbers, expected {most}", {"op": "", "got": got}
        )
    return None


def elements_broadcast(run, case, n):
    """A Problem unless the ranks sent (N-1) n elements together, by broadcasts or by messages."""
    N, books = case.world_size, _book(run, case)
    for rank, entries in enumerate(books):
        stranger = next((e for e in entries if not e.is_message and e.op != "broadcast"), None)
        if stranger is not None:
            words = f"called {stranger.op}, expected that rank 0's tensors are sent, and nobody else's"
            return Problem("wire", f"{case.where}: {case.rank(rank)} {words}", {"got": 0, "n": n, "N": N})
    got = sum(e.numel for entries in books for e in entries if e.op == "send")
    got += (N - 1) * sum(e.numel for e in books[0] if e.op == "broadcast")
    if got != (N - 1) * n:
        text = f"{case.where}: {got} elements were sent, expected (N-1)n = {(N - 1) * n}: {n} to each rank but 0"
        return Problem("wire", text, {"got": got, "n": n, "N": N})
    return None
