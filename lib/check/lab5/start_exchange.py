"""Lab 5, section 12: start_exchange(routed_tokens, send_counts, receive_counts, group, all_to_all,
start) -> wait, an exchange in two halves, each of which is the other's backward.

It is judged as exchange_tokens is, with works that are done as late as can be (later.py), so that
a buffer that is changed while it is in flight is found out. Two are in flight at once where
TWO_AT_ONCE says so.
"""

from functools import partial

import torch

from lib import moe
from lib.check import symptoms as s
from lib.check.claims import claim, each, noted
from lib.check.comm import MAY_CALL
from lib.check.exercise import Exercise, Hint, Problem
from lib.check.lab5 import exchange_tokens as plain
from lib.check.lab5.exchange_tokens import WAYS, WORLD, as_many, lists_do_not_fit, section
from lib.check.lab5.later import Starter
from lib.check.pure import noting_calls
from lib.check.traffic import only_calls

TWO_AT_ONCE = lambda case: case.what in (plain.HOME, plain.BESIDE)


def _measure_start(fn):
    """exchange_tokens' records of start_exchange and wait; and `between`, what was under way
    between the two."""
    between = {}

    def answer_of(case):
        notes = between.setdefault(case, [])

        def exchange(rows, send_counts, receive_counts, group, all_to_all):
            """rows there; where TWO_AT_ONCE says so, and twice the rows beside them: a
            third of both arrives."""
            starter, scales = Starter(), (1, 2) if TWO_AT_ONCE(case) else (1,)
            begin = lambda rows: fn(
                rows, send_counts, receive_counts, group, all_to_all, starter.start
            )
            with noting_calls(moe.start_exchange) as libs:
                waits = [begin(rows * scale) for scale in scales]
            note = {
                "of": len(scales),
                "wait": all(map(callable, waits)),
                "forward": starter.under_way,
            }
            note |= {"libs": bool(libs), "begun": len(starter.works), "starter": starter}
            notes.append(note)
            look = lambda: note.update(
                started=len(starter.works) - len(scales), backward=starter.under_way
            )
            nothing = _Look.apply(
                torch.zeros((), dtype=rows.dtype, device=rows.device, requires_grad=True), look
            )
            came = [wait() if callable(wait) else wait for wait in waits]
            note |= {"left": starter.under_way, "came": len(starter.works)}
            return sum(came) / sum(scales) + nothing if all(map(torch.is_tensor, came)) else came[0]

        return exchange

    records = plain.measured(answer_of)
    for case, record in zip(plain.CASES, records, strict=False):
        if record:
            record["between"] = [
                note | {"all": len(note.pop("starter").works)} for note in between[case]
            ]
    return records


class _Look(torch.autograd.Function):
    """A number that is computed between start_exchange and wait(): so its backward runs
    between theirs."""

    @staticmethod
    def forward(ctx, x, look):
        ctx.look = look
        return x.clone()

    @staticmethod
    def backward(ctx, dy):
        ctx.look()
        return dy, None


def _between(case, rank, record, way):
    where = f"{case.name}: {case.rank(rank)}"
    for note in record["between"]:
        here, at = (
            note.get(way),
            "start_exchange returned" if way == "forward" else "wait()'s backward had run",
        )
        if here != note["of"] or note["left"] or not note["wait"]:
            text = f"{where}: when {at}, {here} exchanges were under way, expected {note['of']}"
            of_way = note["came"] if way == "forward" else note["all"] - note["came"]
            facts = {"way": way, "direct": of_way < note["of"]} | note
            return Problem(
                "not under way", text, facts, [way, here, note["wait"], note["begun"], of_way]
            )
    return None


def _own(case, rank, record):
    libs = any(note["libs"] for note in record["between"])
    return (
        Problem("built-in", "it calls lib's start_exchange, which is what this exercise builds")
        if libs
        else None
    )


def _elements_at_once(case, rank, way):
    return tuple((1 + TWO_AT_ONCE(case)) * n for n in plain.elements_of(case, rank, way))


def _way(way):
    return s.kind("not under way", way=way)


