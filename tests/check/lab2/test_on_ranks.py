"""The executed claim can fail: it sees a gradient that is missing, no number or a bit wrong, and a
run that fails."""

import pytest
import torch

from lib.check.lab2 import on_ranks
from lib.pipeline import gpipe


@pytest.fixture
def both():
    """The same stage twice, with the same gradients."""
    stages = [on_ranks._stages(1)[0] for _ in range(2)]
    for stage in stages:
        x, y = on_ranks._batch(2)
        torch.nn.functional.mse_loss(stage(x), y).backward()
    return stages


def test_equal_gradients_have_no_error(both):
    assert on_ranks._error(*both, 3).worst == 0


@pytest.mark.parametrize("name", ["0.weight", "0.bias"])
def test_a_wrong_gradient_is_named(both, name):
    wrong = both[1].get_parameter(name)
    wrong.grad[-1] *= 1.001
    error = on_ranks._error(*both, 3)
    assert error.worst > 1e-9 and error.name == f"stage 3, {name}"
    wrong.grad = None
    assert on_ranks._error(*both, 3) == on_ranks.Executed(float("inf"), f"stage 3, {name}")


def test_no_number_is_an_error(both):
    both[1][0].bias.grad[0] = float("nan")
    assert on_ranks._error(*both, 3).worst == float("inf")


def test_a_run_that_fails_is_a_problem():
    """Lists for four micro-batches where there are three."""
    problem = on_ranks.executed({(2, 3): gpipe(2, 4)})
    assert problem.kind == "ranks" and "0F3" in problem.text
