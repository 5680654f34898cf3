"""Overlap over a link of 1 Gbit/s: what share of a step's communication backward hides.

    compute         [ forward ][       backward       ]
    communication   [== the same buckets, nothing else ==]
    step            [ forward ][       backward       ][ exposed ]
                                   [= bucket =][= bucket =][= .. ]

    hidden = 1 - exposed / communication,  exposed = step - compute

Twice: a GPT that computes, and a paced one, that waits as long instead (lib/measuring/paced.py). On
two cores a rank's core is busy with backward, and whatever sends bytes wants a core too: what the
GPT's step shows beyond its compute is mostly that. A paced rank leaves the cores to the messages,
as a GPU
does: what its step shows is the order of things.

Two nodes with one rank each (tests/two_nodes.py), so that the cable is the only way, and each rank
has a core. Both sides of the formula in one run, in the same rounds, beside torch's
DistributedDataParallel. A step is bench_data_parallel.py's. The share is asked for where backward
lasts at least as long as communication, so the batch is made large enough for that: what does not
fit behind backward cannot be hidden.

The all-reduce is named, not left to the front door: its thresholds are measured over loopback,
where bytes cost cores. At 2 ranks it takes a tree there: all of it one way, then all of it back, so
a cable stands half idle and needs twice the time. Recursive doubling exchanges a bucket both ways
at once: at 2 ranks the ring's bytes, in fewer messages.
"""

import json
import pathlib
import sys
import tempfile
import time

import numpy as np
import torch
import torch.distributed as dist
from matplotlib.figure import Figure
from torch.nn.parallel import DistributedDataParallel

from lib import backend, collectives, plots
from lib.collectives import recursive_doubling_all_reduce
from lib.data_parallel import BucketedDataParallel, OverlappedDataParallel
from lib.measuring.paced import PacedLayer
from lib.measuring.rounds import interval
from lib.training.buckets import plan_buckets
from lib.training.model import GPT, cross_entropy
from tests import two_nodes
from tests.benchmarks import report
from tests.benchmarks.bench_data_parallel import SHAPE, batch, check_equal, gradients, size_of, step
from tests.benchmarks.measure import ROUNDS, Bar, compare
from tests.benchmarks.rounds import Side, timed, where

RATE = "1gbit"
CAPACITY = 5 * 2**20  # bytes: less than the default, for beside this link a message more is cheap
# bytes: torch's default. It cuts a little otherwise, but over this link bytes alone count
THEIR_CAPACITY = 25 * 2**20
LAYERS = 20  # of the paced model
# backward over communication, at least, when the batch is chosen: the rounds' own noise is on top
LONGER = 1.2
NOT_SLOWER = Bar(
    None,
    "The same bytes over the same link as torch's DistributedDataParallel, in buckets that "
    "overlap.",
)
HIDDEN = Bar(0.2, "At least 80 % of communication is hidden where backward lasts as long.")


def run(quick):
    if reason := two_nodes.available():
        return report.Outcome("no link", draw_reason(reason), notes=[f"Not run: {reason}."])
    return outcome(on_two_nodes(3 if quick else ROUNDS))


def outcome(found):
    """What the times of `on_ranks` say."""
    times = {side: np.array(seconds) for side, seconds in found["times"].items()}
    ours, theirs, compute, communication = (
        times[s] for s in ("ours", "theirs", "compute", "communication")
    )
    backward = compute - times["forward"]
    asked = np.median(backward) >= np.median(communication)
    paced = {
        side.removeprefix("paced "): times[side] for side in times if side.startswith("paced ")
    }
    size = size_of(SHAPE)
    rows = [
        report.Row("step, overlapped", 2, size, compare(ours, theirs, times["again"]), NOT_SLOWER),
        report.Row("step, bucketed", 2, size, compare(times["bucketed"], theirs, times["again"]),
                   None),
        report.Row(
            "exposed / communication", 2, size,
            compare(ours - compute, communication, times["communication again"]),
            HIDDEN if asked else None,
        ),
        report.Row("step, overlapped", 2, "paced", compare(paced["ours"], paced["theirs"],
            paced["again"]), NOT_SLOWER),
        report.Row(
            "exposed / communication", 2, "paced",
            compare(paced["ours"] - paced["compute"], paced["communication"],
                    paced["communication again"]), HIDDEN,
        ),
    ]  # fmt: skip
    shares = {
        "overlapped": interval(hidden(ours, compute, communication)),
        "torch's DistributedDataParallel": interval(
            hidden(theirs, compute, times["their communication"])
        ),
        "bucketed": interval(hidden(times["bucketed"], compute, communication)),
        "paced, overlapped": interval(
            hidden(paced["ours"], paced["compute"], paced["communication"])
        ),
        "paced, torch's": interval(
            hidden(paced["theirs"], paced["compute"], paced["communication"])
        ),
    }
    times |= {"backward": backward, "paced backward": np.array([found["paced backward"]])}
    median = {side: float(np.median(seconds)) for side, seconds in times.items()}
    notes = [
        f"Two nodes, one rank each, {RATE} each way; {found['sequences']} sequences of "
        f"{SHAPE.seq_len} tokens a rank.",
        "Exposed / communication: ours is the step's time without its compute, theirs the same "
        "buckets all-reduced with nothing beside; hidden is 1 - that ratio.",
    ]
    if not asked:
        notes.append("Backward was shorter than communication: a share of 80 % is not asked.")
    table = shares_table(median, shares)
    return report.Outcome(found["place"], draw(median, shares), rows, [table], notes, data=found)


