"""The benchmark of the course's own runs: what is measured apart is all that a step consists of,
and a step that its parts do not explain misses the bar."""

import numpy as np
import pytest

from lib.cost.data_parallel import ring_time
from lib.training.model import GPT, Shape
from tests.benchmarks import bench_measured_runs, report
from tests.benchmarks.bench_measured_runs import PLANS, ROWS, SHAPE, predicted

TINY = Shape(vocab_size=16, seq_len=8, n_layers=2, hidden=16, n_heads=2)
# forward, backward, first, last, update; alpha, beta
COMPUTE, LINK = [4e-3, 8e-3, 1e-3, 2e-3, 5e-3], [1e-4, 1e-9]


def found_times(longer, rounds=9):
    """What `measured` would have found, with steps `longer` than predicted."""
    found = {}
    for name in PLANS:
        times = {"compute": np.array([COMPUTE] * rounds), "link": np.array([LINK] * rounds)}
        said = [sum(parts.values()) for parts in predicted(SHAPE, ROWS, name, times)]
        found[name] = times | {"step": longer * np.array(said)}
    return found


def test_what_is_predicted_by_hand():
    found, L = found_times(1.0), SHAPE.n_layers
    (dp, *_), (tp, *_) = (
        predicted(SHAPE, ROWS, name, found[name]) for name in ("dp 2", "tp 2, 8 micro-batches")
    )
    assert (
        dp["pipeline"] == pytest.approx(L * 12e-3 + 3 * 3e-3)
        and dp["update"] == 5e-3
        and dp["tensor"] == 0
    )
    layers = sum(p.numel() for p in GPT(SHAPE).blocks.parameters())
    # without biases
    assert dp["gradients"] == pytest.approx(ring_time(4 * (layers + 256 * 256), 2, LINK), rel=0.02)
    assert tp["tensor"] == pytest.approx(8 * L * 4 * ring_time(4 * 2 * 128 * 256, 2, LINK))


@pytest.mark.parametrize(
    ("longer", "verdict"), [(1.0, "met"), (1.1, "met"), (0.8, "missed"), (1.2, "missed")]
)
def test_a_step_that_is_not_as_predicted_misses_the_bar(longer, verdict):
    outcome = bench_measured_runs.outcome(found_times(longer), "gloo")
    assert {row.what: row.verdict for row in outcome.rows} == dict.fromkeys(PLANS, verdict)
    assert outcome.drawing.png.startswith(b"\x89PNG") and "at most 0.15" in report.as_text(outcome)
    assert report.as_json("measured_runs", outcome, report.machine(), quick=True)["data"]


@pytest.mark.slow
def test_on_ranks_every_part_is_measured_in_every_round():
    found, place = bench_measured_runs.measured(TINY, ROWS, 2)
    assert place == "gloo" and found.keys() == PLANS.keys()
    for times in found.values():
        assert times["compute"].shape == (2, 5) and (times["compute"] > 0).all()
        # beta: a difference
        assert times["link"].shape == (2, 2) and (times["link"][:, 0] >= 0).all()
        # a step does what was measured apart, and more
        assert times["step"].shape == (2,) and (times["step"] > 0).all()
    outcome = bench_measured_runs.outcome(found, place, TINY, ROWS)
    assert len(outcome.rows) == len(PLANS)
