"""HybridByHand is the GPT of one process too; its two functions send what they say, and a mistake
in either is seen."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from hybrid_cases import (
    OPTIMIZERS,
    STEPS,
    TOLERANCE,
    WORLD,
    Run,
    batch,
    compare,
    single_process,
    sizes,
    steps,
)
from parallels import gpt
from sweeps import quick
from torch import nn

from lib import collectives, launch
from lib.hybrid import SETS, HybridByHand, average_over_mesh, local_batch, norm_over_mesh
from lib.hybrid.by_hand import squares
from lib.hybrid.mesh import Mesh, groups_along

RUNS = {
    "pp=2 dp=2 tp=2": Run(sizes(2, 2, 1, 2)),
    "tp slowest": Run({"tp": 2, "cp": 1, "ep": 1, "dp": 2, "pp": 2}),
    "stages between": Run(sizes(4, 2), n_layers=4),
    "stages between, no dp": Run(sizes(4, 1, 1, 2), n_layers=4),
    "no pipeline": Run(sizes(1, 4, 1, 2), b=4),
    "no tp, adamw": Run(sizes(2, 4), b=4, optimizer="adamw"),
}
RUNS = quick(RUNS, {"stages between, no dp", "no pipeline"})
CUBE = RUNS["pp=2 dp=2 tp=2"]


def build(run, mesh, **functions):
    tokens = local_batch(batch(0)[0], mesh)
    hybrid = HybridByHand(
        gpt(run.shape), mesh, tokens, run.b, OPTIMIZERS[run.optimizer], **functions
    )
    hybrid.dense = SimpleNamespace(shards_over=())  # for `steps`: gradients are unsharded
    return hybrid


def without(name):
    """average_over_mesh as if the list `name` were empty."""
    return lambda sets, mesh, ends: average_over_mesh(sets._replace(**{name: []}), mesh, ends)


def not_over(axis):
    """norm_over_mesh without the sum over this axis."""

    def norm(sets, mesh):
        elsewhere = lambda total, group: (
            None if group is mesh.group(axis) else collectives.all_reduce(total, group)
        )
        return norm_over_mesh(sets, mesh, elsewhere)

    return norm


def tied_twice(sets, mesh):
    return norm_over_mesh(
        sets._replace(sharded=sets.sharded + (sets.tied if mesh.here["pp"] else [])), mesh
    )


MISTAKES = {  # name: (which function, by what, what is seen of it)
    "nothing averaged": ("average", lambda sets, mesh, ends: None, "same bits"),
    "no sharded ones": ("average", without("sharded"), "same bits"),
    "no replicated ones": ("average", without("replicated"), "same bits"),
    "no tied ones": ("average", without("tied"), "same bits|norm"),
    "norm not over tp": ("norm_of", not_over("tp"), "same bits"),
    "norm not over pp": ("norm_of", not_over("pp"), "same bits"),
    "tied twice in the norm": ("norm_of", tied_twice, "norm"),
}
MISTAKES = quick(MISTAKES, {"nothing averaged", "no replicated ones", "norm not over tp"})


class Noting:
    """lib's all_reduce, and what it was called for: (global ranks, elements)."""

    def __init__(self):
        self.calls = []

    def __call__(self, tensor, group):
        self.calls.append((tuple(dist.get_process_group_ranks(group)), tensor.numel()))
        return collectives.all_reduce(tensor, group)


def train_and_note(run, mesh):
    """(what `steps` sees, what both functions called for, how many elements each
    parameter has, by set)."""
    averaged, normed = Noting(), Noting()
    hybrid = build(
        run, mesh, average=partial(average_over_mesh, all_reduce=averaged),
        norm_of=partial(norm_over_mesh, all_reduce=normed),
    )  # fmt: skip
    seen = steps(hybrid, mesh, range(STEPS))
    elements = {
        name: [p.numel() for p in getattr(hybrid.sets, name)] for name in hybrid.sets._fields
    }
    return seen, averaged.calls, normed.calls, elements


