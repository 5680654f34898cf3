"""ZeRO, stage by stage, against torch's ZeroRedundancyOptimizer and fully_shard.

    zero1, zero2  optimizer state sharded by elements, gradients too
    theirs        DistributedDataParallel with ZeroRedundancyOptimizer:
                  state sharded by whole parameters
    fsdp          a unit is gathered when it is needed                   a ladder: no bar
    prefetching   and while the unit before it computes
    theirs        fully_shard (FSDP2), which prefetches too
    muon          hidden matrices with Muon, each with an owner; the rest as zero1
    theirs        DistributedDataParallel; torch.optim.Muon of all matrices on every rank, and AdamW
                  of the rest

A step is zero_grad, forward, backward, averaging, AdamW. A GPT of 10.7 million parameters in
float32, over loopback, where there is little to hide: this is about overhead. For zero1 and zero2
also a GPT of 41,000 parameters, whose step is hardly anything else: what each parameter and each
message costs in Python. Before a clock runs, every side has to reach theirs' parameters in two
steps, or one of Muon, each parameter's.

How much of the gathers prefetching hides is another matter: for that, layers that wait instead of
computing, and a slow link. A forward pass without a graph does nothing but compute and gather:

    hidden = 1 - (prefetching - compute) / (fsdp - compute)
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from lib import backend, launch, plots
from lib.collectives.slow_link import slow_link
from lib.measuring.paced import PacedLayer
from lib.training.model import GPT, Shape, cross_entropy
from lib.zero import FSDP, Muon, PrefetchingFSDP, Zero1, Zero2
from tests.benchmarks import report
from tests.benchmarks.bench_data_parallel import batch, size_of
from tests.benchmarks.measure import ROUNDS, Bar, compare
from tests.benchmarks.ratios import ratios
from tests.benchmarks.rounds import Side, timed, where

# 10.7 million parameters
SHAPE = Shape(vocab_size=128, seq_len=64, n_layers=6, hidden=384, n_heads=6)
# 41,000 elements in 52 parameters
SMALL = Shape(vocab_size=64, seq_len=16, n_layers=3, hidden=32, n_heads=4)
SEQUENCES = 4  # per rank and step
TOLERANCE = 1e-4  # of a parameter's largest element, after two steps of AdamW with a large eps
IN_BFLOAT16 = 1e-2  # where a step's products are in bfloat16, as torch.optim.Muon's are
# Steps after which parameters are compared. One of Muon: its iterations amplify the rounding of
# small singular values, so two of torch's own whose gradients differ by 1e-7 are 0.04 apart after
# two steps, and 0.01 after one.
COMPARED = {"torch.optim.Muon": 1}
ADAMW = {"lr": 1e-3, "eps": 1e-3}
NOT_SLOWER = Bar(None, "As many bytes as theirs or fewer: Python between them must not be felt.")
OWNED = Bar(
    None, "An N-th of the products on each rank, and no more bytes: it must not take longer."
)
HIDDEN = Bar(
    0.4,
    "Prefetching hides at least 60 % of the gathers: at most 40 % of what they cost unhidden is "
    "left.",
)

LAYERS, NUMBERS, LAYER_SECONDS = 8, 100_000, 0.03
# seconds per message, bytes per second: a layer of 400 kB takes about 20 ms over two nodes
LINK = 1e-3, 20e6


class Run:
    """A model, what shards it, and a step of it: what all sides have."""

    def __init__(self, side, shape):
        self.side = side
        self.model = GPT(shape).to(backend.device())
        self.net, self.sharded, self.optimizer = MAKE[side](self.model)

    def step(self, tokens):
        self.optimizer.zero_grad()
        cross_entropy(self.net(tokens[:, :-1]), tokens[:, 1:]).backward()
        if self.sharded is not None:
            self.sharded.average_gradients()
        self.optimizer.step()

    def parameters(self):
        """{name: the whole parameter}, on every rank."""
        if isinstance(self.sharded, FSDP):
            with self.sharded.unsharded():
                return whole(self.model)
        return whole(self.model)


def whole(model):
    full = lambda p: p.full_tensor() if hasattr(p, "full_tensor") else p
    return {name: full(p.detach()).clone() for name, p in model.named_parameters()}


def zero(kind):
    def make(model):
        optimizer = kind(model.parameters(), lambda groups: torch.optim.AdamW(groups, **ADAMW))
        return model, optimizer, optimizer

    return make


def fsdp(kind):
    def make(model):
        sharded = kind(model, model.blocks)
        return model, sharded, torch.optim.AdamW(sharded.groups, **ADAMW)

    return make


def their_zero1(model):
    net = DistributedDataParallel(model)
    return net, None, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, **ADAMW)


def their_fsdp(model):
    mesh = init_device_mesh(backend.device().type, (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, None, torch.optim.AdamW(model.parameters(), **ADAMW)


def matrices_and_others(model):
    matrices = [p for p in model.blocks.parameters() if p.dim() == 2]
    return matrices, [p for p in model.parameters() if all(p is not m for m in matrices)]


class Both:
    """Two optimizers, of the hidden matrices and of the rest, as one."""

    def __init__(self, matrices, rest):
        self.matrices, self.rest = matrices, rest

    def zero_grad(self):
        for optimizer in (self.matrices, self.rest):
            if hasattr(optimizer, "zero_grad"):
                optimizer.zero_grad()

    def average_gradients(self):
        self.rest.average_gradients()

    def step(self):
        self.matrices.step()
        self.rest.step()


def our_muon(model):
    matrices, others = matrices_and_others(model)
    rest = Zero1(others, lambda groups: torch.optim.AdamW(groups, **ADAMW))
    both = Both(Muon(matrices, dtype=torch.bfloat16), rest)
    return model, both, both


def their_muon(model):
    matrices, others = matrices_and_others(model)
    muon = torch.optim.Muon(matrices, lr=0.02, weight_decay=0.0)
    return DistributedDataParallel(model), None, Both(muon, torch.optim.AdamW(others, **ADAMW))


MAKE = {
    "zero1": zero(Zero1), "zero2": zero(Zero2), "ZeroRedundancyOptimizer": their_zero1,
    "fsdp": fsdp(FSDP), "prefetching": fsdp(PrefetchingFSDP), "fully_shard": their_fsdp,
    "muon": our_muon, "torch.optim.Muon": their_muon,
}  # fmt: skip
THEIRS = {
    "zero1": "ZeroRedundancyOptimizer", "zero2": "ZeroRedundancyOptimizer",
    "fsdp": "fully_shard", "prefetching": "fully_shard", "muon": "torch.optim.Muon",
}  # fmt: skip
# In the order of a round: rows with a bar stand next to theirs.
ORDER = {
    "ZeroRedundancyOptimizer": ["zero1", "ZeroRedundancyOptimizer", "zero2", "again"],
    "fully_shard": ["prefetching", "fully_shard", "again", "fsdp"],
    "torch.optim.Muon": ["muon", "torch.optim.Muon", "again"],
}


def run(quick):
    return measured(worlds=[2] if quick else [2, 4], shape=SHAPE, rounds=3 if quick else ROUNDS)


def measured(worlds, shape, rounds):
    rows, data, places = [], {}, []
    for N in worlds:
        times, hiding, place = launch.capture(
            on_ranks, shape, rounds, nproc=N, timeout=2400, ledger=False
        )[0]
        data[N] = times | {f"paced {side}": seconds for side, seconds in hiding.items()}
        places.append(place)
        for name, theirs in THEIRS.items():
            found = compare(times[name], times[theirs], times[f"{theirs}, again"])
            bar = {"fsdp": None, "muon": OWNED}.get(name, NOT_SLOWER) if place == "gloo" else None
            rows.append(report.Row(f"{name} / {theirs}", N, size_of(shape), found, bar))
        theirs = "ZeroRedundancyOptimizer"
        small = launch.capture(steps, theirs, SMALL, rounds, nproc=N, timeout=2400, ledger=False)[0]
        data[N] |= {f"small, {side}": seconds for side, seconds in small.items()}
        for name in ("zero1", "zero2"):
            found = compare(small[name], small[theirs], small[f"{theirs}, again"])
            bar = NOT_SLOWER if place == "gloo" else None
            rows.append(report.Row(f"{name} / {theirs}, small", N, size_of(SMALL), found, bar))
        left, cost = hiding["prefetching"] - hiding["compute"], hiding["fsdp"] - hiding["compute"]
        found = compare(left, cost, hiding["fsdp, again"] - hiding["compute"])
        rows.append(
            report.Row(
                "gathers: left / unhidden", N, "paced", found, HIDDEN if place == "gloo" else None
            )
        )
    notes = [
        f"A step on {SEQUENCES} sequences of {shape.seq_len} tokens per rank: {shape.n_layers} "
        f"blocks, hidden {shape.hidden}, vocabulary {shape.vocab_size}, with AdamW. Parameters "
        f"were within {TOLERANCE:g} of theirs, with Muon {IN_BFLOAT16:g}.",
        f"Gathers: {LAYERS} layers of {NUMBERS} float32, {LAYER_SECONDS * 1e3:g} ms each, forward "
        f"only, a node per rank, {LINK[1] / 1e6:g} MB/s between them.",
    ]
    return report.Outcome(
        "; ".join(dict.fromkeys(places)), draw(rows), rows, notes=notes, data=data
    )


# --- on the ranks ---------------------------------------------------------------------------------


def on_ranks(shape, rounds):
    """On every rank: {side: (rounds,) seconds per step}, {paced side: the same},
    and what it ran on."""
    return (
        {side: t for theirs in ORDER for side, t in steps(theirs, shape, rounds).items()},
        paced(rounds),
        where(),
    )


def steps(theirs, shape, rounds):
    """The sides that are compared with `theirs`, together in one set of rounds."""
    tokens = batch(shape, SEQUENCES)
    runs = {name: Run(name, shape) for name in ORDER[theirs] if name != "again"}
    for each in runs.values():
        for _ in range(COMPARED.get(theirs, 2)):
            each.step(tokens)
    right = runs[theirs].parameters()
    for name, each in runs.items():
        check_equal(name, each.parameters(), right, IN_BFLOAT16 if name == "muon" else TOLERANCE)
    runs["again"] = runs[theirs]
    sides = {
        f"{theirs}, again" if name == "again" else name: Side(
            lambda each=runs[name]: each.step(tokens)
        )
        for name in ORDER[theirs]
    }
    return timed(sides, rounds)


def check_equal(side, ours, theirs, tolerance=TOLERANCE):
    """Both sides trained the same model, or nothing is timed. ours, theirs: {name: parameter}."""
    if set(ours) != set(theirs):
        raise RuntimeError(
            f"{side}: {sorted(set(ours) ^ set(theirs))} on one side only: nothing to time"
        )
    for name, expected in theirs.items():
        # Softmax does not feel a key's bias: its gradient is rounding alone, and it stays far below
        # the learning rate.
        off = (ours[name] - expected).abs().max() / expected.abs().max().clamp(min=ADAMW["lr"])
        if not off <= tolerance:
            raise RuntimeError(
                f"{side}: {name} is off by {off:.2g} of its largest element: nothing to time"
            )


def paced(rounds):
    """{side: (rounds,) seconds} of a forward pass of layers that wait, over a slow link."""
    layers = lambda: torch.nn.Sequential(
        *(PacedLayer(NUMBERS, LAYER_SECONDS, 0.0) for _ in range(LAYERS))
    )
    plain, one, ahead = (layers().to(backend.device()) for _ in range(3))
    nets = {"compute": plain, "fsdp": FSDP(one, one), "prefetching": PrefetchingFSDP(ahead, ahead)}

    def forward(net):
        with torch.no_grad():
            net(torch.ones(1, 1, device=backend.device()))

    sides = {
        name: Side(lambda net=net: forward(net), lambda: slow_link(1, *LINK))
        for name, net in nets.items()
    }
    return timed({**sides, "fsdp, again": sides["fsdp"]}, rounds)


# --- the figure -----------------------------------------------------------------------------------


@plots.styled
def draw(rows):
    """A panel per world size, a lane per comparison: the ratio with its interval, the control's in
    grey below it."""
    figure = ratios(rows, 3.4, "{} ranks")
    barred = [row for row in rows if row.bar is NOT_SLOWER] or rows
    best, worst = (pick(row.comparison.ratio.median for row in barred) for pick in (min, max))
    return plots.finish(
        figure,
        f"A step of ZeRO takes {best:.2f} to {worst:.2f} of the time of torch's",
        "Below 1 lib is faster. Lines: 95 % of the median of paired ratios; grey: the control, "
        "which is what noise alone does here. Last lane: what prefetching leaves of the time that "
        "gathers cost.",
        "Ratio of lib's to torch's time for a training step. "
        + " ".join(
            f"{row.what}, {row.ranks} ranks: {report.within(row.comparison.ratio)}." for row in rows
        ),
    )
