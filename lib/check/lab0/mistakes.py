"""Mistakes that can be made in every collective, and the hint for each: what an exercise's own hints are added to.

A hint looks at the Problem: `kind`, and in `facts` the failed run (`failure.py`) or what the claim measured.
"""

import re

from lib.check.framework import Hint

P2P = ("send", "recv", "p2p.send", "p2p.recv", "p2p.send_recv", "p2p.exchange")


def failed(problem):
    """What is known of the run if it failed (raised, hung, or its messages do not match), else None."""
    return problem.facts.get("failed")


def where(problem):
    """(global ranks, n) of the case in which the problem was seen; ((), 0) where it was in none."""
    if "case" in problem.facts:
        return problem.facts["case"].members, problem.facts["case"].n
    size = failed(problem) and re.search(r"size (\d+)", failed(problem).case)
    return (failed(problem).members, int(size[1])) if size else ((), 0)


def hung(problem):
    return problem.kind in ("deadlock", "no progress")


def _beyond_the_group(problem):
    """Did a rank name a rank that the group does not have, or talk to one outside of it?"""
    run = failed(problem)
    if run is None:
        return False
    text = problem.text
    if any(words in text for words in ("the group has", "not part of group", "itself", "not in this group")):
        return True
    return run.book is not None and any(e.peer not in run.members for e in run.book.entries)


def _mixed_up_ranks(problem):
    """Trouble in the group whose ranks are not 0 to N-1, checked last: everywhere else the answer was right."""
    members, _ = where(problem)
    return members != tuple(range(len(members)))


def _all_wait_in_send(problem):
    return hung(problem) and problem.text.count("waits in send ") == len(failed(problem).members)


def remainder(problem):
    """Trouble where N does not divide n, in a group that was right where it does."""
    members, n = where(problem)
    about_sums = problem.kind in ("value", "form", "mismatch", "raised", "died") or hung(problem)
    return about_sums and bool(members) and n % len(members) > 0


def padded(problem):
    """As many elements as if n were the next multiple of N?"""
    if problem.kind != "elements":
        return False
    case, total = problem.facts["case"], problem.facts["total"]
    N, n = case.world_size, case.n
    return n % N > 0 and problem.facts["sent"] == total(N, n + -n % N)


BUILT_IN = Hint(
    "called what it builds",
    lambda p: p.kind == "built-in",
    "build it from p2p.send_recv, p2p.send, p2p.recv, p2p.exchange, or dist's send, recv, isend and irecv.",
)
NOT_A_TENSOR = Hint(
    "nothing returned", lambda p: p.kind == "returned", "the function must end with a `return` of its result."
)
WHOSE_RANKS = Hint(
    "ranks of the world, not of the group",
    lambda p: _mixed_up_ranks(p) or _beyond_the_group(p),
    "ranks are counted within the group. Ask dist.get_rank(group) and dist.get_world_size(group), give `group` to "
    "every p2p call, and take neighbours modulo the group's world_size. (dist.send itself takes world ranks: "
    "dist.get_global_rank(group, r).)",
)
ALL_SEND_FIRST = Hint(
    "everyone sends first",
    _all_wait_in_send,
    "a send ends when its receive has been posted, and every rank is still in its send. p2p.send_recv does both at "
    "once.",
)
NOT_PAIRED = Hint(
    "a receive without its send",
    hung,
    "a rank waits for a message that nobody sends. Write down, for 3 ranks and each round, who sends to whom and who "
    "receives from whom: the two lists must be the same.",
)
WRONG_DTYPE = Hint(
    "a buffer of another dtype",
    lambda p: (failed(p) is not None and failed(p).mismatch == "dtype") or (p.kind == "form" and p.facts["dtype"]),
    "torch.empty(n) is float32. Make buffers with torch.empty_like(chunk), or give them dtype=tensor.dtype.",
)
REMAINDER = Hint(
    "right only when N divides n",
    remainder,
    "here the chunks are not all of one size. Cut with tensor.tensor_split(N), and receive into a buffer of the size "
    "of the chunk that comes, not of the one that you send.",
)
PADDED = Hint(
    "padded",
    padded,
    "you send as many elements as if n were a multiple of N. Chunks of n // N or n // N + 1 elements need no padding: "
    "tensor.tensor_split(N).",
)
