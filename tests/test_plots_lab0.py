"""Walls, the four splits, cost curves and links: the claim in the title is the one
in the numbers."""

import itertools
import json

import numpy as np
import pytest
from figures import behind
from matplotlib.colors import to_hex
from test_plots import SEEN_BY, lab, linear

from lib import plots
from lib.cost.activations import activation_bytes
from lib.cost.published import DATA, table
from lib.cost.state import RECIPES
from lib.plots.before_after import whose
from lib.plots.curves import ALGORITHM_COLOR, crossings
from lib.plots.labels import size_in_words, time_in_words
from lib.plots.memory import PART_COLOR

SIZES = [1e3, 1e4, 1e5, 1e6, 1e7]
LATENCY = (SIZES, [1e-4 + s / 1e8 for s in SIZES])  # few rounds, many bytes
BANDWIDTH = (SIZES, [1e-3 + s / 1e9 for s in SIZES])  # many rounds, few bytes; they meet at 100 kB
GPT3 = {
    row["model"]: plots.memory_parts(
        row["parameters"],
        "mixed",
        activation_bytes(row["layers"], row["hidden"], row["heads"], row["seq"]),
    )
    for row in table("gpt3_models")
}
# rank r's chunk c is (c + 1) 10^r
X = [[10.0**rank * (chunk + 1) for chunk in range(3)] for rank in range(3)]
COLLECTIVES = [
    {
        "reduce": (X[rank], [111.0, 222.0, 333.0] if rank == 0 else []),
        "all-gather": (X[rank][rank : rank + 1], [1.0, 20.0, 300.0]),
        "broadcast, unfinished": (
            X[0] if rank == 0 else [0.0] * 3,
            X[0] if rank < 2 else [0.0] * 3,
        ),
    }
    for rank in range(3)
]
FIGURES = {
    "before and after": lambda: plots.before_after(COLLECTIVES),
    "walls": lambda: plots.walls(GPT3, {"A100 or H100": 80e9}),
    "four ways": lambda: plots.four_ways(),
    "curves": lambda: plots.cost_curves({"tree": LATENCY, "ring": BANDWIDTH}, {"ring": BANDWIDTH}),
    "curves at": lambda: plots.cost_curves(
        {}, {"tree": LATENCY, "ring": BANDWIDTH}, at=1e6, note="Two ranks."
    ),
    "topology": lambda: plots.topology(),
    "streams": lambda: plots.streams(),
    "NCCL": lambda: plots.nccl_all_reduce(),
}


@pytest.mark.parametrize("name", FIGURES)
def test_the_same_data_give_the_same_bytes_on_a_page_with_words(name):
    first = FIGURES[name]()
    assert first.png == FIGURES[name]().png and first.png.startswith(b"\x89PNG")
    assert first.width <= 8 and first.height <= 4  # inches
    assert len(first.alt) > 150
    json.dumps(first._repr_mimebundle_())
    assert repr(first) == first.alt  # in a terminal


@pytest.mark.usefixtures("words_only")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "walls",
            [
                "6.7B: 13 GB of weights, but 138 GB to train",
                "175B 3,075 GB",
                "Adam's moments 1,400",
            ],
        ),
        ("four ways", ["columns of w", "all-reduce", "T2 and T3"]),
        (
            "curves",
            [
                "tree is the fastest up to 100 kB, ring from 100 kB on",
                "ring, measured: 1 ms at 1 kB",
            ],
        ),
        ("curves at", ["At 1 MB ring is the fastest: 2 ms, tree 10 ms", "Two ranks."]),
        (
            "before and after",
            [
                "Alike on all ranks afterwards: all-gather. ",
                "rank 1 from 1.0 1.1 1.2 to none",
                "to 0.0+1.0+2.0 0.1+1.1+2.1",
                "rank 2 from nothing nothing nothing to nothing",
            ],
        ),
        (
            "topology",
            [
                "The best all-reduce here has 69 times the bus bandwidth of the slowest",
                "PCIe 5, inside a node, 8x RTX 5090: 28",
            ],
        ),
        (
            "streams",
            ["On NCCL, wait() stops only the current stream", "in wait() it waits for gloo"],
        ),
        ("NCCL", ["8 GPUs 1.51 times as long as 2: 1.75 by a ring's bytes", "A100, measured: "]),
    ],
)
def test_the_alt_text_holds_the_claim_and_the_numbers(name, words):
    for word in words:
        assert word in FIGURES[name]().alt


