"""Recomputation: keep the input of some layers, not what they compute; run them again in backward (Chen et al. 2016).

    forward     x --> f --> y             kept: x, instead of all that f's backward reads
    backward    x --> f --> y             again, now with a graph ...
                grad x <-- f <-- grad y   ... and back through it

Memory: the input for as long as a micro-batch is under way, and one f's graph while its backward runs.
Time: a forward more; with backward twice as long as forward, a third more in all.

f must compute the same again. Dropout does if it draws the same numbers: the random state of the first forward is put
back for the second, and afterwards what it was. A batch norm's running averages would be updated twice.

Sources: Chen et al. 2016 ("Training deep nets with sublinear memory cost"); torch.utils.checkpoint, reentrant.
"""

import contextlib
import weakref

import torch
from torch import nn
from torch.func import functional_call


# exercise: lab4.recompute
def recompute(f, x):
    """f(x), of which only x is kept; f, called without a graph now, is called again in backward.

    f: a module, or a function of one tensor that gives one. x: of any dtype; gradients flow to it and to every
    parameter that f uses, as without recomputation. torch.autograd.grad cannot ask for a parameter's: use backward.
    """
    # With no input that needs a gradient (tokens), autograd would leave f out, and with it f's parameters.
    anchor = torch.empty(0, requires_grad=True)
    return Recompute.apply(f, x, anchor)


class Recompute(torch.autograd.Function):
    """y = f(x), and in backward once more."""

    @staticmethod
    def forward(ctx, f, x, anchor):
        ctx.f = f
        ctx.random_state = random_state(x)
        ctx.save_for_backward(x)
        return f(x)

    @staticmethod
    def backward(ctx, grad_y):
        (kept,) = ctx.saved_tensors
        x = kept.detach().requires_grad_(ctx.needs_input_grad[1])
        with torch.enable_grad(), as_then(ctx.random_state):
            y = ctx.f(x)
        if y.requires_grad:  # not so if all of f is frozen and x comes first
            torch.autograd.backward([y], [grad_y])  # adds to the parameters' .grad
        return None, x.grad, None


class Recomputed(nn.Module):
    """`module`, recomputed: a block of a model, or a whole stage of a pipeline."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        # The weights of this forward, also if `functional_call` has put others in their place until it returns.
        weights = dict(self.module.named_parameters())
        return recompute(lambda x: functional_call(self.module, weights, (x,)), x)


def random_state(x):
    """Where the generators stand that f may draw from: torch's on the CPU, and the one of the GPU that has `x`."""
    on_gpu = {x.device.index: torch.cuda.get_rng_state(x.device)} if x.is_cuda else {}
    return torch.get_rng_state(), on_gpu


@contextlib.contextmanager
def as_then(state):
    """The block with the generators where they stood at `state`; afterwards they stand where they stood before it."""
    on_cpu, on_gpu = state
    with torch.random.fork_rng(devices=list(on_gpu)):
        torch.set_rng_state(on_cpu)
        for device, numbers in on_gpu.items():
            torch.cuda.set_rng_state(numbers, device)
        yield


class SavedBytes(torch.autograd.graph.saved_tensors_hooks):
    """Inside, notes every tensor that a graph saves for its backward; `nbytes()` is what is still kept of them.

        with SavedBytes(besides=model.parameters()) as saved:
            loss = model.loss(tokens, targets)
            print(saved.nbytes())
            loss.backward()
            print(saved.nbytes())         # 0

    besides: tensors that exist anyway (parameters, the batch): what shares their memory is not counted.
    """

    def __init__(self, besides=()):
        super().__init__(self._note, lambda note: note.tensor)
        self.notes = weakref.WeakSet()  # the graph alone holds a note: it goes when the graph lets go of the tensor
        self.besides = list(besides)

    def __enter__(self):
        super().__enter__()
        return self

    def _note(self, tensor):
        note = _Note(tensor.detach())  # not the tensor: that knows its graph, and the two would keep each other alive
        self.notes.add(note)
        return note

    def nbytes(self, also=()):
        """Bytes that live graphs have saved. Tensors that share memory count once. also: tensors to count with them."""
        anyway = {tensor.untyped_storage().data_ptr() for tensor in self.besides}
        storages = [tensor.untyped_storage() for tensor in [*(note.tensor for note in self.notes), *also]]
        return sum({s.data_ptr(): s.nbytes() for s in storages if s.data_ptr() not in anyway}.values())


class _Note:
    def __init__(self, tensor):
        self.tensor = tensor
