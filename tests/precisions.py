"""What the tests of mixed precision train, and when numbers are the same."""

import torch

from lib.training import text
from lib.training.model import Shape, cross_entropy

TEXT = text.load()
SHAPE = Shape(vocab_size=len(TEXT.vocabulary), seq_len=8, n_layers=1, hidden=16, n_heads=2)
ALONE = {"all_reduce": lambda tensor, group: tensor}  # one process: it agrees with itself
sgd = lambda lr: lambda masters: torch.optim.SGD(masters, lr=lr)
adam = lambda lr: lambda masters: torch.optim.Adam(masters, lr=lr, eps=1e-3)


def bits(tensors):
    return [t.detach().clone() for t in tensors]


def alike(some, others):
    """Same dtypes, same bits."""
    return len(some) == len(others) and all(
        a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(some, others, strict=True)
    )


def loss_of(model, step, rank=0, world_size=1):
    """fp32 loss of this rank's share of a batch of 6 sequences."""
    # (b, 8)
    tokens, targets = text.batch(TEXT.train, step, rank, world_size, batch_size=6, seq_len=8)
    return cross_entropy(model(tokens).float(), targets)
