"""Checkpoints of a mesh: a run that is saved on one mesh and goes on on another is the run that
never stopped."""

import pytest
from hybrid_cases import (
    OPTIMIZERS,
    SHAPES,
    STEPS,
    TOLERANCE,
    WORLD,
    Run,
    build,
    compare,
    parameters,
    plain_steps,
    single_process,
    sizes,
    steps,
)
from parallels import differences, gpt
from sweeps import quick

from lib import launch
from lib.hybrid import SETS, ShardedUpdate, load_hybrid, save_hybrid
from lib.hybrid.mesh import Mesh
from lib.tensor_parallel import sequence_parallel_gpt

CUT_AT = 1  # steps before the checkpoint
ADAMW = {"optimizer": "adamw", "n_layers": 4}
WAYS = {  # name: (saved on, loaded on)
    "cube to pipeline": (Run(sizes(2, 2, 1, 2), **ADAMW), Run(sizes(4, 1, 1, 2), b=5, **ADAMW)),
    "replicated to sharded": (
        Run(sizes(4, 2), **ADAMW),
        Run(sizes(1, 4, 1, 2), b=4, update=ShardedUpdate, **ADAMW),
    ),
    "sharded to replicated": (
        Run(sizes(2, 2, 1, 2), update=ShardedUpdate, **ADAMW),
        Run(sizes(1, 1, 2, 4), b=13, split=sequence_parallel_gpt, **ADAMW),
    ),
    "sharded to sharded": (
        Run(sizes(2, 4), b=4, update=ShardedUpdate, **ADAMW),
        Run(sizes(4, 1, 2, 1), update=ShardedUpdate, **ADAMW),
    ),
}
WAYS = quick(WAYS, {"replicated to sharded", "sharded to replicated"})
FEWER = {  # name: on 4 of the 8 ranks
    "sharded to sharded": Run(sizes(2, 2), b=7, update=ShardedUpdate, **ADAMW),
    "cube to pipeline": Run(sizes(1, 1, 1, 4), b=13, **ADAMW),
}


def there_and_on(folder):
    """{way: (steps before, steps after, what came back beside them, were the
    parameters filled?)}."""
    seen = {}
    for name, (saved_on, loaded_on) in WAYS.items():
        before_mesh = Mesh(saved_on.sizes, SETS)
        hybrid = build(saved_on, before_mesh)
        before = steps(hybrid, before_mesh, range(CUT_AT))
        save_hybrid(
            f"{folder}/{name}", CUT_AT, hybrid, shared={"tokens": 100}, own=before_mesh.here
        )
        after, (shared, own, facts), filled = go_on(f"{folder}/{name}", loaded_on)
        seen[name] = before, after, (shared, own == before_mesh.here, facts.step), filled
    return seen


def go_on(place, run):
    """(steps after the checkpoint, what load_hybrid returned, were the parameters filled?)"""
    mesh = Mesh(run.sizes, SETS)
    hybrid = build(run, mesh)
    for parameter in hybrid.part.parameters():
        parameter.data.fill_(7.0)
    found = load_hybrid(place, hybrid)
    filled = all((t != 7.0).all().item() for t in parameters(hybrid).values())
    return steps(hybrid, mesh, range(CUT_AT, STEPS)), found, filled


def on_fewer(folder):
    return {name: go_on(f"{folder}/{name}", run) for name, run in FEWER.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(tmp_path_factory.mktemp("hybrid"))


@pytest.fixture(scope="module")
def results(folder):
    return launch.capture(
        there_and_on, folder, backend="gloo", nproc=WORLD, timeout=200, ledger=False
    )


@pytest.fixture(scope="module")
def fewer(results, folder):
    return launch.capture(
        on_fewer, folder, backend="gloo", nproc=WORLD // 2, timeout=100, ledger=False
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", WAYS)
def test_the_run_goes_on_as_one_process_does(results, name):
    saved_on, loaded_on = WAYS[name]
    want = single_process("adamw", SHAPES[4])
    compare(saved_on, [seen[name][0] for seen in results], want[:CUT_AT])
    compare(loaded_on, [seen[name][1] for seen in results], want[CUT_AT:])


@pytest.mark.parametrize("name", FEWER)
def test_so_it_does_on_half_as_many_ranks(fewer, name):
    compare(
        FEWER[name], [seen[name][0] for seen in fewer], single_process("adamw", SHAPES[4])[CUT_AT:]
    )
    for seen in fewer:
        _, (shared, own, facts), filled = seen[name]
        assert filled and shared == {"tokens": 100} and own is None and facts.world_size == WORLD


def test_every_parameter_is_filled_and_the_rest_comes_back(results):
    for seen in results:
        for _, _, beside, filled in seen.values():
            assert filled and beside == ({"tokens": 100}, True, CUT_AT)


def test_the_comparison_would_see_an_optimizer_that_begins_anew():
    """From the same weights, without Adam's averages, the next step goes another way."""
    model, want = gpt(SHAPES[4]), single_process("adamw", SHAPES[4])
    model.load_state_dict(want[CUT_AT - 1][3], strict=False)
    anew = plain_steps(model, OPTIMIZERS["adamw"](model.parameters()), [CUT_AT])
    assert not differences(anew[0][2], want[CUT_AT][2], TOLERANCE)
    names = want[CUT_AT][3]
    off = differences(anew[0][3], names, TOLERANCE)
    # their gradient is 0
    assert len(off) == len(names) - len([name for name in names if name.endswith("k.bias")])
