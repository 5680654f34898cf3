"""The published sweep over tp, and what NCCL's default reaches next to its ring."""

import pytest

from lib.cost.hardware import default_all_reduce, gpu
from lib.cost.tp_sweep import pairs, sending_seconds, steps, threshold, threshold_table


def test_six_pairs_leave_the_domain_and_the_formula_explains_a_part_of_each_rise():
    found = pairs(8, 16)
    assert len(found) == 6
    for small, large in found:
        assert (small.tp, large.tp) == (8, 16) and small[:3] == large[:3]
        explained = (large.sending - small.sending) / (large.seconds - small.seconds)
        assert 0.5 < explained < 1
    assert min(b.seconds / a.seconds for a, b in found) == pytest.approx(1.52, abs=0.01)
    assert max(b.seconds / a.seconds for a, b in found) == pytest.approx(2.14, abs=0.02)


def test_sending_is_six_all_reduces_a_layer():
    # 2 layers, 10 tokens, D = 100 in 16 bits, tp = 2 in a node: 6 * 2 * 2 * 1/2 * 2000 bytes
    assert sending_seconds(2, 10, 100, 2) == pytest.approx(24_000 / 229e9)
    assert sending_seconds(2, 10, 100, 16) == pytest.approx(12 * 2 * 15 / 16 * 2000 / 100e9)
    assert all(step.seconds > 0 and step.sending >= 0 for step in steps())


def test_the_default_all_reduce_beats_the_ring_for_large_tensors_only():
    for name in ("H100-80GB", "B200"):
        device = gpu(name)
        assert default_all_reduce(device, 2**26) < device.link < default_all_reduce(device)
    assert default_all_reduce(gpu("A100-80GB")) is None


def test_thresholds_are_those_of_the_formula():
    h100 = gpu("H100-80GB")
    assert threshold(h100, 8, h100.link) == pytest.approx(2 / 9 * 7 * 989e12 / 365e9)
    table = threshold_table()
    assert [line.split()[-1] for line in table if line.startswith("H100-80GB, ring, 8 GiB")] == [
        "4,215"
    ]
    assert any(line.startswith("A100-80GB, ring, 1 GiB") for line in table)
    assert not any(line.startswith("A100-80GB, default") for line in table)
