"""A plan's seconds and bytes in parts, the explorer of plans, and the evidence of
one that goes wrong."""

import itertools

import numpy as np
import pytest
from figures import check_page
from test_plots import SEEN_BY, lab, linear

from lib import explore, plots
from lib.cost.step import step_seconds
from lib.explore import lab6
from lib.plots.components import BYTES, SECONDS, grouped


def test_every_component_of_the_cost_model_has_a_part():
    shape, device, stack = (
        lab6.known()["gpt-3-175b"],
        lab6.gpu("A100-80GB"),
        lab6.stacks()[lab6.DEFAULT_STACK],
    )
    plan = lab6.Plan(1536, 1, 8, 8, 16, zero=1, sequence_parallel=True, offload=0.5)
    seconds = step_seconds(shape, plan, device, stack)
    assert seconds["offload"] > 0
    needs = lab6.memory(shape, plan, stack)
    assert sum(grouped(seconds, SECONDS).values()) == pytest.approx(sum(seconds.values()))
    assert sum(grouped(needs, BYTES).values()) == pytest.approx(sum(needs.values()))


@pytest.mark.parametrize("parts", [SECONDS, BYTES], ids=["seconds", "bytes"])
def test_the_parts_colours_stay_apart_for_every_reader(parts):
    for seen_by in SEEN_BY.values():
        seen = [lab(np.clip(seen_by @ linear(color), 0, 1)) for color, _ in parts.values()]
        assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 14


def test_the_explorer_says_what_fits_what_is_best_and_what_cannot_be():
    draw = explore.draw_plans
    assert "Fits, and takes" in draw().alt and "times the best plan's" in draw().alt
    assert "Does not fit" in draw(micro_batch=8).alt
    assert "not a multiple of dp 16 x micro-batch 1" in draw(batch=1544).alt
    assert "1,024 GPUs are no multiple of tp 8 x pp 12 = 96" in draw(pp=12).alt
    assert "96 layers leave one of 64 stages without any" in draw(pp=64).alt
    alone = {"tp": 8, "pp": 1, "zero": 3, "recompute": "full"}  # dp 1, where the search has ZeRO-0
    told = draw("llama3-70b", "B200", 8, 64, **alone).alt
    assert "no plan of the search is faster" in told and "no plan fits" in told
    best = lab6.best_plan("gpt-3-175b", "A100-80GB", 1024, 1536)
    assert draw(tp=best.tp, pp=best.pp, micro_batch=best.micro_batch).png != draw().png


def test_evidence_has_a_box_for_each_number_and_frames_what_is_off_first():
    fine, none = [[False] * 4] * 3, [[None, None, False, False]] * 3
    late = [[False] * 4, [False, True, False, True], [True] * 4]
    off = {
        ("input", "tokens"): fine,
        ("loss", "own share"): none,
        ("gradient", "cut"): late,
        ("update", "cut"): late,
    }
    shown = plots.evidence(off)
    check_page(shown, plots.evidence(off))
    assert "12 of 42 values differ from those of a single process" in shown.alt
    assert "gradient: cut is off in step 1 on ranks 1, 3; step 2 on ranks 0, 1, 2, 3." in shown.alt
    framed = plots.evidence(off, framed=True)
    assert (
        "The first value that differs is the gradient of step 1" in framed.alt
        and framed.png != shown.png
    )
    assert "0 of 12 values" in plots.evidence({("input", "tokens"): fine}, framed=True).alt
