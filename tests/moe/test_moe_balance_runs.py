"""The four trainings that compare ways to balance: what each rank counts, and what the ranks end
with."""

import pytest
import torch
import torch.distributed as dist

from lib import launch, moe
from lib.moe import balance_runs
from lib.moe.choice import Choice, load


def counted(over_ranks):
    """(the loss of all_choices, the loss by hand) on this rank."""
    rank, N, n, E, k = dist.get_rank(), dist.get_world_size(), 6, 4, 2
    logits = torch.randn(n, E, generator=torch.Generator().manual_seed(rank), dtype=torch.float64)
    choice = moe.top_k_gate(logits + torch.eye(E, dtype=torch.float64)[rank], k)
    pairs = load(choice.experts, E).double()
    if over_ranks:
        dist.all_reduce(pairs)
    by_hand = E * (pairs / pairs.sum() * choice.probabilities.mean(0)).sum()
    assert pairs.sum() == k * n * (N if over_ranks else 1)
    loss = moe.auxiliary_loss(*balance_runs.all_choices(choice, over_ranks))
    return loss.item(), by_hand.item()


@pytest.mark.parametrize("over_ranks", [False, True])
def test_all_k_choices_are_counted_of_one_rank_or_of_all(over_ranks):
    for loss, by_hand in launch.run(counted, over_ranks, nproc=2, backend="gloo", ledger=False):
        assert loss == pytest.approx(by_hand, abs=1e-12)


def test_all_choices_keep_the_gradient_of_the_mean():
    p = torch.rand(3, 4, dtype=torch.float64, requires_grad=True)
    choice = Choice(torch.tensor([[0, 1], [0, 2], [0, 3]]), torch.ones(3, 2), p)
    repeated, experts = balance_runs.all_choices(choice, over_ranks=False)
    moe.auxiliary_loss(repeated, experts).backward()
    # dL/dp_te = E f_e / n
    f = torch.tensor([3, 1, 1, 1], dtype=torch.float64) / 6
    assert torch.allclose(p.grad, (4 * f / 3).expand(3, 4))


def test_every_rank_has_an_alphabet_of_its_own():
    alphabets = [balance_runs.alphabet_of(rank) for rank in range(4)]
    V = balance_runs.SHAPE.vocab_size
    assert all(torch.equal(of.sort().values, torch.arange(V)) for of in alphabets)
    assert not torch.equal(alphabets[0], alphabets[1])


def test_the_runs_return_shares_and_one_loss_for_all_ranks():
    runs = launch.run(
        balance_runs.compare, moe.auxiliary_loss, 2, nproc=2, backend="gloo", ledger=False
    )
    for kind in balance_runs.KINDS:
        (mine, loss), (_, other) = runs[0][kind], runs[1][kind]
        assert mine.shape == (balance_runs.E,) and mine.sum() == pytest.approx(1) and loss == other
        assert 3 < loss < 5  # ln 104 is 4.64


@pytest.mark.slow
def test_a_load_counted_over_all_ranks_lets_experts_specialise():
    runs = launch.run(
        balance_runs.compare, moe.auxiliary_loss, nproc=4, backend="gloo", ledger=False, timeout=580
    )
    shares = {kind: torch.stack([of[kind][0] for of in runs]) for kind in balance_runs.KINDS}
    whole = {kind: of.mean(0).max() for kind, of in shares.items()}
    own = {kind: of.max(1).values.mean() for kind, of in shares.items()}
    balanced = [whole[kind] for kind in balance_runs.KINDS[1:]]
    assert max(balanced) < 0.8 * whole["no balancing"]
    assert own["loss per rank"] < 0.7 * min(own["loss over all ranks"], own["expert bias"])
