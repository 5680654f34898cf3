"""A student's earlier function that is wrong does not cost the points of a later one that calls
it."""

import types

import pytest

from lib.check import earlier, framework
from lib.check.exercises import EXERCISES, FUNCTIONS
from lib.collectives import ring

LATER = """
def ring_all_reduce(tensor, group=None):
    import torch.distributed as dist
    chunk = ring_reduce_scatter(tensor, group)
    ring_all_gather(chunk, group, tensor)
    return tensor
"""


def notebook(**wrong):
    """The globals of a notebook whose ring_all_reduce calls the student's own two rings."""
    scope = {"__name__": "__main__"}
    for name in ("ring_reduce_scatter", "ring_all_gather"):
        scope[name] = wrong.get(name) or own(getattr(ring, name))
    exec(compile(LATER, "<notebook>", "exec"), scope)
    return scope


def own(fn):
    """lib's function as if a student had written it."""
    copy = types.FunctionType(
        fn.__code__.replace(co_filename="<notebook>"),
        fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__,
    )  # fmt: skip
    copy.__module__ = "__main__"
    return copy


def returns_its_own_chunk(tensor, group=None):
    import torch.distributed as dist

    return tensor.tensor_split(dist.get_world_size(group))[dist.get_rank(group)].clone()


returns_its_own_chunk.__module__ = "__main__"


@pytest.fixture(autouse=True)
def nothing_has_passed(monkeypatch):
    monkeypatch.setattr(framework, "_passed", {})


def test_a_wrong_ring_reduce_scatter_costs_ring_all_reduce_nothing():
    scope = notebook(ring_reduce_scatter=returns_its_own_chunk)
    alone = framework.evaluate(EXERCISES["ring_all_reduce"], scope["ring_all_reduce"])
    outcome = framework.graded(EXERCISES["ring_all_reduce"], (scope["ring_all_reduce"],))
    assert not alone.passed
    assert outcome.passed, "\n".join(outcome.lines)
    assert "graded with the course's ring_all_gather and ring_reduce_scatter" in outcome.lines[1]
    assert scope["ring_reduce_scatter"] is returns_its_own_chunk  # the notebook's is back


def test_what_has_passed_stays_and_a_mistake_of_ones_own_still_counts():
    scope = notebook()
    fn = scope["ring_all_reduce"]
    framework._passed["ring_all_gather"] = scope["ring_all_gather"]
    assert set(earlier.not_passed((fn,), FUNCTIONS, framework._passed)) == {"ring_reduce_scatter"}
    exec(LATER.replace("return tensor", "return tensor.mul_(2)"), scope)
    outcome = framework.graded(EXERCISES["ring_all_reduce"], (scope["ring_all_reduce"],))
    assert not outcome.passed
    assert "graded with" not in "\n".join(outcome.lines)


def test_wrong_parts_of_a_bundle_cost_nothing_in_a_part_that_calls_them():
    bundle, scope = EXERCISES["all_reduce_time"], {"__name__": "__main__"}
    exec(COSTS, scope)
    fns = tuple(scope[part.name] for part in bundle.parts)
    alone = framework.evaluate(bundle, fns)
    outcome = framework.graded(bundle, fns)
    assert [part.passed for part in alone.parts] == [False] * 6
    assert [part.passed for part in outcome.parts] == [False] * 5 + [True]
    assert "graded with the course's halving_doubling_time and" in outcome.lines[1]
    assert outcome.points == bundle.parts[-1].points
    assert all(scope[part.name] is fn for part, fn in zip(bundle.parts, fns, strict=True))


COSTS = """
def star_time(n_bytes, N, alpha, beta):
    return 1.0


def tree_time(n_bytes, N, alpha, beta):
    return 2.0


def ring_time(n_bytes, N, alpha, beta):
    return 3.0


def recursive_doubling_time(n_bytes, N, alpha, beta):
    return 4.0


def halving_doubling_time(n_bytes, N, alpha, beta):
    return 5.0


def cheapest(n_bytes, N, alpha, beta):
    times = {
        "star": star_time, "tree": tree_time, "ring": ring_time,
        "recursive_doubling": recursive_doubling_time, "halving_doubling": halving_doubling_time,
    }
    return min(times, key=lambda name: times[name](n_bytes, N, alpha, beta))
"""
