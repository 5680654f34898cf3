"""Lab 1, section 4: plan_buckets(parameters, capacity), which gradients travel together, and in which order.

A pure function: it runs here, on parameters of known sizes, told by their place in the forward pass, 0, 1, 2, ...
"""

import torch
from torch import nn

from lib import buckets
from lib.check.framework import Claim, Exercise, Problem
from lib.check.lab1.calls import noting_calls
from lib.check.lab1.plan_buckets_hints import HINTS

F32, F64, B16 = torch.float32, torch.float64, torch.bfloat16

# name -> (capacity in bytes, [(elements, dtype) of each parameter, in the order of the forward pass])
CASES = {
    "8 parameters of 100 bytes": (300, [(25, F32)] * 8),
    "6 parameters of 80 bytes": (160, [(10, F64)] * 6),
    "a large parameter in the middle": (200, [(20, F32), (30, F32), (90, F32), (10, F32), (30, F32), (25, F32)]),
    "a large parameter at each end": (100, [(50, F32), (10, F32), (10, F32), (50, F32)]),
    "everything fits": (10_000, [(7, F32), (1, F32), (100, F32), (3, F32)]),
    "nothing fits": (4, [(2, F32), (3, F32), (4, F32)]),
    "matrices": (400, [(60, F64), (20, F64), (12, F64), (9, F64), (30, F64)]),
    "two dtypes": (100, [(10, F32), (10, F32), (10, F32), (10, B16), (10, B16), (10, B16)]),
    "two dtypes in turn": (120, [(10, F32), (10, B16), (10, F32), (10, B16), (10, F32), (10, B16)]),
    "a dtype between": (100, [(10, B16), (10, F32), (10, F32), (10, B16)]),
}


