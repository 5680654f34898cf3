"""Recomputation, or activation checkpointing: keep only the input of some layers, and run these
layers again in the backward pass to get the activations it needs (Chen et al. 2016).

    forward     x --> f --> y             kept: x, instead of all that f's backward reads
    backward    x --> f --> y             again, now with a graph ...
                grad x <-- f <-- grad y   ... and back through it

This saves memory, because only the input is kept while a micro-batch is in flight, and only one f's
activations exist at a time, while its backward runs. It costs one more forward. Since backward
takes about twice as long as forward, the step does about a third more computation.

f must compute the same values again. Dropout has to draw the same numbers, so we restore the random
state of the first forward for the second, and afterwards set it back. Under autocast the second
forward has to run in the same dtypes as the first, so we restore autocast too, because backward is
usually called outside of its `with` block. A batch norm would update its running averages twice.

Sources: Chen et al. 2016 ("Training deep nets with sublinear memory cost"); torch.utils.checkpoint,
whose variant with use_reentrant=True works in this way.
"""

import contextlib
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from lib.backend.torch_private import tree_flatten, tree_unflatten


# exercise: lab4.recompute
def recompute(f: Callable, *inputs: Tensor) -> Any:
    """Compute f(*inputs) and keep only the inputs for backward. f runs without a graph now, and
    again, with one, in backward.

    f: a module, or a function that returns a tensor or a tuple of tensors. inputs: tensors of any
    dtype, and whatever else f takes. Gradients flow to the tensors and to every parameter that f
    uses, as without recomputation. Use backward to get them, because torch.autograd.grad cannot ask
    for a parameter's gradient here.
    """
    # If no input needs a gradient, as with tokens, autograd would leave out f, and with it the
    # gradients of f's parameters. The anchor is an input that needs one.
    anchor = torch.empty(0, requires_grad=True)
    return Recompute.apply(f, anchor, *inputs)


class Recompute(torch.autograd.Function):
    """The autograd function of `recompute`: y = f(*inputs), computed once more in backward."""

    @staticmethod
    def forward(ctx, f, anchor, *inputs):
        ctx.f, ctx.inputs = f, [None if torch.is_tensor(x) else x for x in inputs]
        # the indices of the tensors among the inputs; autograd keeps the tensors themselves
        ctx.indices = [i for i, x in enumerate(inputs) if torch.is_tensor(x)]
        tensors = [inputs[i] for i in ctx.indices]
        ctx.save_for_backward(*tensors)
        ctx.random_state, ctx.autocast = random_state(tensors), autocast_state(tensors)
        return f(*inputs)

    @staticmethod
    def backward(ctx, *grads):
        if torch.is_grad_enabled():
            raise RuntimeError(
                "a recomputed function cannot be differentiated twice (create_graph=True): "
                "backward makes its graph anew and frees it at once. Call the function itself "
                "where you need a second derivative"
            )
        inputs = list(ctx.inputs)
        for i, kept in zip(ctx.indices, ctx.saved_tensors, strict=True):
            inputs[i] = kept.detach().requires_grad_(ctx.needs_input_grad[2 + i])
        with torch.enable_grad(), as_then(ctx.random_state), with_autocast(ctx.autocast):
            y = ctx.f(*inputs)
        outputs = y if isinstance(y, tuple) else (y,)
        # An output has no graph if it is of integers, or if all of f is frozen and no input needs a
        # gradient.
        ends = [
            (y, g)
            for y, g in zip(outputs, grads, strict=True)
            if torch.is_tensor(y) and y.requires_grad
        ]
        if ends:
            torch.autograd.backward(*zip(*ends, strict=True))  # adds to the parameters' .grad
        return None, None, *(x.grad if torch.is_tensor(x) else None for x in inputs)


class Recomputed(nn.Module):
    """A module that recomputes `module`, such as a block of a model or a stage of a pipeline, in
    backward. It is called like `module`, with keyword arguments too."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Any, **named: Any) -> Any:
        # We keep the weights of this forward, because a caller's `functional_call` may have
        # replaced them for as long as it runs, and backward comes later.
        weights: dict[str, Tensor] = dict(self.module.named_parameters())
        leaves, nest = tree_flatten((inputs, named))  # tensors may be inside of tuples and dicts
        again = lambda *leaves: functional_call(self.module, weights, *tree_unflatten(leaves, nest))
        return recompute(again, *leaves)


def _devices(tensors):
    return dict.fromkeys(x.device for x in tensors)


def random_state(tensors):
    """The state of the generators that f may draw from: torch's on the CPU, and those of the
    tensors' GPUs."""
    on_gpus = {
        device.index: torch.cuda.get_rng_state(device)
        for device in _devices(tensors)
        if device.type == "cuda"
    }
    return torch.get_rng_state(), on_gpus


@contextlib.contextmanager
def as_then(state):
    """A context in which the generators have `state`. When it ends, they are set back to what they
    were before."""
    on_cpu, on_gpus = state
    with torch.random.fork_rng(devices=list(on_gpus)):
        torch.set_rng_state(on_cpu)
        for device, numbers in on_gpus.items():
            torch.cuda.set_rng_state(numbers, device)
        yield


def autocast_state(tensors):
    """[torch.autocast's arguments, ...] that describe its current state on the CPU and on the
    devices of the tensors."""
    kinds = dict.fromkeys(["cpu", *(device.type for device in _devices(tensors))])
    kinds = [kind for kind in kinds if torch.amp.is_autocast_available(kind)]
    cached = torch.is_autocast_cache_enabled()
    return [
        (kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind), cached)
        for kind in kinds
    ]


@contextlib.contextmanager
def with_autocast(state):
    """A context in which autocast is on or off as in `state`, the result of `autocast_state`."""
    with contextlib.ExitStack() as stack:
        for arguments in state:
            stack.enter_context(torch.autocast(*arguments))
        yield


class SavedBytes(torch.autograd.graph.saved_tensors_hooks):
    """A context that notes every tensor that autograd saves for backward. `nbytes()` counts those
    that are still kept.

        with SavedBytes(besides=model.parameters()) as saved:
            loss = model.loss(tokens, targets)
            print(saved.nbytes())
            loss.backward()
            print(saved.nbytes())         # 0

    besides: tensors that exist anyway, such as parameters and the batch. Saved tensors that share
    memory with them are not counted.
    """

    def __init__(self, besides=()):
        super().__init__(self._note, lambda note: note.tensor)
        # only the graph references a note, so the note is freed when the graph frees the tensor
        self.notes = weakref.WeakSet()
        self.besides = list(besides)

    def __enter__(self):
        super().__enter__()
        return self

    def _note(self, tensor):
        # the tensor itself references its graph, and the two would keep each other alive
        note = _Note(tensor.detach())
        self.notes.add(note)
        return note

    def nbytes(self, also=()):
        """The bytes that live graphs have saved. Tensors that share memory are counted once. also:
        further tensors to count."""
        anyway = {tensor.untyped_storage().data_ptr() for tensor in self.besides}
        storages = [
            tensor.untyped_storage() for tensor in [*(note.tensor for note in self.notes), *also]
        ]
        return sum(
            {s.data_ptr(): s.nbytes() for s in storages if s.data_ptr() not in anyway}.values()
        )


class _Note:
    def __init__(self, tensor):
        self.tensor = tensor
