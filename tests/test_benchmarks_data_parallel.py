"""The benchmarks of data parallelism: what is hidden, what is refused before a clock runs, and what
says "not run"."""

import numpy as np
import pytest
import torch

from lib import launch
from lib.training.model import GPT, Shape
from tests import two_nodes
from tests.benchmarks import bench_data_parallel, bench_overlap, report

TINY = Shape(vocab_size=16, seq_len=64, n_layers=1, hidden=16, n_heads=2)


# --- both sides do the same, or nothing is timed --------------------------------------------------


def some_gradients():
    return {"w": torch.tensor([[1.0, -2.0], [3.0, 4.0]]), "b": torch.tensor([1e-6, 2e-6])}


def test_equal_gradients_pass_and_rounding_too():
    bench_data_parallel.check_equal("x", some_gradients(), some_gradients())
    bench_data_parallel.check_equal(
        "x", {name: g * (1 + 1e-6) for name, g in some_gradients().items()}, some_gradients()
    )


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("w", lambda g: 2 * g, "x: w has a gradient off by 1 of its largest element"),
        (
            "w",
            lambda g: g + torch.tensor([[1e-3, 0.0], [0.0, 0.0]]),
            "x: w has a gradient off by 0.00025",
        ),
        # small beside w's, not to itself
        ("b", torch.zeros_like, "x: b has a gradient off by 1 of its largest"),
        ("b", lambda g: g * torch.nan, "x: b has a gradient off by nan"),
        ("b", lambda g: None, "x: b has no gradient"),
    ],
)
def test_a_side_with_another_gradient_is_refused(name, change, says):
    ours = some_gradients()
    ours[name] = change(ours[name])
    with pytest.raises(RuntimeError, match=says):
        bench_data_parallel.check_equal("x", ours, some_gradients())


def test_a_side_without_a_parameter_is_refused():
    with pytest.raises(RuntimeError, match=r"gradients of \['b'\] on one side only"):
        bench_data_parallel.check_equal("x", {"w": some_gradients()["w"]}, some_gradients())


class SumsInsteadOfMeans(bench_data_parallel.NaiveDataParallel):
    def average_gradients(self):
        super().average_gradients()
        for parameter in self.trained():
            parameter.grad *= 2


def both_guards():
    """On ranks: the real sides agree, and a wrong one is found before anything is timed."""
    times, place = bench_data_parallel.on_ranks(TINY, 2)
    wrong, theirs = SumsInsteadOfMeans(GPT(TINY)), bench_data_parallel.SIDES["theirs"](GPT(TINY))
    for model in (wrong, theirs):
        bench_data_parallel.step(model, bench_data_parallel.batch(TINY, 2))
    try:
        bench_data_parallel.check_equal(
            "wrong", *map(bench_data_parallel.gradients, (wrong, theirs))
        )
    except RuntimeError as error:
        return times, place, str(error)


def test_on_ranks_every_side_is_timed_and_a_wrong_one_refused():
    times, place, said = launch.capture(both_guards, nproc=2, backend="gloo", ledger=False)[0]
    assert place == "gloo" and list(times) == list(bench_data_parallel.SIDES)
    assert all(seconds.shape == (2,) and (seconds > 0).all() for seconds in times.values())
    assert said.startswith("wrong: ") and "a gradient off by 1 of its largest element" in said


def test_ranks_compute_on_different_batches():
    tokens = launch.capture(
        bench_data_parallel.batch, TINY, 2, nproc=2, backend="gloo", ledger=False
    )
    assert tokens[0].shape == tokens[1].shape == (2, 65) and not torch.equal(*tokens)


# --- the share that is hidden ---------------------------------------------------------------------


def test_hidden_is_the_part_of_communication_that_the_step_does_not_show():
    compute, communication = np.array([1.0, 2.0]), np.array([0.5, 0.4])
    assert bench_overlap.hidden(compute, compute, communication) == pytest.approx([1, 1])  # all
    # nothing
    assert bench_overlap.hidden(compute + communication, compute, communication) == pytest.approx(
        [0, 0]
    )
    assert bench_overlap.hidden(compute + 0.1, compute, communication) == pytest.approx([0.8, 0.75])
    # worse than none
    assert bench_overlap.hidden(compute + 1, compute, communication) == pytest.approx([-1, -1.5])


def found(exposed, forward=0.3, rounds=31):
    """What on_ranks would have found: backward of 1.0 - forward, communication of 0.5, of which
    `exposed` shows."""
    machine = np.random.default_rng(0).lognormal(0, 0.1, rounds)  # alike for all sides of a round
    seconds = {
        "ours": 1.0 + exposed, "theirs": 1.3, "again": 1.3, "compute": 1.0, "forward": forward,
        "communication": 0.5,
        "communication again": 0.5, "their communication": 0.5, "bucketed": 1.5,
    }  # fmt: skip
    alike = ("ours", "theirs", "again", "compute", "communication", "communication again")
    seconds |= {f"paced {side}": seconds[side] for side in alike}
    times = {side: (value * machine).tolist() for side, value in seconds.items()}
    return {"times": times, "paced backward": 0.6, "sequences": 12, "place": "gloo"}


@pytest.mark.parametrize(
    ("exposed", "verdict", "share"), [(0.05, "met", "0.90"), (0.15, "missed", "0.70")]
)
def test_the_table_says_both_times_and_the_share_and_the_bar_is_80_percent(exposed, verdict, share):
    outcome = bench_overlap.outcome(found(exposed))
    step, bucketed, asked, paced_step, paced_asked = outcome.rows
    assert (step.verdict, bucketed.verdict, asked.verdict) == ("met", "-", verdict)
    assert (paced_step.verdict, paced_asked.verdict) == ("met", verdict)
    assert asked.comparison.ratio.median == pytest.approx(exposed / 0.5)
    overlapped, theirs, after, paced, _ = outcome.tables[0].cells
    assert paced[-1].startswith(f"{share} [")
    assert (
        overlapped[-1].startswith(f"{share} [")
        and theirs[-1].startswith("0.40 [")
        and after[-1].startswith("0.00 [")
    )
    shown = report.as_text(outcome)
    assert (
        "of that backward" in shown and "communication alone" in shown and "12 sequences" in shown
    )
    assert outcome.drawing.png.startswith(b"\x89PNG")


def test_no_share_is_asked_where_backward_is_too_short_for_it():
    outcome = bench_overlap.outcome(found(0.3, forward=0.6))  # backward 0.4, communication 0.5
    assert outcome.rows[2].verdict == "-"
    assert "Backward was shorter than communication: a share of 80 % is not asked." in outcome.notes


def test_a_slower_step_than_theirs_misses_its_bar():
    assert bench_overlap.outcome(found(0.4)).rows[0].verdict == "missed"


def test_without_two_nodes_it_says_so_and_why(monkeypatch, tmp_path):
    monkeypatch.setattr(two_nodes.os, "geteuid", lambda: 1000)
    outcome = bench_overlap.run(quick=True)
    assert outcome.rows == [] and outcome.missed == []
    assert outcome.notes == ["Not run: two nodes need network namespaces, and these need root."]
    assert "Not run: two nodes need" in report.as_markdown(
        {"overlap": outcome}, report.machine(), quick=True
    )
    outcome.drawing.save(tmp_path / "overlap.png")
    assert (tmp_path / "overlap.png").stat().st_size > 0
