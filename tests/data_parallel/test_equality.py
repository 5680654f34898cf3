"""Naive, bucketed, overlapped: every gradient and parameter of every step is that of one process on
the whole batch."""

from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist
from replicas import (
    GROUPS,
    MODELS,
    STEPS,
    TRANSPORTS,
    WRAPPERS,
    NormNet,
    differences,
    gpt_batch,
    groups,
    on_shards,
    same_bits,
    share,
    single_process,
    train,
)
from sweeps import sweep
from torch.nn.parallel import DistributedDataParallel

from lib import launch
from lib.data_parallel import OverlappedDataParallel, broadcast_buffers, broadcast_parameters

WORLD = (0, 1, 2, 3)
RUNS = sweep(
    [
        (name, wrapper, transport, members)
        for name in MODELS
        for wrapper in WRAPPERS
        for transport in TRANSPORTS
        for members in GROUPS
        if name == "paths float64"
        or (transport == "lib" and (name == "gpt float64" or members in [(0, 1), WORLD]))
    ],
    always=[
        ("gpt float64", "overlapped", "lib", WORLD),
        *(("paths float64", each, "lib", WORLD) for each in WRAPPERS),
    ],
)


def run_each():
    """{run: what this rank saw}. Every rank builds weights of its own."""
    group_of, seen = groups(), {}
    for run in RUNS:
        name, wrapper, transport, members = run
        if dist.get_rank() in members:
            group = group_of[members]
            module = MODELS[name].build(seed=dist.get_rank(group))
            net = WRAPPERS[wrapper](module, group, **TRANSPORTS[transport])
            seen[run] = train(net, module, on_shards(name, group))
    return seen


def ddp_and_ours():
    """GPT in float32 by torch's DDP, which starts from rank 0's weights too, and by ours."""
    rank, case = dist.get_rank(), MODELS["gpt float32"]
    module = case.build(rank)

    def backward(net, step):
        case.loss(net, share(case.batch(step), rank, dist.get_world_size())).backward()

    theirs = train(DistributedDataParallel(module), module, backward)
    module = case.build(rank)
    return theirs, train(OverlappedDataParallel(module), module, on_shards("gpt float32", None))


class Seen(NamedTuple):
    """What a rank saw. Steps are [(gradients, parameters), ...]."""

    runs: dict  # {run: steps}
    by_ddp: list  # steps
    by_ours: list
    batch_norm: list


def everything():
    return Seen(run_each(), *ddp_and_ours(), batch_norm())


@pytest.fixture(scope="module")
def results():
    return launch.capture(everything, backend="gloo", nproc=4, timeout=240, ledger=False)


@pytest.mark.parametrize("name", MODELS)
def test_every_gradient_and_parameter_of_five_steps_is_the_single_process_s(results, name):
    for run in [run for run in RUNS if run[0] == name]:
        seen = results[run[-1][0]].runs[run]  # the group's other ranks are compared below
        wrong = differences(seen, single_process(name), MODELS[name].tolerance)
        assert not wrong, f"{run}: " + "; ".join(wrong[:3])


def test_the_comparison_would_see_a_sum_that_is_no_mean():
    right = single_process("gpt float64")
    wrong = [({n: g * (1 + 1e-10) for n, g in grads.items()}, params) for grads, params in right]
    # all but the key bias, which is 0
    assert len(differences(wrong, right, 1e-12)) == STEPS * (len(right[0][0]) - 1)


def test_all_ranks_hold_the_same_bits_after_every_step(results):
    for run in RUNS:
        first, *others = (results[member].runs[run] for member in run[-1])
        for other in others:
            assert same_bits(first, other), run


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_what_nobody_used_has_a_gradient_of_zeros_and_what_is_frozen_has_none(results, wrapper):
    steps = results[3].runs["paths float64", wrapper, "lib", WORLD]
    start = MODELS["paths float64"].build(0).state_dict()
    for step, (gradients, parameters) in enumerate(steps):
        unused = {n for n, g in gradients.items() if g is not None and not g.any()}
        never, not_in_step_2 = {"path.2.weight", "path.2.bias"}, {"path.1.weight", "path.1.bias"}
        assert unused == (never | not_in_step_2 if step == 2 else never)
        assert {n for n, g in gradients.items() if g is None} == {"frozen.weight", "frozen.bias"}
        for name in ("frozen.weight", "path.2.weight"):
            assert torch.equal(parameters[name], start[name]), f"{name} is rank 0's, for ever"
        assert "again.weight" not in gradients, "a tied parameter stands in the list once"


def test_the_gradients_are_those_of_torch_ddp(results):
    """Both have rounding of their own: DDP divides before it adds, ours after."""
    for rank in results:
        assert differences(rank.by_ours, rank.by_ddp, MODELS["gpt float32"].tolerance) == []


def batch_norm():
    """[the buffers when built, as wrapped, after a forward, after broadcast_buffers]."""
    module, buffers = NormNet(seed=1 + dist.get_rank()), []

    def note():
        buffers.append({n: b.clone() for n, b in module.state_dict().items()})

    note()
    net = OverlappedDataParallel(module)
    note()
    net(
        torch.randn(3, 6, generator=torch.Generator().manual_seed(dist.get_rank()))
    ).sum().backward()
    net.average_gradients()
    note()
    broadcast_buffers(module)
    note()
    return buffers


STATISTICS = ["norm.running_mean", "norm.running_var"]
COUNT = "norm.num_batches_tracked"


def test_parameters_and_buffers_are_rank_0s_once_wrapped_frozen_ones_and_counts_too(results):
    built, wrapped = zip(*(rank.batch_norm[:2] for rank in results), strict=True)
    for name in built[0]:
        for rank in range(4):
            assert torch.equal(wrapped[rank][name], built[0][name]), (name, rank)
    assert [b[COUNT].item() for b in built] == [10, 20, 30, 40], "they were not equal by themselves"
    assert len({b["last.weight"].sum().item() for b in built}) == 4
    assert wrapped[3][COUNT].dtype == torch.int64 and wrapped[3][COUNT].shape == ()


def test_running_statistics_part_until_broadcast_buffers(results):
    after, again = zip(*(rank.batch_norm[2:] for rank in results), strict=True)
    for name in STATISTICS:
        assert len({a[name].sum().item() for a in after}) == 4, "each rank's follow its own shard"
    for name in [*STATISTICS, COUNT]:
        assert all(torch.equal(a[name], after[0][name]) for a in again)
    assert [a[COUNT].item() for a in after] == [11] * 4


def broadcast_in_a_group():
    group, rank = dist.new_group([1, 3]), dist.get_rank()
    module = MODELS["paths float64"].build(rank)
    if rank in (1, 3):
        broadcast_parameters(module, group)
    return module.state_dict()


def test_broadcast_parameters_takes_rank_0_of_the_group_and_keeps_the_tie():
    states, built = launch.capture(broadcast_in_a_group, backend="gloo", nproc=4), {}
    for rank, root in enumerate([0, 1, 2, 1]):
        built = MODELS["paths float64"].build(root).state_dict()
        assert all(torch.equal(states[rank][name], x) for name, x in built.items()), rank
        assert torch.equal(states[rank]["again.weight"], states[rank]["twice.weight"])


def test_the_wrapper_passes_inputs_and_results_through():
    def one():
        module = MODELS["gpt float64"].build(0)
        net = OverlappedDataParallel(module)
        tokens, _ = gpt_batch(0)
        return torch.equal(net(tokens), module(tokens)) and torch.equal(
            net(tokens=tokens), module(tokens)
        )

    assert launch.capture(one, backend="gloo", nproc=1) == [True]
