"""Lab 1, section 4: plan_buckets(parameters, capacity), which gradients travel together, and in
which order.

A pure function: it runs here, on parameters of known sizes, told by their place in the forward
pass, 0, 1, 2, ... There is one right plan: each dtype has an open bucket of its own.
"""

from itertools import pairwise

import torch
from torch import nn

from lib.check.cases import name_of
from lib.check.causes import hints, of_name
from lib.check.exercise import Exercise
from lib.check.shown import claims
from lib.check.side_by_side import SideBySide, here
from lib.training import buckets

F32, F64, B16 = torch.float32, torch.float64, torch.bfloat16
GENERATOR = "from a generator"

# name -> (capacity in bytes, [(elements, dtype) of each parameter, in the order of the forward
# pass])
MODELS = {
    "8 parameters of 100 bytes": (300, [(25, F32)] * 8),
    "6 parameters of 80 bytes": (160, [(10, F64)] * 6),
    "a large parameter in the middle": (
        200,
        [(20, F32), (30, F32), (90, F32), (10, F32), (30, F32), (25, F32)],
    ),
    "a large parameter at each end": (100, [(50, F32), (10, F32), (10, F32), (50, F32)]),
    "everything fits": (10_000, [(7, F32), (1, F32), (100, F32), (3, F32)]),
    "nothing fits": (4, [(2, F32), (3, F32), (4, F32)]),
    "matrices": (400, [(60, F64), (20, F64), (12, F64), (9, F64), (30, F64)]),
    "one parameter": (100, [(10, F32)]),
    "two dtypes": (100, [(10, F32), (10, F32), (10, F32), (10, B16), (10, B16), (10, B16)]),
    "two dtypes in turn": (120, [(10, F32), (10, B16), (10, F32), (10, B16), (10, F32), (10, B16)]),
    "a dtype between": (100, [(10, B16), (10, F32), (10, F32), (10, B16)]),
    GENERATOR: (120, [(10, F32)] * 5),
}
CASES = here(*MODELS)
FEW = "the number of buckets", "the plan"


