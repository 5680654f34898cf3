"""A GPT on a mesh of 8 ranks is the GPT of one process: loss, norm, every gradient and parameter of
3 clipped steps."""

from functools import partial

import pytest
import torch
from hybrid_cases import (
    MAX_NORM,
    SHAPES,
    STEPS,
    TIED,
    WORLD,
    Run,
    assemble,
    compare,
    factorisations,
    microbatches,
    single_process,
    sizes,
    train_each,
)
from sweeps import quick

from lib import launch
from lib.hybrid import ShardedUpdate
from lib.pipeline import gpipe, interleaved, zb_h1
from lib.tensor_parallel import sequence_parallel_gpt

ROWS_OF_DP = {1: 7, 2: 5, 4: 4, 8: 2}  # of a micro-batch: the last one is smaller
FACTORS = {
    f"pp={pp} dp={dp} tp={tp}": Run(sizes(pp, dp, 1, tp), ROWS_OF_DP[dp], n_layers=max(2, pp))
    for pp, dp, tp in factorisations(WORLD)
}
SHARDED = {
    "zero1": Run(sizes(2, 2, 1, 2), update=ShardedUpdate),
    "zero1, 4 data ranks": Run(sizes(2, 4), b=4, update=ShardedUpdate, optimizer="adamw"),
    "sequence": Run(sizes(2, 2, 1, 2), split=sequence_parallel_gpt),
    "sequence, zero1": Run(
        sizes(2, 2, 1, 2), split=sequence_parallel_gpt, update=ShardedUpdate, optimizer="adamw"
    ),
}
CONTEXT = {
    "pp, cp, tp": Run(sizes(2, 1, 2, 2), b=9),
    "dp, cp, tp": Run(sizes(1, 2, 2, 2), b=7),
    "cp=4, tp": Run(sizes(1, 1, 4, 2), b=13),
    "cp, sequence, zero1": Run(
        sizes(2, 1, 2, 2), b=9, split=sequence_parallel_gpt, update=ShardedUpdate, optimizer="adamw"
    ),
    "dp, cp, sequence": Run(sizes(1, 2, 2, 2), b=7, split=sequence_parallel_gpt),
}
ORDERS = {
    "tp slowest": Run({"tp": 2, "cp": 1, "ep": 1, "dp": 2, "pp": 2}),
    "gpipe": Run(sizes(2, 2, 1, 2), schedule=gpipe),
    "interleaved": Run(sizes(2, 2, 1, 2), b=3, schedule=partial(interleaved, v=2), n_layers=4),
    "zero bubble": Run(sizes(2, 2, 1, 2), schedule=zb_h1),
}
RUNS = FACTORS | SHARDED | CONTEXT | ORDERS
SLOW = {
    "pp=1 dp=1 tp=8", "pp=1 dp=8 tp=1", "pp=4 dp=2 tp=1", "pp=1 dp=2 tp=4", "pp=1 dp=4 tp=2",
    "pp=2 dp=1 tp=4", "pp=4 dp=1 tp=2", "pp=2 dp=4 tp=1", "dp, cp, tp", "sequence, zero1",
    "tp slowest", "zero1", "sequence", "pp, cp, tp", "cp=4, tp", "dp, cp, sequence", "gpipe",
    "zero bubble",
}  # fmt: skip


def norm_counts(which, change):
    """A mistake in the norm's set number `which`: change(hybrid, tensors, groups) -> the wrong
    (tensors, groups)."""

    def spoil(hybrid):
        hybrid.counted[which] = change(hybrid, *hybrid.counted[which])

    return spoil


def tied_in_line_with_the_rest(hybrid):
    """Flats of sharded and tied, in the model's order: embedding first on the first stage, head
    last on the last."""
    sets, optimizer = hybrid.sets, lambda groups: torch.optim.AdamW(groups, lr=0.01, eps=1e-3)
    in_order = sets.tied + sets.sharded if hybrid.mesh.here["pp"] == 0 else sets.sharded + sets.tied
    groups = [{"params": in_order}, {"params": sets.replicated}]
    hybrid.updates[0] = hybrid.dense = ShardedUpdate(groups, optimizer, hybrid.data)
    hybrid.counted = [([], [])]  # the norm is not the question


