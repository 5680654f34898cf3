"""Tensor parallelism, a block and a whole GPT, against torch's DTensor.

    ours    parallel_gpt, sequence_parallel_gpt  autograd functions on lib's collectives
    theirs  parallelize_module, loss_parallel    weights and activations are DTensors, which know
                                                 how they are sharded; their plan is in
                                                 dtensor_gpt.py

A step is zero_grad, forward, backward; no optimizer, which would be the same for both. Before a
clock runs, the loss and every gradient of both sides, put together from all ranks, must be those of
the plain model in one process.

In sequence parallel a norm's gradient is a sum over the ranks. Ours is sent by `sum_gradients`, all
in one message. DTensor leaves it "Partial", to be summed by who reads it: an optimizer, parameter
by parameter. So that step is timed twice: with these sums on both sides, and without them on
either.

Over loopback there is no slow link to save, and ranks that share cores take as long as all their
work: this is about the work beside the products. What a link costs is in
bench_paced_tensor_parallel.py.
"""

import copy
import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from lib import backend, launch, plots
from lib.tensor_parallel import parallel_gpt, sequence_parallel_gpt, split_dim, sum_gradients
from lib.tensor_parallel.shards import gather_along_dim
from lib.training.model import GPT, Shape
from tests.benchmarks import report
from tests.benchmarks.bench_data_parallel import size_of
from tests.benchmarks.dtensor_gpt import (
    backward_of_loss,
    dtensor_block,
    dtensor_gpt,
    full,
    sum_partial_gradients,
)
from tests.benchmarks.measure import ROUNDS, Bar, compare
from tests.benchmarks.ratios import ratios
from tests.benchmarks.rounds import Side, timed, where
from tests.tensor_parallel.parallels import differences

# 10.7 million parameters
SHAPE = Shape(vocab_size=128, seq_len=64, n_layers=6, hidden=384, n_heads=8)
SEQUENCES = 4  # all ranks read the same
TOLERANCE = 1e-5  # of a gradient's largest element: float32, sums in another order stay far below
NOT_SLOWER = Bar(
    None, "The same products and sums as DTensor's: what is around them must not be felt."
)


class Part(NamedTuple):
    """A rank's part of a model, of one side."""

    step: Callable  # () -> None: zero_grad, forward, backward
    sums: Callable  # () -> None: completes the gradients that sequence parallelism leaves partial
    # () -> {name: whole gradient}, and the loss if there is one; alike on all ranks
    found: Callable


def run(quick):
    return measured(worlds=[2, 4], shape=SHAPE, rounds=3 if quick else ROUNDS)


def measured(worlds, shape, rounds):
    rows, data, places = [], {}, []
    for N in worlds:
        data[N], place = launch.capture(
            on_ranks, shape, rounds, nproc=N, timeout=2400, ledger=False
        )[0]
        places.append(place)
        for what in dict.fromkeys(what for what, _ in data[N]):
            found = compare(*(data[N][what, side] for side in ("ours", "theirs", "again")))
            size = size_of(shape) if what.startswith("GPT") else size_of_block(shape)
            rows.append(report.Row(what, N, size, found, NOT_SLOWER if place == "gloo" else None))
    message = report.size(4 * SEQUENCES * shape.seq_len * shape.hidden)
    notes = [
        f"A step on {SEQUENCES} sequences of {shape.seq_len} tokens, the same on all ranks: "
        f"{shape.n_layers} blocks, hidden {shape.hidden}, {shape.n_heads} heads, vocabulary "
        f"{shape.vocab_size}; an all-reduce is of {message}. Loss and gradients of both sides were "
        f"within {TOLERANCE:g} of one process's, relative to the largest.",
        "No sums: both sides leave the gradients of norms, of biases after a row split and of "
        "positions partial.",
    ]
    return report.Outcome(
        "; ".join(dict.fromkeys(places)), draw(rows), rows, notes=notes, data=data
    )


def size_of_block(shape):
    return f"{sum(p.numel() for p in one_layer(shape).blocks[0].parameters()) / 1e6:.1f}M block"


def one_layer(shape):
    return GPT(dataclasses.replace(shape, n_layers=1))


# --- on the ranks ---------------------------------------------------------------------------------


def on_ranks(shape, rounds):
    """On every rank: {(what, side): (rounds,) seconds per step}, and what it ran on."""
    mesh, times = init_device_mesh(backend.device().type, (dist.get_world_size(),)), {}
    for what, build in {
        "block": block_parts,
        "GPT": gpt_parts,
    }.items():  # apart, for a block takes a sixth of the time
        sides = {}
        for way, sequence in {"tensor parallel": False, "sequence parallel": True}.items():
            plain, ours, theirs = build(shape, mesh, sequence)
            for side, part in {"ours": ours, "theirs": theirs}.items():
                check_equal(f"{what}, {way}, {side}", part, plain)
            sides |= three_sides(f"{what}, {way}", with_sums(ours), with_sums(theirs))
            if sequence:
                sides |= three_sides(f"{what}, {way}, no sums", ours.step, theirs.step)
        times |= timed(sides, rounds)
    return times, where()


