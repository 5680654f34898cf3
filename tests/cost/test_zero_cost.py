"""ZeRO's formulas give the published numbers, and refuse what they do not know."""

import pytest

from lib.cost import model_state_bytes
from lib.cost.zero import rank_state, rank_state_bytes, sent_elements


def test_the_7_5b_model_on_64_devices():
    """Rajbhandari et al. 2020, figure 1."""
    gigabytes = [rank_state_bytes(7_500_000_000, stage, 64) / 1e9 for stage in range(4)]
    assert [round(each, 1) for each in gigabytes] == [120.0, 31.4, 16.6, 1.9]


@pytest.mark.parametrize(
    ("psi", "N", "published"),
    [  # Rajbhandari et al. 2020, table 1: GB per device
        (7.5e9, 4, (52.5, 41.3, 30)),
        (7.5e9, 1024, (30.1, 15.1, 0.12)),
        (128e9, 16, (608, 368, 128)),
        (128e9, 256, (518, 263, 8)),
        (1e12, 64, (4187, 2218, 250)),
        (1e12, 1024, (4011, 2013, 15.6)),
    ],
)
def test_the_published_table(psi, N, published):
    for stage, gigabytes in enumerate(published, start=1):
        # 0.12 has two digits
        assert rank_state_bytes(psi, stage, N) / 1e9 == pytest.approx(gigabytes, rel=0.03)


def test_4x_and_8x_hold_for_many_ranks_only_and_nx_for_all():
    psi = 1_000_000
    saved = lambda stage, N: rank_state_bytes(psi, 0, N) / rank_state_bytes(psi, stage, N)
    assert saved(1, 10_000) == pytest.approx(4, rel=1e-3) and saved(2, 10_000) == pytest.approx(
        8, rel=1e-3
    )
    assert saved(1, 4) == pytest.approx(16 / 7) and saved(2, 4) == pytest.approx(16 / 5.5)
    assert [saved(3, N) for N in (1, 4, 64)] == [1, 4, 64]


@pytest.mark.parametrize("precision", ["fp32", "mixed", "bf16"])
def test_stage_0_and_one_rank_keep_everything(precision):
    for stage in range(4):
        assert rank_state_bytes(1000, stage, 1, precision) == model_state_bytes(1000, precision)
    assert rank_state_bytes(1000, 0, 8, precision) == model_state_bytes(1000, precision)


def test_what_is_sharded_at_each_stage():
    assert rank_state(100, 1, 4) == (200, 200, 100, 100, 100)
    assert rank_state(100, 2, 4) == (200, 50, 100, 100, 100)
    assert rank_state(100, 3, 4) == (50, 50, 100, 100, 100)
    assert rank_state(100, 1, 4, "fp32") == (400, 400, 0, 100, 100)


def test_volume():
    passes = lambda stage, k=1, root=0: sent_elements(800, stage, 4, k, root) / (3 / 4 * 800)
    assert [passes(stage) for stage in range(4)] == [2, 2, 2, 3]
    assert [passes(stage, 5) for stage in range(4)] == [2, 2, 6, 15]
    assert passes(3, root=800) == 2 and passes(3, 5, root=400) == 12.5
    assert sent_elements(800, 3, 1) == 0


def test_what_is_refused():
    with pytest.raises(ValueError, match="stage=4, N=2: use stage 0, 1, 2 or 3"):
        rank_state(1, 4, 2)
    with pytest.raises(ValueError, match="N=0"):
        rank_state_bytes(1, 1, 0)
    with pytest.raises(ValueError, match=r"microbatches=0: .* 1 micro-batch or more"):
        sent_elements(1, 2, 2, 0)
