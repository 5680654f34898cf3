"""Lab 0, section 4: send_recv(tensor, to, frm, group, out), an exchange that does not deadlock."""

import torch

from lib.check import symptoms as s
from lib.check.cases import Case, own, seen
from lib.check.causes import hints, of_name
from lib.check.exercise import Exercise, Problem
from lib.check.lab0 import by_messages as by
from lib.check.left_out import BUILT
from lib.check.shown import claims
from lib.check.side_by_side import SideBySide
from lib.check.traffic import sent
from lib.collectives.p2p import send_recv

WORLD = 5
RIGHT, LEFT, TWO = "to the right neighbour", "to the left neighbour", "two to the right"
REVERSED = "reversed, 0 with N-1"
# for a rank of N: whom it sends to and whom it hears from; a word may be behind the name
PATTERNS = {
    RIGHT: lambda r, n: ((r + 1) % n, (r - 1) % n),
    LEFT: lambda r, n: ((r - 1) % n, (r + 1) % n),
    TWO: lambda r, n: ((r + 2) % n, (r - 2) % n),
    REVERSED: lambda r, n: (n - 1 - r, n - 1 - r),
}
OUT, UNEQUAL = f"{RIGHT}, out given", f"{RIGHT}, chunks of other sizes"
TO_ITSELF = f"{TWO}, out given"  # of two ranks: to itself
WITH_OUT = (OUT, UNEQUAL, TO_ITSELF)
UNWRITTEN = -7  # what `out` holds before the call
SHAPES = {6: (2, 3), 5: (5,), 1: (), 0: (0,)}  # elements -> the tensor's shape
F64, I64 = torch.float64, torch.int64
OF_GROUPS = {
    (0, 1): (RIGHT, TWO), (0, 1, 2): (RIGHT, LEFT, REVERSED), (0, 1, 2, 3): tuple(PATTERNS),
    (0, 1, 2, 3, 4): tuple(PATTERNS),
}  # fmt: skip
MORE = ((5, I64, RIGHT), (1, F64, RIGHT), (0, F64, REVERSED), (5, F64, OUT), (5, F64, UNEQUAL))
# last: an answer that is wrong without a group says so first
SUBGROUP = ((6, F64, RIGHT), (6, F64, REVERSED), (5, F64, UNEQUAL))
CASES = (
    *(Case(ranks, 6, F64, what) for ranks, names in OF_GROUPS.items() for what in names),
    *(Case(tuple(range(WORLD)), *one) for one in MORE),
    Case((0, 1), 5, F64, TO_ITSELF),
    *(Case((1, 3, 4), *one) for one in SUBGROUP),
)


def own_of(rank, case):
    if case.what == UNEQUAL:
        return own(rank, case.n + rank, case.dtype)
    return own(rank, case.n, case.dtype).reshape(SHAPES[case.n])


def peers(rank, case):
    """(to, frm)"""
    pattern = next(name for name in PATTERNS if case.what.startswith(name))
    return PATTERNS[pattern](rank, case.world_size)


def script(make, case, group, show):
    to, frm = peers(show.place, case)
    tensor = show.give("tensor", own_of(show.place, case))
    out = torch.full_like(own_of(frm, case), UNWRITTEN) if case.what in WITH_OUT else None
    by.result(show, "what arrived", by.called(show, make, group, tensor, to, frm, out=out))
    if out is not None:
        show("out", out)


def explain(wrong):
    """facts: source, the rank whose tensor it is; to and frm."""
    case, got = wrong.case, wrong.got
    to, frm = peers(wrong.rank, case)
    tensors = {r: own_of(r, case) for r in range(case.world_size)}
    alike = lambda x: x.shape == got.shape and torch.equal(x, got)
    source = next((r for r, tensor in tensors.items() if alike(tensor)), None)
    what = "what no rank gave" if source is None else f"the tensor of rank {source}"
    text = f"{wrong.where} got {what}, expected the tensor of rank {frm}"
    return text, {"to": to, "source": source}


def one_message(runs):
    """A judge: each rank sends its tensor once, and nothing to itself."""
    for run, case, _ in seen(runs, CASES):
        for rank, mine in enumerate(sent(run, case)):
            to, n = peers(rank, case)[0], own_of(rank, case).numel()
            got, want = [one for one in mine if one[1]], [(to, n)] if to != rank and n else []
            more = sum(n for _, n in got) > sum(n for _, n in want)
            if got != want:
                text = f"{case.name}: {case.rank(rank)} sent {told(got)}, expected {told(want)}"
                return Problem("elements", text, {"case": case, "more": more})
    return None


def told(messages):
    return ", ".join(f"{n} elements to rank {to}" for to, n in messages) or "nothing"


def both_begun(p):
    """Has every rank of the case begun a send and a receive?"""
    ledger = s.hung(p) and s.failed(p).ledger
    return ledger and all({"send", "recv"} <= {e.op for e in ledger.of(r)} for r in s.members(p))


def send_left(p):
    """Has the function returned without waiting for a send?"""
    return s.failed(p) is not None and "NotWaitedFor: send" in s.failed(p).text


def of_other_sizes(case):
    """Only `out` has the length of what arrives here."""
    return case.what == UNEQUAL


def source(fits):
    return lambda p: "source" in p.facts and not p.fact("narrowed") and fits(p.facts)


MEASURE = SideBySide(script, send_recv, CASES, excused=by.EXCUSED)
EXERCISE = Exercise(
    name="send_recv", reference=send_recv, measure=MEASURE, worlds=(WORLD,),
    may_call=("send", "recv"),
    leaves_out=BUILT | {"alone": "on one rank there is no other; to itself is a case"},
    claims=claims(
        MEASURE,
        ("what arrives is what was sent", 10,
         "2, 3, 4, 5 ranks, a subgroup; neighbours, two away, reversed; out",
         by.told(MEASURE, "what arrived", explain), "what arrived", "out"),
        ("one message per rank", 3, "as many elements as the tensor has; none to itself",
         one_message),
        ("your own tensor is left alone", 3, "the result is a new tensor, or out"),
    ),
    hints=hints(
        "lab0", "send_recv",
        ranks_of_the_group=s.both(s.kind(*s.SHAPES), s.mixed_up_ranks),
        out_not_filled=of_name("out"),
        a_buffer_like_the_tensor=s.in_case(CASES, of_other_sizes, "form", "mismatch"),
        received_from_another_rank=both_begun,
        everyone_sends_first=s.all_wait_in("send"),
        everyone_receives_first=s.all_wait_in("recv"),
        a_send_that_nobody_waits_for=send_left,
        a_message_that_nobody_waits_for=s.left_under_way,
        an_order_that_only_some_patterns_allow=s.hung,
        a_message_to_itself=s.refused("to itself"),
        the_wrong_direction=source(lambda f: f["source"] == f["to"]),
        nothing_was_received=source(lambda f: f["source"] == f["rank"]),
        nothing_was_written=source(lambda f: f["source"] is None),
        a_buffer_of_the_wrong_form=s.kind("form", "mismatch"),
        received_into_the_input=of_name("arguments"),
        **{"called what it builds": s.kind("built-in")},
        sent_more_than_needed=s.kind("elements", more=True),
        nothing_returned=s.kind("returned"),
    ),
)  # fmt: skip
