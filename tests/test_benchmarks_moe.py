"""The benchmark of experts: both sides do the same, theirs sends no more than ours, and what
differs is refused."""

from collections import Counter

import pytest
import torch

from lib import launch, ledger
from lib.moe import assign_slots, capacity, top_k_gate
from tests.benchmarks import bench_moe, report
from tests.benchmarks.bench_moe import sorting_and_einsum
from tests.benchmarks.moe_layers import Pair, Size, both_layers, check_equal

TINY = Size(n=24, D=8, F=16, E=8)


@pytest.mark.slow
def test_every_comparison_is_made_and_reported():
    outcome = bench_moe.measured([2], TINY, (4, 8), 2)
    assert [(row.what, row.ranks, str(row.bar)) for row in outcome.rows] == [
        ("sorting / einsum, 4 experts", 1, "at most 0.33"),
        ("sorting / einsum, 8 experts", 1, "at most 0.33"),
        ("dropless / slots, factor 2", 1, "at most 1"),
        *[("grouped_mm / torch's, forward and backward", 1, "None")]
        * bench_moe.torch_has_a_grouped_product(),
        ("layer in halves / plain, paced", 2, "at most 0.65"),
        ("expert-parallel layer", 2, "not slower"),
    ]
    assert all(
        (seconds > 0).all() and seconds.shape == (2,)
        for N in (1, 2, "paced")
        for seconds in outcome.data[N].values()
    )
    assert "expert-parallel layer" in report.as_text(outcome) and outcome.drawing.png.startswith(
        b"\x89PNG"
    )
    assert report.as_json("moe", outcome, report.machine(), quick=True)["data"]["2"]


def at_four_ranks():
    """On ranks: both layers agree, a wrong one is refused; the ledger has a step of each."""
    ours, theirs = both_layers(TINY)
    check_equal("the layer", ours, theirs)
    for name, side in {"ours": ours, "theirs": theirs}.items():
        ledger.mark(name)
        side.step()
        ledger.mark("")
    lacking = lambda: {
        name: g * (2 if "experts" in name else 1) for name, g in ours.found().items()
    }
    try:
        check_equal("twice", ours._replace(found=lacking), theirs)
    except RuntimeError as error:
        return str(error)


def test_at_four_ranks_both_layers_agree_and_move_the_same_rows():
    results = launch.capture(at_four_ranks, nproc=4, backend="gloo", timeout=120)
    for said in results:
        assert said.startswith("twice: experts.")
        assert said.endswith("is off by 1 of its largest element: nothing to time")
    theirs = results.ledger.section("theirs")
    # counts, and four exchanges of rows
    assert Counter(entry.op for entry in theirs.of(0)) == {"all_to_all_single": 5}
    ours = results.ledger.section("ours")
    assert Counter(entry.op for entry in ours.of(0)) == {"send": 5 * 3, "recv": 5 * 3}


def test_groups_and_slots_agree_and_half_of_the_slots_are_empty():
    check_equal("dropless", *bench_moe.dropless_and_slots(TINY))
    choice = bench_moe.even_choice(TINY)
    assert (
        torch.bincount(choice.experts.flatten()).tolist()
        == [TINY.n * bench_moe.K // TINY.E] * TINY.E
    )
    slots = TINY.E * capacity(TINY.n, TINY.E, bench_moe.K, bench_moe.SLOTS)
    assert slots == 2 * choice.experts.numel()


@pytest.mark.skipif(
    not bench_moe.torch_has_a_grouped_product(), reason="this torch has none for float32 here"
)
def test_our_grouped_product_and_torch_s_agree():
    check_equal("grouped_mm", *bench_moe.grouped_products(TINY))


@pytest.mark.parametrize("E", [4, 16])
def test_sorting_and_einsum_agree_drops_included(E):
    sorting, einsum = sorting_and_einsum(TINY, E)
    check_equal("sorting", sorting, einsum)
    choice = top_k_gate(bench_moe.numbers(2, TINY.n, E), bench_moe.K)  # as both were given
    kept = assign_slots(choice, E, capacity(TINY.n, E, bench_moe.K, bench_moe.FACTOR)).token
    assert len(kept) < TINY.n * bench_moe.K, "nothing dropped: not much of a test"


def test_equal_results_pass_and_others_are_refused():
    right = {"y": torch.tensor([[1.0, -2.0], [3.0, 4.0]]), "dx": torch.tensor([1e-6, 2e-6])}

    def side(found):
        return Pair(lambda: None, lambda: found)

    check_equal("x", side({name: t * (1 + 1e-6) for name, t in right.items()}), side(right))
    for name in right:
        with pytest.raises(
            RuntimeError, match=f"x: {name} is off by 1 of its largest element: nothing to time"
        ):
            check_equal("x", side(right | {name: right[name] * 2}), side(right))
    with pytest.raises(RuntimeError, match=r"x: \['dx'\] on one side only"):
        check_equal("x", side({"y": right["y"]}), side(right))
