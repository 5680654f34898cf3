"""relay_step: one batch through the stages of a group; gradients of one process,
and 2(p-1) messages."""

import functools

import pytest
import torch
import torch.distributed as dist
from pipelines import CASES, cut, differences, gradients
from torch import nn

from lib import launch, ledger
from lib.pipeline.relay_step import relay_step

GROUPS = {1: (2,), 2: (1, 3), 3: (0, 2, 3), 4: (0, 1, 2, 3)}
RUNS = {f"{name}, p = {p}": (name, p) for name in ("gpt", "layers") for p in GROUPS}
ROWS = 3


def model(name, p):
    """(module, its p stages), with no parameter in two of them."""
    module, stages = cut(CASES[name], p)
    if name == "gpt":
        module.head.weight = nn.Parameter(module.head.weight.detach().clone())
        stages[-1][-1].weight = module.head.weight
    return module, stages


@functools.cache
def one_process(name, p):
    """(loss, {parameter: gradient of two steps}, [(shape, dtype) of what each stage takes])"""
    module, stages = model(name, p)
    (x, target), takes = CASES[name].batch(ROWS), []
    for _ in range(2):
        loss = CASES[name].loss(module(x), target)
        loss.backward()
    for stage in stages:
        takes.append((x.shape, x.dtype))
        x = stage(x)
    return loss.detach(), gradients(module), takes


def run_each():
    """{run: (loss, wrong gradients, names of this rank's parameters)}"""
    groups = {p: dist.new_group(ranks) for p, ranks in GROUPS.items()}
    seen = {}
    for run, (name, p) in RUNS.items():
        if dist.get_rank() in GROUPS[p]:
            (module, stages), (x, target) = model(name, p), CASES[name].batch(ROWS)
            rank, (_, want, takes) = dist.get_rank(groups[p]), one_process(name, p)
            if rank > 0:
                shape, dtype = takes[rank]
                x = torch.full(shape, torch.nan, dtype=dtype)
            ledger.mark(run)
            for _ in range(2):  # gradients add up
                loss = relay_step(
                    stages[rank], x, target if rank == p - 1 else None, CASES[name].loss, groups[p]
                )
            ledger.mark("")
            mine = {id(q) for q in stages[rank].parameters()}
            got = {n: q.grad for n, q in module.named_parameters() if id(q) in mine}
            seen[run] = loss, differences(got, want), set(got)
    return seen


@pytest.fixture(scope="module")
def results():
    return launch.capture(run_each, backend="gloo", nproc=4, timeout=120)


@pytest.mark.parametrize("run", RUNS)
def test_gradients_and_loss_are_those_of_one_process(results, run):
    name, p = RUNS[run]
    want_loss, want, _ = one_process(name, p)
    seen = [results[rank][run] for rank in GROUPS[p]]
    assert not any(wrong for _, wrong, _ in seen), run
    assert set().union(*(names for _, _, names in seen)) == set(want)
    assert [loss for loss, _, _ in seen[:-1]] == [None] * (p - 1)
    loss = seen[-1][0]
    assert abs(loss - want_loss) < 1e-14 * abs(want_loss) and not loss.requires_grad


@pytest.mark.parametrize("run", RUNS)
def test_an_activation_to_the_next_rank_and_a_gradient_to_the_previous_one(results, run):
    name, p = RUNS[run]
    elements = [shape.numel() for shape, _ in one_process(name, p)[2]]
    log, ranks = results.ledger.section(run), GROUPS[p]
    for i, rank in enumerate(ranks):
        sent = [(e.peer, e.numel) for e in log.of(rank) if e.op == "send"]
        on = [(ranks[i + 1], elements[i + 1])] if i < p - 1 else []
        back = [(ranks[i - 1], elements[i])] if i > 0 else []
        assert sent == 2 * (on + back)
