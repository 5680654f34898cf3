"""Unequal devices on paced ranks: shares in proportion to speed, equal shares, and the ideal.

    batch     rows over data ranks  ideal: rows / sum of speeds
    pipeline  layers over stages    ideal: (m+p-1) costs / sum of speeds,
                                    as if layers could be cut anywhere

Paced ranks (lib/measuring/paced.py) wait as long as their rows or layers take at their speed;
gradients and messages are real. Each round runs every split once. Ours: the measured time. Theirs:
the ideal, which is computed, so its control is 1.
"""

import numpy as np
from matplotlib.figure import Figure

from lib import launch, plots
from lib.hybrid.unequal import paced_steps, shares, stages_by_speed
from lib.pipeline import one_f_one_b, simulate
from lib.pipeline.links import connect
from lib.pipeline.paced_run import run_paced
from tests.benchmarks import report
from tests.benchmarks.measure import ROUNDS, Bar, compare
from tests.benchmarks.rounds import where

SPEEDS = [5, 3, 2, 1]
B, ROW = 48, 40e-3  # rows of a batch; seconds of one at speed 1, there and back
LAYERS = [1, 2] * 11  # attention, MLP, attention ...: 33 in all
M, UNIT = 8, 20e-3  # micro-batches; seconds of a cost of 1 at speed 1, there and back
SPEED, EQUAL = "by speed", "equal"
OF_IDEAL = Bar(1.11, "At least 90 % of the throughput that the devices' speeds add up to.")


def run(quick):
    return outcome(*measured(3 if quick else ROUNDS))


def splits():
    """{(what, how): rows of each rank, or seconds of each stage for a micro-batch}: what
    the ranks are told."""
    N, seconds = (
        len(SPEEDS),
        lambda costs: [UNIT * cost / speed for cost, speed in zip(costs, SPEEDS, strict=True)],
    )
    costs = lambda stages: seconds([sum(LAYERS[i] for i in layers) for layers in stages])
    return {
        ("batch", SPEED): shares(B, SPEEDS),
        ("batch", EQUAL): shares(B, [1] * N),
        ("pipeline", SPEED): costs(stages_by_speed(LAYERS, SPEEDS).layers),
        ("pipeline", EQUAL): costs(stages_by_speed(LAYERS, [1] * N).layers),
    }


def ideals():
    """{what: seconds}"""
    total, p = sum(SPEEDS), len(SPEEDS)
    return {"batch": ROW * B / total, "pipeline": (M + p - 1) * UNIT * sum(LAYERS) / total}


def foretold():
    """{(what, how): seconds} of compute alone: of the slowest rank; of 1F1B, simulated."""
    told = splits()
    slowest = lambda how: ROW * max(b / v for b, v in zip(told["batch", how], SPEEDS, strict=True))
    pipeline = lambda times: (
        simulate(one_f_one_b(len(SPEEDS), M), forward_and_backward(times)).makespan
    )
    return {("batch", how): slowest(how) for how in (SPEED, EQUAL)} | {
        ("pipeline", how): pipeline(told["pipeline", how]) for how in (SPEED, EQUAL)
    }


def forward_and_backward(times):
    """Backward makes two products where forward makes one."""
    return {"F": [t / 3 for t in times], "B": [t * 2 / 3 for t in times]}


def measured(rounds):
    """({(what, how): (rounds,) seconds of a step}, what they ran on)"""
    ranks = launch.capture(
        on_ranks, rounds, nproc=len(SPEEDS), timeout=600 + 10 * rounds, ledger=False
    )
    found = {
        ("batch", how): np.max([seconds["batch", how] for seconds, _ in ranks], axis=0)
        for how in (SPEED, EQUAL)
    }
    for how in (SPEED, EQUAL):  # bars of all ranks share a clock
        spans = np.array([seconds["pipeline", how] for seconds, _ in ranks])  # (ranks, rounds, 2)
        found["pipeline", how] = spans[..., 1].max(0) - spans[..., 0].min(0)
    return found, ranks[0][1]


