"""python -m tests.emulation.own_device: what torch's own engine does on a device that is not the
CPU, without a GPU.

    a tensor here says that it is on "npu:0", and computes on the CPU: autograd has a thread for
    that device, begun in C++, as it has for each GPU, and calls hooks and custom backwards from
    there

Prints as JSON what a hook sees on that thread, what one sees under `strict_backward`, and how many
weights' gradients a pipeline's I leaves for W where its stage is recomputed on that thread.
"""

import json
import sys
import threading
import warnings

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils import _python_dispatch as dispatch
from torch.utils._pytree import tree_map


class OnDevice(torch.Tensor):
    """A tensor on the device, which keeps its values in a tensor on the CPU."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, values):
        return torch.Tensor._make_wrapper_subclass(
            cls, values.shape, dtype=values.dtype, device="npu:0"
        )

    def __init__(self, values):
        self.values_on_cpu = values

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if "device" in kwargs:
            kwargs["device"] = "cpu"
        to_cpu = lambda x: x.values_on_cpu if isinstance(x, cls) else x
        out = func(*tree_map(to_cpu, args), **tree_map(to_cpu, kwargs))
        return tree_map(lambda x: cls(x) if isinstance(x, torch.Tensor) else x, out)


class Mode(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


class DispatchMode(dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Linear(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(OnDevice(torch.ones(4, 4)))

    def forward(self, x):
        return F.linear(x, self.weight)


def seen_by_a_hook(x, dy):
    """Facts of the thread that calls a hook: from an edge of a graph, as pipelines call backward,
    and from a tensor."""
    seen = []

    def hook(grad):
        modes = [type(m).__name__ for m in _get_current_function_mode_stack()]
        below = [type(m).__name__ for m in dispatch._get_current_dispatch_mode_stack()]
        known = threading.get_ident() in {t.ident for t in threading.enumerate()}
        seen.append([sys._getframe().f_back is None, known, torch.is_grad_enabled(), modes, below])

    x = x.requires_grad_()
    x.register_hook(hook)
    with Mode(), DispatchMode():
        torch.autograd.backward([torch.autograd.graph.get_gradient_edge(x * 1)], [dy])
        (x * 1).backward(dy)
    return seen


def left_for_w(wrap):
    """(entries that I leaves for W, gradients of weights that I has made already)"""
    from lib.pipeline.stage import Stage

    net = torch.nn.Sequential(Linear(), torch.nn.Tanh(), Linear())
    stage = Stage(wrap(net), is_first=False)
    stage.forward(0, OnDevice(torch.ones(2, 4)), splits=True)
    stage.input_gradient(0, OnDevice(torch.ones(2, 4)))
    return len(stage.waiting[0]), sum(p.grad is not None for p in net.parameters())


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.utils.backend_registration._setup_privateuseone_for_python_backend("npu")
    from lib.training.recompute import Recomputed
    from tests.emulation import strict_backward

    facts = {
        "engine": seen_by_a_hook(OnDevice(torch.ones(3)), OnDevice(torch.ones(3))),
        "kept": left_for_w(lambda net: net), "recomputed": left_for_w(Recomputed),
    }  # fmt: skip
    strict_backward.install()
    print(json.dumps(facts | {"emulated": seen_by_a_hook(torch.ones(3), torch.ones(3))}))
