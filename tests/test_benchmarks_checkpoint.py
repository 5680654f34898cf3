"""The benchmark of checkpoints in the background: what it times was saved whole, by both sides."""

import torch

from lib.training.model import Shape
from tests.benchmarks import bench_checkpoint

TINY = Shape(vocab_size=16, seq_len=8, n_layers=1, hidden=16, n_heads=2)


def test_all_sides_are_timed_on_the_same_rounds_and_a_save_takes_the_disk_s_time():
    times, size = bench_checkpoint.measured(TINY, 1e6, 3)
    assert {len(seconds) for seconds in times.values()} == {3} and size.endswith(" MB")
    assert times["at once"].min() > 0.8 * float(size.split()[0])


def test_rows_and_figure(monkeypatch):
    monkeypatch.setattr(bench_checkpoint, "SHAPE", TINY)
    monkeypatch.setattr(bench_checkpoint, "ROUNDS", 3)
    outcome = bench_checkpoint.run(quick=True)
    assert [row.what for row in outcome.rows] == ["background / at once", "background / async_save"]
    assert (
        outcome.drawing.png.startswith(b"\x89PNG")
        and torch.tensor(outcome.data[1]["background"]).min() > 0
    )
