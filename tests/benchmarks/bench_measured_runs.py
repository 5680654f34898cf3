"""The cost model against this machine: steps of our GPT on two cores, predicted from their parts.

    measured   Hybrid.backward + Hybrid.step on 2 ranks: dp = 2, tp = 2, pp = 2
    predicted  lib.cost.measured from a layer's forward and backward, what the first and the last
               stage do besides layers, a parameter's update, and the link's alpha and beta

Parts and steps are of the same round, so a slow second is slow for both; the parts are measured as
they occur, on both ranks at once (lib/hybrid/measured_runs.py). Nothing is fitted, and no step is
looked at to predict one. The control is another round's prediction against this one's.
"""

import numpy as np

from lib import launch, plots
from lib.cost.measured import Compute, measured_step
from lib.cost.plan import Plan
from lib.cost.shapes import shape
from lib.hybrid.measured_runs import measured_runs
from lib.training.model import Shape
from tests.benchmarks import report
from tests.benchmarks.measure import ROUNDS, Bar, compare
from tests.benchmarks.rounds import where

N = 2  # ranks, on two cores
# 4.8 million parameters
SHAPE = Shape(vocab_size=256, seq_len=128, n_layers=6, hidden=256, n_heads=4)
ROWS = 16  # of the whole batch
PLANS = {  # a mesh, and the rows of a micro-batch
    "dp 2": ({"dp": 2}, 8),
    "dp 2, 4 micro-batches": ({"dp": 2}, 2),
    "tp 2": ({"tp": 2}, 8),
    "tp 2, 8 micro-batches": ({"tp": 2}, 2),
    "pp 2, 4 micro-batches": ({"pp": 2}, 4),
    "pp 2, 8 micro-batches": ({"pp": 2}, 2),
}
WITHIN = Bar(
    0.15,
    "What a plan is chosen by has to be nearer to the truth than most plans are to each other.",
)


def run(quick):
    return outcome(*measured(SHAPE, ROWS, 3 if quick else ROUNDS))


def measured(shape, rows, rounds):
    """({plan: {"compute": (rounds, 5), "link": (rounds, 2), "step": (rounds,)}},
    what they ran on)"""
    found, place = launch.capture(
        on_ranks, shape, rows, rounds, nproc=N, timeout=600 + 30 * rounds, ledger=False
    )[0]
    return {
        name: {what: np.array(each) for what, each in times.items()}
        for name, times in found.items()
    }, place


def on_ranks(shape, rows, rounds):
    """What `measured_runs` finds, and what this rank ran on."""
    return measured_runs(PLANS, shape, rows, rounds), where()


def predicted(of, rows, name, found):
    """[{part: seconds} of each round], of a GPT of the Shape `of`."""
    sizes, b = PLANS[name]
    model = shape("own", of.n_layers, of.hidden, of.n_heads, of.vocab_size, of.seq_len)
    plan = Plan(rows, b, **sizes)
    parts = zip(found["compute"], found["link"], strict=True)
    return [measured_step(model, plan, Compute(*compute), link) for compute, link in parts]


def outcome(found, place, of=SHAPE, rows=ROWS):
    """What the times of `measured` say."""
    lines, cells, data = [], [], {}
    for name, times in found.items():
        parts, lasted = predicted(of, rows, name, times), times["step"]
        said = np.array([sum(each.values()) for each in parts])
        lines.append(
            report.Row(name, N, "-", compare(abs(lasted - said), said, np.roll(said, 1)), WITHIN)
        )
        split = {part: np.median([each[part] for each in parts]) for part in parts[0]}
        data[name] = {"measured": lasted, "predicted": said, "parts": split, **times}
        both = [report.duration(np.median(each)) for each in (lasted, said)]
        told = [report.duration(seconds) if seconds else "-" for seconds in split.values()]
        cells.append([name, *both, f"{np.median(lasted / said):.3f}", *told])
    header = ["plan", "measured", "predicted", "measured / predicted", *split]
    table = report.Table(
        "A step (medians over the rounds), and what it is predicted to consist of", header, cells
    )
    notes = [
        f"GPT of {of.n_layers} layers of {of.hidden}, {rows} rows of {of.seq_len} tokens, AdamW. "
        f"Ours: how far measured and predicted are apart; theirs: predicted.",
    ]
    return report.Outcome(place, draw(data), lines, [table], notes, data)


def draw(data):
    """A dot per plan and round."""
    worst = max(abs(np.median(each["predicted"] / each["measured"]) - 1) for each in data.values())
    title = f"Steps on this machine, predicted from their parts: medians at most {worst:.0%} off"
    runs = {name: (each["measured"], each["predicted"]) for name, each in data.items()}
    return plots.predicted_against_measured(runs, within=WITHIN.at_most, title=title)
