"""launch.run against torchrun's command line: how long until 4 ranks have met and left.

    theirs  `torchrun --standalone --nproc-per-node 4 meet.py`, from the command to its end
    warm    launch.run in a process that has launched before, as for every cell of a notebook after
            the first
    fresh   the same on new ranks, as after a failure
    first   launch.run in a fresh process that has imported lib, from the call to its return

All of them join a gloo group of 4, pass a barrier, and leave. torchrun's ranks each import torch;
ours are forked from a server that has imported it once, which the first launch has to wait for, and
warm ones are there already. The ledger stays on, as it is for a student. gloo on any machine: what
is compared is the start of processes, not of CUDA.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np
import torch.distributed as dist
from matplotlib.figure import Figure

from lib import launch, plots
from lib.measuring.rounds import interleave
from tests.benchmarks import report
from tests.benchmarks.measure import Bar, compare

RANKS = 4
ROUNDS = 9  # a round takes some 15 s; ratios of 0.003 and 0.5 need no more
BARS = {
    "warm": Bar(
        0.005, "A cell on ranks has to feel like a cell: milliseconds against several seconds."
    ),
    "fresh": None,  # shown, not judged
    "first": Bar(
        0.5, "torch is imported once, by the server, not by each rank and by torchrun itself."
    ),
}
AT_MOST = {4: 0.020, 8: 0.040}  # seconds of a warm run
SCRIPT = """\
import torch.distributed as dist

dist.init_process_group("gloo")
dist.barrier()
dist.destroy_process_group()
"""
FIRST = f"""\
import time
import torch.distributed as dist
from lib import launch

def meet():
    dist.barrier()

begin = time.perf_counter()
launch.capture(meet, nproc={RANKS}, backend="gloo")
print(time.perf_counter() - begin)
"""


def run(quick):
    launch.capture(meet, nproc=RANKS, backend="gloo")  # from here on a launch is a warm one
    with tempfile.TemporaryDirectory() as folder:
        script = pathlib.Path(folder) / "meet.py"
        script.write_text(SCRIPT)
        theirs = lambda: torchrun(script)
        sides = {"warm": warm, "warm of 8": lambda: warm(8), "fresh": fresh, "first": first}
        sides |= {"theirs": theirs, "again": theirs}
        seconds = interleave(list(sides.values()), rounds=2 if quick else ROUNDS)
    times = dict(zip(sides, seconds.T, strict=True))
    rows = [
        report.Row(
            f"launch.run, {which}",
            RANKS,
            "-",
            compare(times[which], times["theirs"], times["again"]),
            bar,
        )
        for which, bar in BARS.items()
    ]
    notes = [
        "torchrun's time includes its own interpreter and import of torch. The first launch's does "
        "not: the kernel that calls it has imported lib before; what that takes is paid once, when "
        "the notebook starts."
    ]
    medians = {4: float(np.median(times["warm"])), 8: float(np.median(times["warm of 8"]))}
    table = report.Table(
        "A warm run", ["ranks", "median", "at most"],
        [[str(n), report.duration(medians[n]), report.duration(AT_MOST[n])] for n in AT_MOST],
    )  # fmt: skip
    return report.Outcome("gloo", draw(times, rows), rows, [table], notes, data=times)


def meet():
    dist.barrier()


def warm(ranks=RANKS, fresh=False):
    """The fifth of five runs, one after the other."""
    for _ in range(5):
        begin = time.perf_counter()
        launch.capture(meet, nproc=ranks, backend="gloo", fresh=fresh)
        seconds = time.perf_counter() - begin
    return seconds


def fresh():
    return warm(fresh=True)


def first():
    done = subprocess.run(
        [sys.executable, "-c", FIRST], capture_output=True, text=True, timeout=300
    )
    if done.returncode:
        raise RuntimeError(f"the fresh process failed:\n{done.stderr}")
    return float(done.stdout.split()[-1])


def torchrun(script):
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(RANKS),
        script,
    ]
    # torchrun sets one thread per rank and says so; set here, it need not.
    begin = time.perf_counter()
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    seconds = time.perf_counter() - begin
    if done.returncode:
        raise RuntimeError(f"torchrun failed:\n{done.stderr}")
    return seconds


@plots.styled
def draw(times, rows):
    """A lane per way to launch: every round a dot, the median a line."""
    figure = Figure(figsize=(8, 2.9))
    axes = figure.add_subplot()
    lanes = {
        "launch.run, warm": times["warm"],
        "launch.run, fresh": times["fresh"],
        "launch.run, first": times["first"],
        "torchrun": np.concatenate([times["theirs"], times["again"]]),
    }
    for lane, seconds in enumerate(lanes.values()):
        color, middle = plots.RANK_COLORS[(0, 2, 3, 1)[lane]], float(np.median(seconds))
        axes.barh(lane, middle, height=0.5, color=color, zorder=2)
        axes.plot(
            seconds,
            np.full(len(seconds), lane + 0.38),
            "|",
            color=plots.FAINT,
            ms=6,
            mew=1.2,
            zorder=3,
        )
        axes.text(middle, lane, f"  {report.duration(middle)}", va="center", weight="bold")
    theirs = float(np.median(lanes["torchrun"]))
    for lane, bar in enumerate(BARS.values()):
        if bar is not None:
            axes.plot(
                [bar.at_most * theirs] * 2,
                [lane - 0.4, lane + 0.3],
                color=plots.ALARM,
                lw=2,
                zorder=4,
            )
    axes.set_yticks(range(len(lanes)), list(lanes))
    axes.tick_params(axis="y", length=0)
    axes.set(
        ylim=(len(lanes) - 0.45, -0.55),
        xlim=(0, 1.12 * max(map(max, lanes.values()))),
        xlabel="seconds",
    )
    ratios = [f"{row.comparison.ratio.median:.2g}" for row in rows]
    return plots.finish(
        figure,
        f"A launch of {RANKS} ranks takes {ratios[0]} of torchrun's time when warm, {ratios[2]} "
        f"the first time",
        "Bars: medians; ticks below: single rounds. Red: at most this is asked, as a share of "
        "torchrun's median.",
        f"Bar chart of the seconds to launch {RANKS} ranks. "
        + " ".join(
            f"{name}: median {report.duration(float(np.median(s)))}." for name, s in lanes.items()
        ),
    )
