"""Lab 3, section 9: merge_attention(one, other), which computes attention over two sets of keys
from the results for each set."""

import math

import torch

from lib.check.cases import form_of
from lib.check.causes import hints
from lib.check.left_out import BUILT
from lib.check.side_by_side import SideBySide, here
from lib.check.tensors import draw
from lib.tensor_parallel.online_softmax import Attended, merge_attention

NONE = -math.inf  # the log_sum of a query that sees no key
APART = torch.tensor([-1000.0, -1000.0, 1000.0, 1000.0])


def _part(seed, *shape, d=3, at=0.0, unseen=()):
    """Attention of queries of this shape over keys with scores near `at`. The queries in `unseen`
    see no key."""
    out, log_sum = draw(seed, *shape, d), draw(seed + 1, *shape) + at
    for query in unseen:
        out[..., query, :], log_sum[..., query] = 0.0, NONE
    return Attended(out, log_sum)


LARGE, UNSEEN = "large scores", "no key seen"
PARTS = {
    "4 queries": (_part(1, 4), _part(3, 4)),
    "2 sequences, 3 heads, 5 queries, d=4": (_part(5, 2, 3, 5, d=4), _part(7, 2, 3, 5, d=4)),
    "one part weighs much more": (_part(9, 4, at=6.0), _part(11, 4)),
    f"{LARGE}, near 1,000": (_part(17, 4, at=1000.0), _part(19, 4, at=1000.0)),
    f"{LARGE}, near -1,000": (_part(21, 4, at=-1000.0), _part(23, 4, at=-1000.0)),
    f"{LARGE}, -1,000 and 1,000": (_part(25, 4, at=-1000.0), _part(27, 4, at=1000.0)),
    f"{LARGE}, queries 0 and 1 near -1,000 and the others near 1,000": (
        _part(45, 4, at=APART), _part(47, 4, at=APART)
    ),
    f"{UNSEEN}, by queries 0 and 1 in the second part": (_part(29, 4), _part(31, 4, unseen=(0, 1))),
    f"{UNSEEN}, by queries 2 and 3 in the first": (_part(33, 4, unseen=(2, 3)), _part(35, 4)),
    f"{UNSEEN}, by query 1 in either": (_part(37, 3, unseen=(0, 1)), _part(39, 3, unseen=(1,))),
    f"{UNSEEN}, by any query in the second part": (_part(49, 2), _part(51, 2, unseen=(0, 1))),
    f"{UNSEEN}, by any query in the first": (_part(53, 2, unseen=(0, 1)), _part(55, 2)),
    f"{UNSEEN}, no query": (_part(41, 0), _part(43, 0)),
}  # fmt: skip


def script(make, case, show):
    parts = PARTS.get(case.what, PARTS["4 queries"])  # variants use the first case
    one, other = show.give("one", parts[0]), show.give("other", parts[1])
    merged = show.run(make, one, other)
    has = all(hasattr(merged, field) for field in Attended._fields)
    show("fields", "" if has else f"returned {form_of(merged)}, expected an Attended")
    if has:
        show("out", merged.out)
        show("log_sum", merged.log_sum)


MEASURE = SideBySide(
    script, merge_attention, here(*PARTS), groups=None,
    excused={
        "bfloat16": "it may be computed in another order",
        "two at once": "nothing is under way between two calls",
    },
)  # fmt: skip


def _in(*kinds):
    """All values that the script shows, in the cases whose names begin with one of `kinds`."""
    cases = [case for case in MEASURE.runs() if case.what.startswith(kinds)]
    return ("fields", "out", "log_sum"), cases


EXERCISE = MEASURE.exercise(
    ("attention over both", 5, "up to 3 dimensions before d; float64 and float32",
     _in("4 queries", "2 sequences", "one part")),
    ("scores of any size", 2, "about 1,000 and -1,000: exp of them is no number", _in(LARGE)),
    ("queries that see no key", 2, "log_sum is -inf there, in one part or in both",
     _in(UNSEEN)),
    ("the parts stay as they are", 1, "and the result is new", "arguments", "storage"),
    hints=hints("lab3", "merge_attention"), leaves_out=BUILT | {"alone": "there are no ranks"},
)  # fmt: skip