def on_each_rank():
    assert dist.get_world_size() == WORLD
    meshes, noted = {}, {}
    for name, run in RUNS.items():
        key = tuple(run.sizes.items())
        mesh = meshes[key] = meshes.get(key) or Mesh(run.sizes, SETS)
        noted[name] = train_and_note(run, mesh)
    mesh = meshes[tuple(CUBE.sizes.items())]
    spoilt = {
        name: steps(build(CUBE, mesh, **{which: function}), mesh, range(1))
        for name, (which, function, _) in MISTAKES.items()
    }
    default = build(CUBE, mesh)
    default.backward(*(local_batch(rows, mesh) for rows in batch(0)))
    return noted, spoilt, default.clip(1.0)


@pytest.fixture(scope="module")
def results():
    return launch.capture(on_each_rank, backend="gloo", nproc=WORLD, timeout=200, ledger=False)


@pytest.mark.parametrize("name", RUNS)
def test_three_clipped_steps_are_one_process_s(results, name):
    run = RUNS[name]
    compare(
        run, [noted[name][0] for noted, _, _ in results], single_process(run.optimizer, run.shape)
    )


def group_of(rank, axes, sizes):
    return next(tuple(ranks) for ranks in groups_along(axes, sizes) if rank in ranks)


@pytest.mark.parametrize("name", RUNS)
def test_a_message_for_each_tied_one_over_ends_each_replicated_one_over_tp_and_each_of_all_over_dp(
    results, name
):
    sizes = RUNS[name].sizes
    for rank, (noted, _, _) in enumerate(results):
        _, calls, _, elements = noted[name]
        pipeline, tp, dp = (group_of(rank, [axis], sizes) for axis in ("pp", "tp", "dp"))
        want = [((pipeline[0], pipeline[-1]), n) for n in elements["tied"]]
        want += [(tp, n) for n in elements["replicated"]]
        want += [(dp, n) for n in elements["sharded"] + elements["replicated"] + elements["tied"]]
        assert calls == want * STEPS
        at_an_end = sizes["pp"] > 1 and rank in (pipeline[0], pipeline[-1])
        assert len(elements["tied"]) == at_an_end and elements["sharded"] and elements["replicated"]


@pytest.mark.parametrize("name", RUNS)
def test_the_norm_takes_one_number_over_tp_and_one_over_pp(results, name):
    for rank, (noted, _, _) in enumerate(results):
        _, _, calls, _ = noted[name]
        assert (
            calls
            == [(group_of(rank, [axis], RUNS[name].sizes), 1) for axis in ("tp", "pp")] * STEPS
        )


def test_left_alone_it_takes_the_two_functions_above_and_the_norm_is_one_float64(results):
    _, norm_of_one, _, _ = single_process(CUBE.optimizer, CUBE.shape)[0]
    for _, _, norm in results:
        assert norm.shape == () and norm.dtype == torch.float64 and torch.equal(norm, results[0][2])
        assert norm.item() == pytest.approx(norm_of_one, rel=TOLERANCE)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_either_function_is_seen(results, name):
    with pytest.raises(AssertionError, match=MISTAKES[name][2]):
        compare(
            CUBE,
            [spoilt[name] for _, spoilt, _ in results],
            single_process(CUBE.optimizer, CUBE.shape)[:1],
        )


def test_squares_by_hand():
    def parameter(*numbers):
        p = nn.Parameter(torch.zeros(len(numbers)))
        p.grad = torch.tensor(numbers)
        return p

    assert torch.equal(squares([]), torch.zeros(1, dtype=torch.float64))
    assert torch.equal(
        squares([parameter(3.0, 4.0), parameter(12.0)]), torch.tensor([169.0], dtype=torch.float64)
    )
    # Squared and added in float64: in float32 the 1 would be lost.
    assert squares([parameter(2.0**20, 1.0)]).item() == 2.0**40 + 1
