"""Lab 1's figures: the claim in the title is the one in the numbers, and the same data give
the same bytes."""

import numpy as np
import pytest
from figures import check_page

from lib import plots

FORWARD, BACKWARD = ("compute", "forward", 0.0, 0.01), ("compute", "backward", 0.01, 0.03)
AFTER = [
    FORWARD,
    BACKWARD,
    ("compute", "wait", 0.03, 0.05),
    ("network", "0", 0.03, 0.04),
    ("network", "1", 0.04, 0.05),
]
BESIDE = [
    FORWARD,
    BACKWARD,
    ("compute", "wait", 0.03, 0.04),
    ("network", "0", 0.02, 0.03),
    ("network", "1", 0.03, 0.04),
]
STEPS = {  # each rank begins a tenth of a millisecond after the one before
    name: [
        (r, lane, label, begin + r / 1e4, end + r / 1e4)
        for r in range(4)
        for lane, label, begin, end in spans
    ]
    for name, spans in (("after backward", AFTER), ("overlapped", BESIDE))
}
STAR = np.zeros((4, 4), dtype=np.int64)
STAR[0, 1:] = STAR[1:, 0] = 800_000
RING = np.roll(np.eye(4, dtype=np.int64) * 1_200_000, 1, axis=1)
RANKS = [1, 2, 4, 8]
THROUGHPUT = {
    "strong": {"slow": (RANKS, [10, 15, 12, 4])},
    "weak": {"slow": (RANKS, [10, 20, 36, 60])},
}
SHARE = {"slow": ([1, 4, 16], [0.9, 0.5, 0.1]), "fast": ([1, 4, 16], [0.5, 0.2, 0.05])}
FP16 = np.float16(1) + np.zeros(101, dtype=np.float16)
VALUES = {
    "fp32": 1 + 1e-4 * np.arange(101),
    "with a master": 1 + 1e-4 * np.arange(101),
    "fp16": FP16,
}
# 10 gradients that become 0, 20 subnormal, 70 normal.
GRADIENTS = np.concatenate(
    [np.full(10, 2.0**-27), np.full(20, -(2.0**-20)), np.full(70, 2.0**-10), np.zeros(5)]
)
LOSSES = [4.5, 3.5, 3.0]
FIGURES = {
    "step_timeline": lambda: plots.step_timeline(STEPS, note="Four ranks."),
    "one step": lambda: plots.step_timeline({"overlapped": STEPS["overlapped"]}),
    "server_traffic": lambda: plots.server_traffic(
        {"parameter server": STAR, "ring": RING},
        {"ring": [2_400_000] * 4},
        note="200,000 parameters.",
    ),
    "scaling": lambda: plots.scaling(THROUGHPUT, {"weak": {"slow": (RANKS, [10, 20, 38, 70])}}),
    "one panel": lambda: plots.scaling({}, {"weak": {"slow": (RANKS, [10, 20, 38, 70])}}),
    "share": lambda: plots.communication_share(SHARE, SHARE, {"slow": 8.0, "fast": 1000.0}),
    "underflow": lambda: plots.underflow(VALUES),
    "gradient_range": lambda: plots.gradient_range(GRADIENTS, 2.0**13),
    "loss_curves": lambda: plots.loss_curves(
        {
            "one process": ([0, 1, 2], LOSSES),
            "4 ranks": ([0, 1, 2], [y * (1 + 2e-6) for y in LOSSES]),
        },
        entropy=3.25,
    ),
    "other batches": lambda: plots.loss_curves(
        {"batch 8": ([0, 8, 16], LOSSES), "batch 16": ([0, 16], [4.5, 3.4])}, xlabel="examples"
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FIGURES)
def test_the_same_data_give_the_same_bytes_on_a_page_with_words(name):
    check_page(FIGURES[name](), FIGURES[name]())


@pytest.mark.usefixtures("words_only")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("step_timeline",
         ["Overlapped: 50% of communication hidden, 40.3 ms a step instead of 50.3 ms. "
          "Four ranks."]),
        ("step_timeline",
         ["after backward, 4 ranks: 50.3 ms, 20 ms of communication per rank, 0% of it hidden"]),
        ("one step", ["50% of the communication is hidden; the step takes 40.3 ms"]),
        ("server_traffic",
         ["Parameter server: rank 0's link carries 4.8 MB; ring: every rank's 2.4 MB"]),
        ("server_traffic",
         ["parameter server: rank 0 4,800,000, rank 1 1,600,000", "Predicted, ring: 2,400,000"]),
        ("scaling", ["On 8 ranks weak scaling keeps 75% of perfect, strong scaling 5%"]),
        ("scaling",
         ["strong, slow, measured: 1 times on 1, 1.5 times on 2, 1.2 times on 4, 0.4 times on 8"]),
        ("one panel",
         ["Weak scaling (slow) keeps 88% on 8 ranks", "weak, slow, predicted: 1 times on 1"]),
        ("share",
         ["over slow from 90% to 10%; over fast from 50% to 5% of the step",
          "slow: break-even at 8. fast"]),
        ("share", ["Outside the axis: fast at 1,000."]),
        ("underflow",
         ["fp16: after 100 updates the parameter has not moved",
          "with a master from 1 to 1.01, 100%"]),
        ("gradient_range", ["In fp16 30% of gradients lose digits or become 0; times 8,192, 0.0%"]),
        ("gradient_range",
         ["100 gradients", "10.00% become 0, 20.0% subnormal, 0.00% inf", "median 2^-10"]),
        ("loss_curves",
         ["2 runs, one curve: no loss differs by more than 2e-06 of its value",
          "entropy, 3.250 nats"]),
        ("other batches", ["batch 8 ends lowest, at 3.00; batch 16 at 3.40", "against examples"]),
    ],
)  # fmt: skip
def test_the_alt_text_holds_the_claim_and_the_numbers(name, words):
    for word in words:
        assert word in FIGURES[name]().alt


