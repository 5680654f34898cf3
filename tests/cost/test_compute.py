"""Days of training against published runs."""

import pytest

from lib.cost import training_days


def test_gpt3_on_1024_gpus_takes_34_days():
    """Narayanan et al. 2021, section 5.1."""
    days = training_days(175e9, 300e9, gpus=1024, flops_per_gpu=140e12, recompute=True)
    assert round(days) == 34


def test_a_trillion_parameters_on_3072_gpus_take_84_days():
    """Narayanan et al. 2021, section 5.1: 450 billion tokens, 163 TFLOP/s each."""
    days = training_days(1e12, 450e9, gpus=3072, flops_per_gpu=163e12, recompute=True)
    assert days == pytest.approx(84, rel=0.01)


def test_recomputation_costs_a_third_more():
    without = training_days(175e9, 300e9, 1024, 140e12, recompute=False)
    assert training_days(175e9, 300e9, 1024, 140e12, recompute=True) == pytest.approx(
        without * 4 / 3
    )
