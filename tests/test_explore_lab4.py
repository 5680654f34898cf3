"""Lab 4's explorers: the sliders change what is said. (That every stop draws: test_explore.py.)"""

import pytest

from lib import explore


@pytest.mark.usefixtures("words_only")
def test_it_begins_with_the_paper_s_example_and_more_ranks_fit_more():
    draw = explore.draw_zero_memory
    assert "120, 31.4, 16.6, 1.9 GB by stage; it fits in 80 GB at stage 1 and above" in draw().alt
    assert "none fits in 80 GB" in draw(ranks=1).alt
    assert "it fits in 80 GB at stage 3 and above" in draw(70_000_000_000, ranks=64).alt
    assert "60, 30.5, 15.7, 0.938 GB" in draw(precision="bf16").alt


def test_stage_3_pays_for_every_micro_batch():
    draw = explore.draw_zero_volume
    assert "With 4 micro-batches stage 3 sends 6 times as much as stage 0" in draw().alt
    assert (
        "With 1 micro-batch stage 3 sends 1.5 times as much as stage 0" in draw(microbatches=1).alt
    )
    assert "stage 2, by the formula: 2 with k = 1, 17 with k = 16." in draw(microbatches=16).alt
    assert draw(bandwidth=1e9).png != draw(bandwidth=1e10).png  # the same units, other seconds
