"""Replicas that drift apart are named: after which step, which parameter of which module,
on which rank."""

import itertools

import pytest
import torch
import torch.distributed as dist
from torch import nn

from lib import launch
from lib.data_parallel import OverlappedDataParallel, Replicas, ReplicasDiffer, average_gradients
from lib.data_parallel.replicas import checksum


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2))


def trained(
    model,
    average=lambda model: average_gradients(model.parameters()),
    lr=0.1,
    of="parameters",
    before=lambda step: None,
    steps=4,
):
    """Train on this rank's own rows; what the comparison says, or "the same"."""
    replicas, optimizer = Replicas(model, of=of), torch.optim.SGD(model.parameters(), lr)
    torch.manual_seed(100 + dist.get_rank())
    for step in range(steps):
        before(step)
        model.zero_grad()
        model(torch.randn(3, 4)).square().sum().backward()
        average(model)
        try:
            if of == "gradients":
                replicas.compare(step)
            optimizer.step()
            if of != "gradients":
                replicas.compare(step)
        except ReplicasDiffer as error:
            return error.step, error.name, error.ranks, str(error)
    return "the same"


def averaged_without(name):
    def average(model):
        average_gradients([p for n, p in model.named_parameters() if n != name])

    return average


def all_of_them():
    rank = dist.get_rank()
    model = network()
    steps = itertools.count()

    def clips_its_own(model):
        average_gradients(model.parameters())
        if next(steps) == 2 and rank == 1:
            model[2].bias.grad.clamp_(-1e-3, 1e-3)

    def loads(step):
        if step == 3 and rank == 2:
            with torch.no_grad():
                model[1].weight[5] += 1e-6

    overlapped = OverlappedDataParallel(network())
    return {
        "a broadcast is forgotten": trained(network(seed=rank)),
        "one parameter is not averaged": trained(network(), averaged_without("1.bias")),
        "another step size on one rank": trained(network(), lr=0.1 if rank != 3 else 0.11),
        "one element changes on one rank": trained(model, before=loads),
        "a gradient clipped on one rank": trained(network(), clips_its_own),
        "gradients": trained(network(), averaged_without("2.weight"), of="gradients"),
        "right": trained(network()),
        "right, overlapped": trained(overlapped, lambda model: model.average_gradients()),
        "right, gradients": trained(network(), of="gradients"),
    }


EXPECTED = {
    "a broadcast is forgotten": (
        0,
        "0.weight",
        "0.weight of Linear: no two ranks hold",
        "4 of 6 parameters differ. Try: broad",
    ),
    "one parameter is not averaged": (
        0,
        "1.bias",
        "1.bias of LayerNorm",
        "1 of 6 parameters differ.",
    ),
    "another step size on one rank": (
        0,
        "0.weight",
        "rank 3 holds other values than ranks 0, 1 and 2",
    ),
    "one element changes on one rank": (
        3,
        "1.weight",
        "rank 2 holds other values",
        "they were the same after step 2",
    ),
    "a gradient clipped on one rank": (
        2,
        "2.bias",
        "rank 1 holds other values than ranks 0, 2 and 3",
    ),
    "gradients": (
        0,
        "2.weight",
        "2.weight of Linear",
        "1 of 6 gradients differ",
        "on which it is None",
    ),
}


def test_what_drifts_apart_is_named_and_what_does_not_is_not():
    results = launch.capture(all_of_them, nproc=4)
    for found in results:
        for case, (step, name, *says) in EXPECTED.items():
            assert found[case][:2] == (step, name), (case, found[case])
            assert [text for text in says if text not in found[case][3]] == [], found[case][3]
        assert {case: found[case] for case in found if case not in EXPECTED} == {
            "right": "the same", "right, overlapped": "the same", "right, gradients": "the same",
        }  # fmt: skip
    assert (
        results[0]["another step size on one rank"] == results[3]["another step size on one rank"]
    )


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
)
def test_a_checksum_sees_every_change_of_one_element_and_two_that_change_places(dtype):
    x = torch.arange(300).remainder(2 if dtype == torch.bool else 200).to(dtype)
    for i in (0, 1, 128, 299):
        changed = x.clone()
        changed[i] = 1 - x[i].int() if dtype == torch.bool else x[i] + 1
        assert checksum(changed) != checksum(x), i
    swapped = x.clone()
    swapped[[4, 5]] = x[[5, 4]]
    assert checksum(swapped) != checksum(x) and checksum(x.clone()) == checksum(x)


def test_the_sign_of_a_far_element_is_seen():
    """A square as its factor would be a multiple of 2^34 there, and lose the highest bit."""
    x = torch.ones((1 << 17) + 1)
    x[1 << 17] = -1
    assert checksum(x) != checksum(torch.ones((1 << 17) + 1))


def test_an_unknown_kind_is_refused():
    with pytest.raises(
        ValueError, match="of='weights' is not one of parameters, gradients, buffers"
    ):
        Replicas(nn.Linear(1, 1), of="weights")