def script(make, case, show):
    capacity, sizes = MODELS[case.what]
    shape = lambda n: (2, n // 2) if n % 2 == 0 else (n,)
    parameters = [
        nn.Parameter(torch.full(shape(n), float(place), dtype=dtype))
        for place, (n, dtype) in enumerate(sizes)
    ]
    given = (p for p in parameters) if case.what == GENERATOR else list(parameters)
    plan = show.run(make, given, capacity)
    show("a list of lists", trouble := _form(plan))
    place = {id(p): i for i, p in enumerate(parameters)}
    if not trouble and any(id(p) not in place for bucket in plan for p in bucket):
        trouble = "a bucket has a parameter in it that was not given"
    show("what was given", trouble)
    plan = [] if trouble else [[place[id(p)] for p in bucket] for bucket in plan]
    for name, of in PROPERTIES.items():
        words = trouble or of(plan, parameters, capacity)
        got = f"\nGot {plan}; 0 is the first parameter of the forward pass." if plan else ""
        show(name, words and f"capacity {capacity}: {words}{got}")
    beside = f"Got {plan}; 0 is the first parameter of the forward pass." if plan else ""
    show("the number of buckets", len(plan), at_most=True, beside=beside)
    show("the plan", str(plan))


def _form(plan):
    lists = list, tuple
    odd = [one for one in plan if not isinstance(one, lists)] if isinstance(plan, lists) else [plan]
    odd = odd or [p for bucket in plan for p in bucket if not isinstance(p, nn.Parameter)]
    where = "" if odd and odd[0] is plan else " in it"
    kind = lambda one: "None" if one is None else f"a {type(one).__name__}{where}"
    return f"expected a list of lists of the parameters, got {kind(odd[0])}" if odd else ""


def _left_out(plan, parameters, capacity):
    missing = sorted({*range(len(parameters))} - {i for bucket in plan for i in bucket})
    return f"{_some(missing)} in no bucket" if missing else ""


def _twice(plan, parameters, capacity):
    places = [i for bucket in plan for i in bucket]
    twice = sorted({i for i in places if places.count(i) > 1})
    return f"{_some(twice)} in more than one place" if twice else ""


def _some(places):
    listed = ", ".join(map(str, places))
    return f"parameter {listed} is" if len(places) == 1 else f"parameters {listed} are"


def _empty(plan, parameters, capacity):
    return f"bucket {plan.index([])} is empty" if [] in plan else ""


def _order_inside(plan, parameters, capacity):
    for number, bucket in enumerate(plan):
        if bucket != sorted(bucket, reverse=True):
            return f"bucket {number}, {bucket}, is not in reverse order"
    return ""


def _order(plan, parameters, capacity):
    ready = [min(bucket) for bucket in plan if bucket]
    for number, (before, now) in enumerate(pairwise(ready), 1):
        if now > before:
            return (
                f"bucket {number} is ready with parameter {now}, before bucket {number - 1}, which "
                f"needs {before}"
            )
    return ""


def _bytes(plan, parameters, capacity):
    for number, bucket in enumerate(plan):
        sizes = [parameters[i].nbytes for i in bucket]
        if len(bucket) > 1 and sum(sizes) > capacity:
            return f"bucket {number} has {' + '.join(map(str, sizes))} = {sum(sizes)} bytes"
    return ""


def _dtypes(plan, parameters, capacity):
    for number, bucket in enumerate(plan):
        dtypes = sorted({name_of(parameters[i].dtype) for i in bucket})
        if len(dtypes) > 1:
            return f"bucket {number}, {bucket}, mixes {' and '.join(dtypes)}"
    return ""


PROPERTIES = {
    "left out": _left_out, "twice": _twice, "empty": _empty, "order inside": _order_inside,
    "order": _order, "bytes": _bytes, "dtypes": _dtypes,
}  # fmt: skip
MEASURE = SideBySide(
    script, buckets.plan_buckets, CASES, groups=None,
    excused=dict.fromkeys(("strided", "float32", "bfloat16"), "it moves no number")
    | {"two at once": "it returns when it is done"},
)  # fmt: skip
EXERCISE = Exercise(
    name="plan_buckets", reference=buckets.plan_buckets, measure=MEASURE, worlds=(),
    leaves_out={
        "precise": "it moves no number",
        "under way": "a pure function",
        "empty rank": "there are no ranks; a model without parameters has nothing to plan",
        "alone": "there are no ranks; one parameter is a case",
        "given used": "no function is given to it",
        "memory": "it makes no tensor",
    },
    claims=claims(
        MEASURE,
        ("every parameter once", 2, "11 models; large parameters, two dtypes",
         "a list of lists", "what was given", "left out", "twice", "empty"),
        ("the last is ready first", 2, "reverse order, in a bucket and of the buckets",
         "order inside", "order"),
        ("at most `capacity` bytes", 2, "unless one parameter alone is larger", "bytes"),
        ("one dtype in a bucket", 1, "a bucket is one flat tensor", "dtypes"),
        ("few buckets", 1, "a new one only when the open one is full", *FEW),
    ),
    hints=hints(
        "lab1", "plan_buckets",
        read_twice=lambda p: getattr(p.fact("case"), "what", "") == GENERATOR,
        not_a_list_of_lists=of_name("a list of lists"),
        one_list_for_all_calls=of_name("what was given"),
        some_left_out=of_name("left out"),
        twice=of_name("twice"),
        an_empty_bucket=of_name("empty"),
        forward_inside_a_bucket=of_name("order inside"),
        the_order_of_the_buckets=of_name("order"),
        room_not_counted_anew=of_name("bytes"),
        dtypes_mixed=of_name("dtypes"),
        closed_by_another_dtype=lambda p: p.fact("name") in FEW and "dtype" in p.fact("case").what,
        closed_too_early=of_name(*FEW),
        turned_round_in_place=of_name("arguments"),
    ),
)  # fmt: skip
