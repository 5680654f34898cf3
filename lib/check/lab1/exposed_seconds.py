"""Lab 1, section 12, bonus: exposed_seconds(compute, messages), for how many seconds there is
communication that no computation hides."""

import random

from lib.check.causes import hints
from lib.check.left_out import LEAVES_OUT, NO_TENSORS
from lib.check.numbers import NO_NUMBER, is_one
from lib.check.shown import RETURNED
from lib.check.side_by_side import SideBySide, here
from lib.cost.exposed import exposed_seconds

ONE = {  # name -> (compute, messages); all times are multiples of 1/8, so that sums are exact
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
    "of microseconds": ([(0.0, 0.0001253), (0.0004, 0.0006)], [(0.0000757, 0.0004256)]),
    "no compute": ([], [(0.0, 2.0), (3.0, 4.0)]),
    "no messages": ([(0.0, 1.0)], []),
    "nothing": ([], []),
    "of the time of day": ([(2e9, 2e9 + 1), (2e9 + 2, 2e9 + 3)], [(2e9 + 0.5, 2e9 + 2.5)]),
    "20 of each": _many(1),
    "20 others": _many(2),
}
CASES = ONE | MESSAGES | COMPUTE | ANY
OVER, SECONDS = "more than all messages", "the seconds"
ALL = (RETURNED, NO_NUMBER, OVER, SECONDS)
ALL_MESSAGES = {name: exposed_seconds([], messages) for name, (_, messages) in CASES.items()}


def script(make, case, show):
    compute, messages = CASES[case.what]
    few = len(compute) + len(messages) < 8
    lists = f"compute {compute}, messages {messages}" if few else ""
    with show.during(lists) as run:
        out = run(make, list(compute), list(messages))
    if not is_one(show, out, "a number of seconds"):
        return
    most = ALL_MESSAGES[case.what] + 1e-6
    show(OVER, f"got {out:.6g} s, and the messages take {most:.6g} s" if out > most else "")
    show(SECONDS, float(out), tolerance=1e-6)


MEASURE = SideBySide(script, exposed_seconds, here(*CASES), groups=None, excused=NO_TENSORS)
EXERCISE = MEASURE.exercise(
    ("one message at a time", 2, f"{len(ONE)} cases: hidden, in part, not at all",
     (ALL, here(*ONE))),
    ("messages at once count once", 2, "they overlap, or lie in each other",
     (ALL, here(*MESSAGES))),
    ("compute at once hides once", 1, "two streams compute", (ALL, here(*COMPUTE))),
    ("any lists", 1, "not sorted, touching, empty, many; left as they were"),
    hints=hints("lab1", "exposed_seconds"), bonus=True,
    leaves_out=LEAVES_OUT
    | {"empty rank": "there are no ranks; empty lists are cases", "returned": "a number"},
)  # fmt: skip