def on_ranks(rounds):
    """{(what, how): seconds of each round, or its first start and last end}, and what it ran on."""
    told, links, schedule = splits(), connect(), one_f_one_b(len(SPEEDS), M)
    found = {key: [] for key in told}
    paced_steps([told["batch", SPEED]], SPEEDS, 0.0, 1)  # everything has been used once
    for _ in range(rounds):
        pair = [("batch", SPEED), ("batch", EQUAL)]
        seconds, _ = paced_steps([told[key] for key in pair], SPEEDS, ROW, 1)
        for key, each in zip(pair, seconds, strict=True):
            found[key] += each
        for how in (SPEED, EQUAL):
            bars = run_paced(schedule, forward_and_backward(told["pipeline", how]), links)
            found["pipeline", how].append(
                (min(bar.start for bar in bars), max(bar.end for bar in bars))
            )
    return found, where()


def outcome(found, place):
    """What the times of `measured` say."""
    ideal, told, rows, cells = ideals(), foretold(), [], []
    for (what, how), lasted in found.items():
        theirs = np.full_like(lasted, ideal[what])
        bar = OF_IDEAL if how == SPEED else None
        rows.append(
            report.Row(f"{what}, {how}", len(SPEEDS), "paced", compare(lasted, theirs, theirs), bar)
        )
        reached = f"{ideal[what] / np.median(lasted):.1%}"
        allowed = f"{ideal[what] / told[what, how]:.1%}"
        cells.append(
            [
                what,
                how,
                report.duration(np.median(lasted)),
                report.duration(told[what, how]),
                reached,
                allowed,
            ]
        )
    header = [
        "what",
        "split",
        "measured",
        "compute alone",
        "of the ideal throughput",
        "that the split allows",
    ]
    table = report.Table("A step (medians over the rounds)", header, cells)
    notes = [
        f"Speeds {SPEEDS}; {B} rows of {report.duration(ROW)} at speed 1, or {len(LAYERS)} layers "
        f"of cost 1 and 2 in {len(SPEEDS)} stages and {M} micro-batches, {report.duration(UNIT)} a "
        f"cost at speed 1.",
        "The pipeline's ideal has 1F1B's bubble: it is the same for every split.",
    ]
    return report.Outcome(
        place, draw(found), rows, [table], notes, {"seconds": found, "ideal": ideal}
    )


@plots.styled
def draw(found):
    """Throughput as a share of the ideal, a bar for each split."""
    ideal = ideals()
    share = {key: ideal[key[0]] / np.median(lasted) for key, lasted in found.items()}
    figure = Figure(figsize=(8, 2.6))
    axes = figure.add_subplot()
    for lane, ((_, how), value) in enumerate(share.items()):
        axes.barh(lane, value, 0.6, color=plots.RANK_COLORS[0] if how == SPEED else plots.FAINT)
        axes.text(value + 0.01, lane, f"{value:.0%}", va="center")
    axes.axvline(0.9, color=plots.RANK_COLORS[1], lw=0.8, ls="--")
    axes.set_yticks(range(len(share)), [f"{what}, {how}" for what, how in share])
    axes.set(
        ylim=(len(share) - 0.4, -0.6),
        xlim=(0, 1.1),
        xlabel="throughput / what the speeds add up to",
    )
    low, high = (
        pick(value for (_, how), value in share.items() if how == SPEED) for pick in (min, max)
    )
    equal = max(value for (_, how), value in share.items() if how == EQUAL)
    return plots.finish(
        figure,
        f"Shares by speed reach {low:.0%} to {high:.0%} of the ideal, equal ones at most "
        f"{equal:.0%}",
        f"{len(SPEEDS)} paced ranks of speeds {', '.join(map(str, SPEEDS))}. Dashed: the bar, 90 "
        f"%.",
        "Throughput over the ideal: "
        + "; ".join(f"{what}, {how}: {v:.0%}" for (what, how), v in share.items())
        + ".",
    )
