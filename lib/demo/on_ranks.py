"""What each rank of the demo does in a step: forward and backward on its share of the batch, one
ring all-reduce of all gradients, and the same AdamW step as all other ranks."""

import hashlib
import itertools
import time

import torch
import torch.distributed as dist

from lib.collectives import ring_all_reduce
from lib.training import text as texts
from lib.training.model import GPT, Shape

SEQ_LEN = 64  # T
PER_RANK = 8  # sequences of each rank in each step
PEAK_LR = 4e-3
COMPARED = 3  # steps that a single process repeats, for comparison


def shape_for(text):
    """The Shape of the demo's GPT: small enough for two shared cores, and large enough to learn
    words within a minute."""
    return Shape(vocab_size=len(text.vocabulary), seq_len=SEQ_LEN, n_layers=2, hidden=64, n_heads=4)


def optimizer_for(model):
    return torch.optim.AdamW(model.parameters(), lr=PEAK_LR, betas=(0.9, 0.98), weight_decay=0.05)


def buffer_size(model, world_size):
    """n, the elements of the flat buffer: one for each parameter, one for the loss, one for the
    clock, and padding until N divides n."""
    n = model.num_parameters() + 2
    return n + -n % world_size


def train(text, seconds, steps, progress):
    """On each rank: train until `seconds` have passed or `steps` are done (the other one is None).

    progress: a file to which rank 0 appends a line per step, with the fraction of the run that is
    over, the step and the loss. Returns a dict of this rank's results; comments at the `return`
    statement describe them.
    Sends: one ring all-reduce of `buffer_size` elements per step, and nothing else.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model = GPT(shape_for(text))
    optimizer = optimizer_for(model)
    flat = torch.zeros(buffer_size(model, world_size))  # (n,)  gradients, loss, clock, padding
    losses, rates, validation, first_means = [], [], [], []
    began = time.monotonic()

    for step in itertools.count():
        loss = loss_and_gradients(model, text, step, PER_RANK * world_size, rank, world_size)
        # The fraction of the run that is over. The ranks' clocks differ, and a rank that stopped
        # one step early would leave the others waiting forever. Therefore we average the clocks
        # too, so that all ranks base the decision on the same number.
        clock = (step + 1) / steps if steps else (time.monotonic() - began) / seconds

        numbers = torch.cat(
            [p.grad.flatten() for p in model.parameters()]
            + [torch.stack([loss, loss.new_tensor(clock)])]
        )
        flat[: len(numbers)] = numbers
        ring_all_reduce(flat)
        flat /= world_size  # from the sum over ranks to the mean: the gradient of the full batch
        *means, mean_loss, clock, _ = flat.split(
            [p.numel() for p in model.parameters()] + [1, 1, len(flat) - len(numbers)]
        )
        for p, mean in zip(model.parameters(), means, strict=True):
            p.grad.copy_(mean.view_as(p))

        used = clock.item()
        over = used > 1 - 1e-6
        # measured before the update, like the training loss, so that both start at about ln V
        if over or used >= len(validation) / 10:
            validation.append((step, validation_loss(model, text, rank, world_size)))
        # 20 steps of warm-up, and a linear decay to 5 %
        rates.append(PEAK_LR * min(1.0, (step + 1) / 20) * (1 - 0.95 * min(used, 1.0)))
        update(optimizer, rates[-1])

        losses.append(mean_loss.item())
        if step < COMPARED and rank == 0:
            first_means.append(flat[: model.num_parameters()].clone())
        if rank == 0:
            with open(progress, "a") as file:
                file.write(f"{min(used, 1.0)} {step + 1} {losses[-1]}\n")
        if over:
            break

    values = b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters())
    return {
        "losses": losses,  # of the full batch, the same on every rank
        "rates": rates,
        "validation": validation,  # [(step, loss)] on this rank's share
        "seconds": time.monotonic() - began,
        "hash": hashlib.sha256(values).hexdigest()[:12],
        # on rank 0, the averaged gradients of the first steps, (parameters,) each
        "first_means": first_means,
        "state": model.state_dict() if rank == 0 else None,
    }


def loss_and_gradients(model, text, step, batch_size, rank=0, world_size=1):
    """Forward and backward on one rank's share of the step's batch. Returns the loss, detached."""
    # (batch_size/N, T)
    tokens, targets = texts.batch(text.train, step, rank, world_size, batch_size, SEQ_LEN)
    model.zero_grad()
    loss = model.loss(tokens, targets)
    loss.backward()
    return loss.detach()


def update(optimizer, rate):
    for settings in optimizer.param_groups:
        settings["lr"] = rate
    optimizer.step()


@torch.no_grad()
def validation_loss(model, text, rank, world_size):
    """The mean loss on this rank's share of some validation sequences, which are the same at each
    call."""
    tokens, targets = texts.batch(
        text.validation, 0, rank, world_size, 2 * PER_RANK * world_size, SEQ_LEN
    )
    return model.loss(tokens, targets).item()
