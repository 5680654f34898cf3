"""Parameter servers: every step is that of one process on the whole batch, and every byte goes
through rank 0."""

import copy

import numpy as np
import pytest
import torch
from servers import (
    CASES,
    GROUPS,
    STEPS,
    WORLD,
    Net,
    NormNet,
    all_cases,
    gradients,
    loss_of,
    momentum,
    state,
)

from lib import launch
from lib.collectives.cost import COST
from lib.data_parallel.parameter_server import ParameterServer


@pytest.fixture(scope="module")
def results(request):
    name = request.config.getoption("--backend")
    try:
        return launch.capture(all_cases, nproc=WORLD, backend=name)
    except RuntimeError as error:
        if type(error) is RuntimeError and "needs one GPU per rank" in str(error):
            pytest.skip(str(error))
        raise


def one_process(seed):
    """The plain loop on the whole batch: gradients and state after each of the five steps."""
    module = Net(seed)
    optimizer, steps = momentum(module.parameters()), []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(module, step).backward()
        optimizer.step()
        steps.append({"gradients": gradients(module), "after": state(module)})
    return steps


def by_hand(seed, workers):
    """The same in one process, a copy per worker: batch norm sees a worker's rows, the first one's
    averages stay."""
    module = NormNet(seed)
    optimizer, steps = momentum(module.parameters()), []
    for step in range(STEPS):
        copies = [copy.deepcopy(module) for _ in range(workers)]
        for worker, replica in enumerate(copies):
            loss_of(replica, step, worker, workers).backward()
        for p, *theirs in zip(
            module.parameters(), *(replica.parameters() for replica in copies), strict=True
        ):
            p.grad = sum(each.grad for each in theirs) / workers
        for buffer, first in zip(module.buffers(), copies[0].buffers(), strict=True):
            buffer.copy_(first)
        optimizer.step()
        for replica in copies:
            replica.zero_grad()
        steps.append({"gradients": gradients(module), "after": state(module)})
    return steps


def assert_equal(got, expected, where):
    """Each tensor to 1e-12 of its own largest value."""
    assert got.keys() == expected.keys(), where
    for name in expected:
        off, scale = (got[name] - expected[name]).abs().max(), expected[name].abs().max()
        assert off <= 1e-12 * scale, f"{where}, {name}: off by {off:.3g} of {scale:.3g}"


def assert_is_one_process(seen, seed):
    """The server's five steps are those of one process; only that `never` has a gradient, of zeros,
    instead of none."""
    for step, (got, expected) in enumerate(zip(seen, one_process(seed), strict=True)):
        expected["gradients"]["never"] = torch.zeros(3, dtype=torch.float64)
        for what in ("gradients", "after"):
            assert_equal(got[what], expected[what], f"step {step}, {what}")


@pytest.mark.parametrize(("form", "members"), CASES)
def test_every_step_is_the_step_of_one_process_on_the_whole_batch(results, form, members):
    seen = [results[member][f"Net {form} {members}"]["steps"] for member in members]
    assert_is_one_process(seen[0], seed=members[0])  # the group's rank 0: its values count
    for theirs in seen[1:]:
        for step, (server, worker) in enumerate(zip(seen[0], theirs, strict=True)):
            for name, tensor in server["after"].items():
                assert torch.equal(worker["pulled"][name], tensor), f"step {step}, {name}"


@pytest.mark.parametrize("members", GROUPS)
def test_the_plain_function_is_that_step_too(results, members):
    seen = [results[member][f"function {members}"] for member in members]
    assert_is_one_process(seen[0], seed=members[0])
    for theirs in seen[1:]:  # one update behind: what they pulled is what rank 0 had before
        for step in range(1, STEPS):
            for name, tensor in seen[0][step - 1]["after"].items():
                assert torch.equal(theirs[step]["after"][name], tensor), f"step {step}, {name}"


@pytest.mark.parametrize(("form", "members"), CASES)
def test_the_first_workers_buffers_are_everybodys(results, form, members):
    label = f"NormNet {form} {members}"
    seen = [results[member][label]["steps"] for member in members]
    expected = by_hand(members[0], results[members[0]][label]["workers"])
    for step in range(STEPS):
        for what in ("gradients", "after"):
            assert_equal(seen[0][step][what], expected[step][what], f"step {step}, {what}")
        for rank, theirs in enumerate(seen):
            assert_equal(
                theirs[step]["pulled"],
                expected[step]["after"],
                f"step {step}, pulled by rank {rank}",
            )


