"""Two modes that give tensors their tags and look at them, per thread.

`Dispatch` sees every kernel, those of backward too: it tags results, refuses mixed inputs, and
draws random numbers on the tagged GPU from a generator of its own. `Placement` sees what is called
from Python: it answers for `.device`, makes and moves tensors, and checks generators. What torch's
own default device does stays torch's: a hook in backward is without it here too.
"""

import threading
import types

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext, _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode

from tests.emulation.tags import (
    CPU,
    OTHER_NUMBERS,
    caller,
    current,
    full,
    here,
    making,
    put,
    tensors_in,
    where,
)

PRODUCTS = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"}
# bytes that cuBLAS keeps from the first of them on, as torch allocates them on most GPUs
WORKSPACE = 8_519_680
MAY_MIX = {"aten::copy_", "aten::_to_copy", "aten::_foreach_copy_", "aten::set_"}
CONVERTS = {torch.as_tensor, torch.asarray}  # a tensor given to these moves to the device


class Dispatch(TorchDispatchMode):
    """Every kernel: are its inputs on one device, and where is what it makes?"""

    # the state of this process's GPU
    gpu_numbers = torch.Generator("cpu").manual_seed(OTHER_NUMBERS)
    refuse = staticmethod(lambda op, devices: None)  # `tags_cuda` sets it: what NCCL refuses
    workspace = 0  # bytes
    idle = threading.Event()  # has this process's GPU done all that it was given?
    idle.set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if FakeTensor in types:  # a form without numbers, with which torch tries an op out
            return func(*args, **kwargs)
        if any(kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__ for kind in types):
            # a DTensor, say: its own code comes first, and then, here again, what that calls
            return NotImplemented
        name = func._schema.name
        with torch._C.DisableTorchFunction():
            inputs = list(tensors_in((args, kwargs)))
            devices = [where(t) for t in inputs]
            if "c10d" in name.split("::")[0]:
                self.refuse(name, devices)
            nowhere = CPU if inputs else getattr(here, "making", None) or current()
            device = next((d for d in devices if d.type == "cuda"), nowhere)
            if any(d != device for d in devices) and name not in MAY_MIX:
                _check_mix(func, args, inputs, devices, device)
            out = self._drawn(func, args, kwargs, device)
            if device != CPU and name in PRODUCTS:
                Dispatch.workspace = WORKSPACE
            for made, says in zip(
                out if isinstance(out, tuple) else (out,), func._schema.returns, strict=False
            ):
                if device != CPU and says.alias_info is None:
                    for t in tensors_in(made):
                        put(t, device)
        return out

    def _drawn(self, func, args, kwargs, device):
        """What `func` returns; without a generator, random numbers on the GPU come
        from the GPU's own."""
        if (
            torch.Tag.nondeterministic_seeded not in func.tags
            or device.type != "cuda"
            or kwargs.get("generator")
        ):
            return func(*args, **kwargs)
        on_cpu = torch.default_generator.get_state()
        torch.default_generator.set_state(self.gpu_numbers.get_state())
        try:
            return func(*args, **kwargs)
        finally:
            self.gpu_numbers.set_state(torch.default_generator.get_state())
            torch.default_generator.set_state(on_cpu)


def _check_mix(func, args, inputs, devices, device):
    """Raise unless CUDA lets this op mix: a CPU scalar that is only read, or a GPU tensor
    indexed from the CPU."""
    name = func._schema.name.removeprefix("aten::").strip("_")
    if name in ("index", "index_put", "index_put_impl", "unsafe_index", "unsafe_index_put"):
        values = list(tensors_in(args[2:]))
        if device == where(args[0]) and all(where(v) == device or v.numel() == 1 for v in values):
            return
        raise RuntimeError(
            f"indices should be either on cpu or on the same device as the indexed tensor (cpu) "
            f"(from {caller()})"
        )
    scalars = torch.Tag.pointwise in func.tags or name.startswith("foreach") or name == "fill"
    written = [
        t for given, says in zip(args, func._schema.arguments, strict=False)
        if says.alias_info is not None and says.alias_info.is_write for t in tensors_in(given)
    ]  # fmt: skip
    for t, d in zip(inputs, devices, strict=True):
        is_scalar = d == CPU and t.dim() == 0 and scalars and not any(t is w for w in written)
        if d != device and not is_scalar:
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found at least two devices, "
                f"{device} and {d}! (in {func._schema.name}, from {caller()})"
            )


