"""An expert-parallel layer on torch alone: dist.all_to_all_single with uneven splits, and a
Function that reverses it.

What a team that knows torch writes for itself, the form of Megatron-Core's all-to-all dispatcher:
top-k, places by a cumulative sum over one-hot rows (GShard, Lepikhin et al. 2020, Algorithm 1), one
exchange of counts, one of rows, an argsort by expert, and back. The same gate, priorities and
capacity as lib's layer, the same auxiliary losses, the same expert modules; none of lib's code.

n tokens of this rank, D hidden, E experts over ep ranks, k choices a token, C slots per expert and
set.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


class AllToAll(torch.autograd.Function):
    """(sum(send), D) -> (sum(receive), D), and back in backward."""

    @staticmethod
    def forward(ctx, rows, send, receive):
        ctx.counts = send, receive
        out = rows.new_empty(sum(receive), *rows.shape[1:])
        dist.all_to_all_single(out, rows.contiguous(), receive, send)
        return out

    @staticmethod
    def backward(ctx, dy):
        send, receive = ctx.counts
        dx = dy.new_empty(sum(send), *dy.shape[1:])
        dist.all_to_all_single(dx, dy.contiguous(), send, receive)
        return dx, None, None


class TorchMoE(nn.Module):
    """x (n, D) -> y (n, D); `auxiliary` and `z` are the two auxiliary losses of the last forward.

    router: (n, D) -> logits (n, E). experts: this rank's. C: slots per expert, of this rank's
    tokens.
    """

    def __init__(self, router, experts, k, C):
        super().__init__()
        self.router, self.experts, self.k, self.C = router, nn.ModuleList(experts), k, C

    def forward(self, x):
        logits = self.router(x)  # (n, E)
        n, E = logits.shape
        p = logits.softmax(-1)
        weight, expert = p.topk(self.k)  # (n, k)
        weight = weight / weight.sum(-1, keepdim=True)
        self.auxiliary = E * (F.one_hot(expert[:, 0], E).to(p).mean(0) * p.mean(0)).sum()
        self.z = logits.logsumexp(-1).square().mean()

        # (k*n,)  first choices first
        expert, weight = expert.t().reshape(-1), weight.t().reshape(-1)
        token = torch.arange(n, device=x.device).repeat(self.k)
        mask = F.one_hot(expert, E)  # (k*n, E)
        slot = (mask.cumsum(0) * mask).sum(1) - 1  # (k*n,)  place among those of its expert
        kept = (slot < self.C).nonzero().squeeze(1)
        kept = kept[expert[kept].argsort(stable=True)]  # (m,)
        token, weight, load = token[kept], weight[kept], torch.bincount(expert[kept], minlength=E)

        ep = dist.get_world_size()
        received = torch.empty_like(load)
        dist.all_to_all_single(received, load)  # (E,)  by sender, then by expert of this rank
        send, receive = load.view(ep, -1).sum(1).tolist(), received.view(ep, -1).sum(1).tolist()
        here = torch.arange(E // ep, device=x.device).repeat(ep).repeat_interleave(received)
        order = here.argsort(stable=True)

        rows = AllToAll.apply(x[token], send, receive)[order]  # expert by expert
        parts = rows.split(received.view(ep, -1).sum(0).tolist())
        rows = torch.cat([each(part) for each, part in zip(self.experts, parts, strict=True)])
        rows = AllToAll.apply(rows[order.argsort()], receive, send)  # (m, D)
        return torch.zeros_like(x).index_add(0, token, weight.unsqueeze(1) * rows)
