"""On a GPU: ranks get their devices, values and logs are right, two ranks can share one, and
replicas stay equal."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lib import backend, launch
from lib.collectives import all_reduce, ring_all_reduce, start
from lib.data_parallel import BucketedDataParallel, NaiveDataParallel, OverlappedDataParallel

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, and --backend nccl"),
]


@pytest.fixture
def setting(nccl):
    """(backend, ranks): NCCL with a rank per GPU, or two ranks on one."""
    return nccl, 2 if nccl == "nccl-shared" else torch.cuda.device_count()


def everything():
    rank, world_size = dist.get_rank(), dist.get_world_size()
    x = torch.arange(1000.0) * 4**rank  # on this rank's GPU by default
    expected = torch.arange(1000.0) * sum(4**r for r in range(world_size))
    ring, door, later, torchs = x.clone(), x.clone(), x.clone(), x.clone()
    ring_all_reduce(ring)
    all_reduce(door)
    work = start(ring_all_reduce, later)
    work.wait()
    dist.all_reduce(torchs)
    torch.cuda.synchronize()
    return {
        "device": str(x.device), "backend": dist.get_backend(),
        "equal": [torch.equal(y, expected) for y in (ring, door, later, torchs)], "tensor": x[:3],
    }  # fmt: skip


def test_collectives_agree_with_nccls_own(setting):
    name, nproc = setting
    results = launch.capture(everything, nproc=nproc, backend=name, timeout=120)
    for rank, seen in enumerate(results):
        assert seen["backend"] == "nccl" and seen["equal"] == [True] * 4, (rank, seen)
        assert not seen["tensor"].is_cuda, "a result must come back as a CPU tensor"
    assert results[0]["device"] == "cuda:0"
    assert results[-1]["device"] == ("cuda:0" if name == "nccl-shared" else f"cuda:{nproc - 1}")


def test_the_logs_hold_nccls_ops_and_our_messages(setting):
    name, nproc = setting
    logs = launch.capture(everything, nproc=nproc, backend=name, timeout=120).ledger
    assert "all_reduce" in {e.op for e in logs.of(0)}
    if nproc > 1:
        # three of our all-reduces, of which two are rings: 2(N-1) * 1000 elements each, and the
        # front door's own
        assert logs.sent("elements") >= 2 * 2 * (nproc - 1) * 1000


def test_auto_takes_nccl_when_there_is_a_gpu_per_rank():
    assert backend.choose("auto", torch.cuda.device_count()).name == "nccl"
    assert backend.choose("auto", torch.cuda.device_count() + 1).name == "gloo"


WIDTH, STEPS = 512, 3  # a layer has 2 MB of gradients: a bucket each


def layers(seed):
    torch.manual_seed(seed)
    return nn.Sequential(
        *(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(4))
    ).double()


def trained(net, rows, average):
    """[[every gradient], ...] of STEPS steps of SGD on rows (STEPS, b, WIDTH); average() comes
    after backward."""
    optimizer, seen = torch.optim.SGD(net.parameters(), lr=0.1), []
    for x in rows:
        optimizer.zero_grad()
        net(x).square().sum(1).mean().backward()
        average()
        seen.append([p.grad.clone() for p in net.parameters()])
        optimizer.step()
    return seen


def furthest(seen, right):
    """The largest difference of a gradient, relative to the largest number in it."""
    pairs = [pair for step in zip(seen, right, strict=True) for pair in zip(*step, strict=True)]
    return max(((a - b).abs().max() / b.abs().max()).item() for a, b in pairs)


def replicas(wrapper):
    """How far this rank's gradients are from one process's on the whole batch, and from DDP's; its
    last parameters."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator("cpu").manual_seed(0)
    batch = torch.randn(
        STEPS, 4 * world_size, WIDTH, generator=generator, device="cpu", dtype=torch.float64
    )
    batch = batch.to(backend.device())
    mine = batch.chunk(world_size, dim=1)[rank]  # (STEPS, 4, WIDTH)
    whole = trained(layers(seed=0), batch, lambda: None)
    net = wrapper(layers(seed=rank))  # rank 0's weights on every rank from here on
    ours = trained(net, mine, net.average_gradients)
    theirs = trained(DistributedDataParallel(layers(seed=rank)), mine, lambda: None)
    return furthest(ours, whole), furthest(ours, theirs), [p.detach() for p in net.parameters()]


@pytest.mark.parametrize(
    "wrapper", [NaiveDataParallel, BucketedDataParallel, OverlappedDataParallel]
)
def test_replicas_have_the_gradients_of_one_process_and_of_torch_ddp(setting, wrapper):
    name, nproc = setting
    results = launch.capture(replicas, wrapper, nproc=nproc, backend=name, timeout=120)
    for rank, (from_one_process, from_ddp, parameters) in enumerate(results):
        assert from_one_process < 1e-12 and from_ddp < 1e-12, (rank, from_one_process, from_ddp)
        assert all(torch.equal(p, q) for p, q in zip(parameters, results[0][2], strict=True)), rank