def hidden(step, compute, communication):
    """The share of communication that a step does not show, round by round: 1 all, 0 none, below 0
    worse than none."""
    return 1 - (step - compute) / communication


def shares_table(median, shares):
    gpt, waiting = ("compute", "backward"), ("paced compute", "paced backward")
    sides = {
        "overlapped": ("ours", *gpt, "communication"),
        "torch's DistributedDataParallel": ("theirs", *gpt, "their communication"),
        "bucketed": ("bucketed", *gpt, "communication"),
        "paced, overlapped": ("paced ours", *waiting, "paced communication"),
        "paced, torch's": ("paced theirs", *waiting, "paced communication"),
    }
    cells = []
    for who, share in shares.items():
        seconds = [median[side] for side in sides[who]]
        cells.append([who, *map(report.duration, seconds), report.within(share)])
    header = [
        "step",
        "time",
        "without communication",
        "of that backward",
        "communication alone",
        "hidden [95 %]",
    ]
    return report.Table("The share of communication that is hidden", header, cells)


def on_two_nodes(rounds):
    """What rank 0 of `main` found."""
    with tempfile.TemporaryDirectory() as folder, two_nodes.two_nodes(RATE) as nodes:
        path = pathlib.Path(folder) / "found.json"
        ended = nodes.run(
            "-m", "tests.benchmarks.bench_overlap", path, rounds, timeout=120 + 60 * rounds
        )
        if any(node.code for node in ended):
            raise RuntimeError(
                "\n".join(f"node {i}:\n{node.output}" for i, node in enumerate(ended))
            )
        return json.loads(path.read_text())


# --- on the ranks ---------------------------------------------------------------------------------


def main(path, rounds):
    """On a rank, under torchrun. gloo on any machine: it is gloo's messages that
    the cable slows."""
    backend.join(backend.choose("gloo", 1))
    found = on_ranks(rounds)
    if dist.get_rank() == 0:
        pathlib.Path(path).write_text(json.dumps(report.plain(found)))
    dist.barrier()
    dist.destroy_process_group()


def on_ranks(rounds):
    """{"times": {side: (rounds,) seconds}, ...}, the same on every rank."""
    plain = GPT(SHAPE).to(backend.device())
    ours = OverlappedDataParallel(
        GPT(SHAPE).to(backend.device()), None, recursive_doubling_all_reduce, CAPACITY
    )
    bucketed = BucketedDataParallel(
        GPT(SHAPE).to(backend.device()), None, recursive_doubling_all_reduce, CAPACITY
    )
    theirs = DistributedDataParallel(GPT(SHAPE).to(backend.device()))
    tokens = batch(SHAPE, 1)
    for model in (ours, bucketed, theirs):
        step(model, tokens)
    for name, model in (("overlapped", ours), ("bucketed", bucketed)):
        check_equal(name, gradients(model), gradients(theirs))

    flats, their_flats = zeros(ours.buckets), zeros(plan_buckets(ours.trained(), THEIR_CAPACITY))
    alone, their_alone = Side(lambda: by_lib(flats)), Side(lambda: by_torch(their_flats))
    tokens = batch(SHAPE, sequences := long_enough(plain, alone))
    sides = {
        "ours": Side(lambda: step(ours, tokens)),
        "theirs": Side(lambda: step(theirs, tokens)),
        "again": Side(lambda: step(theirs, tokens)),
        "compute": Side(lambda: step(plain, tokens)),
        "forward": Side(lambda: forward(plain, tokens)),
        "communication": alone,
        "communication again": alone,
        "their communication": their_alone,
        "bucketed": Side(lambda: step(bucketed, tokens)),
    }
    paced_sides, paced_backward = paced(sum(p.numel() for p in plain.parameters()))
    times = timed(sides | paced_sides, rounds)
    return {
        "times": times,
        "paced backward": paced_backward,
        "sequences": sequences,
        "place": where(),
    }


