"""On a GPU: the GPT with experts has the gradients of one process, and its messages over NCCL are
the formula's."""

import functools

import pytest
import torch
import torch.distributed as dist

from lib import backend, collectives, launch, ledger
from lib.moe import (
    ExpertParallelMoE,
    MoEGPT,
    expert_parallel_gpt,
    gshard_gate,
    reduce_gradients,
    reroute,
    switch_gate,
    top_k_gate,
)
from lib.training.model import Shape

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, and --backend nccl"),
]

TOLERANCE = 1e-11  # float64, relative to a gradient's largest number
SHAPE = Shape(vocab_size=20, seq_len=8, n_layers=2, hidden=16, n_heads=4, mlp_hidden=12)
ROWS = 3  # sequences of a rank
WAYS = {
    "Switch": {"gate": switch_gate, "factor": 0.7},
    "rerouted": {"gate": switch_gate, "factor": 0.7, "assign_slots": reroute},
    "top 2": {"gate": functools.partial(top_k_gate, k=2), "factor": 1.0},
    "GShard": {"gate": gshard_gate, "factor": 1.0},
}


@pytest.fixture
def setting(nccl):
    """(backend, ranks): NCCL with a rank per GPU, 1, 2 or 4 of them, or two ranks on one."""
    gpus = torch.cuda.device_count()
    return nccl, 2 if nccl == "nccl-shared" else max(ep for ep in (1, 2, 4) if ep <= gpus)


def batch(rank):
    """Tokens and targets of a rank, and the number of its first token."""
    both = torch.randint(
        20, (2, ROWS, 8), generator=torch.Generator("cpu").manual_seed(rank), device="cpu"
    )
    return *both.to(torch.get_default_device()), rank * ROWS * 8


def model(way):
    """Routers with an opinion: GPT-2's small numbers would make all experts nearly equal."""
    made = MoEGPT(SHAPE, 8, **WAYS[way]).double()
    with torch.no_grad():
        for layer in made.moe_layers:
            layer.router.weight *= 50
    return made


def loss_of(net, way, rank):
    tokens, targets, first = batch(rank)
    return net.loss(tokens, targets, first if way == "GShard" else None)


def run_each():
    """{way: (how far losses and gradients are from one process's, drops here and there, is all on
    the GPU?)}, layers"""
    rank, W, seen = dist.get_rank(), dist.get_world_size(), {}
    ep_group, expert_dp_group = collectives.node_groups(W)
    for way in WAYS:
        one = model(way)
        ours = expert_parallel_gpt(one, ep_group)
        loss = loss_of(ours, way, rank)
        loss.backward()
        reduce_gradients(ours, expert_dp_group)
        losses, drops = [], []
        for r in range(W):
            losses.append(loss_of(one, way, r))
            (losses[-1] / W).backward()
            drops.append([layer.last.dropped.item() for layer in one.moe_layers])
        right = {name: p.grad for name, p in one.named_parameters()}
        off = {"loss": ((loss - losses[rank]) / losses[rank]).abs().item()}
        for name, p in ours.named_parameters():
            # the key bias's true gradient is zero
            scale = right[name.replace("k.bias", "k.weight")].abs().max()
            off[name] = (
                ((p.grad - right[name]).abs().max() / scale).item()
                if scale > 0
                else p.grad.abs().max().item()
            )
        mine = [layer.last.dropped.item() for layer in ours.moe_layers]
        seen[way] = (
            off,
            mine == drops[rank],
            all(p.grad.device == backend.device() for p in ours.parameters()),
        )
    seen["pairs"] = layer_alone(model("top 2").moe_layers[0])
    return seen


def layer_alone(moe):
    """A forward and a backward in the log; the pairs of each rank whose expert is elsewhere."""
    rank, W = dist.get_rank(), dist.get_world_size()
    ours = ExpertParallelMoE(moe)
    x = torch.randn(
        24,
        16,
        generator=torch.Generator("cpu").manual_seed(rank),
        device="cpu",
        dtype=torch.float64,
    )
    x = x.to(torch.get_default_device()).requires_grad_()
    ledger.mark("forward")
    y = ours(x)
    ledger.mark("backward")
    y.sum().backward()
    ledger.mark("")
    load = ours.last.load.view(W, -1).sum(1)
    return (load.sum() - load[rank]).item()


def test_every_way_has_the_gradients_of_one_process(setting):
    name, nproc = setting
    results = launch.capture(run_each, nproc=nproc, backend=name, timeout=300)
    for rank, seen in enumerate(results):
        for way in WAYS:
            off, same_drops, on_gpu = seen[way]
            assert max(off.values()) < TOLERANCE, (rank, way, off)
            assert same_drops and on_gpu, (rank, way)
    pairs = sum(seen["pairs"] for seen in results)
    sent = {way: results.ledger.section(way).sent("bytes") for way in ("forward", "backward")}
    assert sent == {
        "forward": 2 * pairs * 16 * 8 + (nproc - 1) * 8 * 8,
        "backward": 2 * pairs * 16 * 8,
    }
