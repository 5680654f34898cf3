"""A script's own Llama with tensor parallelism and with experts; attention over a sharded
sequence in 16 bits."""

import contextlib
import copy
import functools

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from own_models import (
    MLP,
    PLAIN,
    Layer,
    Llama,
    adamw,
    alone,
    attend,
    batch_of,
    far,
    gradients_alone,
    in_bfloat16,
    on_two_ranks,
    recomputed,
    relative,
    said,
    seeded,
    share,
    text,
)  # fmt: skip
from torch import nn
from torch.utils.checkpoint import checkpoint

from lib import collectives, moe
from lib import tensor_parallel as tp
from lib.data_parallel import OverlappedDataParallel
from lib.training.recompute import Recomputed
from lib.zero import PrefetchingFSDP

compiled = lambda module: torch.compile(module, backend="aot_eager")


class ParallelAttention(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.head_width = attention.head_width
        for name in ("q_proj", "k_proj", "v_proj"):
            setattr(self, name, tp.ColumnParallelLinear(getattr(attention, name)))
        self.o_proj = tp.RowParallelLinear(attention.o_proj)

    def forward(self, x, position_embeddings):
        q, k, v = tp.column_parallel(x, [self.q_proj, self.k_proj, self.v_proj])
        return self.o_proj(attend(q, k, v, position_embeddings, self.head_width))


class ParallelMLP(nn.Module):
    def __init__(self, mlp):
        super().__init__()
        self.gate_proj, self.up_proj = (
            tp.ColumnParallelLinear(mlp.gate_proj),
            tp.ColumnParallelLinear(mlp.up_proj),
        )
        self.down_proj = tp.RowParallelLinear(mlp.down_proj)

    def forward(self, x):
        gate, up = tp.column_parallel(x, [self.gate_proj, self.up_proj])
        return self.down_proj(F.silu(gate) * up)


class TiedHead:
    bias = None

    def __init__(self, weight):
        self.weight = weight


class ParallelLlama(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.embed_tokens = tp.VocabParallelEmbedding(model.embed_tokens)
        self.layers, self.norm = copy.deepcopy(model.layers), copy.deepcopy(model.norm)
        for own, layer in zip(self.layers, model.layers, strict=True):
            own.self_attn, own.mlp = ParallelAttention(layer.self_attn), ParallelMLP(layer.mlp)
        self.positions = model.cos, model.sin

    def forward(self, tokens):
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x, position_embeddings=self.positions)
        return tp.column_parallel(self.norm(x), [TiedHead(self.embed_tokens.weight)])[0]


def own_shards(full, own):
    """Of {name: tensor} this rank's shards, in the shapes of `own`."""
    shards = {}
    for name, part in own.items():
        dims = [
            i for i, (n, m) in enumerate(zip(full[name].shape, part.shape, strict=True)) if n != m
        ]
        shards[name] = full[name].chunk(2, dims[0])[dist.get_rank()] if dims else full[name]
    return shards


def saved(model):
    for layer in model.layers:
        layer.forward = functools.partial(checkpoint, layer.forward, use_reentrant=False)
    return model


def trained(prepare=PLAIN, call=PLAIN):
    model = prepare(ParallelLlama(seeded(Llama)))
    called, optimizer = call(model), adamw(model.parameters())
    tokens, targets = batch_of(text)
    for _ in range(3):
        tp.vocab_parallel_cross_entropy(called(tokens), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    own = {name.replace("module.", ""): p for name, p in model.named_parameters()}
    return far(own, own_shards(alone(Llama, text), own))


PROGRAMS = {
    "plain": (),
    "recomputed": (recomputed,),
    "checkpoint": (saved,),
    "compiled": (PLAIN, compiled),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_tensor_parallel_llama_as_one_process(name):
    assert max(on_two_ranks(trained, *PROGRAMS[name])) < 5e-6


def under_autocast(prepare=PLAIN):
    model = prepare(ParallelLlama(seeded(Llama)))
    tokens, targets = batch_of(text)
    with in_bfloat16():
        loss = tp.vocab_parallel_cross_entropy(model(tokens), targets)
    loss.backward()
    got = {name.replace("module.", ""): p.grad for name, p in model.named_parameters()}
    want, wide = (
        own_shards(gradients_alone(Llama, text, *cast), got) for cast in ((in_bfloat16,), ())
    )
    return loss.dtype == torch.float32, relative(got, want), relative(want, wide)


@pytest.mark.slow
@pytest.mark.parametrize("prepare", [PLAIN, recomputed])
def test_autocast_is_about_as_near_to_one_process_under_autocast_as_that_is_to_float32(prepare):
    for in_float32, off, rounding in on_two_ranks(under_autocast, prepare):
        assert in_float32 and off < 1.5 * rounding < 4e-2


def against_parallelize_module():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    theirs = seeded(lambda: MLP(32, 88))
    ours = ParallelMLP(copy.deepcopy(theirs))
    plan = {
        "gate_proj": ColwiseParallel(),
        "up_proj": ColwiseParallel(),
        "down_proj": RowwiseParallel(),
    }
    parallelize_module(theirs, init_device_mesh("cpu", (2,)), plan)
    x, z = (torch.linspace(-1, 1, 2048).view(4, 16, 32).requires_grad_() for _ in range(2))
    a, b = ours(x), theirs(z)
    a.square().sum().backward()
    b.square().sum().backward()
    pairs = [(a, b), (x.grad, z.grad)]
    pairs += [
        (p.grad, q.grad.to_local())
        for p, q in zip(ours.parameters(), theirs.parameters(), strict=True)
    ]
    return max((p - q).abs().max().item() / q.abs().max().item() for p, q in pairs)


@pytest.mark.slow
def test_an_mlp_as_parallelize_module_splits_it():
    assert max(on_two_ranks(against_parallelize_module)) < 1e-6


def losses():
    """vocab_parallel_cross_entropy next to F.cross_entropy of the full logits, in float32
    and of 16 bits."""
    found = {}
    logits = seeded(lambda: torch.randn(2, 4, 16) * 5)
    words = torch.arange(8).view(2, 4) + 5
    some = words.masked_fill(torch.arange(8).view(2, 4) % 3 == 0, -100)
    for name, dtype, targets, more in (
        ("float32", torch.float32, words, {}),
        ("bfloat16", torch.bfloat16, words, {}),
        ("ignored", torch.float32, some, {}),
        ("ignored, bfloat16", torch.bfloat16, some, {}),
        ("another index", torch.float32, some.masked_fill(some == -100, -1), {"ignore_index": -1}),
        ("a word is ignored", torch.float32, words, {"ignore_index": 7}),
        ("sum", torch.float32, some, {"reduction": "sum"}),
        ("all ignored", torch.float32, torch.full_like(words, -100), {"reduction": "sum"}),
    ):
        full = logits.to(dtype, copy=True).requires_grad_()
        own = full.detach().chunk(2, -1)[dist.get_rank()].clone().requires_grad_()
        loss = tp.vocab_parallel_cross_entropy(own, targets, **more)
        want = F.cross_entropy(full.float().flatten(0, 1), targets.flatten(), **more)
        loss.backward()
        want.backward()
        grad = full.grad.chunk(2, -1)[dist.get_rank()]
        off = (own.grad - grad).abs().max().item() / (1e-2 if dtype == torch.bfloat16 else 1e-6)
        found[name] = max(off, abs(loss.item() - want.item()) / 1e-5), own.grad.dtype == dtype
    refused = said(tp.vocab_parallel_cross_entropy, own, torch.full((2, 4), 16))
    return found, refused


def test_the_loss_is_that_of_the_full_logits():
    for found, refused in on_two_ranks(losses):
        assert all(off < 1 and same for off, same in found.values()), found
        assert "16" in refused and refused.startswith("ValueError")


def sharded_sequences():
    """Each attention over a sequence on two ranks in bfloat16: how far its output and gradients are
    from float64's, relative to how far torch's own attention in bfloat16 is."""
    from lib.tensor_parallel.layouts import zigzag
    from lib.tensor_parallel.ring_attention import ring_attention
    from lib.tensor_parallel.ulysses import gathered_attention, ulysses_attention

    layout = zigzag(64, 2)
    mine = torch.tensor(layout[dist.get_rank()])
    q, k, v, dy = seeded(
        lambda: [torch.randn(2, heads, 64, 16, dtype=torch.float64) for heads in (4, 2, 2, 4)]
    )

    def plain(dtype):
        inputs = [x.to(dtype).requires_grad_() for x in (q, k, v)]
        out = F.scaled_dot_product_attention(*inputs, is_causal=True, enable_gqa=True)
        return [x[:, :, mine] for x in (out, *torch.autograd.grad(out, inputs, dy.to(dtype)))]

    def sharded(attention, **more):
        inputs = [x[:, :, mine].bfloat16().requires_grad_() for x in (q, k, v)]
        out = attention(*inputs, layout, **more)
        return [out, *torch.autograd.grad(out, inputs, dy[:, :, mine].bfloat16())]

    exact, found = plain(torch.float64), {}
    off = lambda got: [((a - b).norm() / b.norm()).item() for a, b in zip(got, exact, strict=True)]
    torchs = off(plain(torch.bfloat16))
    for name, attention in (
        ("ring", ring_attention),
        ("ulysses", ulysses_attention),
        ("gathered", gathered_attention),
    ):
        for cast in (contextlib.nullcontext, in_bfloat16):
            with cast():
                got = sharded(attention)
            found[name, cast.__name__] = max(a / b for a, b in zip(off(got), torchs, strict=True))
    return found


@pytest.mark.slow
def test_attention_in_bfloat16_is_as_near_as_torchs():
    for found in on_two_ranks(sharded_sequences):
        assert all(ratio < 1.5 for ratio in found.values()), found


def keywords():
    """What an older call gives as `causal`, by its place, is refused."""
    from lib.tensor_parallel.ring_attention import ring_attention
    from lib.tensor_parallel.ulysses import gathered_attention, ulysses_attention

    x, texts = torch.randn(1, 2, 4, 4), []
    for attention in (ring_attention, ulysses_attention, gathered_attention):
        for more in ((True,), (False,), (True, None)):
            try:
                attention(x, x, x, [[0, 1, 2, 3], [4, 5, 6, 7]], *more)
                texts.append("")
            except (TypeError, ValueError) as error:
                texts.append(f"{type(error).__name__}: {error}")
    return texts


def test_causal_is_given_by_name():
    for texts in on_two_ranks(keywords):
        assert all(texts), texts


# Experts.


def layer_of_experts():
    return moe.MoE(
        32,
        [MLP(32, 64) for _ in range(4)],
        gate=lambda logits: moe.top_k_gate(logits, 2),
        factor=2.0,
    )


def llama_with_experts():
    model = Llama()
    for layer in model.layers:
        layer.mlp = layer_of_experts()
    return model


def spread(model):
    for layer in model.layers:
        layer.mlp = moe.ExpertParallelMoE(layer.mlp)
    return model


def by_shares(steps=3):
    """One process that goes through the ranks' shares one by one, because capacities are of a
    rank's tokens."""
    model = seeded(llama_with_experts)
    optimizer = adamw(model.parameters())
    for _ in range(steps):
        for rows in zip(*(x.chunk(2) for x in batch_of(text)), strict=True):
            (text(model, rows) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    return {name: p.detach() for name, p in model.named_parameters()}


def experts_in_a_llama():
    model = spread(seeded(llama_with_experts))
    _, replicas = collectives.node_groups(2)
    optimizer = adamw(model.parameters())
    for _ in range(3):
        text(model, share(batch_of(text))).backward()
        moe.reduce_gradients(model, replicas)
        optimizer.step()
        optimizer.zero_grad()
    want, own = by_shares(), dict(model.named_parameters())
    refused = said(OverlappedDataParallel, model)
    return far(own, {name: want[name] for name in own}), refused


def experts_in_units():
    model = seeded(llama_with_experts)
    wrapper = PrefetchingFSDP(model, list(model.layers))
    optimizer = adamw(wrapper.groups)
    for _ in range(3):
        text(wrapper, share(batch_of(text))).backward()
        wrapper.average_gradients()
        optimizer.step()
        optimizer.zero_grad()
    with wrapper.unsharded():
        return far(dict(model.named_parameters()), by_shares())


@pytest.mark.slow
def test_experts_in_a_llama_by_expert_parallelism_and_in_units():
    for off, refused in on_two_ranks(experts_in_a_llama):
        assert off < 5e-6 and "would overwrite them with rank 0's" in refused
    assert max(on_two_ranks(experts_in_units)) < 5e-6


def one_layer(prepare, cast, parallel, call=PLAIN):
    """A layer of experts on this rank's tokens, next to the same layer in one process."""
    layer = prepare(seeded(layer_of_experts))
    other = moe.ExpertParallelMoE(layer) if parallel else copy.deepcopy(layer)
    called = call(other)
    x = torch.linspace(-1, 1, 1024).view(4, 8, 32).to(next(layer.experts.parameters()).dtype)
    with cast():
        got, want = called(share((x,))[0]), layer(share((x,))[0])
    got.float().square().mean().backward()
    finite = all(
        p.grad is None or (p.grad.dtype == p.dtype and p.grad.isfinite().all())
        for p in other.parameters()
    )
    return (got - want).abs().max().item(), got.dtype == x.dtype or cast is in_bfloat16, finite


def bfloat16_but_router(layer):
    layer.bfloat16()
    layer.router.float()
    return layer


NONE = contextlib.nullcontext
LAYERS = {
    "experts": (PLAIN, NONE, True),
    "experts, autocast": (PLAIN, in_bfloat16, True),
    "one rank, autocast": (PLAIN, in_bfloat16, False),
    "bfloat16": (lambda layer: layer.bfloat16(), NONE, True),
    "router in float32": (bfloat16_but_router, NONE, True),
    "router in float32, one rank": (bfloat16_but_router, NONE, False),
    "router in float32, autocast": (bfloat16_but_router, in_bfloat16, True),
    "compiled": (PLAIN, NONE, True, compiled),
    "compiled, router in float32": (bfloat16_but_router, NONE, True, compiled),
    "recomputed": (PLAIN, NONE, True, Recomputed),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_of_experts(name):
    for off, dtype, finite in on_two_ranks(one_layer, *LAYERS[name]):
        assert off < 1e-6 and dtype and finite


def sharded_in_wrappers():
    """What lies behind shards of another rank, wherever in the model it is, is
    found by each wrapper."""
    own, _ = collectives.node_groups(1)

    class Deep(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = nn.ModuleDict({"a": nn.Sequential(inner)})

    blocks = {
        "attention": lambda: ParallelAttention(Layer().self_attn),
        "rows": lambda: tp.RowParallelLinear(nn.Linear(4, 4)),
        "vocabulary": lambda: tp.VocabParallelEmbedding(nn.Embedding(8, 4)),
        "experts": lambda: moe.ExpertParallelMoE(layer_of_experts()),
    }
    texts = {name: said(OverlappedDataParallel, Deep(make())) for name, make in blocks.items()}
    texts |= {
        f"{name}, fsdp": said(PrefetchingFSDP, Deep(make()), []) for name, make in blocks.items()
    }
    allowed = [said(OverlappedDataParallel, Deep(make()), own) for make in blocks.values()]
    return texts, allowed


def test_shards_inside_of_a_wrapped_model_are_found_wherever_they_are():
    for texts, allowed in on_two_ranks(sharded_in_wrappers):
        assert all("is sharded over ranks [0, 1]" in text for text in texts.values()), texts
        assert allowed == [""] * 4
