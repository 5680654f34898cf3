"""The checks of Lab 1's sections 2 to 4: lib's own functions fulfil their claims; what a wrong
gradient tells."""

import pytest
import torch
from as_an_answer import as_an_answer

from lib import launch
from lib.check.exercises import EXERCISES
from lib.check.framework import evaluate
from lib.check.lab1.models import of_each_rank, shard, wrong_gradient

POINTS = {"unequal_shards": 12, "naive_data_parallel": 16, "buckets": 18}


@pytest.mark.parametrize("name", POINTS)
def test_libs_functions_fulfil_the_claims_in_one_launch(name, monkeypatch):
    launches, capture = [], launch.capture
    monkeypatch.setattr(
        launch,
        "capture",
        lambda *args, **kwargs: launches.append(kwargs) or capture(*args, **kwargs),
    )
    bundle = EXERCISES[name]
    outcome = evaluate(bundle, tuple(as_an_answer(part.reference) for part in bundle.parts))
    assert outcome.passed, "\n".join(outcome.lines)
    assert outcome.points == POINTS[name]
    assert [kwargs["nproc"] for kwargs in launches] == [4]


@pytest.fixture(params=(2, 3, 4))
def parts(request):
    return of_each_rank([[shard(rank)] for rank in range(request.param)])


def mean_of(parts):
    return {name: sum(part[name] for part in parts) / len(parts) for name in parts[0]}


def test_the_mean_is_the_gradient_of_the_whole_batch_in_one_process(parts):
    (whole,) = of_each_rank([[shard(rank) for rank in range(len(parts))]])
    assert wrong_gradient("here", 0, {**whole, "scale": None}, parts) is None


def test_no_sum_of_some_ranks_gradients_is_a_sum_of_others(parts):
    """Else a wrong sum could not be read."""
    for name in parts[0]:
        used = [part[name].flatten() for part in parts if part[name].any()]
        assert not used or torch.linalg.matrix_rank(torch.stack(used)) == len(used), name
    assert not any(part["never.weight"].any() for part in parts)
    assert [bool(part["branch.weight"].any()) for part in parts] == [
        rank % 2 == 0 for rank in range(len(parts))
    ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda mean, parts: mean * 4, "It is 4 x expected: summed over 4 ranks but not divided."),
        (lambda mean, parts: mean / 4, "It is expected / 4: divided by 4 twice."),
        (lambda mean, parts: mean * 3 / 4, "It is 3/4 x expected."),
        (lambda mean, parts: parts[1], "It is rank 1's own gradient."),
        (lambda mean, parts: parts[2], "It is rank 2's gradient alone."),
        (lambda mean, parts: mean - parts[2] / 4,
         "It is 1/4 of rank 0's, 1/4 of rank 1's, 1/4 of rank 3's; expected 1/4 of each rank's."),
        (lambda mean, parts: mean * 0, "It holds zeros."),
        (lambda mean, parts: mean.flip(0), "It is no sum of the ranks' gradients."),
    ],
)  # fmt: skip
def test_a_wrong_gradient_tells_what_it_is_made_of(change, words):
    parts = of_each_rank([[shard(rank)] for rank in range(4)])
    got = {name: mean.clone() for name, mean in mean_of(parts).items()}
    got["leave.weight"] = change(got["leave.weight"], [part["leave.weight"] for part in parts])
    problem = wrong_gradient("4 ranks: rank 1", 1, got, parts)
    first, second = problem.text.splitlines()
    assert first.startswith("4 ranks: rank 1, leave.weight, element (0, 0): expected ")
    assert second == words


def test_a_gradient_too_many_and_one_too_few_are_told(parts):
    got = {**mean_of(parts), "scale": torch.zeros(4)}
    assert "scale is frozen, but has a gradient" in wrong_gradient("here", 0, got, parts).text
    got = {**mean_of(parts), "never.weight": None}
    assert (
        "never.weight: .grad is None, expected zeros" in wrong_gradient("here", 0, got, parts).text
    )


def test_rounding_is_forgiven_and_no_more(parts):
    close = {name: mean * (1 + 1e-12) for name, mean in mean_of(parts).items()}
    assert wrong_gradient("here", 0, close, parts) is None
    off = {name: mean * (1 + 1e-7) for name, mean in mean_of(parts).items()}
    assert wrong_gradient("here", 0, off, parts) is not None
