"""Lab 5, section 12: start_exchange(routed_tokens, send_counts, receive_counts, group, all_to_all,
start) -> wait, an exchange in two halves: the backward of wait() starts the exchange of the
gradients, and the backward of start_exchange waits for it.

The cases are those of exchange_tokens, but with two exchanges of the same sizes at once instead of
one back home. The answer's works run as late as possible (later.py), so a buffer that is changed
while it is in flight arrives wrong. Between start_exchange and wait(), and between their backward
passes, the script counts how many exchanges have begun and how many are in flight.
"""

import torch

from lib import moe
from lib.check.cases import Setting
from lib.check.causes import hints
from lib.check.comm import MAY_CALL
from lib.check.lab3 import groups as g
from lib.check.lab5 import exchange_tokens as plain
from lib.check.lab5.later import Starter
from lib.check.overlap import Gate
from lib.check.shown import calls
from lib.check.tensors import draw

TWICE = "two of the same sizes at once"
CASES = (
    *(case for case in plain.CASES if case.what != plain.HOME),
    Setting(g.ALL, what=TWICE),
)
BEGUN, BEFORE, IN_FLIGHT = (
    "exchanges begun by `start`",
    "exchanges begun before the other half",
    "exchanges in flight between the halves",
)
CONTIGUOUS = "what is sent"


def script(make, case, groups, show):
    show.begin("forward")
    starter, waits, lists, seen, odd = Starter(), [], [], {}, []
    all_to_all = g.contiguous_only(show.all_to_all, odd)
    for number, (group, N, rank, of) in enumerate(
        g.calls(show, groups) * (1 + (case.what == TWICE))
    ):
        x, send, receive = plain.given(case, show, N, rank, of or ", the second" * number)
        lists += [send, receive]
        waits.append(show.run(make, x, send, receive, group, all_to_all, starter.start))
    look = lambda way: seen.update({way: (len(starter.works), starter.under_way)})
    look("forward")
    is_one = all(map(callable, waits))
    show("a function", "" if is_one else "start_exchange returned no function to wait with")
    if show.wrong("a function"):
        return
    number = torch.zeros((), dtype=x.dtype, requires_grad=True)  # its backward is between theirs
    between = Gate.apply(number, lambda gradient: look("backward"))
    ys = [show.run(wait) for wait in waits]
    for y in ys:
        show("what arrived", y)
    begun = len(starter.works)
    for name, value in zip((BEGUN, BEFORE, IN_FLIGHT), (begun, *seen["forward"]), strict=True):
        show(name, value)
    plain.show_sent(show, "forward")
    yield
    if show.wrong("what arrived"):
        return
    show.begin("backward")
    odd.clear()  # what forward sent: tokens may be sent as they are
    # the gradients of y arrive transposed, so they are not contiguous
    terms = [(draw(number, *y.t().shape).to(y) * y.t()).sum() for number, y in enumerate(ys)]
    show.backward(between + sum(terms))
    before, in_flight = seen.get("backward", (begun, 0))
    show(BEGUN, len(starter.works) - begun)
    show(BEFORE, before - begun)
    show(IN_FLIGHT, in_flight)
    show(CONTIGUOUS, odd[0] if odd else "")
    plain.show_sent(show, "backward")
    show(plain.LISTS, str(lists))


MEASURE = g.measure(script, moe.start_exchange, CASES, excused=plain.EXCUSED)
START_EXCHANGE = MEASURE.exercise(
    ("rows to their ranks", 1, f"{g.GROUPS_SAY}; sent when they are waited for",
     "a function", "what arrived"),
    ("gradients the same way back", 1, "two in flight at once", "graph",
     *(f"routed_tokens{of}" for of in ("", ", the pair", ", the second"))),
    ("in flight between the halves", 2, "begun in one, waited for in the other; in backward, "
     "too", BEGUN, BEFORE, IN_FLIGHT),
    ("each row once, each way", 1, "elements, by what it was given; lists left alone",
     calls(MEASURE, nothing_else=False), plain.CALLED, plain.SENT, CONTIGUOUS),
    hints=hints("lab5", "start_exchange", "exchanges"), worlds=(g.WORLD,), bonus=True,
    may_call=(*MAY_CALL, "later.wait", "later.start", "groups.given"),
    leaves_out=plain.EXCHANGE_TOKENS.leaves_out | {"returned": "a function, which returns rows"},
)  # fmt: skip