def three_sides(what, ours, theirs):
    return {
        (what, "ours"): Side(ours),
        (what, "theirs"): Side(theirs),
        (what, "again"): Side(theirs),
    }


def with_sums(part):
    def step():
        part.step()
        part.sums()

    return step


def gpt_parts(shape, mesh, sequence):
    """({name: gradient, "loss": loss} of one process, our Part, theirs) of the GPT."""
    plain = GPT(shape).to(backend.device())
    tokens, targets = batch(shape)
    mine = (sequence_parallel_gpt if sequence else parallel_gpt)(plain)
    dtensors = dtensor_gpt(copy.deepcopy(plain), mesh, sequence)
    loss = {"ours": None, "theirs": None}  # of the last step

    def our_step():
        mine.zero_grad()
        loss["ours"] = mine.loss(tokens, targets)
        loss["ours"].backward()

    def their_step():
        dtensors.zero_grad()
        loss["theirs"] = backward_of_loss(dtensors, tokens, targets)

    expected = plain.loss(tokens, targets)
    expected.backward()
    return (
        {"loss": expected.detach()} | {name: p.grad for name, p in plain.named_parameters()},
        Part(our_step, mine.sum_gradients, lambda: {"loss": loss["ours"].detach()} | joined(mine)),
        Part(
            their_step,
            lambda: sum_partial_gradients(dtensors),
            lambda: {"loss": full(loss["theirs"])} | joined_dtensors(dtensors),
        ),
    )


def block_parts(shape, mesh, sequence):
    """({name: gradient, "x": its input's} of one process, our Part, theirs) of a block, given its
    output's gradient."""
    plain = one_layer(shape).to(backend.device())
    mine = (sequence_parallel_gpt if sequence else parallel_gpt)(plain).blocks[0]
    dtensors = dtensor_block(copy.deepcopy(plain.blocks[0]), mesh, sequence)
    size = (2, SEQUENCES, shape.seq_len, shape.hidden)
    x, dy = torch.randn(size, generator=seeded(), device="cpu").to(backend.device())  # (B, T, D)
    x.requires_grad_()
    plain.blocks[0](x).backward(dy)
    expected = {"x": x.grad} | {name: p.grad for name, p in plain.blocks[0].named_parameters()}
    if sequence:  # (B, T/tp, D)
        x, dy = (t.detach().chunk(mesh.size(), 1)[dist.get_rank()].contiguous() for t in (x, dy))
    uncut = (
        [p for name, p in mine.named_parameters() if split_dim(name) is None] if sequence else []
    )

    def part(block, sums, joined):
        given = x.detach().clone().requires_grad_()

        def step():
            given.grad = None
            block.zero_grad()
            block(given).backward(dy)

        return Part(
            step,
            sums,
            lambda: (
                {"x": gather_along_dim(given.grad, 1) if sequence else given.grad} | joined(block)
            ),
        )

    return (
        expected,
        part(mine, lambda: sum_gradients(uncut), joined),
        part(dtensors, lambda: sum_partial_gradients(dtensors), joined_dtensors),
    )


def batch(shape):
    """tokens, targets: (B, T) int64, the same on every rank."""
    size = (2, SEQUENCES, shape.seq_len)
    return torch.randint(shape.vocab_size, size, generator=seeded(), device="cpu").to(
        backend.device()
    )


def seeded():
    return torch.Generator("cpu").manual_seed(0)


def joined(model):
    """{name: gradient} of the whole model, from all ranks' parts of ours."""
    cut = {name: split_dim(name) for name, _ in model.named_parameters()}
    return {
        name: p.grad if cut[name] is None else gather_along_dim(p.grad, cut[name])
        for name, p in model.named_parameters()
    }


def joined_dtensors(model):
    """{name: gradient} of the whole model, from theirs."""
    return {name: full(p.grad) for name, p in model.named_parameters()}


def check_equal(what, part, plain):
    """A side does what one process does, or nothing is timed. plain: what
    `part.found` is to say."""
    part.step()
    part.sums()
    found = part.found()
    if found.keys() != plain.keys():
        raise RuntimeError(
            f"{what}: gradients of {sorted(found.keys() ^ plain.keys())} on one side only"
        )
    if wrong := differences(found, plain, TOLERANCE):
        raise RuntimeError(
            f"{what}: not as in one process: {'; '.join(wrong[:3])}: nothing to time"
        )


# --- the figure -----------------------------------------------------------------------------------


@plots.styled
def draw(rows):
    """A panel per world size, a lane per comparison: the ratio with its interval, and below
    it the control's."""
    figure = ratios(rows, 3.6, "tp = {}")
    best, worst = (pick(row.comparison.ratio.median for row in rows) for pick in (min, max))
    return plots.finish(
        figure,
        f"A tensor-parallel step takes {best:.2f} to {worst:.2f} of the time of torch's DTensor",
        "Below 1 lib is faster. Lines: 95 % of the median of paired ratios. Grey: torch's against "
        "itself, which is what noise alone does here. Ranks that share cores take as long as all "
        "their work.",
        "Ratio of lib's to torch's time for a step. "
        + " ".join(
            f"{row.what}, tp {row.ranks}: {report.within(row.comparison.ratio)}." for row in rows
        ),
    )
