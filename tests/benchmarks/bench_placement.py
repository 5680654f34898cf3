"""The same plan with its mesh in other orders over two nodes, predicted and measured.

    8 ranks, pp = dp = tp = 2, two nodes of 4      crosses the slow link
    one node                                       nothing
    stages across       pp dp tp                   activations of a micro-batch, and their gradients
    data ranks across   dp pp tp                   gradients, once per step
    tensor ranks across tp pp dp                   4 all-reduces of an activation in every layer

    4 ranks, dp = tp = 2, two nodes of 2           one node; data ranks across; tensor ranks across

The real Hybrid, messages and gradients, on a GPT whose products wait (lib/hybrid/paced.py); the
link is lib/collectives/slow_link.py's. Predicted by lib/cost/placement.py from the step in one
node, where no message is slow, and from what the link is told: so all that the link adds is
foretold, and nothing fitted.

Each round runs every placement once, and its own step in one node foretells the others. Ours: how
far measured and predicted are apart; theirs: predicted. The control is another round's prediction
against this one's.
"""

import numpy as np
from matplotlib.figure import Figure

from lib import launch, plots
from lib.cost.placement import compute_of, links_of, placed_step
from lib.hybrid.paced import placed_steps
from lib.training.model import Shape
from tests.benchmarks import report
from tests.benchmarks.measure import ROUNDS, Bar, compare
from tests.benchmarks.rounds import where

SHAPE = Shape(vocab_size=32, seq_len=16, n_layers=2, hidden=64, n_heads=4)
M, MICRO_BATCH = 4, 4  # micro-batches of a pipeline, rows of one: activations of 16 KB
# seconds of a layer's products for one micro-batch on one rank alone, forward, backward
COMPUTE = 30e-3, 60e-3
LINK = (8e-3, 1 / 3e6)  # seconds per message, seconds per byte of a node's card
INSIDE = (0.0, 0.0)  # what messages take there is in the step of one node
ONE, STAGES, DATA, TENSOR = "one node", "stages across", "data ranks across", "tensor ranks across"


PLACEMENTS = {  # {ranks: {name: (sizes, slowest axis first; ranks in a node)}}
    8: {
        ONE: ({"pp": 2, "dp": 2, "tp": 2}, 8),
        STAGES: ({"pp": 2, "dp": 2, "tp": 2}, 4),
        DATA: ({"dp": 2, "pp": 2, "tp": 2}, 4),
        TENSOR: ({"tp": 2, "pp": 2, "dp": 2}, 4),
    },
    4: {
        ONE: ({"pp": 1, "dp": 2, "tp": 2}, 4),
        DATA: ({"pp": 1, "dp": 2, "tp": 2}, 2),
        TENSOR: ({"pp": 1, "tp": 2, "dp": 2}, 2),
    },
}
WITHIN = Bar(
    0.2, "The formula chooses a placement: at 20 % off it still tells which axis must not cross."
)


def run(quick):
    return outcome(*measured([8, 4], 3 if quick else ROUNDS))


def measured(worlds, rounds):
    """({ranks: {name: (rounds,) seconds of a step}}, what they ran on)"""
    found, places = {}, []
    for N in worlds:
        timeout = 600 + 20 * rounds
        seconds, place = launch.capture(
            on_ranks, PLACEMENTS[N], rounds, nproc=N, timeout=timeout, ledger=False
        )[0]
        found[N] = {name: np.array(each) for name, each in seconds.items()}
        places.append(place)
    return found, "; ".join(dict.fromkeys(places))


def on_ranks(placements, rounds):
    """{name: [seconds of each round]}, and what this rank ran on."""
    return placed_steps(placements, SHAPE, rows(), MICRO_BATCH, COMPUTE, LINK, rounds), where()


def rows():
    """Of the whole batch: dp = 2 in every placement."""
    return 2 * M * MICRO_BATCH


def predicted(sizes, ranks_per_node, one_node):
    """{part: seconds} of a step, from the step in one node."""
    compute = compute_of(one_node, SHAPE.n_layers, sizes, M)
    return placed_step(
        SHAPE, sizes, M, MICRO_BATCH, compute, links_of(sizes, ranks_per_node, INSIDE, LINK)
    )


