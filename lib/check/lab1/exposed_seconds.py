"""Lab 1, section 12, bonus: exposed_seconds(compute, messages), the seconds of messages that no
compute hides."""

import random
from math import isclose, isfinite

from lib.check import symptoms as s
from lib.check.claims import claim, is_number
from lib.check.exercise import Exercise, Hint, Problem
from lib.check.left_out import but
from lib.check.pure import CHANGED, LEAVES_OUT, NOTHING, asked, each, left_alone
from lib.cost.exposed import exposed_seconds

ONE = {  # name -> (compute, messages); all ends are eighths, so that sums are exact
    "the message is inside compute": ([(0.0, 4.0)], [(1.0, 2.5)]),
    "it ends after compute": ([(0.0, 3.0)], [(2.0, 5.5)]),
    "it begins before compute": ([(2.0, 5.0)], [(1.25, 3.0)]),
    "it begins before and ends after": ([(2.0, 3.0)], [(0.5, 6.0)]),
    "compute twice beside one message": ([(0.0, 1.0), (3.0, 4.0)], [(0.5, 6.0)]),
    "a message in each gap": (
        [(0.0, 1.0), (2.0, 3.0), (5.0, 6.0)],
        [(1.25, 1.75), (2.5, 4.0), (4.5, 5.5)],
    ),
}
MESSAGES = {
    "two messages overlap": ([(0.0, 1.0)], [(0.5, 3.0), (2.0, 4.0)]),
    "a message inside another": ([(3.0, 4.0)], [(0.0, 5.0), (1.0, 2.0)]),
    "the same message twice": ([(1.0, 2.0)], [(0.0, 4.0), (0.0, 4.0)]),
    "three at once": ([(2.0, 2.5)], [(0.0, 3.0), (1.0, 4.0), (2.0, 5.0), (7.0, 8.0)]),
}
COMPUTE = {
    "two streams overlap": ([(0.0, 2.0), (1.0, 3.0)], [(0.5, 3.5)]),
    "one stream inside another": ([(0.0, 5.0), (1.0, 2.0)], [(0.5, 6.0)]),
    "a stream and two short ones": ([(0.0, 5.0), (1.0, 2.0), (4.0, 6.0)], [(3.0, 4.5), (5.5, 7.0)]),
}


def _many(seed):
    draw = random.Random(seed)
    interval = lambda longest: (
        start := draw.randrange(400) / 8,
        start + draw.randrange(longest) / 8,
    )
    return [interval(40) for _ in range(20)], [interval(60) for _ in range(20)]


ANY = {
    "not sorted": ([(4.0, 5.0), (0.0, 1.0), (2.0, 3.0)], [(6.0, 7.0), (0.5, 2.5)]),
    "they touch": ([(0.0, 1.0), (2.0, 3.0)], [(1.0, 2.0), (3.0, 4.5)]),
    "of no length": ([(1.0, 1.0)], [(0.0, 2.0), (3.0, 3.0)]),
    "before the clock's zero": ([(-3.0, -2.0)], [(-2.5, -1.0)]),
    "of microseconds": ([(0.0, 0.000125)], [(0.000075, 0.000425)]),
    "no compute": ([], [(0.0, 2.0), (3.0, 4.0)]),
    "no messages": ([(0.0, 1.0)], []),
    "nothing": ([], []),
    "a clock that began long ago": ([(1e6, 1e6 + 1), (1e6 + 2, 1e6 + 3)], [(1e6 + 0.5, 1e6 + 2.5)]),
    "20 of each": _many(1),
    "20 others": _many(2),
}
CASES = ONE | MESSAGES | COMPUTE | ANY


def _measure(fn):
    given = lambda name: tuple(list(intervals) for intervals in CASES[name])
    return asked(fn, exposed_seconds, [(name,) for name in CASES], given, _read)


def _read(out, *_):
    if out is None:
        return Problem("nothing", "it returned None, expected a number of seconds")
    if not is_number(out) or not isfinite(out):
        return Problem(
            "form", f"got {out!r:.60}, a {type(out).__name__}, expected a number of seconds"
        )
    return float(out)


def _judge(cases):
    def judge(got, name):
        compute, messages = CASES[name]
        want = exposed_seconds(compute, messages)
        if isclose(got, want, rel_tol=1e-6, abs_tol=1e-6):
            return None
        text = f"expected {want:.6g} s, got {got:.6g} s"
        if len(compute) + len(messages) < 8:
            text += f"\n  compute {compute}\n  messages {messages}"
        return Problem(
            "value",
            text,
            {"negative": got < 0, "too many": got > exposed_seconds([], messages) + 1e-6},
        )

    return each([(name,) for name in cases], judge, str)


def _case(*names):
    return lambda p: p.fact("case") is not None and p.fact("case")[0] in names


EXERCISE = Exercise(
    name="exposed_seconds", reference=exposed_seconds, measure=_measure, worlds=(), bonus=True,
    leaves_out=but(LEAVES_OUT, "given used", "again", "empty rank")
    | {"given used": "no function is given to it",
       "again": "a number of numbers, called in many cases",
       "empty rank": "there are no ranks; empty lists are cases", "returned": "a number"},
    claims=(
        claim("one message at a time", 2, f"{len(ONE)} cases: hidden, in part, not at all",
              _judge(ONE)),
        claim("messages at once count once", 2, "they overlap, or lie in each other",
              _judge(MESSAGES)),
        claim("compute at once hides once", 1, "two streams compute", _judge(COMPUTE)),
        claim("any lists", 1, "not sorted, touching, empty, many; left as they were", _judge(ANY),
              left_alone(str)),
    ),
    hints=(
        s.CALLED_LIB.saying("sort the ends of all intervals, and walk from one to the next."),
        NOTHING,
        Hint("not a number", s.kind("form"), "return the seconds, one float."),
        Hint("nothing to look at", s.both(s.kind("raised"), _case("no compute", "no messages",
            "nothing")),
             "either list may be empty: without messages nothing is exposed, without compute all "
             "of them are."),
        CHANGED,
        Hint("less than nothing", s.kind("value", negative=True),
             "a second of a message is hidden once, however much computes in it."),
        Hint("more than all messages", s.both(s.kind("value"), s.fact("too many")),
             "seconds in which two messages are under way are seconds of one: count the time, not "
             "the messages."),
        Hint("not sorted", s.both(s.kind("value"), _case("not sorted")),
             "intervals come in any order: sort them by their start."),
        Hint("begun at 0", s.both(s.kind("value"), _case("before the clock's zero")),
             "times are of any clock, and may lie before 0: begin with the first start."),
        Hint("rounded", s.both(s.kind("value"), _case("of microseconds")),
             "messages of a few hundred microseconds count too: do not round times to a grid."),
        Hint("not what nothing hides", s.kind("value"),
             "walk through all starts and ends in the order of time, and add up the pieces between "
             "two of them in which a message is under way and nothing computes."),
        *s.ANYWHERE,
    ),
)  # fmt: skip
