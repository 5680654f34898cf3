"""Pipeline schedules on ranks, against torch.distributed.pipelining with the same lists of actions.

    ours    lib.pipeline: one executor for every list
    theirs  GPipe         ScheduleGPipe                 a loop of its own
            1F1B          Schedule1F1B                  a loop of its own
            interleaved   ScheduleInterleaved1F1B       torch's runtime and its own list
            ZB-H1         torch's runtime               our list: torch has no ZB-H1 of one stage
                                                        per rank
            ZB-V          ScheduleZBVZeroBubble         torch's runtime and its own list
            DualPipeV     ScheduleDualPipeV             torch's runtime and its own list

A step is zero_grad and every action of the list; no optimizer, which would be the same for both.
Both sides run the same modules on the same micro-batches, and before a clock runs they must have
done the same actions in the same order and have the same gradient of each parameter. Embedding and
head are untied: torch's pipelines know no tied weights.

Ranks that share cores take as long as all their work: neither bubbles nor overlap show. What is
compared here is the work beside the layers' own. Bubbles are in bench_paced_pipeline.py.
"""

import pathlib
import tempfile
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
)
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

from lib import backend, launch, plots
from lib.pipeline import (
    balance,
    dualpipe_v,
    gpipe,
    interleaved,
    loop,
    one_f_one_b,
    v_shape,
    zb_h1,
    zb_v,
)
from lib.pipeline.links import connect
from lib.pipeline.split import split_gpt
from lib.pipeline.stage import Pipeline
from lib.training.model import GPT, Shape, cross_entropy
from tests.benchmarks import report
from tests.benchmarks.bench_data_parallel import size_of
from tests.benchmarks.measure import ROUNDS, Bar, compare
from tests.benchmarks.ratios import ratios
from tests.benchmarks.rounds import Side, timed, where
from tests.pipeline.pipelines import differences, gradients

# 10.0 million parameters, 8 stages
SHAPE = Shape(vocab_size=128, seq_len=64, n_layers=8, hidden=320, n_heads=5)
M, SEQUENCES = 8, 1  # micro-batches of a step; sequences in each
TOLERANCE = 1e-5  # of a gradient's largest element: float32, sums in another order stay far below
NOT_SLOWER = Bar(
    None,
    "The same layers, actions and messages as torch's pipelines: what is around them must not be "
    "felt.",
)


class Case(NamedTuple):
    """make(p) -> our schedule of M micro-batches; v stages per rank, placed so; theirs(stages,
    schedule) -> torch's."""

    make: Callable
    v: int
    theirs: Callable
    placement: Callable = loop


def by_their_runtime(stages, schedule):
    """torch's runtime, which inserts sends and receives into any list, as it does for all its
    schedules of v stages."""
    runtime = _PipelineScheduleRuntime(stages, M, cross_entropy)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "schedule.csv"
        path.write_text("".join(",".join(map(str, actions)) + "\n" for actions in schedule))
        runtime._load_csv(path)
    return runtime


CASES = {
    "GPipe": Case(
        lambda p: gpipe(p, M), 1, lambda stages, _: ScheduleGPipe(stages[0], M, cross_entropy)
    ),
    "1F1B": Case(
        lambda p: one_f_one_b(p, M), 1, lambda stages, _: Schedule1F1B(stages[0], M, cross_entropy)
    ),
    "interleaved, v = 2": Case(
        lambda p: interleaved(p, M, 2),
        2,
        lambda stages, _: ScheduleInterleaved1F1B(stages, M, cross_entropy),
    ),
    "ZB-H1": Case(lambda p: zb_h1(p, M), 1, by_their_runtime),
    "ZB-V": Case(
        lambda p: zb_v(p, M),
        2,
        lambda stages, _: ScheduleZBVZeroBubble(stages, M, cross_entropy),
        v_shape,
    ),
    "DualPipeV": Case(
        lambda p: dualpipe_v(p, M),
        2,
        lambda stages, _: ScheduleDualPipeV(stages, M, cross_entropy),
        v_shape,
    ),
}


# A stage's methods in torch, and the kind of action that a call of each is.
KIND_OF = {
    "forward_one_chunk": lambda kwargs: "F",
    "backward_one_chunk": lambda kwargs: "B" if kwargs.get("full_backward", True) else "I",
    "backward_weight_one_chunk": lambda kwargs: "W",
}


def run(quick):
    return measured(worlds=[2, 4], shape=SHAPE, rounds=3 if quick else ROUNDS)


def measured(worlds, shape, rounds):
    rows, data, places = [], {}, []
    for N in worlds:
        data[N], place = launch.capture(
            on_ranks, shape, rounds, nproc=N, timeout=2400, ledger=False
        )[0]
        places.append(place)
        for name in CASES:
            found = compare(*(data[N][name, side] for side in ("ours", "theirs", "again")))
            rows.append(
                report.Row(name, N, size_of(shape), found, NOT_SLOWER if place == "gloo" else None)
            )
    notes = [
        f"A step on {M} micro-batches of {SEQUENCES} sequence of {shape.seq_len} tokens: "
        f"{shape.n_layers} blocks, hidden {shape.hidden}, {shape.n_heads} heads, vocabulary "
        f"{shape.vocab_size}; no optimizer. Both sides ran the same actions in the same order, and "
        f"gradients were within {TOLERANCE:g} of each parameter's largest.",
        "ZB-H1: torch's runtime with our list; the halves of backward are each side's own.",
    ]
    return report.Outcome(
        "; ".join(dict.fromkeys(places)), draw(rows), rows, notes=notes, data=data
    )


