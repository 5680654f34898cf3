"""On a GPU: a GPT on a mesh trains as one process does, a traced block as planned; unequal
shares lose nothing."""

import contextlib
import gc

import pytest
import torch
import torch.distributed as dist

from lib import backend, launch
from lib.hybrid import Hybrid, HybridByHand, ShardedUpdate, local_batch, mesh_of
from lib.hybrid.automatic import Cluster, Sharded, choose, trace
from lib.hybrid.unequal import average_by_share, shares
from lib.training.model import GPT, MLP, Shape

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, and --backend nccl"),
]

TOLERANCE = 1e-11  # float64, relative
SHAPE = Shape(vocab_size=16, seq_len=8, n_layers=4, hidden=16, n_heads=4, mlp_hidden=16)
ROWS, STEPS = 8, 3


@pytest.fixture
def setting(nccl):
    """(backend, ranks): NCCL with a rank per GPU, 1, 2, 4 or 8 of them, or two ranks on one."""
    gpus = torch.cuda.device_count()
    return nccl, 2 if nccl == "nccl-shared" else max(n for n in (1, 2, 4, 8) if n <= gpus)


@contextlib.contextmanager
def groups_end_here():
    """Destroy the groups that are made inside, the last one first: each is a communicator, and a
    mesh has dozens."""
    plain, made = dist.new_group, []

    def noted(*args, **kwargs):
        made.append(plain(*args, **kwargs))
        return made[-1]

    dist.new_group = noted
    try:
        yield
    finally:
        dist.new_group = plain
    gc.collect()  # no work of theirs is under way on this rank
    backend.synchronize()
    dist.barrier()
    while made:
        group = made.pop()
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(group)


def batch(step):
    """tokens and targets of the whole batch."""
    both = torch.randint(
        16, (2, ROWS, 8), generator=torch.Generator("cpu").manual_seed(step), device="cpu"
    )
    return both.to(backend.device())


def sgd(groups):
    return torch.optim.SGD(groups, lr=0.5)


def adamw(groups):
    return torch.optim.AdamW(groups, lr=0.01, eps=1e-3)


def one_process(make_optimizer):
    """[(loss, norm)] of clipped steps."""
    model, seen = GPT(SHAPE).double(), []
    optimizer = make_optimizer(model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = model.loss(*batch(step))
        loss.backward()
        seen.append((loss.item(), torch.nn.utils.clip_grad_norm_(model.parameters(), 0.4).item()))
        optimizer.step()
    return seen


def on_mesh(kind, sizes, make_optimizer, **how):
    """The same of this rank's part; AssertionError where a gradient or parameter
    has left the GPU."""
    with groups_end_here():
        mesh = mesh_of(**sizes)
        rows = [[local_batch(x, mesh) for x in batch(step)] for step in range(STEPS)]
        hybrid, seen = kind(GPT(SHAPE).double(), mesh, rows[0][0], 2, make_optimizer, **how), []
        for tokens, targets in rows:
            loss, norm = hybrid.backward(tokens, targets), hybrid.clip(0.4)
            hybrid.step()
            seen.append((loss.item(), norm.item()))
        assert all(p.device.type == backend.device().type for p in hybrid.part.parameters())
    return seen


def run_each():
    """{what: how far the worst loss or norm is from one process's, relative}"""
    N, found = dist.get_world_size(), {}
    right = {make: torch.tensor(one_process(make)) for make in (sgd, adamw)}
    for pp, dp, tp in (
        (a, b, N // a // b) for a in (1, 2, 4) for b in (1, 2, 4, 8) if N % (a * b) == 0
    ):
        if tp > SHAPE.n_heads:
            continue
        sizes = {"pp": pp, "dp": dp, "tp": tp}
        ways = {
            "whole": on_mesh(Hybrid, sizes, sgd), "by hand": on_mesh(HybridByHand, sizes, sgd),
            "zero1": on_mesh(Hybrid, sizes, adamw, update=ShardedUpdate),
        }  # fmt: skip
        for way, seen in ways.items():
            want = right[adamw if way == "zero1" else sgd]
            found[f"{sizes} {way}"] = ((torch.tensor(seen) - want) / want).abs().max().item()
    with groups_end_here():
        found["a plan"] = planned()
    found["shares"] = unequal()
    return found


def planned():
    """How far a chosen plan's result and gradient are from the module's own."""
    module = MLP(SHAPE).double()
    traced = trace(module, (4, 8, 16))
    plan = choose(traced.operators, Cluster(dist.get_world_size(), 1e4, 1e7, 1e-6, 1e-8, 8))
    draw = torch.Generator("cpu").manual_seed(2)
    x = (
        torch.randn(4, 8, 16, generator=draw, device="cpu", dtype=torch.float64)
        .to(backend.device())
        .requires_grad_()
    )
    y = module(x)
    y.square().sum().backward()
    again = x.detach().clone().requires_grad_()
    ours = Sharded(traced, plan)(again)
    ours.square().sum().backward()
    return max(
        ((ours - y) / y.abs().max()).abs().max().item(),
        ((again.grad - x.grad) / x.grad.max()).abs().max().item(),
    )


def unequal():
    """How far gradients of shares in proportion to 1, 2, 3 ... are from the whole batch's."""
    rank, N = dist.get_rank(), dist.get_world_size()
    rows = shares(ROWS, [r + 1 for r in range(N)])
    mine = slice(sum(rows[:rank]), sum(rows[: rank + 1]))
    one, ours = GPT(SHAPE).double(), GPT(SHAPE).double()
    tokens, targets = batch(0)
    one.loss(tokens, targets).backward()
    if rows[rank]:
        ours.loss(tokens[mine], targets[mine]).backward()
    average_by_share(list(ours.parameters()), rows[rank] / ROWS)
    scale = max(p.grad.abs().max() for p in one.parameters())
    pairs = zip(ours.parameters(), one.parameters(), strict=True)
    return max(((p.grad - q.grad).abs().max() / scale).item() for p, q in pairs)


def test_every_mesh_plan_and_share_is_one_process(setting):
    name, nproc = setting
    for rank, found in enumerate(launch.capture(run_each, nproc=nproc, backend=name, timeout=400)):
        assert len(found) >= 5 and max(found.values()) < TOLERANCE, (rank, found)