def _parameters(what):
    shape = lambda n: (2, n // 2) if n % 2 == 0 else (n,)
    return [nn.Parameter(torch.zeros(shape(n), dtype=dtype)) for n, dtype in CASES[what][1]]


def _measure(fn):
    seen = {"changed": []}
    for what, (capacity, _) in CASES.items():
        parameters = _parameters(what)
        place = {id(p): i for i, p in enumerate(parameters)}
        with noting_calls(buckets.plan_buckets) as calls:
            plan = fn(given := list(parameters), capacity)
        if [id(p) for p in given] != [*place]:
            seen["changed"].append(what)
        seen[what] = "lib's" if calls else _places(plan, place)
    return seen


def _places(plan, place):
    """[[place, ...], ...], or in words what the plan is instead."""
    if not isinstance(plan, (list, tuple)):
        return f"a {type(plan).__name__}" if plan is not None else "None"
    for bucket in plan:
        if not isinstance(bucket, (list, tuple)):
            return f"a list with a {type(bucket).__name__} in it"
        stranger = next((p for p in bucket if id(p) not in place), None)
        if stranger is not None:
            return f"a bucket with a {type(stranger).__name__} in it that was not given"
    return [[place[id(p)] for p in bucket] for bucket in plan]


def _claim(judge):
    """judge(plan, parameters, capacity) -> what is wrong in words and facts for the hints, or None."""

    def of(runs):
        ((seen,),) = (run.results for run in runs)
        for what, (capacity, _) in CASES.items():
            plan, parameters = seen[what], _parameters(what)
            if plan == "lib's":
                return Problem("built-in", "it calls lib.buckets.plan_buckets, which is what this exercise builds")
            if isinstance(plan, str):
                return Problem("form", f"{what}: expected a list of lists of the parameters, got {plan}")
            if wrong := judge(plan, parameters, capacity):
                words, facts = wrong
                place = {id(p): i for i, p in enumerate(parameters)}
                right = _places(buckets.plan_buckets(parameters, capacity), place)
                text = f"{what}, capacity {capacity}: {words}\nGot {plan}, expected {right}."
                text += "\n(0 is the first parameter of the forward pass.)"
                return Problem(facts.pop("kind"), text, {**facts, "elements": _counts_elements(seen)})
        return None

    return of


def _counts_elements(seen):
    """Are the plans those of somebody who counts elements, or 4 bytes for each, whatever the dtype?"""
    one_dtype = [what for what, (_, sizes) in CASES.items() if len({dtype for _, dtype in sizes}) == 1]
    as_if = lambda unit: all(seen[w] == _filled(_parameters(w), CASES[w][0], unit) for w in one_dtype)
    return as_if(lambda p: p.numel()) or as_if(lambda p: 4 * p.numel())


def _filled(parameters, capacity, size):
    """Places, bucket after bucket, if a parameter takes size(p), and a new dtype closes the bucket that is open."""
    plan, room, dtype = [], 0, None
    for place, p in reversed([*enumerate(parameters)]):
        if p.dtype != dtype or size(p) > room:
            plan, room, dtype = [*plan, []], capacity, p.dtype
        plan[-1].append(place)
        room -= size(p)
    return plan


def _nbytes(p):
    return p.numel() * p.element_size()


def _all_once(plan, parameters, capacity):
    places = [i for bucket in plan for i in bucket]
    missing = [i for i in range(len(parameters)) if i not in places]
    twice = sorted({i for i in places if places.count(i) > 1})
    facts = {"kind": "once", "missing": missing, "twice": twice}
    if missing:
        large = all(_nbytes(parameters[i]) > capacity for i in missing)
        return f"{_some(missing)} in no bucket", {**facts, "large": large, "last": missing == [*range(len(missing))]}
    if twice:
        return f"{_some(twice)} in more than one place", facts
    if [] in plan:
        return f"bucket {plan.index([])} is empty", facts
    return None


def _some(places):
    listed = ", ".join(map(str, places))
    return f"parameter {listed} is" if len(places) == 1 else f"parameters {listed} are"


def _in_reverse(plan, parameters, capacity):
    facts = {"kind": "order", "inside": False, "forward": [i for b in plan for i in b] == [*range(len(parameters))]}
    for number, bucket in enumerate(plan):
        if list(bucket) != sorted(bucket, reverse=True):
            return f"bucket {number}, {bucket}, is not in reverse order", {**facts, "inside": True}
    ready = [min(bucket) for bucket in plan]
    if ready != sorted(ready, reverse=True):
        number = next(i for i in range(1, len(ready)) if ready[i] > ready[i - 1])
        words = f"bucket {number} is ready with parameter {ready[number]}, before bucket {number - 1}, which needs"
        return f"{words} {ready[number - 1]}", facts
    return None


def _capacity(plan, parameters, capacity):
    for number, bucket in enumerate(plan):
        sizes = [_nbytes(parameters[i]) for i in bucket]
        if len(bucket) > 1 and sum(sizes) > capacity:
            words = f"bucket {number}, {bucket}, has {' + '.join(map(str, sizes))} = {sum(sizes)} bytes"
            return words, {"kind": "capacity", "one_too_many": sum(sizes[:-1]) < capacity}
    return None


def _one_dtype(plan, parameters, capacity):
    for number, bucket in enumerate(plan):
        dtypes = {str(parameters[i].dtype).removeprefix("torch.") for i in bucket}
        if len(dtypes) > 1:
            return f"bucket {number}, {bucket}, mixes {' and '.join(sorted(dtypes))}", {"kind": "dtype"}
    return None


def _few(plan, parameters, capacity):
    enough = len(_filled(parameters, capacity, _nbytes))
    if len(plan) > enough:
        facts = {"kind": "many", "alone": all(len(bucket) == 1 for bucket in plan)}
        return f"{len(plan)} buckets, and {enough} are enough", facts
    return None


def _left_alone(runs):
    ((seen,),) = (run.results for run in runs)
    if seen["changed"]:
        return Problem("changed", f"{seen['changed'][0]}: the list of parameters that was given is not what it was")
    return None


EXERCISE = Exercise(
    name="plan_buckets",
    reference=buckets.plan_buckets,
    measure=_measure,
    worlds=(),
    claims=(
        Claim("every parameter once", 2, f"{len(CASES)} models; large parameters, two dtypes", _claim(_all_once)),
        Claim("the last is ready first", 2, "reverse order, in a bucket and of the buckets", _claim(_in_reverse)),
        Claim("at most `capacity` bytes", 2, "unless one parameter alone is larger", _claim(_capacity)),
        Claim("one dtype in a bucket", 1, "a bucket is one flat tensor", _claim(_one_dtype)),
        Claim(
            "few buckets",
            1,
            "a new one only when the open one is full",
            lambda runs: _claim(_few)(runs) or _left_alone(runs),
        ),
    ),
    hints=HINTS,
)
