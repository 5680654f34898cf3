"""What the capstone's cells print beside a student's numbers is what was published."""

import pytest

from lib.check.lab6 import capstone, capstone_plans, capstone_told
from lib.cost import by_hand
from lib.cost.plan import Plan


def test_a_published_mfu_is_its_tflops_over_the_peak():
    """Megatron-Bridge's 728 TFLOP/s per GPU count attention, a sixth more than 6 per parameter."""
    (case,) = [case for case in capstone.MEASURED if case[0] == "mixture, GB200, published"]
    run = capstone.RUNS[case[0]]
    mfu = capstone_told.mfu_of(run.model, case[1], run.gpu, capstone.MEASURED[case])
    assert mfu == pytest.approx(728e12 / 2.5e15 / 1.145, rel=0.01)


def test_published_runs_are_told_next_to_the_estimate(capsys):
    capstone_told.print_jobs()
    plan = Plan(512, 2, tp=1, pp=4, dp=64, ep=16, v=12, zero=1, recompute="full")
    capstone_told.print_published(by_hand.estimate, {"mixture, H100": plan})
    told = capsys.readouterr().out
    for words in ("r = 0.4", "MFU 52%", "measured 19.7 s", "deepep-ep8-fsdp", "17.6 s, MFU 24%"):
        assert words in told
    assert told.count("\n") == 4 + 3 + 3 + 4 + 1


@pytest.mark.slow
def test_the_best_plan_is_returned_for_each_job(capsys):
    best = capstone_told.print_plans(
        by_hand.estimate, by_hand.main_costs, capstone_plans.chosen_plans()
    )
    assert best.keys() == capstone.JOBS.keys() and best["mixture, H100"].zero == 3
    assert capsys.readouterr().out.count("the best, ") == 4


def test_predictions_are_shown_next_to_the_cost_model(capsys):
    capstone_told.show_asked(None, "9 s", None)
    told = capsys.readouterr().out
    for words in ("needs: model 60.5 GiB", "a step takes: you 9 s, model 8.92 s", "MFU: model 49%"):
        assert words in told
