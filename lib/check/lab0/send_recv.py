"""Lab 0, section 4: send_recv(tensor, to, frm, group, out), an exchange that does not deadlock."""

from functools import cache

import torch

from lib.check import symptoms as s
from lib.check.calls import Calls
from lib.check.cases import Case, own, seen
from lib.check.claims import claim, form, kept, left_alone, new, values
from lib.check.exercise import Exercise, Hint, Problem
from lib.check.explain import narrowed, rounded_words
from lib.check.left_out import BUILT
from lib.collectives.p2p import send_recv

# name -> for a rank of N, whom it sends to and whom it hears from. Every rank does both.
PATTERNS = {
    "to the right neighbour": lambda r, n: ((r + 1) % n, (r - 1) % n),
    "to the left neighbour": lambda r, n: ((r - 1) % n, (r + 1) % n),
    "two to the right": lambda r, n: ((r + 2) % n, (r - 2) % n),
    "reversed, 0 with N-1": lambda r, n: (n - 1 - r, n - 1 - r),
}
GROUP = (1, 3, 4)  # of a world of 5: a rank of the group is never the global rank of this number
OUT, UNEQUAL = "to the right neighbour, out given", "to the right neighbour, chunks of other sizes"
UNWRITTEN = -7  # what `out` holds before the call
SHAPES = {3: (3,), 6: (2, 3), 5: (5,), 1: (), 0: (0,)}  # elements -> the tensor's shape
KINDS = ((3, torch.float32), (6, torch.float64), (5, torch.int64))


@cache
def _cases(world_size):
    members = tuple(range(world_size))
    cases = [Case(members, n, dtype, what) for what in PATTERNS for n, dtype in KINDS]
    right, reverse = "to the right neighbour", "reversed, 0 with N-1"
    cases += Case(members, 1, torch.float64, right), Case(members, 0, torch.float32, reverse)
    cases += [Case(members, 5, torch.float32, what) for what in (OUT, UNEQUAL)]
    if world_size > max(GROUP):  # last: an answer that is wrong without a group says so first
        cases += [Case(GROUP, 5, torch.float32, what) for what in (right, reverse, UNEQUAL)]
    return tuple(cases)


def _tensor(rank, case):
    if case.what == UNEQUAL:
        return own(rank, case.n + rank, case.dtype)
    return own(rank, case.n, case.dtype).reshape(SHAPES[case.n])


def _give(case, rank):
    pattern = PATTERNS.get(case.what, PATTERNS["to the right neighbour"])
    to, frm = pattern(rank, case.world_size)
    into = case.what in (OUT, UNEQUAL)
    out = torch.full_like(_tensor(frm, case), UNWRITTEN) if into else None
    return {"tensor": _tensor(rank, case), "to": to, "frm": frm, "out": out}


CALLS = Calls(
    _cases,
    _give,
    want=lambda case, rank: _tensor(_give(case, rank)["frm"], case),
    fills="out",
    by_name=("out",),
)


def _explain(case, rank, got, want, records):
    """facts: source, the rank whose tensor came; to and frm."""
    given, where = _give(case, rank), f"{case.name}: {case.rank(rank)}"
    facts = {"to": given["to"], "frm": given["frm"], "source": None}
    if found := form(where, got, want, "a tensor like its own"):
        return found
    if torch.equal(got, want):
        return Problem("out", f"{where} returned the right tensor, but `out` does not hold it")
    if narrowed(got, want):
        return Problem("value", f"{where}\n{rounded_words(case.dtype)}", facts | {"narrowed": True})
    facts["source"] = next(
        (
            r
            for r in range(case.world_size)
            if _tensor(r, case).shape == got.shape and torch.equal(_tensor(r, case), got)
        ),
        None,
    )
    what = (
        "what no rank gave" if facts["source"] is None else f"the tensor of rank {facts['source']}"
    )
    return Problem(
        "value", f"{where} got {what}, expected the tensor of rank {given['frm']}", facts
    )


def _what_is_sent(runs):
    for run, case, _ in seen(runs, _cases):
        for rank in range(case.world_size):
            to = _give(case, rank)["to"]
            sent = [
                (case.members.index(e.peer) if e.peer in case.members else e.peer, e.numel)
                for e in run.ledger.section(case.name).of(case.members[rank])
                if e.op == "send"
            ]
            expected = [] if to == rank else [(to, _tensor(rank, case).numel())]
            if [one for one in sent if one[1]] != [one for one in expected if one[1]]:
                words = ", ".join(f"{n} elements to rank {peer}" for peer, n in sent) or "nothing"
                wanted = (
                    ", ".join(f"{n} elements to rank {peer}" for peer, n in expected)
                    or "nothing, to itself"
                )
                more = sum(n for _, n in sent) > sum(n for _, n in expected)
                text = f"{case.name}: rank {rank} sent {words}, expected {wanted}"
                return Problem("elements", text, {"case": case, "more": more})
    return None


