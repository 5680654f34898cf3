"""DiLoCo: with one plain inner step it is data parallelism; it sends all parameters once a round;
ranks stay equal."""

import pytest
import torch
import torch.distributed as dist
from sweeps import first_quick

from lib import launch, ledger
from lib.data_parallel.diloco import outer_step
from lib.data_parallel.replicate import average_gradients
from lib.training.model import GPT, Shape
from lib.training.text import batch, load

SHAPE = Shape(104, seq_len=16, n_layers=1, hidden=16, n_heads=2)


def loss_of(model, step):
    """Of this rank's own rows."""
    rank, N = dist.get_rank(), dist.get_world_size()
    tokens, targets = batch(load().train, step, batch_size=2 * N, seq_len=16)
    return model.loss(tokens[2 * rank : 2 * rank + 2], targets[2 * rank : 2 * rank + 2])


def trained(H, rounds, inner, lr, momentum):
    model = GPT(SHAPE).double()
    optimizer = inner(model.parameters())
    start = [p.detach().clone() for p in model.parameters()]
    velocity = [torch.zeros_like(w) for w in start]
    ledger.mark("training")
    for step in range(H * rounds):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
        if (step + 1) % H == 0:
            outer_step(model.parameters(), start, velocity, lr, momentum)
    ledger.mark("")
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def in_data_parallel(steps):
    model = GPT(SHAPE).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        average_gradients(model.parameters())
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


@pytest.mark.parametrize("nproc", first_quick([2, 1, 3]))
def test_one_plain_step_a_round_is_data_parallelism(nproc):
    ours = launch.run(trained, 1, 4, sgd, 1.0, 0.0, nproc=nproc)
    theirs = launch.run(in_data_parallel, 4, nproc=nproc)
    assert all((a - theirs[0]).abs().max() < 1e-12 for a in ours)


def test_a_round_sends_all_parameters_once_and_leaves_the_ranks_equal():
    H, rounds, N = 3, 2, 2
    results = launch.run(
        trained, H, rounds, lambda p: torch.optim.AdamW(p, lr=1e-2), 0.7, 0.9, nproc=N
    )
    assert torch.equal(results[0], results[1])
    psi = results[0].numel()
    assert results.ledger.section("training").sent("elements") == rounds * 2 * (N - 1) * psi
