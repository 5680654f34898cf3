"""Lab 1, section 3: broadcast_parameters(module, group)
and average_gradients(parameters, group, all_reduce).

average_gradients gets `model.parameters()` as it is, a generator.
"""

from lib.check import symptoms as s
from lib.check.cases import Setting
from lib.check.claims import claim, kept
from lib.check.comm import MAY_CALL
from lib.check.exercise import Bundle, Exercise, Hint
from lib.check.lab1 import broadcast_parameters, means, models
from lib.check.lab1.means import ALONE, GROUPS, GROUPS_SAY, IDLE, WORLD
from lib.check.traffic import fitting, only_calls
from lib.data_parallel import replicate

N_ALL = sum(p.numel() for p in models.Small().parameters())
N_TRAINED = sum(p.numel() for p in models.Small().parameters() if p.requires_grad)
CASES = (
    *(Setting(members, N_TRAINED) for members in GROUPS),
    Setting(GROUPS[0], N_TRAINED, again=1),
    Setting(GROUPS[1], N_TRAINED, what=IDLE),
    Setting(ALONE, N_TRAINED),
)

AVERAGING = means.Averaging(
    CASES, lambda: models.Small(0, models.FINE), lambda model: model.parameters(), models.FINE
)


def _measure(fn):
    """One by one in whatever order, or together: what counts is how much was sent."""
    records = AVERAGING(fn)
    for record in records:
        if record and record["calls"]:
            narrowest = min(record["calls"], key=lambda call: call.dtype.itemsize)
            record["calls"] = [
                narrowest._replace(elements=sum(call.elements for call in record["calls"]))
            ]
    return records


def _after_one_sum(p):
    """Did None stop it when its first call had returned? On the wire that is two calls of
    the recorder's."""
    book = s.failed(p) and s.failed(p).book
    if not book or not s.refused("None")(p):
        return False
    return 0 < min(sum(e.op != "mark" for e in book.of(rank)) for rank in s.members(p)) <= 2


def _absent_where_used(p):
    return s.kind("value", absent=True)(p) and p.facts["rank"] not in p.facts["unused"]


def _elements(p):
    return sum(elements for _, _, elements in p.facts["got"]) if p.kind == "calls" else 0


AVERAGE_GRADIENTS = Exercise(
    name="average_gradients", reference=replicate.average_gradients, measure=_measure,
    worlds=(WORLD,),
    may_call=("means.given", *MAY_CALL),
    leaves_out={
        "under way": "it returns when the mean is there: no two calls are under way",
        "returned": "it returns nothing: the caller's gradients hold the result",
        "memory": "the docstring leaves open how much it sends at once",
    },
    claims=(
        claim("the mean in every .grad", 6, f"1 rank, {GROUPS_SAY}; tied, unused, frozen ones",
            fitting(CASES), means.as_found(CASES), kept(CASES)),
        claim("the all_reduce it was given", 3, "each trained parameter once, frozen ones never",
            only_calls(CASES, lambda case, rank: [("all_reduce", "", case.n)])),
        claim("parameters left alone", 1, "only .grad changes", means.untouched(CASES)),
    ),
    hints=(
        s.CALLED_LIB.saying("build it from the all_reduce that the function is given."),
        s.NO_GROUP,
        means.PARAMETER_CHANGED,
        Hint("what all_reduce returns", s.either(_after_one_sum, _absent_where_used),
             "all_reduce(tensor, group) sums in place, and need not return anything: use the "
             "tensor that you gave it."),
        means.NO_GRADIENT,
        means.NO_OP,
        s.NARROW,
        means.NOT_DIVIDED, means.DIVIDED_TWICE, means.WORLD_SIZE,
        means.ANOTHER_DIVISOR,
        Hint("an iterator used up", s.kind("value", own=True, silent=True),
             "all_reduce was never called. `parameters` may be a generator, as model.parameters() "
             "is, and can be gone through once: parameters = list(parameters)."),
        Hint("nothing written back", s.kind("value", own=True),
             "the gradient has nothing of the other ranks in it: the sum went to a copy. What "
             "all_reduce was given must be, or be copied into, p.grad."),
        Hint("skipped on some ranks", means.UNLIKE,
             "all ranks must call all_reduce equally often, with equal sizes. A rank whose p.grad "
             "is None may not skip it: it contributes zeros, p.grad = torch.zeros_like(p)."),
        Hint("frozen ones too", s.either(s.kind("frozen"), lambda p: _elements(p) == N_ALL),
            "a parameter with requires_grad False has no gradient: leave it alone, and do not send "
            "it."),
        s.NOT_KEPT,
        means.NOT_GIVEN,
        Hint("sent more than once", lambda p: _elements(p) > N_TRAINED,
            "one all-reduce of each trained parameter's gradient is enough."),
        *s.ANYWHERE,
    ),
)  # fmt: skip
EXERCISE = Bundle("naive_data_parallel", (broadcast_parameters.EXERCISE, AVERAGE_GRADIENTS))
