"""The benchmark of Muon over ranks: both sides train the same model before a clock runs."""

import numpy as np
import pytest
import torch

from lib import launch
from lib.training.model import Shape
from tests.benchmarks import bench_zero

TINY = Shape(vocab_size=16, seq_len=8, n_layers=1, hidden=16, n_heads=2)


def test_muon_with_owners_is_timed_beside_torch_s_on_every_rank():
    times = launch.capture(bench_zero.steps, "torch.optim.Muon", TINY, 2, nproc=2, ledger=False)[0]
    assert list(times) == ["muon", "torch.optim.Muon", "torch.optim.Muon, again"]
    assert all(seconds.shape == (2,) and np.min(seconds) > 0 for seconds in times.values())


def test_another_model_is_not_timed():
    right = {"w": torch.ones(3)}
    bench_zero.check_equal(
        "muon", {"w": torch.tensor([1.0, 1.0, 1.005])}, right, bench_zero.IN_BFLOAT16
    )
    with pytest.raises(RuntimeError, match=r"w is off by 0\.005"):
        bench_zero.check_equal("zero1", {"w": torch.tensor([1.0, 1.0, 1.005])}, right)
