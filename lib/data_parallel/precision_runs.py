"""Trains one GPT in several precisions, to show what 16 bits lose and what fp32 master weights
recover. KINDS lists the precisions, and `train_in` trains in one of them."""

import torch
import torch.distributed as dist

from lib import collectives
from lib.data_parallel.bucketed import reduce_bucket
from lib.training import text as texts
from lib.training.model import GPT, Shape, cross_entropy
from lib.training.precision import MasterWeights

KINDS = {  # name: (dtype of weights, activations and gradients, are there fp32 masters and sums?)
    "fp32": (torch.float32, False),
    "bf16, fp32 masters": (torch.bfloat16, True),
    "fp16 alone": (torch.float16, False),
    "bf16 alone": (torch.bfloat16, False),
}


def train_in(
    dtype: torch.dtype, masters: bool, steps: int = 120, rate: float = 3e-5
) -> tuple[list[float], float]:
    """Train with AdamW at a constant rate. With masters the gradients are also reduced in fp32.

    Returns on each rank: ([the mean loss over the ranks in each step], the fraction of the model's
    weights that ended exactly where they began, a sign of updates that were rounded away)."""
    text, rank, N, losses = texts.load(), dist.get_rank(), dist.get_world_size(), []
    model = GPT(Shape(len(text.vocabulary), 32, n_layers=2, hidden=32, n_heads=4)).to(dtype)
    first = [p.detach().clone() for p in model.parameters()]
    adamw = lambda parameters: torch.optim.AdamW(parameters, lr=rate)
    parameters = list(model.parameters())
    optimizer = MasterWeights(parameters, adamw) if masters else adamw(parameters)
    for step in range(steps):
        tokens, targets = texts.batch(text.train, step, rank, N, batch_size=12, seq_len=32)
        loss = cross_entropy(model(tokens).float(), targets)
        loss.backward()
        if masters:
            optimizer.grads_to_master()  # to fp32
        reduce_bucket(optimizer.masters if masters else parameters)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(collectives.all_reduce(loss.detach().reshape(1)).item() / N)
    unmoved = [(p == begin).flatten() for p, begin in zip(parameters, first, strict=True)]
    return losses, torch.cat(unmoved).float().mean().item()
