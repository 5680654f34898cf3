"""Context parallelism for the full GPT: the sequence is sharded over the ranks, and only attention
has to communicate.

    tokens (B, T) --> (B, t)  embedding    norm, q, k, v  RING  out, norm, mlp  ...  head  loss
                              t positions                 ^ keys, values go round   part of the sum

Every layer but attention treats each token separately, so a rank with t = T/cp of the tokens runs
it unchanged. Only three things change. The embedding must know the positions of these tokens,
attention becomes ring attention, and the loss is the rank's part of a sum over all B*T tokens.
Parameters are replicated, and each rank has the gradient that its tokens contribute. Therefore one
all-reduce follows after backward as in data parallelism, but it is a sum and not a mean.

    L = 1/(BT) sum over ranks of sum over their tokens
    dL/dw = sum over ranks of (dL/dw of their tokens)

Sources: Liu et al. 2023 (ring attention); Megatron-LM's and torch's "context parallel" do the same.
"""

import copy
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lib.backend import Group
from lib.tensor_parallel.ring_attention import ring_attention
from lib.tensor_parallel.sequence import sum_gradients
from lib.training.model import GPT, cross_entropy, merge_heads, split_heads


def shard(x: Tensor, layout: Sequence[Sequence[int]], group: Group = None) -> Tensor:
    """This rank's tokens of the full sequence: x (B, T, ...) -> (B, t, ...). Sends nothing."""
    return x[:, layout[dist.get_rank(group)]]


def context_parallel_gpt(
    model: GPT, layout: Sequence[Sequence[int]], group: Group = None, mix: Callable = ring_attention
) -> "ContextParallelGPT":
    """A copy of `model`, a `lib.training.model.GPT` that is the same on all ranks, for this rank's
    tokens.

    layout: [positions of rank 0, of rank 1, ...], from `layouts`; together they are 0..T-1, with T
    up to the model's seq_len. mix: mix(q, k, v, layout, group=group), attention over all tokens;
    `ulysses` has alternatives to the ring. After backward call `sum_gradients()`, once per step.
    Sends nothing now. Raises ValueError for a model with dropout, or a sequence longer than the
    model's.
    """
    longest, last = model.shape.seq_len, max(positions[-1] for positions in layout)
    if last >= longest:
        raise ValueError(
            f"the layout has position {last}, the model positions 0 to {longest - 1}: use fewer "
            f"tokens"
        )
    if model.shape.dropout > 0:
        raise ValueError(
            f"dropout is {model.shape.dropout}: ring attention computes each block again in "
            f"backward, and keeps no mask of what was dropped; use dropout=0.0"
        )
    return ContextParallelGPT(model, layout, group, mix)


class ContextParallelGPT(nn.Module):
    """A GPT on a part of the sequence, under the GPT's names for parts and parameters. Made by
    `context_parallel_gpt`."""

    def __init__(self, model, layout, group, mix):
        super().__init__()
        self.shape, self.layout, self.group = model.shape, layout, group
        model = copy.deepcopy(model)  # all of it, so that tied weights stay tied
        self.embedding = SplitEmbedding(model.embedding, layout[dist.get_rank(group)])
        self.blocks, self.norm, self.head = model.blocks, model.norm, model.head
        for block in self.blocks:
            block.attention = ContextAttention(block.attention, layout, group, mix=mix)

    def forward(self, tokens):
        """tokens (B, t) int64, this rank's -> logits (B, t, V)."""
        x = self.embedding(tokens)  # (B, t, D)
        for block in self.blocks:
            x = block(x)  # (B, t, D)
        return self.head(self.norm(x))  # (B, t, V)

    def loss(self, tokens, targets):
        """This rank's part of the mean over all B*T tokens; the parts of all ranks add up to it.
        Both (B, t) -> ()."""
        T = sum(len(positions) for positions in self.layout)
        return cross_entropy(self(tokens), targets, "sum") / (len(tokens) * T)

    def sum_gradients(self):
        """Replace every gradient by its sum over the ranks. Call it once per step, after the last
        backward.

        Sends: one all-reduce of all parameters.
        """
        sum_gradients(self.parameters(), self.group)


class SplitEmbedding(nn.Module):
    """tokens (B, t) at the rank's positions -> (B, t, D), from the two tables of `embedding`."""

    def __init__(self, embedding, positions):
        super().__init__()
        self.token, self.position = embedding.token, embedding.position
        self.positions = positions  # t of them

    def forward(self, tokens):
        if tokens.shape[-1] != len(self.positions):
            raise ValueError(
                f"{tokens.shape[-1]} tokens for {len(self.positions)} positions: pass "
                f"shard(tokens, layout, group)"
            )
        positions = torch.tensor(self.positions, device=tokens.device)  # (t,)
        return self.token(tokens) + self.position(positions)  # (B, t, D)


def unsharded_linears(x, linears):
    """[y of each linear layer], where every rank has all of its weights."""
    return [linear(x) for linear in linears]


class ContextAttention(nn.Module):
    """Attention over all T tokens, (B, t, D) -> (B, t, D), with the linear layers of `attention`,
    which has all heads, or only those of one tp rank.

    column_linear: column_linear(x, [q, k, v]) -> their outputs, (B, t, H*d) and twice (B, t, K*d);
    by default each layer is called. In sequence parallel x is (B, t/tp, D), and so is the result.
    """

    def __init__(
        self, attention, layout, group, column_linear=unsharded_linears, mix=ring_attention
    ):
        super().__init__()
        self.q, self.k, self.v, self.out = attention.q, attention.k, attention.v, attention.out
        self.head_dim, self.layout, self.group = attention.head_dim, layout, group
        self.column_linear, self.mix = column_linear, mix

    def forward(self, x):
        columns = self.column_linear(x, [self.q, self.k, self.v])  # (B, t, H*d), twice (B, t, K*d)
        # (B, H, t, d), twice (B, K, t, d)
        q, k, v = (split_heads(column, self.head_dim) for column in columns)
        mixed = self.mix(q, k, v, self.layout, group=self.group)  # (B, H, t, d)
        return self.out(merge_heads(mixed))  # (B, t, D)
