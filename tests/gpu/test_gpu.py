"""On a GPU: ranks get their devices, values and books are right, and two ranks can share one GPU."""

import pytest
import torch
import torch.distributed as dist

from lib import backend, launch
from lib.collectives import all_reduce, ring_all_reduce, start

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, and this machine has none"),
]


@pytest.fixture
def setting(request):
    """(backend, ranks): NCCL with a rank per GPU, or two ranks on one."""
    name = request.config.getoption("--backend")
    name = "nccl" if name == "auto" else name
    return name, 2 if name == "nccl-shared" else torch.cuda.device_count()


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


def test_the_books_hold_nccls_ops_and_our_messages(setting):
    name, nproc = setting
    books = launch.capture(everything, nproc=nproc, backend=name, timeout=120).ledger
    assert "all_reduce" in {e.op for e in books.of(0)}
    if nproc > 1:
        # three of our all-reduces, of which two are rings: 2(N-1) * 1000 elements each, and the front door's own
        assert books.sent("elements") >= 2 * 2 * (nproc - 1) * 1000


def test_auto_takes_nccl_when_there_is_a_gpu_per_rank():
    assert backend.choose("auto", torch.cuda.device_count()).name == "nccl"
    assert backend.choose("auto", torch.cuda.device_count() + 1).name == "gloo"
