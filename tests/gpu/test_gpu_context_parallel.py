"""On a GPU: ring attention, the GPT over it, and asynchronous layers have the numbers of one
process, over NCCL."""

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from lib import backend, launch, ledger
from lib.tensor_parallel.asynchronous import gather_linear, linear_scatter
from lib.tensor_parallel.context_parallel import context_parallel_gpt, shard
from lib.tensor_parallel.layouts import contiguous, zigzag
from lib.tensor_parallel.ring_attention import ring_attention
from lib.training.model import GPT, Shape, causal_attention

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, and --backend nccl"),
]

TOLERANCE = 1e-11  # float64, relative to the largest number
B, H, K, T, d = 2, 4, 2, 48, 8


@pytest.fixture
def setting(nccl):
    """(backend, ranks): NCCL with a rank per GPU, or two ranks on one."""
    return nccl, 2 if nccl == "nccl-shared" else min(4, torch.cuda.device_count())


def numbers(seed, *shape):
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(*shape, generator=generator, device="cpu", dtype=torch.float64).to(
        torch.get_default_device()
    )


def off(ours, right):
    assert ours.shape == right.shape and ours.device == backend.device()
    return ((ours - right).abs().max() / right.abs().max()).item()


def attention():
    """{layout: how far output and gradients are from plain attention's}"""
    q, k, v, d_out = (numbers(seed, B, heads, T, d) for seed, heads in enumerate((H, K, K, H)))
    whole = [x.clone().requires_grad_() for x in (q, k, v)]
    out = causal_attention(*whole)
    out.backward(d_out)
    seen = {}
    for make in (contiguous, zigzag):
        layout = make(T, dist.get_world_size())
        mine = layout[dist.get_rank()]
        leaves = [x[:, :, mine].clone().requires_grad_() for x in (q, k, v)]
        ledger.mark(make.__name__)
        part = ring_attention(*leaves, layout)
        part.backward(d_out[:, :, mine])
        ledger.mark("")
        pairs = [
            (part.detach(), out),
            *((x.grad, y.grad) for x, y in zip(leaves, whole, strict=True)),
        ]
        seen[make.__name__] = [off(x, y[:, :, mine].detach()) for x, y in pairs]
    return seen


def gpt():
    """{name: how far its gradient is from one process's}, zigzag."""
    model = GPT(
        Shape(vocab_size=11, seq_len=16, n_layers=2, hidden=16, n_heads=4, n_kv_heads=2), seed=1
    ).double()
    layout = zigzag(16, dist.get_world_size())
    tokens = torch.randint(
        11, (3, 17), generator=torch.Generator("cpu").manual_seed(0), device="cpu"
    )
    tokens = tokens.to(torch.get_default_device())
    ours = context_parallel_gpt(model, layout)
    ours.loss(shard(tokens[:, :-1], layout), shard(tokens[:, 1:], layout)).backward()
    ours.sum_gradients()
    model.loss(tokens[:, :-1], tokens[:, 1:]).backward()
    gradients = {name: p.grad for name, p in ours.named_parameters()}
    # The key bias's true gradient is zero: both are rounding.
    return {
        name: off(gradients[name], p.grad)
        for name, p in model.named_parameters()
        if "k.bias" not in name
    }


def mlp():
    """How far output and gradients of an asynchronous MLP are from one process's."""
    tp, rank = dist.get_world_size(), dist.get_rank()
    cut = lambda x, dim: x.tensor_split(tp, dim)[rank]
    x, up, down, dy = (
        numbers(i, *shape) for i, shape in enumerate([(B, T, 16), (48, 16), (16, 48), (B, T, 16)])
    )
    dims = (1, 0, 1)
    parts = [
        cut(leaf, dim).clone().requires_grad_()
        for leaf, dim in zip((x, up, down), dims, strict=True)
    ]
    whole = [leaf.requires_grad_() for leaf in (x, up, down)]
    y = F.linear(F.gelu(F.linear(whole[0], whole[1])), whole[2])
    y.backward(dy)
    ours = linear_scatter(F.gelu(gather_linear(parts[0], parts[1])), parts[2])
    ours.backward(cut(dy, 1))
    pairs = [(p.grad, cut(w.grad, dim)) for p, w, dim in zip(parts, whole, dims, strict=True)]
    return [off(ours.detach(), cut(y, 1).detach()), *(off(a, b) for a, b in pairs)]


def run_each():
    return attention(), gpt(), mlp()


def test_rings_have_the_numbers_of_one_process(setting):
    name, nproc = setting
    results = launch.capture(run_each, nproc=nproc, backend=name, timeout=300)
    for rank, (of_attention, of_gpt, of_mlp) in enumerate(results):
        assert max(map(max, of_attention.values())) < TOLERANCE, (rank, of_attention)
        assert max(of_gpt.values()) < TOLERANCE, (rank, of_gpt)
        assert len(of_mlp) == 4 and max(of_mlp) < TOLERANCE, (rank, of_mlp)
    for layout in ("contiguous", "zigzag"):
        sent = results.ledger.section(layout).sent("bytes")
        # keys and values twice, their gradients once
        assert sent == 3 * (nproc - 1) * 2 * B * K * T * d * 8
