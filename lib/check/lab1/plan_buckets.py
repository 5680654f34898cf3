"""Lab 1, section 4: plan_buckets(parameters, capacity), which gradients are sent together, and in
which order.

The function is pure, so it runs in the kernel. The parameters have known sizes, and verdicts name
them by their position in the forward pass: 0, 1, 2, ... There is exactly one right plan, in which
each dtype has one open bucket until the next gradient of the dtype does not fit into it.
"""

from collections import Counter
from itertools import pairwise

import torch
from torch import nn

from lib.check.cases import name_of
from lib.check.causes import hints
from lib.check.explain import kind_of
from lib.check.left_out import NO_RANKS, NO_TENSORS, but
from lib.check.side_by_side import SideBySide, here
from lib.training import buckets

F32, F64, B16, F16 = torch.float32, torch.float64, torch.bfloat16, torch.float16
GENERATOR, FROZEN = "from a generator", "everything fits, parameter 1 is frozen"

# name -> (capacity in bytes, [(elements, dtype) of each parameter in the order of the forward
# pass])
MODELS = {
    "8 parameters of 100 bytes": (300, [(25, F32)] * 8),
    "6 parameters of 80 bytes": (160, [(10, F64)] * 6),
    "a large one in the middle": (200, [(n, F32) for n in (20, 5, 90, 10, 30, 25)]),
    "a large one at each end": (100, [(50, F32), (10, F32), (10, F32), (50, F32)]),
    FROZEN: (10_000, [(7, F32), (1, F32), (100, F32), (3, F32)]),
    "nothing fits": (4, [(2, F32), (3, F32), (4, F32)]),
    "matrices": (400, [(60, F64), (20, F64), (12, F64), (9, F64), (30, F64)]),
    "one parameter": (100, [(10, F32)]),
    "two dtypes": (100, [(10, F32), (10, F32), (10, F32), (10, B16), (10, B16), (10, B16)]),
    "two dtypes in turn": (120, [(10, F16), (10, B16)] * 3),
    "a dtype between": (100, [(10, B16), (10, F32), (10, F32), (10, B16)]),
    GENERATOR: (120, [(10, F32)] * 5),
}
CASES = here(*MODELS)
PROPERTIES = (
    "left out", "twice", "empty", "order inside", "filled up", "order", "bytes", "dtypes",
)  # fmt: skip


def script(make, case, show):
    capacity, sizes = MODELS[case.what]
    shape = lambda n: (2, n // 2) if n % 2 == 0 else (n,)
    parameters = [
        nn.Parameter(torch.full(shape(n), float(place), dtype=dtype))
        for place, (n, dtype) in enumerate(sizes)
    ]
    if case.what == FROZEN:
        parameters[1].requires_grad_(False)
    given = (p for p in parameters) if case.what == GENERATOR else list(parameters)
    plan = show.run(make, given, capacity)
    show("a list of lists", _form(plan))
    if show.wrong("a list of lists"):
        return
    place = {id(p): i for i, p in enumerate(parameters)}
    plan = [[place.get(id(p)) for p in bucket] for bucket in plan]
    strange = any(None in bucket for bucket in plan)
    show("what was given", "a bucket contains a parameter that was not given" if strange else "")
    if show.wrong("what was given"):
        return
    found, got = _wrong(plan, parameters, capacity), f"capacity {capacity}, and the plan is {plan}"
    for name in PROPERTIES:
        show(name, found.get(name, ""), beside=f"{got}, in which 0 is forward's first parameter.")
    show("the plan", str(plan))


def _form(plan):
    lists = list, tuple
    odd = [one for one in plan if not isinstance(one, lists)] if isinstance(plan, lists) else [plan]
    odd = odd or [p for bucket in plan for p in bucket if not isinstance(p, nn.Parameter)]
    where = "" if odd and odd[0] is plan else " in it"
    kind = lambda one: "None" if one is None else f"{kind_of(one)}{where}"
    return f"expected a list of lists of the parameters, got {kind(odd[0])}" if odd else ""


def _wrong(plan, parameters, capacity):
    """{property: what is wrong}. If several buckets or parameters violate a property, the text is
    about the last one."""
    found, placed = {}, Counter(i for bucket in plan for i in bucket)
    for i in range(len(parameters)):
        if placed[i] != 1:
            where = f"{placed[i]} places" if placed[i] else "no bucket"
            found["twice" if placed[i] else "left out"] = f"parameter {i} is in {where}"
    for number, bucket in enumerate(plan):
        name, sizes = f"bucket {number}, {bucket},", [parameters[i].nbytes for i in bucket]
        dtypes = sorted({name_of(parameters[i].dtype) for i in bucket})
        between = {*range(bucket[-1], bucket[0])} - {*bucket} if bucket else ()
        passed = [i for i in between if parameters[i].dtype == parameters[bucket[0]].dtype]
        if not bucket:
            found["empty"] = f"bucket {number} is empty"
        if bucket != sorted(bucket, reverse=True):
            found["order inside"] = f"{name} is not in reverse order"
        if passed:
            skips = f"skips {max(passed)}, which is ready before {bucket[-1]} and has its dtype"
            found["filled up"] = f"{name} {skips}"
        if len(bucket) > 1 and sum(sizes) > capacity:
            found["bytes"] = f"{name} has {' + '.join(map(str, sizes))} = {sum(sizes)} bytes"
        if len(dtypes) > 1:
            found["dtypes"] = f"{name} mixes {' and '.join(dtypes)}"
    ready = [min(bucket) for bucket in plan if bucket]
    for number, (before, now) in enumerate(pairwise(ready), 1):
        if now > before:
            found["order"] = (
                f"bucket {number} is ready with parameter {now}, before bucket {number - 1}, which "
                f"needs {before}"
            )
    return found


MEASURE = SideBySide(script, buckets.plan_buckets, CASES, groups=None, excused=NO_TENSORS)
EXERCISE = MEASURE.exercise(
    ("every parameter once", 2, "12 models; large parameters, two dtypes",
     "a list of lists", "what was given", "left out", "twice", "empty"),
    ("the last is ready first", 2, "reverse order, in a bucket and of the buckets",
     "order inside", "filled up", "order"),
    ("at most `capacity` bytes", 2, "unless one parameter alone is larger", "bytes"),
    ("one dtype in a bucket", 1, "a bucket is one flat tensor", "dtypes"),
    ("few buckets", 1, "a new one only when the open one is full", "the plan"),
    hints=hints("lab1", "plan_buckets"),
    leaves_out=but(NO_RANKS, "again", "generators", "returned"),
)  # fmt: skip
