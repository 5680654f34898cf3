"""Bytes that live tensors hold on this rank, counted from their storages: what the formulas are
measured against.

    w (views of)--+
    w[0], w.T   --+--> one storage, counted once           .grad of a tensor is counted too

The count is the same on any device. It is not the process's memory (RSS), which also holds Python,
libraries and memory that was freed but not returned. On a GPU `torch.cuda.max_memory_allocated`
gives the peak as well.

    start_counting()                          # on a rank, before the model is made
    model = ...
    loss.backward()
    print(live_bytes())                       # weights and gradients

    with PeakBytes(model.parameters()) as peak:   # checks after every single operation
        loss.backward()
    print(peak.nbytes)
"""

import gc
from collections.abc import Iterable
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from lib.backend.torch_private import TorchDispatchMode, storage_nbytes, tree_flatten
from lib.zero.guards import GuardedParameter

PLAIN = (torch.Tensor, torch.nn.Parameter, GuardedParameter)


def start_counting() -> None:
    """Only tensors made after this call are counted. Each count is then about 0.1 s faster.

    gc.freeze moves every object that exists into a generation that Python's garbage collector
    ignores, for the rest of the process.
    """
    gc.collect()
    gc.freeze()


def live_bytes(besides: Iterable[Any] = ()) -> int:
    """Bytes of all storages that this process's tensors hold. If `start_counting` was called, only
    tensors made since then count.

    besides: tensors whose storages are ignored.
    """
    gc.collect()  # a reference cycle may still hold tensors that are no longer used
    ignored = {tensor.untyped_storage().data_ptr() for tensor in besides}
    return sum(nbytes for pointer, nbytes in live_storages().items() if pointer not in ignored)


def live_storages():
    """{address: bytes} of every storage of a live dense tensor, on any device; empty ones are left
    out.

    A tensor that wraps others (torch's DTensor) has no memory of its own, but the wrapped tensors
    are found. Python cannot see saved activations that only autograd's graph references; use
    `lib.training.recompute.SavedBytes` for these.
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


class PeakBytes(TorchDispatchMode):
    """The most bytes that were alive after any operation inside the block.

    A peak may last for a single operation, so you would miss it if you looked only between the
    layers of a model. Here the live storages of all results so far are added up after each
    operation of this thread and of its backward, activations and temporaries included. Tensors made
    by other threads, such as the communication thread, are not counted.

    also: tensors made before the block that count as well. `nbytes` is the peak, `where` the name
    of the operation after which it was first reached, such as "aten.zeros.default".
    """

    def __init__(self, also: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()
        self.storages: dict[int, StorageWeakRef] = {}
        self.nbytes, self.where = 0, ""
        for tensor in also:
            self._add(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_flatten(out)[0]:
            if isinstance(leaf, torch.Tensor):
                self._add(leaf)
        now = self.alive()
        if now > self.nbytes:
            self.nbytes, self.where = now, str(func)
        return out

    def _add(self, tensor):
        storage = StorageWeakRef(tensor.untyped_storage())
        self.storages.setdefault(storage.cdata, storage)

    def alive(self) -> int:
        """Bytes of the storages that still exist; the others are forgotten."""
        sizes = {key: storage_nbytes(storage) for key, storage in self.storages.items()}
        for key, size in sizes.items():
            if size is None:
                del self.storages[key]
        return sum(size for size in sizes.values() if size)
