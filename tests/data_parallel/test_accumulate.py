"""k micro-batches are the whole batch, for the messages of one."""

import functools

import pytest
import torch
import torch.distributed as dist
from replicas import (
    MODELS,
    TRANSPORTS,
    WRAPPERS,
    differences,
    groups,
    same_bits,
    share,
    single_process,
    train,
)
from sweeps import WHOLE, sweep

from lib import launch, ledger
from lib.data_parallel import accumulate

KS = (1, 2, 4) if WHOLE else (1, 2)
GROUPS = [(0,), (0, 1, 2), (1, 3)]  # shares of 12, 4 and 6 rows
NAMES = ["gpt float64", "paths float64"]
SHARED = sweep(
    (name, wrapper, members)
    for name in NAMES
    for wrapper in WRAPPERS
    for members in GROUPS
    if name == "paths float64" or members == (0, 1, 2)
)
RUNS = [(*shared, k) for shared in SHARED for k in KS if (12 // len(shared[-1])) % k == 0]


def by_accumulation(name, k, group, losses):
    """backward(net, step) for `train`: this rank's share in k micro-batches."""
    case, rank, world_size = MODELS[name], dist.get_rank(group), dist.get_world_size(group)

    def backward(net, step):
        shard = share(case.batch(step), rank, world_size)
        losses.append(accumulate(net, [share(shard, i, k) for i in range(k)], [1] * k, case.loss))

    return backward


def train_each():
    group_of, seen = groups(), {}
    for run in RUNS:
        name, wrapper, members, k = run
        if dist.get_rank() in members:
            group, losses = group_of[members], []
            module = MODELS[name].build(dist.get_rank(group))
            net = WRAPPERS[wrapper](module, group, **TRANSPORTS["ring"])
            ledger.mark(str(run))
            seen[run] = train(net, module, by_accumulation(name, k, group, losses)), losses
            ledger.mark("")
    return seen


@functools.cache
def results():
    return launch.capture(train_each, backend="gloo", nproc=4, timeout=240)


@pytest.mark.parametrize("name", NAMES)
def test_k_microbatches_equal_the_whole_batch(name):
    for run in [run for run in RUNS if run[0] == name]:
        first, *others = [results()[member][run][0] for member in run[2]]
        assert differences(first, single_process(name), MODELS[name].tolerance) == [], run
        assert all(same_bits(first, other) for other in others), run


def test_the_messages_do_not_depend_on_k():
    sent = {}
    for run in RUNS:
        name, wrapper, members, k = run
        log = results().ledger.section(str(run))
        sent.setdefault((name, wrapper, members), {})[k] = (
            log.matrix("messages").tolist(),
            log.sent("bytes"),
        )
    for run, by_k in sent.items():
        assert all(counts == by_k[1] for counts in by_k.values()), run
        assert by_k[1][1] > 0 or run[-1] == (0,)
    assert sum(len(by_k) > 1 for by_k in sent.values()) == len(sent)


def test_the_loss_returned_is_the_mean_of_the_ranks_share_and_holds_no_graph():
    for run in RUNS:
        by_rank = [torch.stack(results()[member][run][1]) for member in run[2]]  # (STEPS,) each
        case = MODELS[run[0]]
        module = case.build(0)
        whole = case.loss(module, case.batch(0))
        assert (
            not any(losses.requires_grad for losses in by_rank)
            and by_rank[0].dtype == torch.float64
        )
        torch.testing.assert_close(
            torch.stack(by_rank).mean(0)[0], whole.detach(), rtol=1e-12, atol=0
        )


def test_no_micro_batches_are_refused():
    with pytest.raises(ValueError, match="no micro-batches: a step needs at least one"):
        accumulate(torch.nn.Linear(1, 1), [], [], lambda model, batch: None)


def test_a_loss_that_fails_leaves_the_wrapper_ready_to_send():
    def fails():
        net = WRAPPERS["overlapped"](MODELS["paths float64"].build(0))
        case, said = MODELS["paths float64"], []

        def broken(model, batch):
            raise ArithmeticError("no loss")

        try:
            accumulate(net, [case.batch(0), case.batch(1)], [1, 1], broken)
        except ArithmeticError as error:
            said.append(str(error))
        return said, net.syncs

    assert launch.capture(fails, backend="gloo", nproc=1) == [(["no loss"], True)]