def outcome(found, place):
    """What the times of `measured` say."""
    lines, cells, data = [], [], {}
    for N, of_each in found.items():
        for name, lasted in of_each.items():
            of_rounds = [predicted(*PLACEMENTS[N][name], one_node) for one_node in of_each[ONE]]
            parts = {part: np.median([each[part] for each in of_rounds]) for part in of_rounds[0]}
            said = np.array([sum(each.values()) for each in of_rounds])
            data[N, name] = {"measured": lasted, "predicted": parts}
            if name != ONE:  # which is where the prediction comes from
                lines.append(
                    report.Row(
                        name,
                        N,
                        "paced",
                        compare(abs(lasted - said), said, np.roll(said, 1)),
                        WITHIN,
                    )
                )
            times = [report.duration(np.median(each)) for each in (lasted, said)]
            split = [report.duration(seconds) if seconds else "-" for seconds in parts.values()]
            cells.append([str(N), name, *times, f"{np.median(lasted / said):.3f}", *split])
    header = ["ranks", "placement", "measured", "predicted", "measured / predicted", *parts]
    table = report.Table(
        "A step (medians over the rounds), and what it is predicted to consist of", header, cells
    )
    alpha, beta = LINK
    notes = [
        "; ".join(f"{N} ranks: {in_order(N, of_each)}" for N, of_each in found.items()) + ".",
        f"GPT of {SHAPE.n_layers} layers of {SHAPE.hidden}, {M} micro-batches, activations of "
        f"{report.size(4 * MICRO_BATCH * SHAPE.seq_len * SHAPE.hidden)}; a layer's products wait "
        f"{report.duration(sum(COMPUTE))} / tp. The link: {report.duration(alpha)} a message, "
        f"{1e-6 / beta:g} MB/s.",
    ]
    return report.Outcome(place, draw(data), lines, [table], notes, data)


def in_order(N, of_each):
    """In how many rounds the placements were as fast, one after the other, as the medians
    are predicted."""
    one_node = np.median(of_each[ONE])
    expected = sorted(
        of_each, key=lambda name: sum(predicted(*PLACEMENTS[N][name], one_node).values())
    )
    times = np.array([of_each[name] for name in expected])  # (placements, rounds)
    right = int((np.diff(times, axis=0) > 0).all(0).sum())
    return f"{' < '.join(expected)} in {right} of {times.shape[1]} rounds"


@plots.styled
def draw(data):
    """A bar per placement, measured; what it is predicted to consist of, above it."""
    figure = Figure(figsize=(8, 3.6))
    axes = figure.add_subplot()
    colors = {"pipeline": plots.OP_COLOR["F"], "tensor": plots.RANK_COLORS[0],
              "tied": plots.RANK_COLORS[2],
              "gradients": plots.RANK_COLORS[1]}  # fmt: skip
    for lane, each in enumerate(data.values()):
        begin = 0.0
        for part, seconds in each["predicted"].items():
            axes.barh(lane - 0.2, 1e3 * seconds, 0.34, left=1e3 * begin, color=colors[part])
            begin += seconds
        lasted = 1e3 * np.median(each["measured"])
        axes.barh(lane + 0.2, lasted, 0.34, color=plots.FAINT)
        axes.text(lasted, lane + 0.2, f" {lasted:.0f} ms", va="center", size=9)
        axes.text(1e3 * begin, lane - 0.2, f" {1e3 * begin:.0f} ms", va="center", size=9)
    axes.set_yticks(range(len(data)), [f"{N} ranks, {name}" for N, name in data])
    axes.set(ylim=(len(data) - 0.4, -0.6), xlabel="time of a step (ms)")
    axes.tick_params(axis="y", length=0)
    for part, color in colors.items():
        axes.barh([0], [0], color=color, label=part)
    axes.barh([0], [0], color=plots.FAINT, label="measured")
    axes.legend(frameon=False, fontsize=9, loc="upper right")
    off = max(
        abs(np.median(each["measured"]) / sum(each["predicted"].values()) - 1)
        for each in data.values()
    )
    return plots.finish(
        figure,
        f"Who crosses the slow link decides the step; predicted at most {off:.0%} off",
        "Above: what the formula says a step consists of. Below: the step of paced ranks, median.",
        "Step seconds, predicted and measured: " + "; ".join(
            f"{N} ranks, {name}: {sum(each['predicted'].values()):.3f} and "
            f"{np.median(each['measured']):.3f}"
            for (N, name), each in data.items()
        ) + ".",
    )  # fmt: skip