def test_hidden_is_what_runs_beside_compute_of_the_same_rank():
    assert plots.hidden_share(STEPS["after backward"]) == 0
    assert plots.hidden_share(STEPS["overlapped"]) == pytest.approx(0.5)
    # Another rank's backward hides nothing, and this rank's wait is no compute.
    apart = [
        (0, "network", "0", 0, 4),
        (0, "compute", "wait", 0, 4),
        (1, "compute", "backward", 0, 4),
    ]
    assert plots.hidden_share(apart) == 0
    assert (
        plots.hidden_share(
            [*apart, (0, "compute", "forward", 1, 2), (0, "compute", "backward", 2, 3)]
        )
        == 0.5
    )
    assert plots.hidden_share([(0, "compute", "forward", 0, 1)]) == 0


@pytest.mark.usefixtures("words_only")
def test_every_step_has_one_time_axis_that_begins_with_the_step():
    moved = {name: [(*s[:3], s[3] + 7, s[4] + 7) for s in spans] for name, spans in STEPS.items()}
    assert plots.step_timeline(moved).alt == plots.step_timeline(STEPS).alt


@pytest.mark.usefixtures("words_only")
def test_overflow_is_told_too():
    alt = plots.gradient_range(GRADIENTS, 2.0**27).alt
    assert "0.00% become 0, 0.0% subnormal, 70.00% inf" in alt


@pytest.mark.usefixtures("words_only")
def test_fp16s_edges_are_those_of_numpy():
    smallest = float(np.finfo(np.float16).smallest_subnormal)
    alt = plots.gradient_range([smallest, smallest / 2, np.finfo(np.float16).tiny, 1.0], 2.0).alt
    assert "25.00% become 0, 25.0% subnormal, 0.00% inf" in alt  # half the smallest rounds to 0


