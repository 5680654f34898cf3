"""Lab 3, section 9: merge_attention(one, other), attention over the keys of both from
attention over each."""

import math

import torch

from lib.check import symptoms as s
from lib.check.claims import claim
from lib.check.exercise import Exercise, Hint
from lib.check.left_out import BUILT
from lib.check.tensors import Calls, draw, kept, left_alone, new, values
from lib.tensor_parallel.online_softmax import Attended, merge_attention

FIELDS = ("out", "log_sum")
NONE = -math.inf  # the log_sum of a query that sees no key
APART = torch.tensor([-1000.0, -1000.0, 1000.0, 1000.0])


def _part(seed, *shape, d=3, at=0.0, unseen=(), dtype=torch.float64):
    """Attention of queries of this shape over keys whose scores lie about `at`; at the places
    `unseen` over no key."""
    out, log_sum = draw(seed, *shape, d), draw(seed + 1, *shape) + at
    for place in unseen:
        out[..., place, :], log_sum[..., place] = 0.0, NONE
    return Attended(out.to(dtype), log_sum.to(dtype))


def _case(one, other):
    return {"one": one, "other": other}


SEEN = {
    "4 queries": _case(_part(1, 4), _part(3, 4)),
    "2 sequences, 3 heads, 5 queries, d=4": _case(_part(5, 2, 3, 5, d=4), _part(7, 2, 3, 5, d=4)),
    "one part weighs much more": _case(_part(9, 4, at=6.0), _part(11, 4)),
    "1 query, float32": _case(_part(13, 1, dtype=torch.float32), _part(15, 1, dtype=torch.float32)),
}
LARGE = {
    "scores about 1,000": _case(_part(17, 4, at=1000.0), _part(19, 4, at=1000.0)),
    "scores about -1,000": _case(_part(21, 4, at=-1000.0), _part(23, 4, at=-1000.0)),
    "scores about -1,000 and 1,000": _case(_part(25, 4, at=-1000.0), _part(27, 4, at=1000.0)),
    "queries 0 and 1 about -1,000, 2 and 3 about 1,000": _case(
        _part(45, 4, at=APART), _part(47, 4, at=APART)
    ),
}
UNSEEN = {
    "queries 0 and 1 see no key of the second part": _case(
        _part(29, 4), _part(31, 4, unseen=(0, 1))
    ),
    "queries 2 and 3 see no key of the first": _case(_part(33, 4, unseen=(2, 3)), _part(35, 4)),
    "query 1 sees no key of either": _case(_part(37, 3, unseen=(0, 1)), _part(39, 3, unseen=(1,))),
    "no query sees a key of the second part": _case(_part(49, 2), _part(51, 2, unseen=(0, 1))),
    "no query sees a key of the first": _case(_part(53, 2, unseen=(0, 1)), _part(55, 2)),
    "no query": _case(_part(41, 0), _part(43, 0)),
}
CASES = SEEN | LARGE | UNSEEN
CALLS = Calls(merge_attention, CASES, (), "Attended", FIELDS)


def _in(cases):
    return lambda p: p.fact("case") in cases


def _wrong_in(what):
    return s.kind("value", what=what)


EXERCISE = Exercise(
    name="merge_attention", reference=merge_attention, measure=CALLS, worlds=(),
    leaves_out=BUILT | {"alone": "there are no ranks"},
    claims=(
        claim("attention over both", 5, "up to 3 dimensions before d; float64 and float32",
              values(CALLS, SEEN)),
        claim("scores of any size", 2, "about 1,000 and -1,000: exp of them is no number",
              values(CALLS, LARGE)),
        claim("queries that see no key", 2, "log_sum is -inf there, in one part or in both",
              values(CALLS, UNSEEN)),
        claim("the parts stay as they are", 1, "and the result is new", left_alone(CASES),
              new(CASES), kept(CASES)),
    ),
    hints=(
        s.CALLED_LIB.saying("two weights, a sum, and torch.logaddexp."),
        Hint("not an Attended", s.kind("returned"),
             "return Attended(out, log_sum): its fields are read by name."),
        Hint("another shape", s.either(s.kind("form", shape=True), s.raised("RuntimeError")),
             "out is (..., t, d) and log_sum (..., t): give a weight a last dimension, weight[..., "
             "None], before you multiply."),
        Hint("another dtype", s.kind("form", dtype=True), "the result has the dtype of the parts."),
        Hint("nan where no key is seen", s.both(s.fact("nan"), _in(UNSEEN)),
             "-inf minus -inf is no number. Where the new log_sum is -inf, both weights are 0."),
        Hint("queries decided together", s.both(_wrong_in("out"), _in(UNSEEN)),
             "each query by itself: that one sees no key of a part says nothing of the others."),
        Hint("exp of a score", s.both(s.kind("value"), _in(LARGE)),
             "exp(1000) is inf, and exp(-1000) is 0. Take the difference of two log_sums first, of "
             "each query its own, and only then exp."),
        Hint("float32 inside", s.fact("narrowed"),
             "some number was rounded to float32 on the way, or has a small constant added: keep "
             "the dtype, and add none."),
        Hint("a part changed", s.kind("input", "shared"),
             "the caller still needs both parts: make new tensors, and change none in place."),
        Hint("not the weights", _wrong_in("out"),
             "a part's out is a mean of its values. Among all keys it weighs as much as its "
             "exponentials: exp(its log_sum - the new log_sum)."),
        Hint("not the sum's logarithm", _wrong_in("log_sum"),
             "the exponentials are added, not their logarithms: log(exp(a) + exp(b)) is "
             "torch.logaddexp(a, b)."),
        *s.ANYWHERE,
    ),
)  # fmt: skip
