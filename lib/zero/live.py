"""Bytes that live tensors hold on this rank, counted from their storages: what the formulas are
measured against.

    w (views of)--+
    w[0], w.T   --+--> one storage, counted once           .grad of a tensor is counted too

The same on any device. Not the process's memory (RSS), which also holds Python, libraries and what
was freed and kept. On a GPU `torch.cuda.max_memory_allocated` tells the peak as well.

    start_counting()                          # on a rank, before the model is made
    model = ...
    loss.backward()
    print(live_bytes())                       # weights and gradients
"""

import gc
from collections.abc import Iterable
from typing import Any

import torch

from lib.zero.guards import GuardedParameter

PLAIN = (torch.Tensor, torch.nn.Parameter, GuardedParameter)


def start_counting() -> None:
    """From here on only what is made from here on is counted. It also makes counting fast: a tenth
    of a second less.

    Python's collector sets aside all that exists (gc.freeze), for the rest of the process.
    """
    gc.collect()
    gc.freeze()


def live_bytes(besides: Iterable[Any] = ()) -> int:
    """Bytes of all storages that this process's tensors hold, of those made since `start_counting`
    if it was called.

    besides: tensors whose storages do not count.
    """
    gc.collect()  # an exception or a cycle may still hold what is no longer used
    anyway = {tensor.untyped_storage().data_ptr() for tensor in besides}
    return sum(nbytes for pointer, nbytes in live_storages().items() if pointer not in anyway)


def live_storages():
    """{address: bytes} of every storage of a live dense tensor, on any device; empty ones are left
    out.

    A tensor that wraps others (torch's DTensor) has no memory of its own: those within are found.
    What only autograd's graph holds, saved activations, Python does not see: `recompute.SavedBytes`
    does.
    """
    found = {}
    for thing in gc.get_objects():
        if type(thing) in PLAIN:
            for tensor in (thing, thing.grad if thing.is_leaf else None):
                if (
                    tensor is not None
                    and tensor.layout == torch.strided
                    and tensor.device.type != "meta"
                ):
                    storage = tensor.untyped_storage()
                    if storage.nbytes():
                        found[storage.data_ptr()] = storage.nbytes()
    return found
