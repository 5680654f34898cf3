"""Which backend is chosen, for every number of GPUs a machine may have; and how the ranks of one attempt meet."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from lib.backend import choose, meet


@pytest.mark.parametrize(
    ("backend", "nproc", "gpus", "name", "ranks_per_gpu"),
    [
        ("auto", 4, 0, "gloo", 0),
        ("auto", 4, 1, "gloo", 0),
        ("auto", 1, 1, "nccl", 1),
        ("auto", 4, 4, "nccl", 1),
        ("auto", 5, 4, "gloo", 0),
        ("gloo", 4, 8, "gloo", 0),
        ("nccl", 2, 2, "nccl", 1),
        ("nccl-shared", 2, 1, "nccl", 2),
        ("nccl-shared", 3, 2, "nccl", 2),
    ],
)
def test_the_choice(backend, nproc, gpus, name, ranks_per_gpu):
    choice = choose(backend, nproc, gpus)
    assert (choice.name, choice.ranks_per_gpu) == (name, ranks_per_gpu)
    assert f"{nproc} rank" in choice.why and name in choice.why


@pytest.mark.parametrize(
    ("backend", "nproc", "gpus", "says"),
    [
        ("nccl", 4, 0, "4 ranks, but this machine has no GPU"),
        ("nccl", 4, 1, "4 ranks, but this machine has 1 GPU"),
        ("nccl-shared", 3, 1, "at most 2 ranks on a GPU: 3 ranks, but this machine has 1 GPU"),
        ("nccl-shared", 2, 0, "no GPU"),
    ],
)
def test_more_ranks_than_the_gpus_carry_is_an_error_that_says_so(backend, nproc, gpus, says):
    with pytest.raises(RuntimeError, match=says):
        choose(backend, nproc, gpus)


def test_the_ranks_of_an_attempt_meet_though_those_of_others_have_left_their_keys():
    store = dist.HashStore()
    with ThreadPoolExecutor(8) as ranks:

        def attempt(world_size):
            return [ranks.submit(meet, store, rank, world_size, 20) for rank in reversed(range(world_size))]

        lost = ranks.submit(meet, store, 2, 3, 0.2)  # of an attempt that ended while its ranks were coming
        with pytest.raises(dist.DistError):
            lost.result()
        for world_size in (3, 3, 2, 1):
            stores = [met.result() for met in attempt(world_size)]
            assert not stores[0].check(["address"]), "what an earlier attempt has left does not show"
            stores[0].set("address", str(world_size))
            assert {store.get("address") for store in stores} == {str(world_size).encode()}


def test_rank_0_does_not_take_a_dead_rank_for_the_one_that_is_to_come():
    store = dist.HashStore()
    store.set("here/1", "dead")
    with ThreadPoolExecutor(2) as ranks:
        first = ranks.submit(meet, store, 0, 2, 20)
        time.sleep(0.1)
        assert not first.done()
        second = ranks.submit(meet, store, 1, 2, 20).result()
        second.set("said", "by rank 1")
        assert first.result().get("said") == b"by rank 1"


def test_who_has_not_come_is_named():
    with pytest.raises(RuntimeError, match=r"after 0\.1 s rank 1, 2 of 3 has not come: does torchrun run there\?"):
        meet(dist.HashStore(), 0, 3, 0.1)
