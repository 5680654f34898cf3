"""The sampler: the ranks' parts together are all examples, padded as little as can be, in another
order every epoch."""

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from lib.data_parallel import Sampler, sample_indices

SIZES = [(n, N) for n in (1, 2, 3, 7, 10, 12, 100) for N in (1, 2, 3, 4, 8)]


def parts(n, N, epoch=0, seed=0):
    return [sample_indices(n, epoch, rank, N, seed) for rank in range(N)]


def dealt(n, N, epoch=0, seed=0):
    """All ranks' indices in the order in which they were dealt: place 0 to rank 0, place 1
    to rank 1, ..."""
    return torch.stack(parts(n, N, epoch, seed), dim=1).flatten().tolist()


@pytest.mark.parametrize(("n", "N"), SIZES)
def test_every_rank_gets_equally_many_and_together_they_are_all_examples(n, N):
    length = -(-n // N)
    assert all(part.shape == (length,) and part.dtype == torch.int64 for part in parts(n, N))
    everything = dealt(n, N)
    assert sorted(everything[:n]) == list(range(n)), "each example once: disjoint, and all of them"
    # The padding, fewer than N examples, starts the same permutation again, more than once where n
    # < N.
    assert everything[n:] == [everything[i % n] for i in range(length * N - n)]
    assert len(everything) - n < N


def test_no_example_comes_twice_where_the_ranks_divide_them():
    first, second, third = (set(part.tolist()) for part in parts(12, 3))
    assert not first & second and not second & third and not first & third
    assert len(first | second | third) == 12


@pytest.mark.parametrize("N", [1, 2, 4])
def test_the_order_is_the_same_whatever_the_number_of_ranks(N):
    assert dealt(8, N, epoch=3, seed=5) == dealt(8, 1, epoch=3, seed=5)


def test_epochs_and_seeds_each_give_an_order_of_their_own_and_the_same_one_again():
    orders = {
        (seed, epoch): tuple(dealt(50, 2, epoch, seed)) for seed in range(8) for epoch in range(8)
    }
    assert len(set(orders.values())) == 64, (
        "seed and epoch must not be added, and neither may be ignored"
    )
    for (seed, epoch), order in orders.items():
        assert tuple(dealt(50, 2, epoch, seed)) == order
    assert all(sorted(order) == list(range(50)) for order in orders.values())


def test_an_example_meets_every_rank_over_the_epochs():
    """Reshuffled over all examples, not within the ranks' parts."""
    seen = {i: set() for i in range(8)}
    for epoch in range(60):
        for rank, part in enumerate(parts(8, 4, epoch)):
            for i in part.tolist():
                seen[i].add(rank)
    assert all(ranks == {0, 1, 2, 3} for ranks in seen.values())


def test_the_order_does_not_touch_or_read_the_global_random_state():
    torch.manual_seed(1)
    first, drawn = dealt(20, 2), torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(drawn, torch.rand(1))
    torch.manual_seed(2)
    assert dealt(20, 2) == first


def test_a_data_loader_reads_this_ranks_part_in_another_order_every_epoch():
    data, N = TensorDataset(torch.arange(10)), 4
    samplers = [Sampler(len(data), rank, N, seed=3) for rank in range(N)]
    loaders = [DataLoader(data, batch_size=2, sampler=sampler) for sampler in samplers]
    orders = []
    for epoch in range(2):
        seen = []
        for rank, (sampler, loader) in enumerate(zip(samplers, loaders, strict=True)):
            sampler.set_epoch(epoch)
            mine = torch.cat([batch for (batch,) in loader])
            assert torch.equal(mine, sample_indices(10, epoch, rank, N, seed=3))
            assert len(loader) == 2 and len(sampler) == 3
            seen += mine.tolist()
        assert set(seen) == set(range(10))
        orders.append(seen)
    assert orders[0] != orders[1]
    assert list(samplers[0]) == list(samplers[0]), "without set_epoch, the same epoch again"


def test_torch_pads_by_the_same_rule_and_deals_alike():
    for n, N in SIZES:
        theirs = [list(DistributedSampler(range(n), N, rank, shuffle=False)) for rank in range(N)]
        order = torch.tensor(dealt(n, 1))  # ours shuffles: the places are alike
        for rank, part in enumerate(parts(n, N)):
            assert part.tolist() == order[theirs[rank]].tolist()


@pytest.mark.parametrize(("n", "rank", "N"), [(0, 0, 1), (5, 2, 2), (5, -1, 2), (5, 0, 0)])
def test_what_cannot_be_dealt_is_refused_with_the_numbers(n, rank, N):
    with pytest.raises(
        ValueError,
        match=f"n={n}, rank={rank}, world_size={N}: use n >= 1 and 0 <= rank < world_size",
    ):
        sample_indices(n, 0, rank, N)
