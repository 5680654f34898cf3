"""What Lab 4's tables say, where it can be known without running the lab."""

import pytest

from lib.demo import background_saves, muon_runs, stage_tables
from lib.zero import FSDP, Zero1, Zero2, owners


def test_the_busiest_owner_is_printed_next_to_the_bound(capsys):
    costs, names = muon_runs.owner_loads(owners)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    assert lines[1] == " 3 ranks: the busiest owner has 1.000 of the bound, in turn 1.129"
    assert len(costs) == len(names) == 4 * 6
    with pytest.raises(AssertionError, match=r"2 ranks: 2\.0 of the bound"):
        muon_runs.owner_loads(lambda costs, N: [0] * len(costs))


def test_the_threshold_is_the_peak_over_the_link(capsys):
    stage_tables.token_thresholds("H100-80GB")
    gpu, *published = capsys.readouterr().out.splitlines()
    assert gpu.startswith("H100-80GB in a node 365 GB/s, so 2,710 tokens")
    assert all("4,096 tokens per GPU" in line for line in published)
    assert len(published) == 3


@pytest.mark.slow
def test_a_way_that_does_not_save_is_refused(capsys):
    with pytest.raises(AssertionError, match="ZeRO-2: 0 messages during backward"):
        stage_tables.compare_gradients({"ZeRO-2": Zero1})
    most = stage_tables.compare_gradients({"ZeRO-1": Zero1, "ZeRO-2": Zero2})
    assert most["ZeRO-2"] < most["ZeRO-1"] / 2
    with pytest.raises(AssertionError, match="by the formula"):
        stage_tables.compare_peaks({"three copies": (FSDP, 3)})


@pytest.mark.slow
def test_ranks_that_are_killed_during_a_save_continue_from_the_save_before():
    assert background_saves.kill_and_continue() == (4, True)