# --- on the ranks ---------------------------------------------------------------------------------


def on_ranks(shape, rounds):
    """On every rank: {(schedule, side): (rounds,) seconds per step}, and what it ran on."""
    links, model, tokens = connect(), untied(shape), batch(shape)
    sides = {}
    for name, case in CASES.items():
        ours, theirs = steps(case, model, links, tokens)
        check_equal(name, *(gradients_of(model, step) for step in (ours, theirs)))
        sides |= {
            (name, "ours"): Side(ours),
            (name, "theirs"): Side(theirs),
            (name, "again"): Side(theirs),
        }
    return timed(sides, rounds), where()


def untied(shape):
    """The same GPT on every rank; its head has a weight of its own, equal to the embedding's."""
    model = GPT(shape).to(backend.device())
    model.head.weight = nn.Parameter(model.head.weight.detach().clone())
    return model


def batch(shape):
    """(M * SEQUENCES, T+1) tokens, the same on every rank."""
    generator = torch.Generator("cpu").manual_seed(0)
    size = (M * SEQUENCES, shape.seq_len + 1)
    return torch.randint(shape.vocab_size, size, generator=generator, device="cpu").to(
        backend.device()
    )


def steps(case, model, links, tokens):
    """(our step, their step) of this rank: functions that leave the batch's gradients in the
    model's parameters."""
    p, rank = len(links.ranks), links.rank
    schedule, homes = case.make(p), case.placement(p, p * case.v)
    n_stages = len(homes)
    stages = split_gpt(model, balance([1] * len(model.blocks), n_stages))
    x, target = tokens[:, :-1], tokens[:, 1:]
    pipeline = Pipeline(stages, links, x.split(SEQUENCES), case.placement)
    mine = [
        PipelineStage(stages[s], s, n_stages, backend.device()) for s in sorted(pipeline.stages)
    ]
    theirs = case.theirs(mine, schedule)

    def our_step():
        model.zero_grad()
        pipeline.run(schedule, x.split(SEQUENCES), target.split(SEQUENCES), cross_entropy)

    def their_step():  # the first stage's rank gives the input, the last one's the target
        model.zero_grad()
        given, wanted = (
            [x] * (rank == homes[0]),
            {"target": target, "losses": []} if rank == homes[-1] else {},
        )
        theirs.step(*given, **wanted, return_outputs=False)

    check_same_actions(mine, their_step, schedule[rank])
    return our_step, their_step


def check_same_actions(stages, step, mine):
    """One step of torch's, noting what its stages do. mine: this rank's list. (What it says it does
    is something else: the list that Schedule1F1B prints is not the one that its loop runs.)
    """
    done = []

    def noting(stage, method, kind_of):
        def noted(j, *args, **kwargs):
            done.append(f"{stage.stage_index}{kind_of(kwargs)}{j}")
            return original(j, *args, **kwargs)

        original = getattr(stage, method)
        # on this object; deleted below, the class's own is there again
        setattr(stage, method, noted)

    for stage in stages:
        for method, kind_of in KIND_OF.items():
            noting(stage, method, kind_of)
    step()
    for stage in stages:
        for method in KIND_OF:
            delattr(stage, method)
    if done != [str(action) for action in mine]:
        raise RuntimeError(
            f"torch runs {' '.join(done)}, ours {' '.join(map(str, mine))}: nothing to compare"
        )


def gradients_of(model, step):
    """{name: gradient} after a step, of this rank's parameters."""
    step()
    return {name: grad.clone() for name, grad in gradients(model).items() if grad is not None}


def check_equal(side, ours, theirs):
    """Both sides do the same thing before either is timed. ours, theirs: {name: gradient}."""
    if ours.keys() != theirs.keys():
        raise RuntimeError(
            f"{side}: gradients of {sorted(set(ours) ^ set(theirs))} on one side only: nothing to "
            f"time"
        )
    if wrong := differences(ours, theirs, TOLERANCE):
        raise RuntimeError(
            f"{side}: not the gradient of theirs: {'; '.join(wrong[:3])}: nothing to time"
        )


# --- the figure -----------------------------------------------------------------------------------


@plots.styled
def draw(rows):
    """A panel per world size, a lane per schedule: the ratio with its interval, and below
    it the control's."""
    figure = ratios(rows, 3.2, "{} ranks")
    best, worst = (pick(row.comparison.ratio.median for row in rows) for pick in (min, max))
    return plots.finish(
        figure,
        f"A step of our pipelines takes {best:.2f} to {worst:.2f} of the time of torch's",
        "Below 1 lib is faster. Lines: 95 % of the median of paired ratios. Grey: torch's against "
        "itself, which is what noise alone does here. Ranks that share cores take as long as all "
        "their work: bubbles cost little.",
        "Ratio of lib's to torch's time for a training step. "
        + " ".join(
            f"{row.what}, {row.ranks} ranks: {report.within(row.comparison.ratio)}." for row in rows
        ),
    )
