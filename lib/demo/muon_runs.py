"""Lab 4's Muon. Its update needs full matrices, so each matrix is owned by one rank, which updates
it for all ranks. We measure how evenly the owners are loaded, and train with Muon and with AdamW.

singular_values what Newton-Schulz iterations do to the singular values of a gradient
owner_loads     the load of the busiest owner relative to a lower bound, if matrices are assigned
                by cost or round-robin
compare         losses, bytes sent and optimizer state of AdamW with ZeRO-1, and of Muon
"""

import functools

import numpy as np
import torch
import torch.distributed as dist

from lib import launch, ledger, zero
from lib.demo.sharded import PSI, SHAPE, batch, mean_over_ranks
from lib.training.model import GPT
from lib.zero.muon import cost

N = 4  # ranks


def singular_values(newton_schulz) -> dict:
    """{"the gradient": singular values, "1 iteration": ..., ...}: the singular values of the
    gradient of one weight of the small GPT, (64, 256), before Newton-Schulz and after 1, 2, 3 and 5
    iterations of newton_schulz(gradient, iterations) -> (64, 256). "the gradient" is the gradient
    divided by its norm."""
    model = GPT(SHAPE)
    model.loss(*batch()).backward()
    gradient = model.blocks[1].mlp.down.weight.grad
    found = {"the gradient": torch.linalg.svdvals(gradient / gradient.norm()).tolist()}
    for k in (1, 2, 3, 5):
        values = torch.linalg.svdvals(newton_schulz(gradient, k))
        found[f"{k} iteration{'s' * (k > 1)}"] = values.tolist()
    return found


def owner_loads(owners) -> tuple[list, list]:
    """For the matrices of a GPT with 24 layers, on 2 to 32 ranks, print the load of the busiest
    owner relative to a lower bound, for `owners` and for a round-robin assignment. In any
    assignment the busiest owner has at least the mean load, and at least the cost of the most
    expensive matrix. Returns (costs in million multiplications, names) of the small GPT's matrices.

    owners(costs, ranks) -> [the rank that owns matrix 0, 1, ...]. Raises AssertionError if the
    busiest owner is above 1.05 of the bound.
    """
    large = [cost((m, 1024)) for m in (1024, 256, 256, 1024, 4096, 4096)] * 24
    for ranks in (2, 3, 4, 8, 16, 32):
        in_turn = [i % ranks for i in range(len(large))]
        bound = max(sum(large) / ranks, max(large))
        mine, other = (
            max(np.bincount(owner, weights=large)) / bound
            for owner in (owners(large, ranks), in_turn)
        )
        print(
            f"{ranks:>2} ranks: the busiest owner has {mine:.3f} of the bound, in turn {other:.3f}"
        )
        assert mine <= 1.05, f"{ranks} ranks: {mine} of the bound"
    named = [(n, p) for n, p in GPT(SHAPE).blocks.named_parameters() if p.dim() == 2]
    names = [n.split(".")[-2].replace("out", "o") for n, _ in named]
    return [cost(p.shape) / 1e6 for _, p in named], names


def compare(owners, Muon, steps: int = 40) -> dict:
    """Train the GPT with AdamW at three learning rates and with Muon at one. Prints the mean of the
    last ten losses, the bytes that all ranks send in a step, and the optimizer state of a rank.
    Returns {name: losses of the best run}. Raises AssertionError unless the N ranks together send
    2 (N-1) psi elements per step, to within 0.1 %, in both cases."""
    runs, unit = {}, 2 * (N - 1) * 4 * PSI  # bytes
    for name, owner_of, rates in (
        ("AdamW", None, (3e-4, 1e-3, 3e-3)),
        ("Muon", owners, (0.02,)),
    ):
        run = functools.partial(launch.run, _train, owner_of, Muon, nproc=N)
        tried = {lr: run(lr, steps, ledger=False) for lr in rates}
        last = {lr: np.mean(results[0][0][-10:]) for lr, results in tried.items()}
        best = min(rates, key=last.get)
        sent = run(best, 4).ledger.section("step 3").sent("bytes")
        kept = [elements * N / PSI for _, elements in tried[best]]
        losses = ", ".join(f"{loss:.3f} with {lr:g}" for lr, loss in last.items())
        print(f"{name:<6} last 10 losses: {losses}")
        print(
            f"       sends {sent:,} bytes a step, {sent / unit:.4f} of 2 (N-1) psi; keeps"
            f" {min(kept):.2f} to {max(kept):.2f} psi/N elements"
        )
        assert abs(sent / unit - 1) < 0.001
        runs[name] = tried[best][0][0]
    return runs


def _train(owner_of, Muon, lr, steps):
    """On each rank: (losses, averaged over the ranks; elements of optimizer state on this rank).

    owner_of: a function such as `owners` in `owner_loads`, with which Muon trains the blocks'
    matrices, and AdamW with ZeRO-1 everything else. If it is None, AdamW with ZeRO-1 trains all
    parameters.
    """
    model, rank, world_size, losses = GPT(SHAPE), dist.get_rank(), dist.get_world_size(), []
    matrices = [p for p in model.blocks.parameters() if p.dim() == 2] if owner_of else []
    owner = owner_of([cost(p.shape) for p in matrices], world_size) if owner_of else []
    muon = Muon(matrices, lr, owner=owner)
    others = [p for p in model.parameters() if all(p is not m for m in matrices)]
    others_lr = 1e-3 if owner_of else lr
    rest = zero.Zero1(others, lambda groups: torch.optim.AdamW(groups, lr=others_lr))
    for step in range(steps):
        ledger.mark(f"step {step}")
        loss = model.loss(*batch(step, rank, world_size))
        loss.backward()
        muon.step()
        rest.average_gradients()
        rest.step()
        rest.zero_grad()
        ledger.mark("")
        losses.append(mean_over_ranks(loss))
    state = [v for s in rest.optimizer.state.values() for v in s.values() if v.dim()]
    return losses, sum(v.numel() for v in [*state, *muon.momenta.values()])
