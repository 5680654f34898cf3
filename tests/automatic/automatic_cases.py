"""What the tests of automatic parallelism share: small modules, and clusters on which different
plans are cheapest."""

import torch
from torch import nn

from lib.hybrid.automatic import Cluster
from lib.training.model import MLP, Block, Shape

SHAPE = Shape(vocab_size=12, seq_len=8, n_layers=1, hidden=8, n_heads=4)
GROUPED = Shape(
    vocab_size=12, seq_len=8, n_layers=1, hidden=16, n_heads=8, n_kv_heads=4, mlp_hidden=12
)
B, T = 4, 8


def double(module):
    """Weights of its own, alike wherever it is built; no bias is 0, or none would be missed."""
    draw = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in module.double().parameters():
            p.copy_(0.3 * torch.randn(p.shape, generator=draw, dtype=torch.float64))
    return module


class Residual(nn.Module):
    """x + down(gelu(up(norm(x)))), then summed over the tokens: (B, T, D) -> (B, D)."""

    def __init__(self, D, F):
        super().__init__()
        self.norm, self.up, self.gelu, self.down = (
            nn.LayerNorm(D),
            nn.Linear(D, F),
            nn.GELU(),
            nn.Linear(F, D, False),
        )

    def forward(self, x):
        return (x + self.down(self.gelu(self.up(self.norm(x))))).sum(1)


MODULES = {
    "MLP": lambda: MLP(SHAPE),
    "residual": lambda: Residual(8, 12),
    "block": lambda: Block(SHAPE),
    "grouped-query": lambda: Block(GROUPED),
}
WIDTH = {"MLP": 8, "residual": 8, "block": 8, "grouped-query": 16}


def cluster(N, flops=1e6, memory=1e7, alpha=1e-6, beta=1e-8):
    return Cluster(N, flops, memory, alpha, beta, 8)


# Slow processors: everything is split. Slow links: nothing. Slow memory: norms and gelu are split.
CLUSTERS = {
    "slow processors": {"flops": 1e4},
    "slow links": {"beta": 1e-3, "alpha": 1e-2},
    "slow memory": {"memory": 1e4},
    "latency": {"alpha": 1e-4, "flops": 1e5},
    "middling": {},
}
