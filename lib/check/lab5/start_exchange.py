"""Lab 5, section 12: start_exchange(routed_tokens, send_counts, receive_counts, group, all_to_all,
start) -> wait, an exchange in two halves, each of which is the other's backward.

It is called where exchange_tokens is, with works that are done as late as can be (later.py), so
that a buffer that is changed while it is in flight is found out. Between start_exchange and wait(),
and between their backwards, it is looked at what has been begun and what is under way.
"""

from dataclasses import replace

import torch

from lib import moe
from lib.check import symptoms as s
from lib.check.cases import Setting
from lib.check.causes import another, hints, of_name
from lib.check.comm import MAY_CALL
from lib.check.exercise import Exercise
from lib.check.lab3 import groups as g
from lib.check.lab5 import exchange_tokens as plain
from lib.check.lab5.exchange_tokens import as_many, everywhere, in_backward, lists_do_not_fit
from lib.check.lab5.later import Starter
from lib.check.shown import claims
from lib.check.side_by_side import SideBySide

TWICE = "two of the same sizes at once"
CASES = (
    *(case for case in plain.CASES if case.what != plain.HOME),
    Setting(g.ALL, what=TWICE),
)
BEGUN, BEFORE, UNDER_WAY = (
    "exchanges begun by `start` in {}",
    "exchanges begun in {} before the other half",
    "exchanges under way in {} between the halves",
)
FORWARD, BACKWARD = ([name.format(way) for name in (BEGUN, BEFORE, UNDER_WAY)]
                     for way in ("forward", "backward"))  # fmt: skip
BY_START = FORWARD[0], BACKWARD[0]


def script(make, case, groups, show):
    show.begin("forward")
    starter, waits, seen = Starter(), [], {}
    calls = g.calls(show, groups) * (1 + (case.what == TWICE))
    for number, (group, N, rank, of) in enumerate(calls):
        name = of or ", the second" * number
        send, receive = plain.lists(case, N, rank)
        x = plain.given(case, show, N, rank, name)
        waits.append(show.run(make, x, [*send], [*receive], group, show.all_to_all, starter.start))
    look = lambda way: seen.update({way: (len(starter.works), starter.under_way)})
    look("forward")
    is_one = all(map(callable, waits))
    show("a function", "" if is_one else "start_exchange returned no function to wait with")
    if show.wrong("a function"):
        return
    between = _Look.apply(torch.zeros((), dtype=x.dtype, requires_grad=True), look)
    ys = []
    for wait in waits:
        ys.append(show.run(wait))
        show("what arrived", ys[-1])
    begun = len(starter.works)
    shown_of(show, FORWARD, begun, *seen["forward"])
    yield
    if show.wrong("what arrived"):
        return
    show.begin("backward")
    loss = between + sum((1 + number) * (y * y).sum() for number, y in enumerate(ys))
    show.backward(loss, section=True)
    works, under_way = seen.get("backward", (0, 0))
    shown_of(show, BACKWARD, len(starter.works) - begun, works - begun, under_way)


def shown_of(show, names, *numbers):
    for name, number in zip(names, numbers, strict=True):
        show(name, number)


class _Look(torch.autograd.Function):
    """A number that is computed between start_exchange and wait(): so its backward runs
    between theirs."""

    @staticmethod
    def forward(ctx, x, look):
        ctx.look = look
        return x.clone()

    @staticmethod
    def backward(ctx, dy):
        ctx.look("backward")
        return dy, None


MEASURE = SideBySide(
    script, moe.start_exchange, CASES, groups=g.groups,
    excused={"alive": "what backward keeps is free"},
    together=(CASES[0], replace(CASES[0], again=1)),
)  # fmt: skip
START_EXCHANGE = Exercise(
    name="start_exchange", reference=moe.start_exchange, measure=MEASURE, worlds=(g.WORLD,),
    bonus=True,
    may_call=(*MAY_CALL, "later.wait", "later.start"),
    leaves_out=plain.EXCHANGE_TOKENS.leaves_out | {"returned": "a function that returns what "
                                                             "arrived"},
    claims=claims(
        MEASURE,
        ("rows to their ranks", 1, f"{g.GROUPS_SAY}; sent when they are waited for",
         "a function", "what arrived"),
        ("gradients the same way back", 1, "two under way at once", "graph",
         *(f"routed_tokens{of}" for of in ("", ", the pair", ", the second"))),
        ("under way until wait()", 1, "", *FORWARD),
        ("backward, too", 1, "begun where wait() stood, waited for where it was begun", *BACKWARD),
        ("each row once, each way", 1, "elements, by what it was given; lists left alone",
         as_many(MEASURE)),
    ),
    hints=hints(
        "lab5", "start_exchange",
        the_group_is_not_passed_on=s.kind("group"),
        nothing_to_wait_for=of_name("a function"),
        **{"not by `start`": lambda p: of_name(*BY_START)(p) and p.facts["got"] < p.facts["want"],
           "begins in wait()": of_name(FORWARD[1])},
        waits_at_once=of_name(FORWARD[2]),
        backward_begins_too_late=of_name(BACKWARD[1]),
        backward_waits_at_once=of_name(BACKWARD[2]),
        one_work_for_all=s.in_case(
            everywhere(CASES), lambda case: case.what.startswith((TWICE, g.AT_ONCE))
        ),
        without_a_backward=plain.without_a_graph,
        backward_without_the_swap=s.both(in_backward(CASES), lists_do_not_fit),
        the_lists_the_wrong_way_round=lists_do_not_fit,
        another_gradient=another(CASES, "the gradient of"),
        not_every_rank_calls=s.kind("clash"),
        nothing_comes=s.both(of_name("what arrived"), s.fact("got", "None")),
        more_than_the_rows=s.either(s.kind("elements"), of_name(*BY_START)),
        other_rows=another(CASES, "what arrived"),
    ),
)  # fmt: skip
