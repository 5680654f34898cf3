"""Figures say in words what they show, store the same bytes again, and keep their colours
apart for every reader."""

import base64
import functools
import itertools
import json
import subprocess
import sys
from types import SimpleNamespace

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from test_plots_lab1 import STEPS
from test_plots_lab3 import LAYOUTS
from test_plots_lab4 import EVENTS

from lib import plots


def entry(rank, op, peer, posted, wait_from=None, wait_to=None, done=None, numel=10, tag=0):
    return SimpleNamespace(**locals())


def ring(world_size, rounds=1):
    """Every rank sends right and receives from the left; a round takes 3 ms."""
    out = []
    for k, r in itertools.product(range(rounds), range(world_size)):
        t = 0.003 * k + 0.0001 * r
        out.append(entry(r, "send", (r + 1) % world_size, t, t + 0.0002, 0.003 * k + 0.002))
        out.append(entry(r, "recv", (r - 1) % world_size, t, 0.003 * k + 0.002, 0.003 * k + 0.0025))
    return out


RING = np.roll(np.eye(4, dtype=np.int64) * 4_000_000, 1, axis=1)
FIGURES = {
    "loss": lambda: plots.loss_curve(
        [0, 1, 2], [4.6, 3.0, 2.0], 3.25, {"validation": ([0, 2], [4.6, 2.2])}
    ),
    "traffic": lambda: plots.traffic_matrix(RING, "bytes"),
    "timeline": lambda: plots.timeline(ring(4)),
    "waits": lambda: plots.waits_for({0: [2], 2: [1], 1: [0], 3: [0]}, {0: "recv, line 4"}),
    "rounds": lambda: plots.message_rounds(ring(4, rounds=3)),
}


FIGURES_OF_LABS = {  # {name in lib.plots: the data}
    "traffic_matrix": (RING.tolist(),),
    "four_ways": (),
    "topology": (),
    "step_timeline": (STEPS,),
    "ring_attention_work": (LAYOUTS,),
    "units_unsharded": (EVENTS, ["a", "b"]),
}


@functools.cache
def drawing_of(name):
    """Each once, for all tests that look at it."""
    return FIGURES[name]()


@pytest.mark.parametrize("name", FIGURES)
def test_the_same_data_give_the_same_bytes_whatever_a_readers_own_settings_and_these_are_kept(name):
    first = drawing_of(name)
    assert first.png.startswith(b"\x89PNG")
    assert b"Software" not in first.png and b"matplotlib" not in first.png  # no version in the file
    with matplotlib.rc_context(
        {"font.size": 22, "axes.facecolor": "black", "lines.linewidth": 9, "savefig.dpi": 30}
    ):
        assert FIGURES[name]().png == first.png
        assert matplotlib.rcParams["font.size"] == 22


@pytest.mark.slow
def test_another_process_gives_the_same_bytes():
    """Of figures of several labs."""
    code = f"""
import sys
from lib import plots
for name, given in {FIGURES_OF_LABS}.items():
    sys.stdout.buffer.write(getattr(plots, name)(*given).png)
"""
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, timeout=300
    ).stdout
    assert out == b"".join(
        getattr(plots, name)(*given).png for name, given in FIGURES_OF_LABS.items()
    )


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_fits_the_page_and_speaks(name):
    drawing = drawing_of(name)
    assert drawing.width <= 8 and drawing.height <= 4  # inches
    data, metadata = drawing._repr_mimebundle_()
    assert base64.b64decode(data["image/png"]) == drawing.png
    assert metadata["image/png"]["alt"] == data["text/plain"] == drawing.alt
    assert len(drawing.alt) > 80
    json.dumps([data, metadata])  # what a notebook file can hold


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "loss",
            ["training falls from 4.60 at step 0 to 2.00 at step 2", "validation", "3.25 nats"],
        ),
        ("traffic", ["0 to 1 4,000,000", "3 to 0 4,000,000", "only to the next, 4 MB each"]),
        ("timeline", ["8 ops on ranks 0, 1, 2, 3", "Waiting: rank 0 2.3 ms"]),
        ("waits", ["Deadlock: rank 0 waits for 2, 2 for 1, 1 for 0", "3 to 0"]),
        ("rounds", ["12 messages in 3 rounds", "Round 3: 0 to 1, 1 to 2, 2 to 3, 3 to 0"]),
    ],
)
def test_the_alt_text_holds_the_numbers(name, words):
    alt = drawing_of(name).alt
    for word in words:
        assert word in alt