class _Move(torch.autograd.Function):
    """A copy on another device, whose gradient is moved back."""

    @staticmethod
    def forward(ctx, tensor, device, dtype):
        ctx.back = where(tensor), tensor.dtype
        return put(torch.Tensor.to(tensor, dtype, copy=True), device)

    @staticmethod
    def backward(ctx, gradient):
        return _Move.apply(gradient, *ctx.back), None, None


class Placement(TorchFunctionMode):
    """What is called from Python: `.device`, factories, moves, generators,
    and ways out to numpy."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name == "__get__":
            owner = func.__self__
            if owner is torch.Tensor.device:
                return where(args[0])
            if owner is torch.Tensor.is_cuda or owner is torch.Tensor.is_cpu:
                return where(args[0]).type == ("cuda" if owner is torch.Tensor.is_cuda else "cpu")
        if name in ("to", "cpu", "cuda", "type_as") and isinstance(args[0], torch.Tensor):
            return _moved(name, func, args, kwargs)
        if name == "get_device" and where(args[0]).type == "cuda":
            return where(args[0]).index
        if name in ("numpy", "__array__") and where(args[0]).type == "cuda":
            raise TypeError(
                f"can't convert {where(args[0])} device type tensor to numpy. "
                "Use Tensor.cpu() to copy the tensor to host memory first."
            )
        device = _wanted(func, args, kwargs)
        _check_generator(kwargs.get("generator"), device, args)
        if name == "pin_memory":
            return args[0].clone()
        if device is not None and device.type in ("cpu", "cuda"):
            return _made(func, args, kwargs, device)
        out = _called(func, args, kwargs)
        return put(out, where(args[0])) if name == "__deepcopy__" else out


def _wanted(func, args, kwargs):
    """The device that a call asks for, or the default one if it is a factory; None:
    wherever its inputs are."""
    if kwargs.get("device") is not None:
        return full(kwargs["device"])
    if func not in _device_constructors() or (
        func in CONVERTS and isinstance(args[0], torch.Tensor) and not _default()
    ):
        return None
    return _default() or CPU


def _default():
    """The default device where torch would apply it: its context is on this thread's stack,
    and not suspended."""
    stack = torch.overrides._get_current_function_mode_stack()
    context = next((mode for mode in stack if isinstance(mode, DeviceContext)), None)
    return full(context.device) if context else None


def _made(func, args, kwargs, device):
    """What a factory makes on the CPU, tagged."""
    kwargs["device"] = "cpu"
    with making(device):
        out = func(*args, **kwargs)
    given = next(tensors_in(args[:1]), None)
    if func in CONVERTS and isinstance(args[0], torch.Tensor) and where(given) != device:
        out = out.clone()
    for t in tensors_in(out):
        put(t, device)
    return out


def _called(func, args, kwargs):
    """What `func` returns. What its C++ makes from nothing, as one_hot makes zeros, is on the
    device of its inputs."""
    if isinstance(func, types.FunctionType):
        return func(*args, **kwargs)
    with making(next((d for t in tensors_in((args, kwargs)) if (d := where(t)) != CPU), CPU)):
        return func(*args, **kwargs)


def _moved(name, func, args, kwargs):
    """tensor.to(...), .cpu(), .cuda() and .type_as(...): a copy with another tag where the
    device changes."""
    tensor, rest = (
        args[0],
        [*args[1:], *(kwargs[k] for k in ("device", "other", "dtype") if k in kwargs)],
    )
    device = {"cpu": CPU, "cuda": current()}.get(name)
    dtype = tensor.dtype
    for given in rest:
        if isinstance(given, torch.dtype):
            dtype = given
        elif isinstance(given, torch.Tensor):
            device, dtype = where(given), given.dtype
        elif given is not None and not isinstance(given, bool):
            device = full(given)
    copy = kwargs.get("copy", False)
    if device is not None and device.type not in ("cpu", "cuda"):
        return func(*args, **kwargs)
    if device is None or device == where(tensor):
        return torch.Tensor.to(tensor, dtype, copy=copy)
    return _Move.apply(tensor, device, dtype)


def _check_generator(generator, device, args):
    """A generator draws on its own device only."""
    if generator is not None:
        device = device or next((where(t) for t in tensors_in(args)), CPU)
        if generator.device.type != device.type:
            raise RuntimeError(
                f"Expected a '{device.type}' device type for generator but found "
                f"'{generator.device.type}'"
            )