CUBE, SEQUENCE = FACTORS["pp=2 dp=2 tp=2"], SHARDED["sequence"]
MISTAKES = {  # name: (Run, what is spoilt, what is seen of it)
    "tied twice in the norm": (
        CUBE, norm_counts(0, lambda hybrid, _, groups: (hybrid.sets.sharded + hybrid.sets.tied,
            groups)), "norm",
    ),
    "replicated tp times in the norm": (
        CUBE, norm_counts(1, lambda hybrid, tensors, groups: (tensors, [hybrid.tp, *groups])),
        "norm",
    ),
    "sharded not summed over tp": (CUBE, norm_counts(0, lambda hybrid, tensors,
        _: (tensors, [hybrid.pp])), "same bits"),
    "a norm per stage": (CUBE, norm_counts(1, lambda hybrid, tensors, _: (tensors, [])),
    "same bits"),
    "tied not summed": (CUBE, lambda hybrid: hybrid.pipeline.tied.clear(), "norm"),
    "no mean over the data ranks": (CUBE, lambda hybrid: hybrid.updates.clear(), "same bits"),
    "no sum over tp": (SEQUENCE, lambda hybrid: setattr(hybrid.part, "sum_gradients", int),
    "same bits"),
    "tied in line with the rest": (SHARDED["zero1, 4 data ranks"], tied_in_line_with_the_rest,
    "two copies"),
}  # fmt: skip
MISTAKES = quick(MISTAKES, {"sharded not summed over tp", "tied not summed", "no sum over tp"})


@pytest.fixture(scope="module")
def results():
    spoilt = {name: (run, change) for name, (run, change, _) in MISTAKES.items()}
    return launch.capture(
        train_each,
        quick(RUNS, SLOW),
        spoilt,
        backend="gloo",
        nproc=WORLD,
        timeout=280,
        ledger=False,
    )


def check(results, name):
    run = RUNS[name]
    compare(run, [seen[name] for seen in results], single_process(run.optimizer, run.shape))


@pytest.mark.parametrize("name", quick(FACTORS, SLOW & FACTORS.keys()))
def test_8_ranks_split_over_pp_dp_and_tp_train_as_one_process_does(results, name):
    check(results, name)


@pytest.mark.parametrize("name", quick(SHARDED, SLOW & SHARDED.keys()))
def test_so_does_it_with_sharded_optimizers_and_sequence_parallelism(results, name):
    check(results, name)


@pytest.mark.parametrize("name", quick(CONTEXT, SLOW & CONTEXT.keys()))
def test_so_does_it_with_the_sequence_over_cp(results, name):
    check(results, name)


@pytest.mark.parametrize("name", quick(ORDERS, SLOW & ORDERS.keys()))
def test_whatever_the_order_of_axes_and_the_schedule(results, name):
    check(results, name)


def test_there_are_ten_factorisations_and_micro_batches_are_uneven():
    assert len(FACTORS) == 10
    assert all(
        len(set(microbatches(run))) == 2
        for run in RUNS.values()
        if run is not ORDERS["interleaved"]
    )
    assert {len(microbatches(run)) for run in FACTORS.values()} == {2, 3, 4}


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_clipping_did_something(optimizer):
    norms = [norm for _, norm, _, _ in single_process(optimizer, SHAPES[2])]
    assert len(norms) == STEPS and max(norms) > MAX_NORM


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_any_of_the_sums_is_seen(results, name):
    run, _, text = MISTAKES[name]
    parts = [seen[name] for seen in results]
    with pytest.raises(AssertionError, match=text):
        if text == "two copies":
            assemble([grads for ((_, _, grads, _),) in parts], run.sizes)
        compare(run, parts, single_process(run.optimizer, run.shape)[:1])


def test_the_comparison_would_see_a_sum_for_a_mean_and_copies_that_part(results):
    run = FACTORS["pp=2 dp=2 tp=2"]
    parts = [seen["pp=2 dp=2 tp=2"] for seen in results]
    want = single_process("sgd", run.shape)
    twice = [
        (loss, norm, {name: 2 * g for name, g in grads.items()}, params)
        for loss, norm, grads, params in want
    ]
    with pytest.raises(AssertionError, match="gradient"):
        compare(run, parts, twice)
    with pytest.raises(AssertionError):
        compare(
            run, parts, [(loss, 1.001 * norm, grads, params) for loss, norm, grads, params in want]
        )
    last_parameters = [{name: t.clone() for name, t in part[-1][3].items()} for part in parts]
    assert TIED in assemble(last_parameters, run.sizes)
    for rank in (4, 6):  # the last stage, the first tp rank; all data ranks alike
        last_parameters[rank]["head.weight"][0, 0] += 1e-12
    with pytest.raises(AssertionError, match="two copies"):
        assemble(last_parameters, run.sizes)