def test_a_notebook_stores_the_alt_text():
    """Executed by IPython itself, as a kernel would."""
    from IPython.core.interactiveshell import InteractiveShell

    data, metadata = InteractiveShell.instance().display_formatter.format(drawing_of("traffic"))
    assert "image/png" in data
    assert metadata["image/png"]["alt"].startswith("Matrix of the bytes that each of 4 ranks")
    InteractiveShell.clear_instance()


def test_outside_a_notebook_a_figure_is_saved_or_told(tmp_path, capsys):
    drawing = drawing_of("waits")
    assert drawing.save(tmp_path / "waits.png").read_bytes() == drawing.png
    drawing.show()
    assert "Deadlock" in capsys.readouterr().out


def test_drawing_needs_no_torch():
    code = (
        "import sys, lib.plots; sys.exit('torch' in sys.modules or 'matplotlib.pyplot' in "
        "sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=300).returncode == 0


# --- colours --------------------------------------------------------------------------------------

# Machado, Oliveira & Fernandes 2009, "A physiologically-based model for simulation of color vision
# deficiency", severity 1.0, on linear RGB.
SEEN_BY = {
    "everyone": np.eye(3),
    "no green (deuteranopia)": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "no red (protanopia)": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "no blue (tritanopia)": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}


def linear(color):
    c = np.array(to_rgb(color))
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    """Linear RGB -> CIELAB, in which distance is roughly what eyes see: 2 can just
    be told apart."""
    to_xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    )
    x, y, z = (
        np.cbrt(v) if v > 0.008856 else 7.787 * v + 16 / 116
        for v in to_xyz @ rgb / [0.9505, 1, 1.089]
    )
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("reader", SEEN_BY)
def test_colours_stay_apart(reader):
    groups = (
        plots.RANK_COLORS,
        list(plots.OP_COLOR.values()),
        [plots.ALARM, plots.FAINT, plots.PAPER],
    )
    for colors in groups:
        seen = [lab(np.clip(SEEN_BY[reader] @ linear(c), 0, 1)) for c in colors]
        for (i, a), (j, b) in itertools.combinations(enumerate(seen), 2):
            assert np.linalg.norm(a - b) > 14, (colors[i], colors[j])
    assert len(plots.RANK_COLORS) == 8


def test_every_colour_shows_on_the_paper_and_text_on_every_colour():
    def contrast(a, b):
        light, dark = sorted((0.2126, 0.7152, 0.0722) @ linear(c) for c in (a, b))[::-1]
        return (light + 0.05) / (dark + 0.05)

    for rank in range(8):
        assert contrast(plots.rank_color(rank), plots.PAPER) > 1.9
        assert contrast(plots.readable(plots.rank_color(rank)), plots.PAPER) >= 4.5
    for color in [*plots.RANK_COLORS, *plots.OP_COLOR.values()]:
        assert contrast(plots.on_color(color), color) > 4.5, color
    assert contrast(plots.FAINT, plots.PAPER) > 4.5  # captions


def test_a_ranks_colour_is_its_own():
    assert len({plots.rank_color(r) for r in range(8)}) == 8
    assert plots.rank_color(9) == plots.rank_color(1)


# --- what the figures find out --------------------------------------------------------------------


@pytest.mark.usefixtures("words_only")
@pytest.mark.parametrize(
    ("matrix", "claim"),
    [
        (np.zeros((3, 3)), "Nothing was sent"),
        (RING, "A ring: a rank sends only to the next, 4 MB each"),
        (np.ones((4, 4)) - np.eye(4), "Every rank sends every other the same: 3 bytes each in all"),
        ([[0, 5, 5], [5, 0, 0], [5, 0, 0]], "A star: every message starts or ends at rank 0"),
        ([[0, 0, 30], [10, 0, 0], [5, 5, 0]], "Rank 0 sends most: 30 bytes, 60% of all"),
        ([[0, 12_345], [12_345, 0]], "Every rank sends every other the same: 12.3 kB each in all"),
    ],
)
def test_the_pattern_of_traffic_is_named(matrix, claim):
    assert plots.traffic_claim(np.array(matrix), "bytes") == claim
    assert claim in plots.traffic_matrix(matrix).alt