def paced(n):
    """The sides of a model of LAYERS layers and n parameters that waits, and how long its
    backward waits."""
    layers = lambda seconds: torch.nn.Sequential(
        *(PacedLayer(n // LAYERS, seconds / 2 / LAYERS, seconds / LAYERS) for _ in range(LAYERS))
    ).to(backend.device())
    flats = zeros([[p] for p in layers(0).parameters()])
    alone = Side(lambda: by_lib(flats))
    seconds = LONGER * clock(alone.op)
    ours = OverlappedDataParallel(layers(seconds), None, recursive_doubling_all_reduce, CAPACITY)
    # the same buckets
    theirs = DistributedDataParallel(
        layers(seconds), bucket_cap_mb=ours.flat_buffers[0].nbytes / 2**20
    )
    plain = layers(seconds)

    def one(model):
        model.zero_grad()
        model(torch.ones(1, 1, device=backend.device())).sum().backward()
        if model is ours:
            ours.average_gradients()

    for model in (ours, theirs):
        one(model)
    check_equal("paced", gradients(ours), gradients(theirs))
    return {
        "paced ours": Side(lambda: one(ours)),
        "paced theirs": Side(lambda: one(theirs)),
        "paced again": Side(lambda: one(theirs)),
        "paced compute": Side(lambda: one(plain)),
        "paced communication": alone,
        "paced communication again": alone,
    }, seconds


def forward(model, tokens):
    return cross_entropy(model(tokens[:, :-1]), tokens[:, 1:])


def zeros(buckets):
    """A flat tensor per bucket; sums of zeros stay zero."""
    return [
        torch.zeros(sum(p.numel() for p in bucket), device=bucket[0].device) for bucket in buckets
    ]


def by_lib(flats):
    """The overlapped wrapper's buckets without its backward: all are ready at once."""
    for work in [collectives.start(recursive_doubling_all_reduce, flat) for flat in flats]:
        work.wait()


def by_torch(flats):
    for work in [dist.all_reduce(flat, async_op=True) for flat in flats]:
        work.wait()


def long_enough(model, communication):
    """How many sequences a rank needs for a backward that lasts LONGER times the
    communication; ranks agree."""
    needed = LONGER * clock(communication.op)
    for sequences in range(4, 65, 4):
        tokens = batch(SHAPE, sequences)
        whole, without = (
            clock(lambda t=tokens: step(model, t)),
            clock(lambda t=tokens: forward(model, t)),
        )
        if whole - without >= needed:
            return sequences
    raise RuntimeError(
        f"backward of {sequences} sequences is still shorter than {needed:.2g} s: the link is too "
        f"slow"
    )


def clock(op):
    """Seconds of a call on the slowest rank: the median of 3 after one to warm up."""
    seconds = []
    for _ in range(4):
        dist.barrier()
        begin = time.perf_counter()
        op()
        seconds.append(time.perf_counter() - begin)
    slowest = torch.tensor(seconds[1:], dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return slowest.median().item()


# --- the figure -----------------------------------------------------------------------------------


@plots.styled
def draw(median, shares):
    """A lane per way: forward, backward, and what of communication sticks out; at the bottom
    communication alone."""
    figure = Figure(figsize=(8, 3.2))
    axes = figure.add_subplot()
    lanes = {
        "bucketed": "bucketed",
        "overlapped": "ours",
        "torch's DistributedDataParallel": "theirs",
    }
    for lane, (who, side) in enumerate(lanes.items()):
        axes.barh(lane, median["forward"], height=0.55, color=plots.OP_COLOR["F"])
        axes.barh(
            lane, median["backward"], left=median["forward"], height=0.55, color=plots.OP_COLOR["B"]
        )
        exposed = median[side] - median["compute"]
        axes.barh(
            lane, exposed, left=median["compute"], height=0.55, color=plots.OP_COLOR["collective"]
        )
        at, said = max(median[side], median["compute"]), f"  {shares[who].median:.0%} hidden"
        axes.text(at, lane, said, va="center", weight="bold")
    alone, color = median["communication"], plots.OP_COLOR["collective"]
    axes.barh(
        len(lanes), alone, left=median["compute"] - alone, height=0.55, color=color, alpha=0.45
    )
    axes.set_yticks(range(len(lanes) + 1), [*lanes, "communication alone"])
    axes.tick_params(axis="y", length=0)
    for x, what in ((0.0, "forward"), (median["forward"], "backward")):
        axes.text(x, -0.33, f" {what}", va="bottom", color=plots.FAINT, size=9)
    axes.set(ylim=(len(lanes) + 0.5, -0.75), xlim=(0, 1.2 * max(median.values())), xlabel="seconds")
    say = "; ".join(f"{who}: {report.within(share)}" for who, share in shares.items())
    return plots.finish(
        figure,
        f"Overlap hides {shares['overlapped'].median:.0%} of the communication of a step over a "
        f"link of 1 Gbit/s",
        "Medians. Dark: what a step takes beyond its compute. The pale bar is what the same "
        "buckets take with nothing beside them; hidden is the part of it that does not stick out.",
        f"Bars of a step's forward, backward and exposed communication. Share hidden: {say}. "
        f"Communication alone: {report.duration(alone)}.",
    )


@plots.styled
def draw_reason(reason):
    figure = Figure(figsize=(8, 1.6))
    figure.add_subplot().set_axis_off()
    return plots.finish(
        figure, "Overlap over a slow link: not run", f"{reason}.", f"Not run: {reason}."
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
