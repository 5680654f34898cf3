"""A small GPT in plain PyTorch, which all labs train and split (Radford et al. 2019, "Language
models are unsupervised multitask learners").

    tokens -> embedding -> block 0 -> ... -> block L-1 -> norm -> head -> logits
    block:  x = x + attention(norm1(x))     q, k, v by columns, out by rows
            x = x + mlp(norm2(x))           up by columns, down by rows

The comments on the right say how tensor parallelism splits the linear layers. A pipeline splits the
model between blocks, and experts replace the mlp. The head and the token embedding share a weight:
it is one parameter with two uses, so its gradient is the sum over both.

B sequences of T tokens, V vocabulary, D hidden, H heads of width d = D/H, K key/value heads, F MLP
width, L blocks.

Each position has a learned vector. Only the embedding uses positions, so a block is the same code
wherever it runs. Attention is written out rather than fused, because the backward of a GPU's fused
kernel adds in no fixed order, and the labs compare runs.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    """The sizes of a GPT. With fewer n_kv_heads than n_heads it uses grouped-query attention
    (Ainslie et al. 2023). Raises ValueError for sizes that do not fit together."""

    vocab_size: int
    seq_len: int  # the longest sequence, T
    n_layers: int
    hidden: int
    n_heads: int
    n_kv_heads: int = None  # type: ignore[assignment]  # left out: n_heads
    mlp_hidden: int = None  # type: ignore[assignment]  # left out: 4 * hidden
    dropout: float = 0.0

    def __post_init__(self):
        # a frozen dataclass can set its own fields only in this way; then every field is a number
        object.__setattr__(
            self, "n_kv_heads", self.n_heads if self.n_kv_heads is None else self.n_kv_heads
        )
        object.__setattr__(
            self, "mlp_hidden", 4 * self.hidden if self.mlp_hidden is None else self.mlp_hidden
        )
        for name in (
            "vocab_size",
            "seq_len",
            "n_layers",
            "hidden",
            "n_heads",
            "n_kv_heads",
            "mlp_hidden",
        ):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"{name} is {getattr(self, name)}: it counts something, use 1 or more"
                )
        if self.hidden % self.n_heads:
            raise ValueError(
                f"hidden {self.hidden} / n_heads {self.n_heads} is not whole: use hidden "
                f"{math.ceil(self.hidden / self.n_heads) * self.n_heads} or another number of heads"
            )
        if self.n_heads % self.n_kv_heads:
            raise ValueError(
                f"n_heads {self.n_heads} / n_kv_heads {self.n_kv_heads} is not whole: "
                "each key/value head serves the same number of query heads"
            )
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(
                f"dropout is {self.dropout}: it is a probability, use 0 <= dropout < 1"
            )


class Embedding(nn.Module):
    """tokens (B, T) int64 -> token vector + position vector, (B, T, D)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.token = nn.Embedding(shape.vocab_size, shape.hidden)  # weight (V, D)
        self.position = nn.Embedding(shape.seq_len, shape.hidden)  # weight (T, D)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        length, longest = tokens.shape[-1], self.position.num_embeddings
        if length > longest:
            raise ValueError(
                f"a sequence of {length} tokens, the model has {longest} positions: use "
                f"seq_len={length}"
            )
        positions = torch.arange(length, device=tokens.device)  # (T,)
        return self.dropout(self.token(tokens) + self.position(positions))  # (B, T, D)


def split_heads(x: Tensor, head_dim: int) -> Tensor:
    """(B, T, heads * d) -> (B, heads, T, d). Head i has the columns i*d to (i+1)*d - 1, so a split
    of the columns is a split of the heads."""
    return x.unflatten(-1, (-1, head_dim)).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """(B, heads, T, d) -> (B, T, heads * d), the inverse of `split_heads`."""
    return x.transpose(1, 2).flatten(-2)


def causal_attention(q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0) -> Tensor:
    """softmax(q k^T / sqrt(d)) v, where token t sees tokens 0..t. q (B, H, T, d); k, v (B, K, T, d)
    -> (B, H, T, d).

    Query head i uses key/value head i // (H/K). `dropout` is the probability of dropping an
    attention weight. Heads are independent, so under tensor parallelism a rank calls this function
    with its own heads, and H and K count only these.
    """
    (T, d), share = q.shape[-2:], q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(share, dim=1), v.repeat_interleave(share, dim=1)  # (B, H, T, d)
    scores = q @ k.transpose(-1, -2) / math.sqrt(d)  # (B, H, T, T)
    # (T, T)  True above the diagonal
    later = torch.ones(T, T, dtype=torch.bool, device=q.device).triu(1)
    weights = scores.masked_fill(later, -math.inf).softmax(-1)  # (B, H, T, T)
    return F.dropout(weights, dropout) @ v  # (B, H, T, d)


