"""Lab 1, section 4: plan_buckets(parameters, capacity) and
reduce_bucket(parameters, group, all_reduce)."""

from torch import nn

from lib.check import symptoms as s
from lib.check.cases import Case
from lib.check.claims import claim, each, kept
from lib.check.comm import MAY_CALL
from lib.check.exercise import Bundle, Exercise, Hint, Problem
from lib.check.lab1 import means, models, plan_buckets
from lib.check.lab1.means import ALONE, GROUPS, GROUPS_SAY, IDLE, WORLD
from lib.check.traffic import fitting, only_calls
from lib.data_parallel import bucketed

ODD = "leave.weight"  # a parameter whose elements do not lie in memory in their order


def _bucket(model):
    return [p for p in model.parameters() if p.requires_grad][::-1]


N_ELEMENTS = sum(p.numel() for p in _bucket(models.Small()))
CASES = (
    *(Case(members, N_ELEMENTS) for members in GROUPS),
    Case(GROUPS[0], N_ELEMENTS, again=1),
    Case(GROUPS[1], N_ELEMENTS, what=IDLE),
    Case(ALONE, N_ELEMENTS),
)


def _model():
    model = models.Small()
    model.leave.weight = nn.Parameter(model.leave.weight.detach().T.contiguous().T)
    return model


def _flat(case, rank, record):
    if record["shapes"] == [(case.n,)]:
        return None
    words = (
        f"all-reduced a tensor of shape {record['shapes'][0]}, expected ({case.n},), the bucket's "
        f"elements"
    )
    return Problem("flat", f"{case.name}: {case.rank(rank)} {words} end to end")


def _raised_after_the_sum(p):
    return (
        p.kind == "raised"
        and s.failed(p).book is not None
        and any(e.op != "mark" for e in s.failed(p).book.entries)
    )


REDUCE_BUCKET = Exercise(
    name="reduce_bucket", reference=bucketed.reduce_bucket,
    measure=means.Averaging(CASES, _model, _bucket),
    worlds=(WORLD,), may_call=("means.given", *MAY_CALL),
    leaves_out={
        "under way": "it returns when the mean is there: no two calls are under way",
        "generators": "the notebook gives it lists, the buckets of a plan",
        "returned": "it returns nothing: the caller's gradients hold the result",
        "memory": "one flat copy of a bucket is what it is there for",
    },
    claims=(
        claim("the mean in every .grad", 6, f"1 rank, {GROUPS_SAY}; unused, not contiguous ones",
              fitting(CASES),
              means.as_found(CASES), kept(CASES)),
        claim("one all-reduce per bucket", 3, "of one flat tensor of exactly n elements",
              only_calls(CASES, lambda case, rank: [("all_reduce", "", case.n)]),
              each(CASES, _flat)),
        claim("parameters left alone", 1, "only .grad changes", means.untouched(CASES)),
    ),
    hints=(
        s.CALLED_LIB.saying("build it from the all_reduce that the function is given."),
        s.NO_GROUP,
        means.PARAMETER_CHANGED,
        means.NOT_DIVIDED,
        means.DIVIDED_TWICE,
        means.WORLD_SIZE,
        means.ANOTHER_DIVISOR,
        Hint("what all_reduce returns", s.both(s.refused("None"), _raised_after_the_sum),
             "all_reduce(tensor, group) sums in place, and need not return anything: use the "
             "tensor that you gave it."),
        Hint("a copy of a gradient that is not contiguous",
             s.either(lambda p: p.kind == "value" and p.fact("own") and p.facts["name"] == ODD,
                      s.both(s.raised("RuntimeError"), lambda p: not _raised_after_the_sum(p))),
             "a transposed gradient has no flat view: .view fails, and .reshape(-1) or .flatten() "
             "is a copy, so that what is written there is lost. Write back with "
             "p.grad.copy_(part.view_as(p.grad))."),
        Hint("never written back", s.kind("value", own=True),
             "the flat buffer is a copy: after the all-reduce each slice must be copied back, "
             "p.grad.copy_(part)."),
        means.NO_GRADIENT,
        means.NO_OP,
        Hint("a rank that returns early", lambda p: p.kind == "clash" and p.fact("over"),
             "a rank that has no gradient for this bucket takes part all the same, with zeros: the "
             "others wait for it."),
        Hint("sizes that differ between ranks", means.UNLIKE,
             "the flat buffer must have the same size on every rank. A parameter whose p.grad is "
             "None keeps its place, with zeros."),
        Hint("pieces in the wrong places", s.either(s.kind("value"), s.raised("RuntimeError")),
             "write back in the order in which you flattened: each parameter's slice begins where "
             "the one before it ends, and has p.numel() elements."),
        s.NOT_KEPT,
        means.NOT_GIVEN,
        s.NARROW,
        Hint("one message per parameter", lambda p: p.kind == "calls" and len(p.facts["got"]) > 1,
             "that is the naive way: put all gradients into one flat buffer, and all-reduce that."),
        Hint("another flat tensor", s.kind("flat", "calls"),
             "end to end, without padding, in the gradients' dtype: torch.cat([g.reshape(-1) for g "
             "in gradients])."),
        *s.ANYWHERE,
    ),
)  # fmt: skip
EXERCISE = Bundle("buckets", (plan_buckets.EXERCISE, REDUCE_BUCKET))
