"""Which backend is chosen, for every number of GPUs a machine may have."""

import pytest

from lib.backend import choose


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