class Attention(nn.Module):
    """(B, T, D) -> (B, T, D). q, k and v are separate layers, so that tensor parallelism can split
    each by columns (heads) with one slice; out is split by rows."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.head_dim = shape.hidden // shape.n_heads
        kv_hidden = shape.n_kv_heads * self.head_dim
        self.q = nn.Linear(shape.hidden, shape.hidden)  # weight (H*d, D)
        self.k = nn.Linear(shape.hidden, kv_hidden)  # weight (K*d, D)
        self.v = nn.Linear(shape.hidden, kv_hidden)  # weight (K*d, D)
        self.out = nn.Linear(shape.hidden, shape.hidden)  # weight (D, H*d)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split_heads(linear(x), self.head_dim) for linear in (self.q, self.k, self.v))
        mixed = causal_attention(q, k, v, self.dropout.p if self.training else 0.0)  # (B, H, T, d)
        return self.dropout(self.out(merge_heads(mixed)))  # (B, T, D)


class MLP(nn.Module):
    """(B, T, D) -> (B, T, D) through width F: down(gelu(up(x)))."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.up = nn.Linear(shape.hidden, shape.mlp_hidden)  # weight (F, D)
        self.down = nn.Linear(shape.mlp_hidden, shape.hidden)  # weight (D, F)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.down(F.gelu(self.up(x))))


class Block(nn.Module):
    """One layer, (B, T, D) -> (B, T, D). Attention and MLP each read the normalised residual stream
    x, and add their output to x."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(shape.hidden)
        self.attention = Attention(shape)
        self.norm2 = nn.LayerNorm(shape.hidden)
        self.mlp = MLP(shape)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """The full model, on torch's default device. For a given shape `seed` alone determines the
    weights, so they are the same on every device and rank.

    Parameters: V*D + T*D, per block 2D(D+1) + 2Kd(D+1) + 2DF + F + D + 4D, and 2D for the last
    norm.
    """

    def __init__(self, shape: Shape, seed: int = 0) -> None:
        super().__init__()
        self.shape = shape
        # We build on the CPU, where one seed gives the same numbers on every machine. The layers
        # initialise themselves when they are made. We overwrite what they draw, and fork_rng keeps
        # these draws from changing the global random state.
        with torch.device("cpu"), torch.random.fork_rng(devices=[]):
            self.embedding = Embedding(shape)
            self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.n_layers))
            self.norm = nn.LayerNorm(shape.hidden)
            self.head = nn.Linear(shape.hidden, shape.vocab_size, bias=False)  # weight (V, D)
            self._initialise(torch.Generator("cpu").manual_seed(seed))
        self.to(torch.get_default_device())
        # tie the weights: from here on it is one parameter with two names
        self.head.weight = self.embedding.token.weight

    @torch.no_grad()
    def _initialise(self, generator):
        """Initialise as GPT-2 does: weights normal(0, 0.02), biases 0, and the 2L weights that
        write to the residual stream scaled by 1/sqrt(2L)."""
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
            elif parameter.dim() == 2:
                adds_to_stream = name.endswith(("attention.out.weight", "mlp.down.weight"))
                scale = 1 / math.sqrt(2 * self.shape.n_layers) if adds_to_stream else 1.0
                parameter.normal_(0.0, 0.02 * scale, generator=generator)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens (B, T) int64 -> logits (B, T, V), where logits[:, t] predict token t + 1.
        Raises ValueError if T > seq_len."""
        x = self.embedding(tokens)  # (B, T, D)
        for block in self.blocks:
            x = block(x)  # (B, T, D)
        return self.head(self.norm(x))  # (B, T, V)

    def loss(self, tokens: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
        """The loss of predicting `targets` from `tokens`, both (B, T); see `cross_entropy`."""
        return cross_entropy(self(tokens), targets, reduction)

    def num_parameters(self) -> int:
        """How many elements the parameters have; the tied weight counts once."""
        return sum(p.numel() for p in self.parameters())


def cross_entropy(logits: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """-log p(target) in nats, the "mean" or the "sum" over all B*T tokens. logits (B, T, V),
    targets (B, T) -> ().

    The mean of the ranks' means is the batch's mean only if all ranks have equally many tokens.
    Otherwise use "sum", because sums always add up. Raises ValueError for shapes that do not fit.
    """
    if logits.shape[:-1] != targets.shape:
        raise ValueError(
            f"logits {tuple(logits.shape)} want targets {tuple(logits.shape[:-1])}, got "
            f"{tuple(targets.shape)}: one target per token"
        )
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction=reduction)
