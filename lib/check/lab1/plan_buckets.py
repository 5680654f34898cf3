"""Lab 1, section 4: plan_buckets(parameters, capacity), which gradients travel together, and in
which order.

A pure function: it runs here, on parameters of known sizes, told by their place in the forward
pass, 0, 1, 2, ...
"""

from itertools import groupby

import torch
from torch import nn

from lib.check import symptoms as s
from lib.check.cases import name_of
from lib.check.claims import claim, without_ranks
from lib.check.exercise import Exercise, Hint, Problem
from lib.check.pure import noting_calls
from lib.training import buckets

F32, F64, B16 = torch.float32, torch.float64, torch.bfloat16

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
}


def _parameters(what):
    shape = lambda n: (2, n // 2) if n % 2 == 0 else (n,)
    return [nn.Parameter(torch.zeros(shape(n), dtype=dtype)) for n, dtype in MODELS[what][1]]


def _plans(fn):
    """{model: [[place, ...], ...], or the Problem}"""
    seen, held = {}, []
    for what, (capacity, _) in MODELS.items():
        parameters = _parameters(what)
        with noting_calls(buckets.plan_buckets) as calls:
            plan = fn(given := list(parameters), capacity)
        earlier = {id(p) for _, _, others in held for p in others}
        held.append((what, plan, parameters))
        seen[what] = _places(what, plan, parameters, earlier)
        if [*map(id, given)] != [*map(id, parameters)]:
            seen["changed"] = Problem(
                "changed", f"{what}: the list of parameters that was given is not what it was"
            )
        if calls:
            seen[what] = Problem(
                "built-in",
                "it calls lib.training.buckets.plan_buckets, which is what this exercise builds",
            )
    for what, plan, parameters in held:
        if isinstance(seen[what], list) and _places(what, plan, parameters, ()) != seen[what]:
            seen[what] = Problem("not kept", f"{what}: the plan was changed by a later call")
    return seen


def _places(what, plan, parameters, earlier):
    place = {id(p): i for i, p in enumerate(parameters)}
    got = f"a {type(plan).__name__}" if plan is not None else "None"
    if isinstance(plan, (list, tuple)):
        odd = next((bucket for bucket in plan if not isinstance(bucket, (list, tuple))), None)
        stranger = next(
            (p for bucket in plan if odd is None for p in bucket if id(p) not in place), None
        )
        if odd is None and stranger is None:
            return [[place[id(p)] for p in bucket] for bucket in plan]
        if id(stranger) in earlier:
            return Problem("not kept", f"{what}: a bucket has a parameter of an earlier call in it")
        got = f"a list with a {type(odd).__name__} in it"
        if odd is None:
            got = f"a bucket with a {type(stranger).__name__} in it that was not given"
    return Problem("form", f"{what}: expected a list of lists of the parameters, got {got}")


def _planned(problem):
    """A judge: problem(plan, parameters, capacity) -> (kind, what is wrong in words,
    facts), or None."""

    @without_ranks
    def judge(seen):
        for what, (capacity, _) in MODELS.items():
            plan, parameters = seen[what], _parameters(what)
            if isinstance(plan, Problem):
                return plan
            if wrong := problem(plan, parameters, capacity):
                kind, words, facts = wrong
                right = _places(what, buckets.plan_buckets(parameters, capacity), parameters, ())
                text = f"{what}, capacity {capacity}: {words}\nGot {plan}, expected {right}."
                text += "\n(0 is the first parameter of the forward pass.)"
                plain = {
                    w: seen[w]
                    for w, (_, sizes) in MODELS.items()
                    if len({dtype for _, dtype in sizes}) == 1
                }
                return Problem(kind, text, facts, [what, str(plain)])
        return None

    return judge


def _all_once(plan, parameters, capacity):
    places = [i for bucket in plan for i in bucket]
    missing = [i for i in range(len(parameters)) if i not in places]
    twice = sorted({i for i in places if places.count(i) > 1})
    if missing:
        large = all(parameters[i].nbytes > capacity for i in missing)
        facts = {"missing": missing, "large": large, "last": missing == [*range(len(missing))]}
        return "once", f"{_some(missing)} in no bucket", facts
    if twice:
        return "once", f"{_some(twice)} in more than one place", {"twice": twice}
    return ("once", f"bucket {plan.index([])} is empty", {}) if [] in plan else None


def _some(places):
    listed = ", ".join(map(str, places))
    return f"parameter {listed} is" if len(places) == 1 else f"parameters {listed} are"


def _in_reverse(plan, parameters, capacity):
    facts = {"forward": [i for b in plan for i in b] == [*range(len(parameters))]}
    number = next(
        (n for n, bucket in enumerate(plan) if bucket != sorted(bucket, reverse=True)), None
    )
    if number is not None:
        return (
            "order",
            f"bucket {number}, {plan[number]}, is not in reverse order",
            facts | {"inside": True},
        )
    one_dtype = len({p.dtype for p in parameters}) == 1
    facts["filled later"] = one_dtype and any(b[0] - b[-1] != len(b) - 1 for b in plan)
    ready = [min(bucket) for bucket in plan]
    number = next((n for n in range(1, len(ready)) if ready[n] > ready[n - 1]), None)
    if number is None:
        return None
    words = (
        f"bucket {number} is ready with parameter {ready[number]}, before bucket {number - 1}, "
        f"which needs"
    )
    return "order", f"{words} {ready[number - 1]}", facts


def _capacity(plan, parameters, capacity):
    for number, bucket in enumerate(plan):
        sizes = [parameters[i].nbytes for i in bucket]
        if len(bucket) > 1 and sum(sizes) > capacity:
            words = (
                f"bucket {number}, {bucket}, has {' + '.join(map(str, sizes))} = {sum(sizes)} bytes"
            )
            return "capacity", words, {"one_too_many": sum(sizes[:-1]) < capacity}
    return None


def _one_dtype(plan, parameters, capacity):
    for number, bucket in enumerate(plan):
        dtypes = sorted({name_of(parameters[i].dtype) for i in bucket})
        if len(dtypes) > 1:
            return "dtype", f"bucket {number}, {bucket}, mixes {' and '.join(dtypes)}", {}
    return None


def _few(plan, parameters, capacity):
    """As many as if each new dtype closed the open bucket, or fewer."""
    alike = [list(some) for _, some in groupby(parameters, key=lambda p: p.dtype)]
    enough = sum(len(buckets.plan_buckets(some, capacity)) for some in alike)
    alone = all(len(bucket) == 1 for bucket in plan)
    return (
        ("many", f"{len(plan)} buckets, and {enough} are enough", {"alone": alone})
        if len(plan) > enough
        else None
    )


@without_ranks
def _left_alone(seen):
    return seen.get("changed")


EXERCISE = Exercise(
    name="plan_buckets", reference=buckets.plan_buckets, measure=_plans, worlds=(),
    leaves_out={
        "precise": "it moves no number",
        "under way": "a pure function",
        "empty rank": "there are no ranks; a model without parameters has nothing to plan",
        "alone": "there are no ranks; one parameter is a case",
        "generators": "the notebook gives lists",
        "given used": "no function is given to it",
        "memory": "it makes no tensor",
    },
    claims=(
        claim("every parameter once", 2, f"{len(MODELS)} models; large parameters, two dtypes",
              _planned(_all_once)),
        claim("the last is ready first", 2, "reverse order, in a bucket and of the buckets",
              _planned(_in_reverse)),
        claim("at most `capacity` bytes", 2, "unless one parameter alone is larger",
              _planned(_capacity)),
        claim("one dtype in a bucket", 1, "a bucket is one flat tensor", _planned(_one_dtype)),
        claim("few buckets", 1, "a new one only when the open one is full", _planned(_few),
              _left_alone),
    ),
    hints=(
        s.CALLED_LIB.saying("write the loop over the parameters yourself."),
        Hint("not a list of lists", s.kind("form"),
             "return [[parameter, ...], ...], the parameters themselves."),
        Hint("one list for all calls", s.kind("not kept"),
             "a list is kept from call to call, in a global or a default argument. Begin a new one "
             "in each call."),
        Hint("the large ones left out", s.kind("once", large=True),
             "a parameter larger than the capacity has a bucket of its own."),
        Hint("the last bucket left out", s.kind("once", last=True),
             "the bucket that is still open after the loop belongs to the plan too."),
        Hint("some left out", s.kind("once", missing=True),
             "a parameter that does not fit opens a new bucket: it is its first."),
        Hint("twice", s.kind("once", twice=True),
             "a parameter that opens a new bucket must not stay in the old one as well."),
        Hint("an empty bucket", s.kind("once"),
             "an open bucket is closed only if there is something in it: what if the first "
             "parameter is too large?"),
        Hint("forward order", s.kind("order", forward=True),
             "backward goes through the layers from last to first: begin with "
             "reversed(parameters)."),
        Hint("forward inside a bucket", s.kind("order", inside=True),
             "reverse the parameters first and then fill buckets, instead of reversing a list of "
             "buckets."),
        Hint("filled up later", s.kind("order", **{"filled later": True}),
             "when a parameter does not fit, its bucket is closed: nothing that comes later goes "
             "into it."),
        Hint("the order of the buckets", s.kind("order"),
             "a bucket is ready when its last parameter is; buckets go in the order in which they "
             "are ready."),
        Hint("looked too late", s.kind("capacity", one_too_many=True),
             "the last one came in though it did not fit. Look whether it fits before you put it "
             "in."),
        Hint("room not counted anew", s.kind("capacity"),
             "count the bytes of the open bucket, from 0 for each new one."),
        Hint("dtypes mixed", s.kind("dtype"), "a parameter of another dtype needs another bucket."),
        Hint("one each", s.kind("many", alone=True),
             "a bucket takes parameters as long as they fit."),
        Hint("closed too early", s.kind("many"),
             "a bucket may hold exactly `capacity` bytes, and is closed only when the next "
             "parameter does not fit."),
        Hint("turned round in place", s.kind("changed"),
             "list.reverse() and del change the caller's list. reversed(parameters) does not."),
        *s.ANYWHERE,
    ),
)  # fmt: skip
