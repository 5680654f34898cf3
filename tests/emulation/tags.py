"""Tagged devices: CPU tensors that claim to be on a GPU, so that code which mixes devices fails
here as it would there.

    x = torch.zeros(3, device="cuda")  really on the CPU; its storage is tagged cuda:0
    x.device, x.is_cuda                cuda:0, True
    x + torch.zeros(3)                 RuntimeError: Expected all tensors to be on the same ...
    x.numpy()                          TypeError: can't convert cuda:0 device type tensor ...

A storage without a tag is on the CPU. This file is the tags; `tags_modes` gives them and looks at
them, `tags_cuda` has torch answer as on a machine with GPUs, and `tags_runs` runs the course so.
"""

import contextlib
import os
import sys
import threading

import torch

TORCH = os.path.dirname(torch.__file__)
CPU = torch.device("cpu")
OTHER_NUMBERS = 0x5EED  # the same seed gives other numbers on a GPU than on the CPU

# Of this thread. index: its current GPU. making: where what is made from nothing is to lie; without
# it on the GPU, for then C++ makes it by itself, as in DistributedDataParallel.
here = threading.local()


def current() -> torch.device:
    """This thread's GPU. A new thread's is GPU 0, as in CUDA."""
    return torch.device("cuda", getattr(here, "index", 0))


def full(device) -> torch.device:
    """`device` with its number: "cuda" is the current GPU."""
    device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    return current() if device.type == "cuda" and device.index is None else device


def where(tensor) -> torch.device:
    """The device that `tensor` claims to be on."""
    with torch._C.DisableTorchFunction():
        tensor = getattr(tensor, "_local_tensor", tensor)  # a DTensor is where its part is
        if tensor.layout != torch.strided or tensor.device.type != "cpu":
            return tensor.device
        return getattr(tensor.untyped_storage(), "tag", CPU)


def put(tensor, device):
    """From now on `tensor`, and all that share its storage, claim to be on `device`."""
    with torch._C.DisableTorchFunction():
        if tensor.layout == torch.strided and tensor.device.type == "cpu":
            tensor.untyped_storage().tag = device
    return tensor


def caller() -> str:
    """The line that led to this, outside torch and the emulation: "ring.py:41"."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(TORCH):
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def tensors_in(value):
    """The tensors in arguments or results: themselves, or in lists, tuples and dicts."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))


@contextlib.contextmanager
def making(device):
    """What kernels make from nothing in here is on `device`."""
    before, here.making = getattr(here, "making", None), device
    try:
        yield
    finally:
        here.making = before


class Generator(torch.Generator):
    """torch.Generator(device), which draws on the CPU and says on which device it claims to be."""

    def __new__(cls, device="cpu"):
        made = super().__new__(cls, "cpu")
        made.tag = full(device)
        return made

    def __init__(self, device="cpu"):
        self.manual_seed(self.initial_seed())

    @property
    def device(self):
        return self.tag

    def manual_seed(self, seed):
        return super().manual_seed(seed ^ OTHER_NUMBERS if self.tag.type == "cuda" else seed)
