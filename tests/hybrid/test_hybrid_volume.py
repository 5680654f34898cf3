"""Which axis sent what: the elements in the ledger, by the axes of the group they were sent in, are
the formula's."""

from functools import partial

import pytest
import torch.distributed as dist
from hybrid_cases import (
    LENGTH,
    ROWS,
    SHAPES,
    WORLD,
    Run,
    batch,
    build,
    factorisations,
    microbatches,
    sizes,
)
from sweeps import quick

from lib import launch, ledger
from lib.cost.volume import cut_parameters, held_parameters, step_volume, whole_parameters
from lib.hybrid import DATA, SETS, ShardedUpdate, local_batch
from lib.hybrid.mesh import Mesh, axes_of, groups_along, sent_along
from lib.pipeline import interleaved
from lib.tensor_parallel import sequence_parallel_gpt
from lib.training import model

ROWS_OF_DP = {1: 13, 2: 7, 4: 4, 8: 2}  # of a micro-batch: two, the second smaller
FACTORS = {
    f"pp={pp} dp={dp} tp={tp}": Run(sizes(pp, dp, 1, tp), ROWS_OF_DP[dp], n_layers=max(2, pp))
    for pp, dp, tp in factorisations(WORLD)
}
RUNS = FACTORS | {
    "zero1": Run(sizes(2, 2, 1, 2), update=ShardedUpdate),
    "sequence": Run(sizes(2, 2, 1, 2), split=sequence_parallel_gpt),
    "interleaved": Run(sizes(2, 2, 1, 2), b=3, schedule=partial(interleaved, v=2), n_layers=4),
    "dp, cp, tp": Run(sizes(1, 2, 2, 2), b=7),
    "pp, cp, sequence, zero1": Run(
        sizes(2, 1, 2, 2), b=13, split=sequence_parallel_gpt, update=ShardedUpdate
    ),
    "tp slowest": Run({"tp": 2, "cp": 1, "ep": 1, "dp": 2, "pp": 2}),
}
RUNS = quick(RUNS, {*FACTORS, "sequence", "interleaved"} - {"pp=2 dp=2 tp=2", "pp=1 dp=1 tp=8"})


def one_step_each():
    """{run: (by how many numbers this rank's flats are longer than its parameters, numbers
    in its parameters)}."""
    meshes, seen = {}, {}
    for name, run in RUNS.items():
        key = tuple(run.sizes.items())
        mesh = meshes[key] = meshes.get(key) or Mesh(run.sizes, SETS)
        hybrid = build(run, mesh)
        tokens, targets = batch(0)
        ledger.mark(name)
        hybrid.backward(local_batch(tokens, mesh), local_batch(targets, mesh))
        hybrid.clip(1.0)
        hybrid.step()
        ledger.mark("")
        flats = hybrid.dense.flats if run.update is ShardedUpdate else []
        padding = sum(flat.padded - flat.n for flat in flats)
        seen[name] = padding, sum(parameter.numel() for parameter in hybrid.part.parameters())
    assert dist.get_world_size() == WORLD
    return seen


@pytest.fixture(scope="module")
def results():
    return launch.capture(one_step_each, backend="gloo", nproc=WORLD, timeout=200)


def wanted(run, padding):
    """{axes: elements} as the ledger tells them apart. padding: of all ranks of one
    data coordinate."""
    volume = step_volume(
        run.shape, ROWS, LENGTH, **run.sizes, v=2 if isinstance(run.schedule, partial) else 1,
        sequence_parallel=run.split is sequence_parallel_gpt, sharded=run.update is ShardedUpdate,
        padding=padding,
    )  # fmt: skip
    want = {("tp",): volume.tp, ("pp",): volume.pp, ("cp",): volume.cp}
    data = tuple(axis for axis in run.sizes if axis in DATA and run.sizes[axis] > 1)
    # with dp = 1 the ring and the gradients share their group
    want[data] = want.get(data, 0) + volume.data
    return {axes: numbers for axes, numbers in want.items() if numbers}


def of_one_data_rank(run):
    """The ranks of one whole model."""
    return groups_along(["pp", "tp"], run.sizes)[0]


@pytest.mark.parametrize("name", RUNS)
def test_every_axis_sends_exactly_the_formula(results, name):
    run = RUNS[name]
    padding = sum(results[rank][name][0] for rank in of_one_data_rank(run))
    assert sent_along(results.ledger.section(name).entries, run.sizes) == wanted(run, padding)


def test_the_ranks_of_a_model_hold_what_the_formula_counts_and_no_other_stage_s(results):
    for name, run in RUNS.items():
        held = sum(results[rank][name][1] for rank in of_one_data_rank(run))
        assert held == held_parameters(run.shape, run.sizes["pp"], run.sizes["tp"]), name


def test_every_message_stays_in_the_axes_of_its_group(results):
    for name, run in RUNS.items():
        for entry in results.ledger.section(name).entries:
            assert entry.is_message
            assert set(axes_of([entry.rank, entry.peer], run.sizes)) <= set(
                axes_of(entry.members, run.sizes)
            )


def test_tensor_parallelism_sends_most_and_data_parallelism_least_often(results):
    """Why tp runs fastest in a mesh: per step of 2 x 2 x 2, and before the batch grows with dp."""
    section = results.ledger.section("pp=2 dp=2 tp=2")
    sent = sent_along(section.entries, RUNS["pp=2 dp=2 tp=2"].sizes)
    assert sent["tp",] > sent["dp",] and sent["tp",] > sent["pp",]
    assert len(microbatches(RUNS["pp=2 dp=2 tp=2"])) == 2


def test_the_parameters_counted_are_the_model_s():
    assert (
        cut_parameters(SHAPES[4]) + whole_parameters(SHAPES[4])
        == model.GPT(SHAPES[4]).num_parameters()
    )
    grouped = model.Shape(
        vocab_size=20, seq_len=8, n_layers=3, hidden=16, n_heads=8, n_kv_heads=4, mlp_hidden=12
    )
    assert held_parameters(grouped) == model.GPT(grouped).num_parameters()


def test_the_volume_along_tp_does_not_depend_on_the_other_axes():
    volume = lambda pp, dp: step_volume(SHAPES[4], ROWS, LENGTH, pp, dp, tp=2)
    # the norm's one number apart
    along_tp = {volume(pp, dp).tp - 2 * pp * dp for pp in (1, 2, 4) for dp in (1, 2, 4)}
    assert len(along_tp) == 1