# --- memory ---------------------------------------------------------------------------------------


def test_parts_add_up_to_the_states_bytes():
    for precision, state in RECIPES.items():
        assert sum(plots.memory_parts(10, precision).values()) == 10 * state.total
    assert plots.memory_parts(10, "mixed", 7.0)["activations"] == 7.0
    assert "fp32 weights" not in plots.memory_parts(10, "fp32")


def test_activations_are_those_of_the_paper():
    # Korthikanti et al. 2022, figure 1: 22B, 48 layers, hidden 6144, 64 heads, 4 sequences of 2048,
    # tensor parallel 8 need nearly 5as/h = 107 against 34 elsewhere, so attention scores are three
    # quarters of a layer.
    one_layer = activation_bytes(1, 6144, 64, 2048, batch=4)
    assert one_layer == 2048 * 4 * 6144 * (34 + 5 * 64 * 2048 / 6144)
    assert 0.75 < 1 - 34 * 2048 * 4 * 6144 / one_layer < 0.76


@pytest.mark.usefixtures("words_only")
@pytest.mark.parametrize(
    ("memory", "claim"),
    [
        (4e12, "All of these fit in one X"),
        (100e9, "6.7B: 13 GB of weights, but 138 GB to train: too much for one X"),
        (1e9, "None of these fits in one X: the smallest takes 36 GB"),
    ],
)
def test_the_wall_is_where_the_numbers_say(memory, claim):
    assert claim in plots.walls(GPT3, {"X": memory}).alt


@pytest.mark.parametrize("reader", SEEN_BY)
def test_parts_stay_apart(reader):
    seen = [lab(np.clip(SEEN_BY[reader] @ linear(c), 0, 1)) for c in PART_COLOR.values()]
    for a, b in itertools.combinations(seen, 2):
        assert np.linalg.norm(a - b) > 14


# --- time -----------------------------------------------------------------------------------------


def test_a_crossing_is_where_the_formulas_cross():
    ((size, seconds, before, after),) = crossings({"tree": LATENCY, "ring": BANDWIDTH})
    assert (before, after) == ("tree", "ring")
    assert size == pytest.approx(1e5, rel=0.02) and seconds == pytest.approx(1.1e-3, rel=0.02)


def test_noise_makes_no_crossings():
    sizes = [2.0**k for k in range(10, 26)]
    noise = np.random.default_rng(0)
    tree = (sizes, [(1e-4 + s / 1e8) * noise.uniform(0.9, 1.3) for s in sizes])
    ring = (sizes, [(1e-3 + s / 1e9) * noise.uniform(0.9, 1.3) for s in sizes])
    same = (sizes, [(1e-3 + s / 1e9) * noise.uniform(0.95, 1.05) for s in sizes])
    assert [(before, after) for _, _, before, after in crossings({"tree": tree, "ring": ring})] == [
        ("tree", "ring")
    ]
    assert crossings({"ring": (sizes, [1e-3 + s / 1e9 for s in sizes]), "same": same}) == []


@pytest.mark.usefixtures("words_only")
def test_without_a_crossing_the_title_says_who_wins():
    slower = (SIZES, [2 * t for t in BANDWIDTH[1]])
    assert (
        "ring is the fastest at every size"
        in plots.cost_curves({"star": slower, "ring": BANDWIDTH}, {}).alt
    )


