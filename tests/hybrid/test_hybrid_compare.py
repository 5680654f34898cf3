"""Gradients and trainings next to those of a single process: right ones agree, mistakes show."""

from functools import partial

import pytest
import torch

from lib import collectives, launch
from lib.hybrid import (
    HybridByHand,
    average_over_mesh,
    compare,
    local_batch,
    mesh_of,
    norm_over_mesh,
)
from lib.tensor_parallel import parallel_gpt, sequence_parallel_gpt
from lib.training.model import GPT, Shape

SHAPE = Shape(vocab_size=16, seq_len=4, n_layers=2, hidden=16, n_heads=2)
SGD = partial(torch.optim.SGD, lr=0.5)
STEPS = 2


def batch(step):
    generator = torch.Generator().manual_seed(step)
    return torch.randint(16, (2, 8, 4), generator=generator)


def errors(split):
    mesh, model = mesh_of(dp=2, tp=2), GPT(SHAPE).double()
    part = split(model, mesh.group("tp"))
    part.loss(*(local_batch(x, mesh) for x in batch(0))).backward()
    for p in part.parameters():
        collectives.all_reduce(p.grad, mesh.group("dp"))
        p.grad /= mesh.size("dp")
    return compare.gradient_errors(part, mesh, model, *batch(0))


def trained(sizes, average, norm_of):
    mesh, seen = mesh_of(**sizes), []
    rows = lambda step: [local_batch(x, mesh) for x in batch(step)]
    hybrid = HybridByHand(GPT(SHAPE).double(), mesh, rows(0)[0], 2, SGD, average, norm_of)
    for step in range(STEPS):
        seen.append((hybrid.backward(*rows(step)).item(), hybrid.clip(0.1).item()))
        hybrid.step()
    return seen


def on_ranks():
    right = average_over_mesh, norm_over_mesh
    return (
        [errors(split) for split in (parallel_gpt, sequence_parallel_gpt)],
        compare.parameters_held(SHAPE, {"pp": 2, "tp": 2}),
        trained({"pp": 2, "tp": 2}, *right),
        trained({"pp": 2, "tp": 2}, compare.tied_not_summed, right[1]),
        trained({"dp": 2, "tp": 2}, right[0], compare.replicated_counted_tp_times),
    )


@pytest.mark.slow
def test_what_is_right_agrees_with_a_single_process_and_mistakes_do_not():
    ranks = launch.capture(on_ranks, nproc=4, backend="gloo", ledger=False)
    alone = compare.train_alone(GPT(SHAPE).double(), SGD, map(batch, range(STEPS)), 0.1)
    (plain, sequence), _, right, tied, twice = ranks[0]
    assert max(plain.values()) < 1e-12 and sequence["sharded"] < 1e-12
    assert sequence["replicated"] > 1e-3
    for seen, wrong_loss, wrong_norm in ((right, 0, 0), (tied, 0, 1), (twice, 0, 1)):
        (loss, norm), (now, then) = seen[0], alone[0]
        assert (abs(loss - now) > 1e-9, abs(norm - then) > 1e-9) == (wrong_loss, wrong_norm)
    assert right[1] == pytest.approx(alone[1]) and tied[1][0] != pytest.approx(alone[1][0])
    held = {tuple(where.values()): sizes for _, (where, sizes), *_ in ranks}
    total = sum(of["sharded"] for of in held.values())
    total += held[0, 0]["replicated"] + held[1, 0]["replicated"]
    total += held[0, 0]["tied"] + held[0, 1]["tied"]
    assert total == GPT(SHAPE).num_parameters()
