"""The benchmarks of pipelines: both sides do the same or nothing is timed; a simulation that is off
misses its bar."""

import numpy as np
import pytest
import torch

from lib.pipeline import one_f_one_b, parse, simulate, zb_h1
from lib.training.model import Shape
from tests.benchmarks import bench_paced_pipeline, bench_pipeline, report

TINY = Shape(vocab_size=16, seq_len=8, n_layers=4, hidden=16, n_heads=2)


# --- both sides do the same, or nothing is timed --------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(
    torch.__version__.startswith(("2.10.", "2.11.")),
    reason="not run: before 2.12 torch's own ScheduleZBVZeroBubble ends over gloo with 'Pair is "
    "not connected'",
)
def test_on_ranks_every_schedule_is_timed_against_torchs():
    outcome = bench_pipeline.measured([2], TINY, 2)
    assert [(row.what, row.ranks, str(row.bar)) for row in outcome.rows] == [
        (name, 2, "not slower") for name in bench_pipeline.CASES
    ]
    assert all(
        (seconds > 0).all() and seconds.shape == (2,) for seconds in outcome.data[2].values()
    )
    assert "ZB-H1" in report.as_text(outcome) and outcome.drawing.png.startswith(b"\x89PNG")
    assert report.as_json("pipeline", outcome, report.machine(), quick=True)["data"]["2"]


class TheirStage:
    """A stage of torch's, as far as it is watched."""

    def __init__(self, stage_index):
        self.stage_index = stage_index

    def forward_one_chunk(self, j, *args, **kwargs):
        return "y"

    def backward_one_chunk(self, j, loss=None, full_backward=True, last_backward=False):
        return "dx"

    def backward_weight_one_chunk(self, j, last_backward=False):
        return None


def a_step(stage):
    assert stage.forward_one_chunk(0) == "y"
    assert stage.backward_one_chunk(0, loss=None, full_backward=False) == "dx"
    stage.forward_one_chunk(1)
    stage.backward_weight_one_chunk(0)
    stage.backward_one_chunk(1, loss=None)


def test_what_torchs_stages_do_is_noted_once_and_must_be_the_list():
    stage = TheirStage(3)
    did = [parse(text) for text in ("3F0", "3I0", "3F1", "3W0", "3B1")]
    bench_pipeline.check_same_actions([stage], lambda: a_step(stage), did)
    assert vars(stage) == {"stage_index": 3}, "nothing is left between the clock and torch"
    with pytest.raises(
        RuntimeError, match="torch runs 3F0 3I0 3F1 3W0 3B1, ours 3F0 3I0: nothing to compare"
    ):
        bench_pipeline.check_same_actions([stage], lambda: a_step(stage), did[:2])


def test_equal_gradients_pass_and_others_are_refused():
    theirs = {"w": torch.tensor([[1.0, -2.0], [3.0, 4.0]]), "b": torch.tensor([1e-6, 2e-6])}
    bench_pipeline.check_equal("x", {name: g * (1 + 1e-6) for name, g in theirs.items()}, theirs)
    for name in theirs:
        with pytest.raises(RuntimeError, match=f"x: not the gradient of theirs: {name}: off by"):
            bench_pipeline.check_equal("x", theirs | {name: theirs[name] * 2}, theirs)
    with pytest.raises(RuntimeError, match=r"x: gradients of \['b'\] on one side only"):
        bench_pipeline.check_equal("x", {"w": theirs["w"]}, theirs)


def test_head_and_embedding_are_two_parameters_of_equal_values():
    model = bench_pipeline.untied(TINY)
    assert model.head.weight is not model.embedding.token.weight
    assert torch.equal(model.head.weight, model.embedding.token.weight)


def test_the_batch_is_the_same_on_every_rank_and_its_micro_batches_are_not():
    tokens = bench_pipeline.batch(TINY)
    assert torch.equal(tokens, bench_pipeline.batch(TINY)) and tokens.shape == (8, 9)
    assert len({tuple(row.tolist()) for row in tokens}) == 8


# --- measured against simulated -------------------------------------------------------------------


def late(seconds, rounds=9):
    """{case: all ranks' bars of each round}: as simulated, but before the last W of rank 0
    something else took time.

    No message comes there, so the simulation cannot take it for a slow one.
    """
    bars = simulate(zb_h1(4, 8), {"F": 8e-3, "I": 8e-3, "W": 8e-3}, 1e-3).bars
    last = max((bar for bar in bars if bar.rank == 0), key=lambda bar: bar.end)
    moved = [
        bar._replace(start=bar.start + seconds, end=bar.end + seconds) if bar is last else bar
        for bar in bars
    ]
    return {"ZB-H1": [moved] * rounds}


@pytest.mark.parametrize(("seconds", "verdict"), [(0.0, "met"), (5e-3, "met"), (30e-3, "missed")])
def test_a_run_that_the_simulation_does_not_explain_misses_the_bar_of_5_percent(seconds, verdict):
    outcome = bench_paced_pipeline.outcome(late(seconds), "gloo")
    assert [(row.what, row.verdict) for row in outcome.rows] == [("ZB-H1", verdict)]
    whole = outcome.data["ZB-H1"]
    assert whole["measured"] - whole["simulated"] == pytest.approx(np.full(9, seconds), abs=1e-9)
    shown = report.as_text(outcome)
    assert "F 8.00, I 8.00, W 8.00" in shown and "message, ms" in shown
    assert outcome.drawing.png.startswith(b"\x89PNG")


def test_on_paced_ranks_a_case_is_measured_in_every_round():
    case = bench_paced_pipeline.Case(one_f_one_b(4, 4), {"F": 2e-3, "B": 4e-3}, "slow link")
    bars, place = bench_paced_pipeline.measured({"one": case}, 2)
    assert place == "gloo" and [len(every) for every in bars["one"]] == [32, 32]
    outcome = bench_paced_pipeline.outcome(bars, place)
    assert (outcome.data["one"]["measured"] >= (4 + 3) * 6e-3 + 6 * 4e-3).all()
    ((name, told, message, *_),) = outcome.tables[0].cells
    assert name == "one" and told.startswith("F ") and float(message) >= 4
