"""Turns what is sent between the notebook and the ranks into bytes, with cloudpickle, which sends
functions of a notebook by value.

Two things differ from plain cloudpickle. First, a function keeps the name of the file in which it
was written, because a verdict quotes its lines; cloudpickle 3.1.3 and later would replace the name
by "<dynamic-code>". Second, a plain CPU tensor is packed as its elements, because torch would pack
its storage as a file of its own, which takes ten times as long.
"""

import ctypes
import functools
import io
import types
from collections import ChainMap
from typing import ClassVar

import cloudpickle
import torch

from lib.launch import ways_out


def _of_file(name, make, args):
    return make(*args).replace(co_filename=name)


def _reduced(code):
    return _of_file, (code.co_filename, *cloudpickle.Pickler.dispatch_table[types.CodeType](code))


def _op_of_torch(*path):
    return functools.reduce(getattr, path, torch.ops)


def _path_of(op) -> tuple[str, ...] | None:
    """The names that lead from torch.ops to `op`: () for torch.ops itself, ("aten",) for
    torch.ops.aten, and ("aten", "mm", "default") for an overload. None for any other object. Ops
    are sent by name, because they can neither be imported nor be packed by value."""
    if op is torch.ops:
        return ()
    if isinstance(op, type(torch.ops.aten)):
        return (op.name,)
    is_op = isinstance(op, (type(torch.ops.aten.mm), type(torch.ops.aten.mm.default)))
    return tuple(str(op).split(".")) if is_op else None


def _tensor(elements, dtype, shape):
    if not elements:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(elements), dtype=dtype).reshape(shape)


def _is_plain(tensor):
    """Is the tensor fully described by its dtype, its shape, and the bytes at `tensor.data_ptr()`?
    If so, these are all that has to be packed."""
    if (
        type(tensor) is not torch.Tensor
        or tensor.layout is not torch.strided
        or tensor.device.type != "cpu"
    ):
        return False
    more = (
        tensor.requires_grad
        or tensor.is_conj()
        or tensor.is_neg()
        or tensor.is_quantized
        or vars(tensor)
    )
    return tensor.is_contiguous() and not more


class OnRanksAlone(TypeError):
    """A result contains `what`, which cannot exist outside of a rank; `way` says what to return
    instead."""

    def __init__(self, what: str, way: str):
        super().__init__(f"{what} exists on ranks alone")
        self.what, self.way = what, way


class _Pickler(cloudpickle.Pickler):
    dispatch_table: ClassVar = ChainMap(
        {types.CodeType: _reduced}, cloudpickle.Pickler.dispatch_table
    )

    def __init__(self, buffer, to_notebook):
        super().__init__(buffer)
        self.to_notebook = to_notebook

    def reducer_override(self, obj):
        if self.to_notebook and (found := ways_out.of_result(obj)):
            raise OnRanksAlone(*found)
        if not isinstance(obj, torch.Tensor):
            path = _path_of(obj)
            return super().reducer_override(obj) if path is None else (_op_of_torch, path)
        if self.to_notebook and obj.is_cuda:
            obj = obj.detach().cpu()
        if not _is_plain(obj):
            return obj.__reduce_ex__(5)
        return _tensor, (ctypes.string_at(obj.data_ptr(), obj.nbytes), obj.dtype, tuple(obj.shape))


def dumps(thing, to_notebook: bool = False) -> bytes:
    """`thing` as bytes, for `cloudpickle.load`. Raises what cloudpickle raises for something that
    cannot be copied.

    to_notebook: move tensors from a GPU to the CPU, because the notebook should not have to open a
        context on every GPU to read a loss. Also raise OnRanksAlone for something that cannot exist
        outside of a rank, such as a model with a process group.
    """
    buffer = io.BytesIO()
    _Pickler(buffer, to_notebook).dump(thing)
    return buffer.getvalue()