@pytest.mark.usefixtures("words_only")
def test_runs_that_part_are_not_called_equal():
    runs = {"a": ([0, 1], [4.0, 3.0]), "b": ([0, 1], [4.0, 3.1])}
    assert "a ends lowest, at 3.00; b at 3.10" in plots.loss_curves(runs).alt
    assert "differs by more than 0 of" in plots.loss_curves({"a": runs["a"], "c": runs["a"]}).alt


@pytest.mark.parametrize(
    ("draw", "says"),
    [
        (lambda: plots.step_timeline({}), "give 1 to 3 steps"),
        (lambda: plots.step_timeline({"a": []}), "'a': 0} spans"),
        (
            lambda: plots.step_timeline({"a": [(0, "gpu", "forward", 0, 1)]}),
            r"a: span \(0, 'gpu', .* compute, network",
        ),
        (
            lambda: plots.step_timeline({"a": [(0, "compute", "forward", 2, 1)]}),
            "an end that is not before its begin",
        ),
        (lambda: plots.server_traffic({}), "0 matrices of bytes"),
        (
            lambda: plots.server_traffic({"ring": np.ones((2, 3))}),
            r"ring: a traffic matrix is N x N.* \(2, 3\)",
        ),
        (
            lambda: plots.server_traffic({"ring": RING}, {"ring": [1]}),
            r"ring: \(1,\) predictions for 4 ranks",
        ),
        (lambda: plots.scaling({}, {}), "nothing to draw"),
        (
            lambda: plots.scaling({"weak": {"a": ([2, 4], [1, 2])}}, {}),
            "weak, a: begins with 2 ranks",
        ),
        (lambda: plots.scaling({"weak": {"a": ([1, 2], [1])}}, {}), r"weak, a: \(2,\) and \(1,\)"),
        (lambda: plots.communication_share({}, {}), "nothing to draw"),
        (
            lambda: plots.communication_share({"a": ([1], [7.0])}, {}),
            "a: shares from 7 to 7; a share is from 0 to 1",
        ),
        (lambda: plots.underflow({"fp32": [1, 2]}), r"give 2 to 8 lists of one length"),
        (
            lambda: plots.underflow({"fp32": [1, 1], "fp16": [1, 1]}),
            "fp32: 1 steps that move it by 0",
        ),
        (lambda: plots.gradient_range([0.0], 2.0), "0 gradients that are not zero, scale 2.0"),
        (lambda: plots.gradient_range([1.0], 1.0), "1 gradients that are not zero, scale 1.0"),
        (lambda: plots.loss_curves({"a": ([0], [1.0])}), "1 runs: 2 to 8"),
        (
            lambda: plots.loss_curves({"a": ([0], [float("nan")]), "b": ([0], [1.0])}),
            "a: loss nan cannot be drawn",
        ),
        (
            lambda: plots.loss_curves({"a": ([0, 1], [1.0]), "b": ([0], [1.0])}),
            r"a: x \(2,\) and losses \(1,\)",
        ),
    ],
)
def test_wrong_data_is_refused_with_its_numbers(draw, says):
    with pytest.raises(ValueError, match=says):
        draw()


def test_runs_next_to_their_baselines_say_how_many_leave_them():
    falls = np.linspace(4, 3, 8)
    runs = {"A": (falls, falls, 4), "B": (falls * 1.1, falls, 4), "C": (falls, falls, 4)}
    drawing = plots.against_baselines(runs)
    assert "1 of 3 runs leave the loss of a single process" in drawing.alt
    assert "B: differs from its baseline by at most 10.0%" in drawing.alt
    check_page(drawing, plots.against_baselines(runs))
    with pytest.raises(ValueError, match="1 runs: give 2 to 6"):
        plots.against_baselines({"A": runs["A"]})
    with pytest.raises(ValueError, match="D: losses and baseline must be finite"):
        plots.against_baselines({"C": runs["C"], "D": (falls[:2], falls, 4)})