def _source(fits):
    return lambda p: p.kind == "value" and fits(p.facts)


def _in_the_subgroup(p):
    """Is it wrong in a subgroup, where all that is the same without a group was right?"""
    case, failed = p.facts.get("case"), s.failed(p)
    named = case.name if case else failed.case if failed else ""
    return p.kind in s.SHAPES and named.startswith("group")


def _both_begun(p):
    """Has every rank of the case begun a send and a receive?"""
    book, members = s.failed(p).book, s.failed(p).members
    return book is not None and all(
        {"send", "recv"} <= {e.op for e in book.of(rank)} for rank in members
    )


def _send_left(p):
    """Has the function returned without waiting for a send?"""
    return s.failed(p) is not None and "NotWaitedFor: send" in s.failed(p).text


EXERCISE = Exercise(
    name="send_recv", reference=send_recv, measure=CALLS, worlds=(2, 3, 4, 5),
    may_call=("send", "recv"),
    leaves_out=BUILT | {"alone": "on one rank there is nobody to talk to; to itself is a case"},
    claims=(
        claim("what arrives is what was sent", 10,
              "2, 3, 4, 5 ranks, a subgroup; neighbours, two away, reversed; out",
              values(CALLS, _explain)),
        claim("one message per rank", 3, "as many elements as the tensor has; none to itself",
              _what_is_sent),
        claim("your own tensor is left alone", 3, "the result is a new tensor, or out",
              left_alone(_cases), new(_cases), kept(_cases)),
    ),
    hints=(
        Hint("ranks of the group", _in_the_subgroup,
             "`to` and `frm` are ranks of `group`, and these are not the global ranks. Give them "
             "to torch as group_peer=to (group_dst and group_src for isend and irecv), with "
             "group=group, and compare `to` with dist.get_rank(group)."),
        Hint("out not filled", s.kind("out"),
             "where `out` is given, receive into it (or copy into it) and return it."),
        Hint("received from another rank", s.both(s.hung, _both_begun),
             "sends and receives were begun, but they do not belong together: your tensor goes to "
             "`to`, and what you get comes from `frm`."),
        Hint("everyone sends first", s.all_wait_in("send"),
             "here dist.send returns only when its receiver has posted a receive, and every rank "
             "is still in its send. Post both at once with dist.batch_isend_irecv, and wait for "
             "them afterwards."),
        Hint("everyone receives first", s.all_wait_in("recv"),
             "dist.recv returns only when its message is there, and every rank is still in its "
             "receive. Post both at once with dist.batch_isend_irecv, and wait for them "
             "afterwards."),
        Hint("a send that nobody waits for", _send_left,
             "you leave a message behind that you have begun to send: it is in flight only while "
             "its sender keeps it. Keep what dist.isend returns, and call .wait() on it before you "
             "return."),
        s.UNDER_WAY,
        Hint("an order that only some patterns allow", s.hung,
             "your order of send and receive works for neighbours, but here two ranks that wait "
             "for each other chose the same order. Compare the rank with `to`, or use "
             "dist.batch_isend_irecv, which needs no order."),
        Hint("a message to itself", s.refused("to itself"),
             "when `to` is the rank itself, there is no rank to send to, so return a copy."),
        s.NARROW,
        Hint("the wrong direction", _source(lambda f: f["source"] == f["to"]),
             "`to` is who gets your tensor, `frm` is whose tensor you get; they are swapped."),
        Hint("nothing was received", _source(lambda f: f["source"] == f["rank"]),
             "you return your own tensor. Receive into a new one, torch.empty_like(tensor), and "
             "return that."),
        Hint("nothing was written", _source(lambda f: f["source"] is None),
             "the tensor you return was not filled by the receive. With dist.irecv or a batch, "
             "wait for every work before you return."),
        Hint("a buffer of the wrong form", s.kind("form", "mismatch"),
             "the buffer you receive into has another shape or dtype than what is sent: "
             "torch.empty_like(tensor)."),
        Hint("received into the input", s.kind("input"),
             "you receive into the tensor you were given; the caller still needs it. Use "
             "torch.empty_like(tensor)."),
        s.BUILT_IN.saying(
            "here you may use only dist.batch_isend_irecv, dist.isend, dist.irecv, dist.send and "
            "dist.recv."),
        Hint("sent more than needed", s.kind("elements", more=True),
             "one message to `to` is enough; a copy to itself needs none."),
        s.RETURNED_NONE.saying("the function must end with `return out`."),
        s.SHARED, s.NOT_KEPT, *s.ANYWHERE,
    ),
)  # fmt: skip