START_EXCHANGE = Exercise(
    name="start_exchange", reference=moe.start_exchange, measure=_measure_start, worlds=(WORLD,),
    bonus=True,
    may_call=(*MAY_CALL, "later.wait", "later.start"),
    leaves_out=plain.EXCHANGE_TOKENS.leaves_out | {"returned": "a function that returns what "
                                                             "arrived"},
    claims=(
        claim("rows to their ranks", 1, f"{plain.GROUPS_SAY}; sent when they are waited for",
              each(plain.CASES, _own), noted(plain.CASES, "value")),
        claim("gradients the same way back", 1, "two under way at once",
              noted(plain.CASES, "gradient")),
        claim("under way until wait()", 1, "", each(plain.CASES, partial(_between, way="forward"))),
        claim("backward, too", 1, "begun where wait() stood, waited for where it was begun",
              each(plain.CASES, partial(_between, way="backward"))),
        claim("each row once, each way", 1, "elements, by what it was given; lists left alone",
              only_calls(plain.CASES, None, WAYS, section), as_many(plain.CASES, _elements_at_once),
              noted(plain.CASES, "touched")),
    ),
    hints=(
        s.CALLED_LIB,
        s.NO_GROUP,
        s.NARROW,
        Hint("nothing to wait for", lambda p: p.kind == "not under way" and not p.facts["wait"],
             "start_exchange returns a function: `return wait`, or a lambda, and not what that "
             "returns."),
        Hint("not by `start`", lambda p: p.kind == "not under way" and p.facts["direct"],
             "you are given what begins an exchange, in each direction: start(all_to_all, tensor, "
             "group, counts, counts) -> work. Call neither collectives.start nor all_to_all "
             "itself."),
        Hint("begins in wait()", lambda p: _way("forward")(p) and p.facts["begun"] < p.facts["of"],
             "start_exchange begins the exchange; the function that it returns only waits for it."),
        Hint("waits at once", _way("forward"),
             "start(all_to_all, routed_tokens, group, send_counts, receive_counts) returns a work. "
             "Its wait() belongs in the function that you return, because the caller computes "
             "something in the meantime."),
        Hint("backward waits at once",
             lambda p: _way("backward")(p) and p.facts["started"] == p.facts["of"],
             "the gradients' exchange is begun and waited for in one function's backward. Begin it "
             "in the backward of what wait() calls, keep the work, and wait for it in the backward "
             "of what start_exchange calls."),
        Hint("backward begins too late", _way("backward"),
             "the gradients' exchange begins where its result is needed. What is computed "
             "between start_exchange and wait() has its backward between those of your two "
             "functions: the first of them, that of wait(), has to begin it, by `start`."),
        Hint("one work for all", s.both(s.in_case(plain.CASES, TWO_AT_ONCE),
                                        s.kind(*s.SHAPES, "clash", "no graph", "not kept")),
             "one exchange was right, two in flight at once are not. Each call keeps a work and "
             "lists of its own: in the call's own object or closure, not on a class, in a global, "
             "or in a buffer of all calls."),
        s.NO_GRAPH.saying(
            "two autograd functions, tied by a tensor: the first takes routed_tokens and returns "
            "an empty tensor, such as routed_tokens.new_empty(0); the second takes that and "
            "returns what arrived."),
        Hint("backward without the swap", s.both(s.fact("way", "backward"), lists_do_not_fit),
             "in backward dy has a row for each that was received, and is sent back to where that "
             "came from: the two lists are swapped."),
        Hint("the lists the wrong way round", lists_do_not_fit,
             "start(all_to_all, routed_tokens, group, send_counts, receive_counts): first what is "
             "sent, then what is received."),
        Hint("another gradient", s.fact("gradient"),
             "the first function's backward returns what the gradients' exchange brought: the "
             "gradient of routed_tokens."),
        Hint("not every rank calls", s.either(s.hung, s.kind("mismatch", "died", "clash")),
             "all ranks of the group begin and wait for it, also those that have nothing to send "
             "or get nothing, in backward too."),
        Hint("nothing comes", s.kind("form", got="None"),
             "wait() must return what work.wait() returns: (sum(receive_counts), D)."),
        s.NOT_GIVEN,
        Hint("more than the rows", s.kind("elements"),
             "each token is sent once in each direction."),
        Hint("other rows", s.kind("value", "form", "unreadable"),
             "wait() returns what all_to_all returned, (sum(receive_counts), D), as it is."),
        s.NOT_KEPT, *s.ANYWHERE,
    ),
)  # fmt: skip
