"""A graph that keeps the names of weights in place of the weights, so that backward reads what it is given.

    F    y = x w^T     a graph saves x and w         here: x and "w"
    B    grad y w      with the w that was saved     here: with what the name stands for by then

That makes a stash (stash.py) answerable for what backward reads. torch by itself keeps the very tensor, and refuses the
backward if it has been changed since ("modified by an inplace operation"): rightly, for the gradient would be wrong.
PipeDream without stashing is about that gradient.
"""

import torch
from torch.autograd.graph import saved_tensors_hooks


def by_name(weights, now):
    """`with by_name(weights, now):` what graphs save in here of `weights`, {name: tensor}, backward finds by name.

    now: called in backward -> {name: tensor}, of the same shapes.
    """

    def pack(tensor):
        for name, w in weights.items():
            start = tensor.data_ptr() - w.data_ptr()  # bytes; most functions save a view, such as w.T
            if 0 <= start < w.nbytes:
                return name, tensor.shape, tensor.stride(), start // tensor.itemsize
        return tensor.detach()  # not the tensor: that knows its graph, and the two would keep each other alive

    def unpack(saved):
        if isinstance(saved, torch.Tensor):
            return saved
        name, shape, stride, start = saved
        w = now()[name]
        return w.as_strided(shape, stride, w.storage_offset() + start)

    return saved_tensors_hooks(pack, unpack)
