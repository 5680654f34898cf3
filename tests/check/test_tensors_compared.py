"""compared() tells what is wrong with a tensor: first its values, then its dtype."""

import pytest
import torch

from lib.check.shown import different
from lib.check.tensors import compared

WANT = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)


def test_what_is_right_up_to_rounding_has_no_problem():
    assert compared("here", "y", WANT * (1 + 1e-13), WANT) is None
    assert compared("here", "y", WANT.bfloat16() * 1.01, WANT.bfloat16()) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_are_told_before_dtypes(dtype):
    problem = compared("here", "y", (3 * WANT).to(dtype), WANT)
    assert problem.kind == "value" and "expected 1.0, got 3.0" in problem.text
    assert f"Its dtype is {str(dtype)[6:]}, expected float64." in problem.text


def test_the_right_values_of_another_dtype_are_told_by_it():
    problem = compared("here", "y", WANT.float(), WANT)
    assert problem.kind == "form" and problem.facts["dtype"]
    assert "expected float64 (3,), got float32 (3,)" in problem.text


def test_numbers_have_the_digits_that_they_differ_in():
    problem = different("here", "loss", 1.51184001, 1.51184, None)
    assert "expected 1.51184, got 1.51184001" in problem.text
    assert different("here", "loss", 1.51184 * (1 + 1e-12), 1.51184, None) is None
    assert "expected 3, got None" in different("here", "n", None, 3, None).text


def test_a_factor_is_told_in_words():
    told = lambda factor: different("here", "y", WANT * factor, WANT, None).text
    assert "All elements are 3/4 of the expected values." in told(0.75)
    assert "All elements are 4 times the expected values." in told(4)
