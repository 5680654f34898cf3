"""The models of a script that knows nothing of lib, and what such a script does with them.

    Llama  grouped queries, rotary positions, RMSNorm, SwiGLU, tied embeddings, no biases, blocks
           called by keywords
    CNN    group norm or batch norm, a grouped convolution, and a parameter without a dimension, as
           in CLIP

Each program trains on two ranks and returns how far it ends from one process that trains on the
whole batch: the largest difference of a parameter, or of a gradient. Bars are a few times what
torch's own wrappers leave there.
"""

import contextlib
import functools

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from lib import launch
from lib.training.recompute import Recomputed

STEPS = 3
# a small eps would show rounding as steps
adamw = lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, eps=1e-3)
in_bfloat16 = lambda: torch.autocast("cpu", torch.bfloat16)
PLAIN = lambda model: model


class CNN(nn.Module):
    def __init__(self, norm=lambda channels: nn.GroupNorm(4, channels)):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), norm(16), nn.ReLU())
        self.body = nn.Sequential(
            nn.Conv2d(16, 32, 3, stride=2, padding=1), norm(32), nn.ReLU(),
            nn.Conv2d(32, 32, 3, padding=1, groups=4), norm(32), nn.ReLU(),
        )  # fmt: skip
        self.head, self.logit_scale = nn.Linear(32, 10), nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        return self.head(self.body(self.stem(x)).mean((2, 3))) * self.logit_scale


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), 1e-5)


def rotary(length, width):
    angles = torch.outer(
        torch.arange(length).float(), 10000.0 ** (-torch.arange(0, width, 2).float() / width)
    )
    return angles.cos(), angles.sin()


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


def attend(q, k, v, positions, head_width):
    """Grouped-query attention of flat heads: (B, T, H d), (B, T, K d) twice -> (B, T, H d)."""
    q, k, v = (x.unflatten(-1, (-1, head_width)).transpose(1, 2) for x in (q, k, v))
    q, k = rotate(q, *positions), rotate(k, *positions)
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return y.transpose(1, 2).flatten(2)


class Attention(nn.Module):
    def __init__(self, width, heads, kv_heads):
        super().__init__()
        self.head_width = width // heads
        self.q_proj, self.o_proj = (
            nn.Linear(width, width, bias=False),
            nn.Linear(width, width, bias=False),
        )
        self.k_proj, self.v_proj = (
            nn.Linear(width, kv_heads * self.head_width, bias=False) for _ in range(2)
        )

    def forward(self, x, position_embeddings):
        q, k, v = (project(x) for project in (self.q_proj, self.k_proj, self.v_proj))
        return self.o_proj(attend(q, k, v, position_embeddings, self.head_width))


class MLP(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.gate_proj, self.up_proj = (
            nn.Linear(width, hidden, bias=False),
            nn.Linear(width, hidden, bias=False),
        )
        self.down_proj = nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, width=32, heads=4, kv_heads=2, hidden=88):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(width), RMSNorm(width)
        self.self_attn, self.mlp = Attention(width, heads, kv_heads), MLP(width, hidden)

    def forward(self, hidden_states, attention_mask=None, position_embeddings=None):
        x = hidden_states + self.self_attn(self.input_layernorm(hidden_states), position_embeddings)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """checkpoint: called with a layer, its input and the positions, in place of the layer;
    None: a plain call."""

    def __init__(
        self, n_layers=3, vocabulary=64, width=32, length=16, checkpoint=None, sparse=False
    ):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocabulary, width, sparse=sparse)
        self.layers = nn.ModuleList(Layer(width) for _ in range(n_layers))
        self.norm, self.lm_head = RMSNorm(width), nn.Linear(width, vocabulary, bias=False)
        if not sparse:
            self.lm_head.weight = self.embed_tokens.weight
        cos, sin = rotary(length, width // 4)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.checkpoint = checkpoint or (
            lambda layer, x, positions: layer(x, position_embeddings=positions)
        )

    def forward(self, tokens):
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = self.checkpoint(layer, x, (self.cos, self.sin))
        return self.lm_head(self.norm(x))


def one_layer_thrice(**options):
    """A Llama whose three layers are one."""
    model = Llama(n_layers=1, **options)
    model.layers = nn.ModuleList([model.layers[0]] * 3)
    return model


def recomputed(model):
    model.layers = nn.ModuleList(Recomputed(layer) for layer in model.layers)
    return model


def text(model, batch):
    tokens, targets = batch
    return F.cross_entropy(model(tokens).float().flatten(0, 1), targets.flatten())


def pictures(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


def batch_of(loss, rows=8):
    drawn = torch.Generator().manual_seed(1)
    if loss.__name__ == "pictures":  # a function is another one on the ranks
        return torch.randn(rows, 3, 8, 8, generator=drawn), torch.randint(
            0, 10, (rows,), generator=drawn
        )
    tokens = torch.randint(0, 64, (rows, 17), generator=drawn)
    return tokens[:, :-1], tokens[:, 1:]


def share(batch):
    return tuple(x.chunk(dist.get_world_size())[dist.get_rank()] for x in batch)


def seeded(make, seed=0):
    torch.manual_seed(seed)
    return make()


def train(model, call, average, optimizer, loss, cast=contextlib.nullcontext):
    """STEPS steps on this rank's share of the batch."""
    for _ in range(STEPS):
        with cast():
            value = loss(call, share(batch_of(loss)))
        value.backward()
        average()
        optimizer.step()
        optimizer.zero_grad()
    return dict(model.named_parameters())


@functools.cache
def alone(make, loss, cast=contextlib.nullcontext, optimizer=adamw):
    """{name: parameter} of one process after STEPS steps on the whole batch."""
    model = seeded(make)
    optimizer = optimizer([p for p in model.parameters() if p.requires_grad])
    for _ in range(STEPS):
        with cast():
            value = loss(model, batch_of(loss))
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def gradients_alone(make, loss, cast=contextlib.nullcontext):
    """{name: gradient} of one process for the whole batch."""
    model = seeded(make)
    with cast():
        value = loss(model, batch_of(loss))
    value.backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def far(mine, theirs):
    """The largest difference between tensors of the same name."""
    return max(
        (mine[name].detach().float() - theirs[name].float()).abs().max().item() for name in theirs
    )


def relative(mine, theirs):
    """The norm of the difference of all tensors, relative to theirs."""
    line = lambda tensors: torch.cat([tensors[name].detach().float().flatten() for name in mine])
    return ((line(mine) - line(theirs)).norm() / line(theirs).norm()).item()


def said(act, *args, **named):
    """What the error of act(*args) says, or "" if there is none."""
    try:
        act(*args, **named)
    except (RuntimeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def on_two_ranks(program, *args, timeout=300):
    return launch.run(program, *args, nproc=2, backend="gloo", timeout=timeout)
