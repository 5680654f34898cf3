"""Pipelines on paced ranks take as long as simulated, within 5 %, over loopback and a slow link.

    measured   first start to last end of all ranks' bars,
               on 4 ranks that sleep instead of computing
    simulated  the same list, from the same run's mean F, B, I, W and message times

A paced rank (lib/measuring/paced.py) leaves the cores to the others, so a bubble lasts as long as
it would on a device of its own. Each round runs every case once; its own times foretell it, so
nothing is fitted over rounds. The control is another round's simulation against this one's: how
much the times themselves change from run to run.

What may differ: actions of one kind that are not equally long, messages that meet, the executor
between two actions.
"""

import contextlib
from typing import NamedTuple

import numpy as np

from lib import launch, plots
from lib.collectives.slow_link import slow_link
from lib.pipeline import gpipe, interleaved, one_f_one_b, recorded, simulate, times_of, zb_h1
from lib.pipeline.links import connect
from lib.pipeline.paced_run import run_paced
from tests.benchmarks import report
from tests.benchmarks.measure import ROUNDS, Bar, compare
from tests.benchmarks.rounds import where

P, M = 4, 8
ROWS = 256  # of a micro-batch: messages of 64 KB
LINK = (2e-3, 32e6)  # seconds per message, bytes per second: 4 ms for a message
WITHIN = Bar(
    0.05,
    "A simulation that leaves out more than 5 % of a run would foretell no bubble worth avoiding.",
)


class Case(NamedTuple):
    """A schedule, the seconds that its stages are told, and the link."""

    schedule: list
    times: dict
    over: str  # "loopback" or "slow link"


EQUAL, HALVES = {"F": 8e-3, "B": 16e-3}, {"F": 8e-3, "I": 8e-3, "W": 8e-3}
CASES = {
    "GPipe": Case(gpipe(P, M), EQUAL, "loopback"),
    "1F1B": Case(one_f_one_b(P, M), EQUAL, "loopback"),
    "1F1B, unequal stages": Case(
        one_f_one_b(P, M),
        {"F": [4e-3, 8e-3, 12e-3, 6e-3], "B": [8e-3, 16e-3, 24e-3, 12e-3]},
        "loopback",
    ),
    "interleaved, v = 2": Case(interleaved(P, M, 2), {"F": 4e-3, "B": 8e-3}, "loopback"),
    "ZB-H1": Case(zb_h1(P, M), HALVES, "loopback"),
    "1F1B over a link": Case(one_f_one_b(P, M), EQUAL, "slow link"),
    "interleaved over a link": Case(interleaved(P, M, 2), {"F": 4e-3, "B": 8e-3}, "slow link"),
    "ZB-H1 over a link": Case(zb_h1(P, M), HALVES, "slow link"),
}


def run(quick):
    return outcome(*measured(CASES, 3 if quick else ROUNDS))


def measured(cases, rounds):
    """({case: [all ranks' bars of round 0, 1, ...]}, what they ran on)"""
    ranks = launch.capture(
        on_ranks, cases, rounds, nproc=P, timeout=600 + 10 * rounds, ledger=False
    )
    of_round = lambda name, i: [bar for bars, _ in ranks for bar in bars[name][i]]
    return {name: [of_round(name, i) for i in range(rounds)] for name in cases}, ranks[0][1]


def on_ranks(cases, rounds):
    """{case: [this rank's bars of each round]}, and what it ran on."""
    links, bars = connect(), {name: [] for name in cases}
    for _ in range(rounds):
        for name, (schedule, times, over) in cases.items():
            with slow_link(1, *LINK) if over == "slow link" else contextlib.nullcontext():
                bars[name].append(run_paced(schedule, times, links, ROWS))
    return bars, where()


def outcome(bars, place):
    """What the bars of `measured` say."""
    rows, cells, data = [], [], {}
    for name, rounds in bars.items():
        runs = [recorded(every) for every in rounds]
        found = [times_of(every) for every in rounds]
        foretold = [simulate(run.schedule, *times) for run, times in zip(runs, found, strict=True)]
        lasted, said = (np.array([each.makespan for each in some]) for some in (runs, foretold))
        rows.append(
            report.Row(
                name, P, "paced", compare(abs(lasted - said), said, np.roll(said, 1)), WITHIN
            )
        )
        data[name] = {"measured": lasted, "simulated": said, "times": found}
        told = ", ".join(f"{kind} {ms(times[kind] for times, _ in found)}" for kind in found[0][0])
        ends = [
            report.duration(np.median(lasted)),
            report.duration(np.median(said)),
            f"{np.median(lasted / said):.3f}",
        ]
        bubbles = [f"{np.median([each.bubble for each in some]):.1%}" for some in (runs, foretold)]
        cells.append([name, told, ms(message for _, message in found), *ends, *bubbles])
    header = ["schedule", "measured times, ms", "message, ms", "measured", "simulated",
              "measured / simulated",
              "bubble", "simulated"]  # fmt: skip
    table = report.Table("A run and its simulation (medians over the rounds)", header, cells)
    notes = [
        f"{P} ranks, {M} micro-batches, messages of {ROWS * 256 // 1024} KB. Ours: how far "
        f"measured and simulated are apart; theirs: simulated. Control: the simulation of another "
        "round over this one's.",
    ]
    return report.Outcome(place, draw(bars), rows, [table], notes, data)


def ms(of_rounds):
    """The median over rounds of the mean over stages, in milliseconds."""
    return f"{1e3 * np.median([np.mean(times) for times in of_rounds]):.2f}"


def draw(bars):
    """The last case's run that lies in the middle of its rounds, over its simulation."""
    name = list(bars)[-1]
    by_length = sorted(bars[name], key=lambda every: recorded(every).makespan)
    every = by_length[len(by_length) // 2]
    foretold = simulate(recorded(every).schedule, *times_of(every))
    return plots.simulated_and_measured(
        foretold, every, note=f"{name}, {P} paced ranks, {M} micro-batches."
    )
