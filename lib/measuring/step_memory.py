"""Counts the bytes of a training step's tensors: weights, gradients, Adam's moments and
activations."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """The bytes of the storages behind these tensors. A storage that several share counts once."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


def step_memory(model: nn.Module, loss_of: Callable[[nn.Module], Tensor]) -> dict[str, int]:
    """Run one step of Adam, and return {"weights", "gradients", "moments", "activations": bytes}.

    loss_of(model): the forward pass, up to the loss. Activations are the tensors that autograd
    saves in the forward pass for the backward pass, without the weights.
    """
    saved: list[Tensor] = []

    def save(tensor):
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        loss = loss_of(model)
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    activations = bytes_of(t for t in saved if t.untyped_storage().data_ptr() not in weights)
    optimizer = torch.optim.Adam(model.parameters())
    loss.backward()
    optimizer.step()
    moments = [t for state in optimizer.state.values() for t in state.values() if t.numel() > 1]
    return {
        "weights": bytes_of(model.parameters()),
        "gradients": bytes_of(p.grad for p in model.parameters()),
        "moments": bytes_of(moments),
        "activations": activations,
    }
