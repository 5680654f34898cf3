"""Lab 3, section 9: merge_attention(one, other), attention over the keys of both from
attention over each."""

import math

import torch

from lib.check import symptoms as s
from lib.check.cases import form_of
from lib.check.causes import hints
from lib.check.exercise import Exercise
from lib.check.left_out import BUILT
from lib.check.shown import claims
from lib.check.side_by_side import SideBySide, here
from lib.check.tensors import draw
from lib.tensor_parallel.online_softmax import Attended, merge_attention

NONE = -math.inf  # the log_sum of a query that sees no key
APART = torch.tensor([-1000.0, -1000.0, 1000.0, 1000.0])


def _part(seed, *shape, d=3, at=0.0, unseen=()):
    """Attention of queries of this shape over keys whose scores lie about `at`; at the places
    `unseen` over no key."""
    out, log_sum = draw(seed, *shape, d), draw(seed + 1, *shape) + at
    for place in unseen:
        out[..., place, :], log_sum[..., place] = 0.0, NONE
    return Attended(out, log_sum)


SEEN = {
    "4 queries": (_part(1, 4), _part(3, 4)),
    "2 sequences, 3 heads, 5 queries, d=4": (_part(5, 2, 3, 5, d=4), _part(7, 2, 3, 5, d=4)),
    "one part weighs much more": (_part(9, 4, at=6.0), _part(11, 4)),
}
LARGE = {
    "scores about 1,000": (_part(17, 4, at=1000.0), _part(19, 4, at=1000.0)),
    "scores about -1,000": (_part(21, 4, at=-1000.0), _part(23, 4, at=-1000.0)),
    "scores about -1,000 and 1,000": (_part(25, 4, at=-1000.0), _part(27, 4, at=1000.0)),
    "queries 0 and 1 about -1,000, 2 and 3 about 1,000": (
        _part(45, 4, at=APART), _part(47, 4, at=APART)
    ),
}  # fmt: skip
UNSEEN = {
    "queries 0 and 1 see no key of the second part": (_part(29, 4), _part(31, 4, unseen=(0, 1))),
    "queries 2 and 3 see no key of the first": (_part(33, 4, unseen=(2, 3)), _part(35, 4)),
    "query 1 sees no key of either": (_part(37, 3, unseen=(0, 1)), _part(39, 3, unseen=(1,))),
    "no query sees a key of the second part": (_part(49, 2), _part(51, 2, unseen=(0, 1))),
    "no query sees a key of the first": (_part(53, 2, unseen=(0, 1)), _part(55, 2)),
    "no query": (_part(41, 0), _part(43, 0)),
}
PARTS = SEEN | LARGE | UNSEEN
CASES = here(*PARTS)
SHOWN = ("fields", "out", "log_sum")


def script(make, case, show):
    parts = PARTS.get(case.what, PARTS["4 queries"])  # a variant is one of the first case
    one, other = show.give("one", parts[0]), show.give("other", parts[1])
    merged = show.run(make, one, other)
    has = all(hasattr(merged, field) for field in Attended._fields)
    show("fields", "" if has else f"returned {form_of(merged)}, expected an Attended")
    if has:
        show("out", merged.out)
        show("log_sum", merged.log_sum)


MEASURE = SideBySide(
    script, merge_attention, CASES, groups=None,
    excused={
        "bfloat16": "it may be computed in another order",
        "two at once": "nothing is under way between two calls",
    },
)  # fmt: skip


WHERE = {case.what for case in MEASURE.runs()}


def _in(names):
    """All that is shown in these cases."""
    return [(name, [case for case in MEASURE.runs() if case.what in names]) for name in SHOWN]


def _wrong(name, among):
    return lambda p: p.kind == "value" and p.fact("name") == name and p.fact("case").what in among


EXERCISE = Exercise(
    name="merge_attention", reference=merge_attention, measure=MEASURE, worlds=(),
    leaves_out=BUILT | {"alone": "there are no ranks"},
    claims=claims(
        MEASURE,
        ("attention over both", 5, "up to 3 dimensions before d; float64 and float32",
         *_in(WHERE - LARGE.keys() - UNSEEN.keys())),
        ("scores of any size", 2, "about 1,000 and -1,000: exp of them is no number", *_in(LARGE)),
        ("queries that see no key", 2, "log_sum is -inf there, in one part or in both",
         *_in(UNSEEN)),
        ("the parts stay as they are", 1, "and the result is new", "arguments", "storage"),
    ),
    hints=hints(
        "lab3", "merge_attention",
        another_shape=s.either(s.kind("form", dtype=False), s.raised("RuntimeError")),
        nan_where_no_key_is_seen=lambda p: bool(p.fact("nan")) and p.fact("case").what in UNSEEN,
        queries_decided_together=_wrong("out", UNSEEN),
        exp_of_a_score=s.either(_wrong("out", LARGE), _wrong("log_sum", LARGE)),
        another_number_for__inf=_wrong("log_sum", UNSEEN),
        not_the_weights=_wrong("out", PARTS),
        **{"not the sum's logarithm": _wrong("log_sum", PARTS)},
    ),
)  # fmt: skip
