"""The benchmarks of tensor parallelism: both sides do what one process does, theirs sends no more
than it must, and a layer whose time its parts do not explain misses its bar."""

from collections import Counter

import numpy as np
import pytest
import torch

from lib import launch, ledger
from lib.training.model import Shape
from tests.benchmarks import bench_paced_tensor_parallel, bench_tensor_parallel, report
from tests.benchmarks.bench_paced_tensor_parallel import ACROSS, INSIDE, predicted
from tests.benchmarks.bench_tensor_parallel import Part, block_parts, check_equal, gpt_parts

TINY = Shape(vocab_size=16, seq_len=8, n_layers=1, hidden=16, n_heads=4)
LARGE = bench_tensor_parallel.SEQUENCES * TINY.seq_len * TINY.hidden  # elements of (B, T, D)

# --- both sides do the same, or nothing is timed --------------------------------------------------


@pytest.mark.slow
def test_on_ranks_every_way_is_timed_against_dtensors():
    outcome = bench_tensor_parallel.measured([2], TINY, 2)
    ways = ["tensor parallel", "sequence parallel", "sequence parallel, no sums"]
    assert [(row.what, row.ranks, str(row.bar)) for row in outcome.rows] == [
        (f"{what}, {way}", 2, "not slower") for what in ("block", "GPT") for way in ways
    ]
    assert all(
        (seconds > 0).all() and seconds.shape == (2,) for seconds in outcome.data[2].values()
    )
    assert "GPT, sequence parallel" in report.as_text(outcome) and outcome.drawing.png.startswith(
        b"\x89PNG"
    )
    assert report.as_json("tensor_parallel", outcome, report.machine(), quick=True)["data"]["2"]


def guarded_at_four_ranks():
    """On ranks: both sides pass; ours without its sums says what is wrong; the ledger has a step of
    theirs each way."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (4,))
    for build in (block_parts, gpt_parts):
        for sequence in (False, True):
            plain, ours, theirs = build(TINY, mesh, sequence)
            check_equal("ours", ours, plain)
            check_equal("theirs", theirs, plain)
            ledger.mark(f"{build.__name__} {sequence}")
            theirs.step()
            ledger.mark("")
    try:
        check_equal("without sums", ours._replace(sums=lambda: None), plain)
    except RuntimeError as error:
        return str(error)


@pytest.mark.slow
def test_at_four_ranks_both_sides_pass_and_theirs_sends_no_more_than_it_must():
    results = launch.capture(guarded_at_four_ranks, nproc=4, backend="gloo", timeout=600)
    assert all(said.startswith("without sums: not as in one process: ") for said in results)
    assert "norm1.weight: off by" in results[0] or "position.weight: off by" in results[0]

    def sent(section):  # those of activations: in tensor parallel also two of the loss, far smaller
        entries = [
            entry for entry in results.ledger.section(section).of(0) if entry.numel * 4 >= LARGE
        ]
        return Counter(entry.op for entry in entries)

    assert sent("block_parts False") == {"all_reduce": 4}
    # after the embedding, and before the head in backward
    assert sent("gpt_parts False") == {"all_reduce": 4 + 2}
    in_sequence = sent("block_parts True")
    assert sum(in_sequence.values()) == 8 and len(in_sequence) == 2, in_sequence


def test_equal_gradients_pass_and_others_are_refused():
    plain = {"w": torch.tensor([[1.0, -2.0], [3.0, 4.0]]), "b": torch.tensor([1e-6, 2e-6])}

    def part(found):
        return Part(lambda: None, lambda: None, lambda: found)

    check_equal("x", part({name: g * (1 + 1e-6) for name, g in plain.items()}), plain)
    for name in plain:
        with pytest.raises(
            RuntimeError, match=f"x: not as in one process: {name}: off by .*: nothing to time"
        ):
            check_equal("x", part(plain | {name: plain[name] * 2}), plain)
    with pytest.raises(RuntimeError, match=r"x: gradients of \['b'\] on one side only"):
        check_equal("x", part({"w": plain["w"]}), plain)


# --- a layer's price ------------------------------------------------------------------------------


def found_times(longer, rounds=9):
    """What `measured` would have found: rings as alpha = 1 ms and 40 MB/s make them, layers
    `longer` than predicted."""
    found = {}
    for tp in (1, 2, 4):
        rounds_of_ring, chunk = 2 * (tp - 1), 4 * 4 * 4 * 64 * 256 / tp
        short, long = rounds_of_ring * 1e-3, rounds_of_ring * (1e-3 + chunk / 40e6)
        seconds = {
            "layer": longer * predicted(tp, 1e-3, 1 / 40e6),
            "short ring": short,
            "long ring": long,
        }
        found[tp] = {
            (what, link): np.full(rounds, s)
            for what, s in seconds.items()
            for link in (INSIDE, ACROSS)
        }
    return found


@pytest.mark.parametrize(
    ("longer", "verdict"), [(1.0, "met"), (1.15, "met"), (0.75, "missed"), (1.3, "missed")]
)
def test_a_layer_that_its_parts_do_not_explain_misses_the_bar_of_20_percent(longer, verdict):
    outcome = bench_paced_tensor_parallel.outcome(found_times(longer), "gloo")
    assert [(row.what, row.ranks, row.verdict) for row in outcome.rows] == [
        (f"{link}, tp {tp}", tp, verdict) for link in (INSIDE, ACROSS) for tp in (1, 2, 4)
    ]
    assert outcome.rows[1].comparison.ratio.median == pytest.approx(abs(longer - 1))
    assert outcome.data[ACROSS, 4]["beta"] == pytest.approx(np.full(9, 1 / 40e6))
    assert "1 ms" in outcome.tables[0].cells[1] and "25 ms" in outcome.tables[0].cells[1]
    assert outcome.drawing.png.startswith(b"\x89PNG")


def test_across_nodes_a_layer_on_two_ranks_takes_longer_than_on_one():
    alpha, rate = bench_paced_tensor_parallel.LINK
    one, two = (predicted(tp, alpha, 1 / rate) for tp in (1, 2))
    assert one == pytest.approx(48e-3) and two == pytest.approx(
        24e-3 + 4 * 2 * (1e-3 + 131072 / 40e6)
    )
    assert two > one


def test_a_sum_that_is_not_sent_is_noticed():
    def check(layer):
        bench_paced_tensor_parallel.check_sums(layer, torch.ones(1, 2, 3), 2)

    times_256 = torch.nn.Linear(3, 3, bias=False)
    with torch.no_grad():
        times_256.weight.copy_(256 * torch.eye(3))
    check(times_256)
    with pytest.raises(RuntimeError, match="the result is 1, not 256: not every sum was sent"):
        check(torch.nn.Identity())


@pytest.mark.slow
def test_on_paced_ranks_every_link_is_measured_in_every_round():
    found, place = bench_paced_tensor_parallel.measured([1, 2], 2)
    assert place == "gloo" and found[1].keys() == found[2].keys()
    assert (found[1]["layer", INSIDE] >= 48e-3).all()  # it waits at least that long, on any machine
    assert (found[2]["layer", ACROSS] >= predicted(2, 1e-3, 1 / 40e6)).all()
    assert (found[2]["short ring", ACROSS] >= 2e-3).all()
    outcome = bench_paced_tensor_parallel.outcome(found, place)
    assert len(outcome.rows) == 4 and "at tp 2" in outcome.notes[1]