@pytest.mark.parametrize(
    ("edges", "cycle"),
    [
        ([(0, 1), (1, 2)], []),
        ([(0, 1), (1, 0)], [0, 1]),
        ([(3, 1), (1, 2), (2, 3), (0, 3)], [1, 2, 3]),
        ([(0, 1), (0, 2), (1, 3), (2, 3), (3, 2)], [2, 3]),
    ],
)
def test_a_cycle_is_found_where_there_is_one(edges, cycle):
    assert plots.find_cycle(edges) == cycle


@pytest.mark.usefixtures("words_only")
def test_without_a_cycle_the_culprit_is_named():
    assert "No cycle: all wait, in the end, for rank 2." in plots.waits_for({0: [2], 1: [2]}).alt


def test_messages_pair_in_order_per_peer_and_tag():
    sends = [entry(0, "send", 1, t, tag=tag) for t, tag in ((1, 7), (2, 8), (3, 7))]
    recvs = [entry(1, "recv", 0, t, tag=tag) for t, tag in ((1, 8), (2, 7), (3, 7))]
    assert plots.matched(sends + recvs) == [
        (sends[0], recvs[1]),
        (sends[1], recvs[0]),
        (sends[2], recvs[2]),
    ]


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_a_ring_has_one_round_per_exchange(world_size):
    panels = plots.rounds(ring(world_size, rounds=3))
    assert [[(e.rank, e.peer) for e in p] for p in panels] == [
        [(r, (r + 1) % world_size) for r in range(world_size)]
    ] * 3


def test_a_tree_has_as_many_rounds_as_levels_however_slow_a_rank_is():
    def message(src, dst, t):
        return [entry(src, "send", dst, t, t, t + 1), entry(dst, "recv", src, 0, 0, t + 1)]

    slow = 50  # rank 2 passes the message on much later; it is still the second round
    panels = plots.rounds(message(0, 2, 0) + message(0, 1, 2) + message(2, 3, slow))
    assert [[(e.rank, e.peer) for e in p] for p in panels] == [[(0, 2)], [(0, 1), (2, 3)]]


@pytest.mark.usefixtures("words_only")
def test_a_timeline_tells_who_never_finished():
    stuck = [
        entry(0, "recv", 1, 0.0, 0.001),
        entry(1, "recv", 0, 0.0, 0.001),
        entry(2, "all_reduce", None, 0, 0, 0.002),
    ]
    assert "Ranks 0, 1 never finished waiting" in plots.timeline(stuck).alt


@pytest.mark.usefixtures("words_only")
def test_a_timeline_of_compute_has_nobody_waiting():
    work = [entry(r, op, None, t, done=t + 0.001) for r in range(2) for t, op in enumerate("FBW")]
    assert "Waiting: rank 0 0 ms, rank 1 0 ms" in plots.timeline(work).alt


def test_labels_move_apart_and_keep_their_order():
    out = plots.spread([2.0, 1.99, 5.0], gap=0.5)
    assert out[0] - out[1] == pytest.approx(0.5)
    assert out[2] == 5.0


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("draw", "says"),
    [
        (lambda: plots.traffic_matrix(np.ones((2, 3))), r"N x N, \[src, dst\]; got shape \(2, 3\)"),
        (lambda: plots.traffic_matrix([1, 2]), r"got shape \(2,\)"),
        (lambda: plots.traffic_matrix([[0, 1], [-4, 0]]), r"rank 1 cannot have sent -4 bytes"),
        (lambda: plots.loss_curve([0, 1], [3.0], 3.2), r"training: steps \(2,\) and losses \(1,\)"),
        (lambda: plots.loss_curve([], [], 3.2), r"training: steps \(0,\) and losses \(0,\)"),
        (
            lambda: plots.loss_curve([0, 1], [3.0, float("nan")], 3.2),
            r"training: loss nan .* did the run diverge",
        ),
        (
            lambda: plots.loss_curve([0], [3.0], 3.2, {"other": ([0], [1, 2])}),
            r"other: steps \(1,\) and losses \(2,\)",
        ),
        (lambda: plots.timeline([]), r"no entries to draw"),
        (lambda: plots.waits_for({}), r"waits \{\}: nobody waits"),
        (lambda: plots.waits_for({1: [1]}), r"rank 1 cannot wait for itself"),
        (lambda: plots.message_rounds([]), r"0 rounds of messages"),
        (
            lambda: plots.message_rounds(ring(2, rounds=13)),
            r"13 rounds of messages: between 1 and 12",
        ),
    ],
)
def test_wrong_data_is_refused_with_its_numbers(draw, says):
    with pytest.raises(ValueError, match=says):
        draw()
