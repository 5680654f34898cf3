"""On a GPU: every stage of ZeRO trains as one process does, and torch.cuda counts the bytes that
the formula says."""

import gc

import pytest
import torch
import torch.distributed as dist

from lib import backend, launch
from lib.cost.zero import rank_state_bytes
from lib.training.clip import clip_gradients
from lib.training.model import GPT, Shape, cross_entropy
from lib.zero import (
    FSDP,
    MasterShards,
    OffloadedOptimizer,
    PrefetchingFSDP,
    Zero1,
    Zero2,
    load_shards,
    save_shards,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, and --backend nccl"),
]

TOLERANCE = 1e-11  # float64, relative to a parameter's largest number
LEAST = 1e-3  # or to this: the key bias has no gradient but rounding, and begins at 0
SMALL = Shape(vocab_size=11, seq_len=5, n_layers=3, hidden=8, n_heads=2)
# 19 million parameters
LARGE = Shape(vocab_size=256, seq_len=16, n_layers=6, hidden=512, n_heads=8)
STAGES = {"zero1": 1, "zero2": 2, "fsdp": 3, "prefetching": 3}
MIB = 2**20


@pytest.fixture
def setting(nccl):
    """(backend, ranks): NCCL with a rank per GPU, or two ranks on one."""
    return nccl, 2 if nccl == "nccl-shared" else min(4, torch.cuda.device_count())


def adamw(groups):
    return torch.optim.AdamW(groups, lr=0.01, eps=1e-3)


def build(stage, net, outer=adamw):
    """(what shards, what steps)."""
    if stage in ("zero1", "zero2"):
        sharded = {"zero1": Zero1, "zero2": Zero2}[stage](net.parameters(), outer)
        return sharded, sharded
    sharded = {"fsdp": FSDP, "prefetching": PrefetchingFSDP}[stage](net, net.blocks)
    return sharded, outer(sharded.groups)


def batch(rows):
    tokens = torch.randint(
        11, (rows, 6), generator=torch.Generator("cpu").manual_seed(rows), device="cpu"
    )
    tokens = tokens.to(backend.device())
    return tokens[:, :-1], tokens[:, 1:]


def trained(stage, outer=adamw, steps=3, folder=None):
    """The whole parameters after some steps of this rank's share; half of them before a
    checkpoint, where asked."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    net = GPT(SMALL).double()
    sharded, optimizer = build(stage, net, outer)
    tokens, targets = (x.chunk(world_size)[rank] for x in batch(3 * world_size))
    for step in range(steps):
        optimizer.zero_grad()
        cross_entropy(net(tokens), targets).backward()
        sharded.average_gradients()
        clip_gradients(sharded.shards, 0.3, [None])
        optimizer.step()
        if folder is not None and step == 0:
            state = sharded.optimizer if stage in ("zero1", "zero2") else optimizer
            save_shards(folder, 1, sharded.flats, state)
            load_shards(folder, sharded.flats, state)
    if stage in ("zero1", "zero2"):
        return [p.detach().clone() for p in net.parameters()]
    with sharded.unsharded():
        return [p.detach().clone() for p in net.parameters()]


def one_process(world_size, steps=3):
    net = GPT(SMALL).double()
    optimizer, (tokens, targets) = adamw(net.parameters()), batch(3 * world_size)
    for _ in range(steps):
        optimizer.zero_grad()
        cross_entropy(net(tokens), targets).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.3)
        optimizer.step()
    return list(net.parameters())


def furthest(folder):
    """{stage: the largest difference from one process, relative to the parameter's
    largest number}."""
    right = one_process(dist.get_world_size())
    apart = lambda a, b: ((a - b).abs().max() / b.abs().max().clamp(min=LEAST)).item()
    off = lambda got: max(map(apart, got, right))
    on_cpu = lambda groups: OffloadedOptimizer(groups, adamw)
    seen = {stage: off(trained(stage)) for stage in STAGES}
    seen |= {
        f"{stage}, offloaded": off(trained(stage, on_cpu)) for stage in ("zero2", "prefetching")
    }
    return seen | {
        f"{stage}, saved": off(trained(stage, folder=f"{folder}/{stage}"))
        for stage in ("zero1", "fsdp")
    }


def step_of_one_process():
    """Forward, backward and update once: cuBLAS keeps a workspace from its first product on
    (32 MiB on a Hopper)."""
    net = GPT(LARGE).to(torch.bfloat16)
    tokens = torch.zeros(2, 9, dtype=torch.int64)
    cross_entropy(net(tokens[:, 1:]).float(), tokens[:, :-1]).backward()
    adamw(net.parameters()).step()


def memory():
    """{(stage, what): bytes} of mixed precision in the second step, as torch.cuda counts them."""
    seen = {}
    step_of_one_process()
    for stage in STAGES:
        for what in ("on the GPU", "offloaded"):
            masters = MasterShards if what == "on the GPU" else OffloadedOptimizer
            gc.collect()
            before = torch.cuda.memory_allocated()
            net = GPT(LARGE).to(torch.bfloat16)
            sharded, optimizer = build(
                stage, net, lambda groups, masters=masters: masters(groups, adamw)
            )
            tokens = torch.zeros(2, 9, dtype=torch.int64)
            for _ in range(2):
                torch.cuda.reset_peak_memory_stats()
                cross_entropy(net(tokens[:, 1:]).float(), tokens[:, :-1]).backward()
                whole = torch.cuda.memory_allocated() - before
                sharded.average_gradients()
                counted = whole if stage == "zero1" else torch.cuda.memory_allocated() - before
                seen[stage, what, "peak"] = torch.cuda.max_memory_allocated() - before
                optimizer.step()
                optimizer.zero_grad()
            seen[stage, what] = counted
            del net, sharded, optimizer
    return seen


def test_every_stage_trains_as_one_process(setting, tmp_path):
    name, nproc = setting
    for rank, seen in enumerate(
        launch.capture(furthest, tmp_path, nproc=nproc, backend=name, timeout=300)
    ):
        assert max(seen.values()) < TOLERANCE, (rank, seen)
        assert set(seen) >= {
            *STAGES,
            "zero2, offloaded",
            "prefetching, offloaded",
            "zero1, saved",
            "fsdp, saved",
        }


def test_torch_cuda_counts_the_formula_s_bytes_and_a_peak_below_the_whole(setting):
    name, nproc = setting
    psi = GPT(LARGE).num_parameters()
    for seen in launch.capture(memory, nproc=nproc, backend=name, timeout=300, ledger=False):
        for stage, number in STAGES.items():
            expected = rank_state_bytes(psi, number, nproc)
            # The allocator rounds each tensor up to 512 bytes; a backward has activations of some
            # MiB.
            assert seen[stage, "on the GPU"] == pytest.approx(expected, rel=0.01, abs=16 * MIB), (
                stage
            )
            assert (
                seen[stage, "offloaded"] < seen[stage, "on the GPU"] - 11 * psi / nproc + 16 * MIB
            ), stage
            if nproc > 1:
                assert (
                    seen[stage, "on the GPU", "peak"] < rank_state_bytes(psi, 0, nproc) + 16 * MIB
                ), stage