def test_an_algorithm_has_its_colour_whatever_it_is_beside(monkeypatch):
    def seen(measured, predicted):
        figure, *_ = behind(lambda: plots.cost_curves(measured, predicted), monkeypatch)
        lines = [line for line in figure.axes[0].lines if len(line.get_xdata()) == len(SIZES)]
        return [to_hex(line.get_color()) for line in lines]

    ring, tree = ALGORITHM_COLOR["ring"], ALGORITHM_COLOR["tree"]
    assert seen({"ring": BANDWIDTH}, {}) == [ring]
    assert seen({"tree": LATENCY, "ring": BANDWIDTH}, {}) == [tree, ring]
    predicted_first = seen(
        {"another": LATENCY, "ring": BANDWIDTH}, {"ring": BANDWIDTH, "tree": LATENCY}
    )
    assert predicted_first[:2] == [ring, tree] and predicted_first[3] == ring
    assert predicted_first[2] not in (ring, tree)
    assert (
        len(
            {
                ALGORITHM_COLOR[name]
                for name in ("star", "tree", "ring", "recursive doubling", "halving doubling")
            }
        )
        == 5
    )


def test_a_title_of_ones_own_marks_no_takeover(monkeypatch):
    curves = {"tree": LATENCY, "ring": BANDWIDTH}
    for title, marks in ((None, 1), ("Another claim", 0)):
        figure, *_ = behind(
            lambda title=title: plots.cost_curves(curves, {}, title=title), monkeypatch
        )
        assert sum(line.get_marker() == "D" for line in figure.axes[0].lines) == marks


def test_an_axis_of_few_decades_has_more_than_one_number(monkeypatch):
    flat = (SIZES, [0.02 + s / 1e8 for s in SIZES])
    figure, *_ = behind(lambda: plots.cost_curves({"ring": flat}, {}), monkeypatch)
    assert [tick.get_text() for tick in figure.axes[0].get_yticklabels()] == [
        "20 ms",
        "50 ms",
        "100 ms",
    ]


def test_a_marked_value_says_whose_it_is():
    assert [whose(v) for v in (0, 1, 30, 3333, 201.0)] == [
        {}, {0: 0}, {1: 2}, dict.fromkeys(range(4), 2), {0: 0, 2: 1},
    ]  # fmt: skip


def test_sizes_and_times_read_as_words():
    assert [size_in_words(n) for n in (1, 999, 1000, 65_536, 1e6, 2.5e10, 1e11)] == [
        "1 B", "1 kB", "1 kB", "66 kB", "1 MB", "25 GB", "100 GB",
    ]  # fmt: skip
    assert [time_in_words(t) for t in (1e-9, 3e-6, 1.23e-3, 0.5, 12)] == [
        "1 ns",
        "3 µs",
        "1.2 ms",
        "500 ms",
        "12 s",
    ]


# --- facts ----------------------------------------------------------------------------------------


def test_every_published_fact_has_its_source():
    for path in DATA.glob("*.csv"):
        rows = table(path.stem)
        assert rows and all(row["source"] for row in rows), path.name


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("draw", "says"),
    [
        (lambda: plots.walls({}, {"A100": 80e9}), "0 models and 1 GPUs"),
        (lambda: plots.walls(GPT3, {}), "5 models and 0 GPUs"),
        (
            lambda: plots.walls({"x": {"gradient": 1}}, {"A100": 1}),
            "parts gradient: give .* parts from weights, grad",
        ),
        (lambda: plots.before_after([{}, {}]), "0 collectives on 2 ranks: 1 to 9 on 2 to 4"),
        (
            lambda: plots.before_after([{"mean": ([1.0], [5.5])}] * 2),
            r"5.5 is no sum of marked values",
        ),
        (lambda: plots.cost_curves({}, {}), "0 algorithms: 1 to 8"),
        (
            lambda: plots.cost_curves({"ring": ([1, 2], [1.0])}, {}),
            r"ring: \(2,\) sizes and \(1,\) times",
        ),
        (lambda: plots.cost_curves({}, {"ring": ([], [])}), r"ring: \(0,\) sizes"),
        (
            lambda: plots.cost_curves({"ring": ([0, 1], [1, 1])}, {}),
            "ring: size 0 or time 1 has no logarithm",
        ),
        (lambda: table("prices"), "no table 'prices': there are gpt3_models, gpus, links"),
    ],
)
def test_wrong_data_is_refused_with_its_numbers(draw, says):
    with pytest.raises(ValueError, match=says):
        draw()