@pytest.mark.parametrize(("form", "members"), CASES)
def test_who_trains_and_who_keeps_the_optimizers_state(results, form, members):
    first = 1 if form == "serves" else 0
    for rank, member in enumerate(members):
        seen = results[member][f"Net {form} {members}"]
        assert seen["workers"] == len(members) - first
        assert seen["worker"] == (rank - first if rank >= first else None)
        trained = sum(p.requires_grad for p in Net(0).parameters())
        # one momentum per trained parameter, on rank 0
        assert seen["optimizer"] == (trained if rank == 0 else None)
        for step in seen["steps"]:
            assert (step["loss"] is None) == (rank < first)


@pytest.mark.parametrize("members", GROUPS)
def test_the_losses_are_those_of_the_workers_rows(results, members):
    seen = [results[member][f"Net trains {members}"]["steps"] for member in members]
    module = Net(members[0])
    for step in range(STEPS):
        for worker, theirs in enumerate(seen):
            expected = loss_of(module, step, worker, len(members)).detach()
            assert (
                abs(theirs[step]["loss"] - expected) <= 1e-12 * expected
                and not theirs[step]["loss"].requires_grad
            )
        module.load_state_dict(seen[0][step]["after"])


def star(members, down, up):
    """The (WORLD, WORLD) matrix of a server on members[0] that sends each other member `down` and
    gets `up` of each."""
    matrix = np.zeros((WORLD, WORLD), dtype=np.int64)
    for worker in members[1:]:
        matrix[members[0], worker], matrix[worker, members[0]] = down, up
    return matrix


UNITS = {"bytes": lambda t: t.nbytes, "elements": torch.Tensor.numel, "messages": lambda t: 1}


def amount(unit, tensors):
    return sum(map(UNITS[unit], tensors))


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("make", [Net, NormNet])
@pytest.mark.parametrize(("form", "members"), CASES)
def test_a_step_sends_n_to_each_worker_and_n_back_and_only_rank_0_talks(
    results, form, members, make, unit
):
    log, module = results.ledger.section(f"{make.__name__} {form} {members} step"), make(0)
    n = amount(unit, [p for p in module.parameters() if p.requires_grad])
    buffers = amount(unit, module.buffers())
    expected = star(members, down=n + buffers, up=n)
    if form == "serves":
        expected[members[1], members[0]] += buffers  # the first worker's
    assert (log.matrix(unit) == expected).all(), log.matrix(unit)
    back = buffers if form == "serves" else 0
    assert log.sent(unit) == (len(members) - 1) * (2 * n + buffers) + back
    assert {e.op for e in log.entries} <= {"send", "recv"}


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("members", GROUPS)
def test_the_plain_function_sends_the_same(results, members, unit):
    log = results.ledger.section(f"function {members}")
    n = amount(unit, [p for p in Net(0).parameters() if p.requires_grad])
    assert (log.matrix(unit) == star(members, n, n)).all()
    assert {e.op for e in log.entries} <= {"send", "recv"}


@pytest.mark.parametrize(("form", "members"), CASES)
def test_frozen_parameters_are_sent_once_when_the_server_is_made(results, form, members):
    everything = amount("bytes", Net(0).parameters())  # the tied one once
    log = results.ledger.section(f"Net {form} {members} start")
    assert (log.matrix("bytes") == star(members, down=everything, up=0)).all()


@pytest.mark.parametrize("members", GROUPS)
def test_the_formulas_of_the_star_are_the_servers(results, members):
    """So `cost.COST["star"]` against `COST["ring"]` compares a parameter server with a ring."""
    N, n = len(members), sum(p.numel() for p in Net(0).parameters() if p.requires_grad)
    log = results.ledger.section(f"function {members}")
    assert log.matrix("elements")[members[0]].sum() == COST["star"].sent(n, N)
    assert log.sent("elements") == COST["star"].total(n, N) == COST["ring"].total(n, N)


def nobody_trains():
    with pytest.raises(ValueError, match="no rank trains: use TrainingServer, or 2 ranks"):
        ParameterServer(Net(0), momentum)


def test_a_server_without_workers_says_so():
    launch.capture(nobody_trains, nproc=1, backend="gloo")
