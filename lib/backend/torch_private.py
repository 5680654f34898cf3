"""Contains everything that lib uses of torch's private interface, so that only this file has to be
adapted to a new release of torch.

    name here                    what it is in torch
    below_backend_select         _C._dispatch_keyset_full_after(BackendSelect)
    registry()                   distributed.distributed_c10d._world
    backend_of, device_types     ProcessGroup._get_backend, ._device_types
    unawaited_collectives        _C._distributed_c10d._get_work_registry_size
    collectives_so_far           ProcessGroup._get_sequence_number_for_group
    flight_recorder              _C._distributed_c10d._dump_fr_trace, _dump_nccl_trace
    get_gradient, set_gradient   _C.TensorBase.grad, the slot behind Tensor.grad
    dispatch_modes               _C._len_torch_dispatch_stack
    without_dispatch_modes       utils._python_dispatch._pop_mode, ._push_mode
    saved_tensors_hooks          _C._autograd._top_saved_tensors_default_hooks
    free_cublas_workspaces       _C._cuda_clearCublasWorkspaces
    print_options                _tensor_str.PRINT_OPTS
    storage_nbytes               UntypedStorage._new_with_weak_ptr
    TorchDispatchMode            utils._python_dispatch
    tree_map, tree_flatten, ...  utils._pytree, nested containers of tensors
    name_the_functions_module    _C._functions, which is in no list of modules
    all_to_all_with_backward     distributed._functional_collectives.all_to_all_single_autograd

All of them exist in torch 2.10 to 2.15, with which lib has been run. Two depend on the build:
`_dump_nccl_trace` exists only in builds with NCCL, and `_cuda_clearCublasWorkspaces` only in builds
with CUDA. `tests/test_torch_private.py` tests them with the torch that is installed, and fails if
another file of lib uses such names.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode, _push_mode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

__all__ = [
    "TorchDispatchMode", "all_to_all_with_backward", "backend_of", "below_backend_select",
    "collectives_so_far", "device_types", "dispatch_modes", "flight_recorder",
    "free_cublas_workspaces", "get_gradient", "name_the_functions_module", "print_options",
    "registry", "saved_tensors_hooks", "set_gradient", "storage_nbytes", "tree_flatten",
    "tree_map", "tree_unflatten", "unawaited_collectives", "without_dispatch_modes",
]  # fmt: skip

# The key set with which an operator that we intercepted at BackendSelect is redispatched to the
# backends.
below_backend_select: Any = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
_gradient: Any = torch._C.TensorBase.grad  # the slot behind Tensor.grad


def registry() -> Any:
    """torch's record of this rank's process groups.

    `.group_count` is the number of groups made so far, which torch uses to name the next one.
    `.pg_map` is {group: (backend, store)}, `.pg_names` is {group: name}, and `.pg_group_ranks` is
    {group: {global rank: rank in the group}}.
    """
    return distributed_c10d._world


def backend_of(group: dist.ProcessGroup, device: torch.device) -> Any:
    """The backend of `group` for `device`. Raises RuntimeError if the group has none for it."""
    return group._get_backend(device)


def device_types(group: dist.ProcessGroup) -> list[str]:
    """The kinds of devices whose tensors `group` can send, such as ["cpu"]."""
    return [device.type for device in group._device_types]


def collectives_so_far(group: dist.ProcessGroup) -> int:
    """How many operations the backend of `group` has counted so far (on gloo, messages too)."""
    return group._get_sequence_number_for_group()  # type: ignore[attr-defined]


def unawaited_collectives() -> int:
    """How many functional collectives this rank has called and not waited for."""
    return torch._C._distributed_c10d._get_work_registry_size()


def flight_recorder(backend: str) -> tuple[Callable[..., bytes] | None, str]:
    """(function, name) of the function that returns the Flight Recorder's dump. The function is
    None if this torch has none. backend: "nccl" has a recorder of its own."""
    name = "_dump_nccl_trace" if backend == "nccl" else "_dump_fr_trace"
    return getattr(torch._C._distributed_c10d, name, None), name


def get_gradient(tensor: torch.Tensor) -> torch.Tensor | None:
    """`tensor.grad`, even if the class of `tensor` hides it behind a property of that name."""
    return _gradient.__get__(tensor)


def set_gradient(tensor: torch.Tensor, gradient: torch.Tensor | None) -> None:
    """Set `tensor.grad`, even if the class of `tensor` hides it behind a property of that name."""
    _gradient.__set__(tensor, gradient)


def dispatch_modes() -> int:
    """How many TorchDispatchModes are active on this thread."""
    return torch._C._len_torch_dispatch_stack()


@contextlib.contextmanager
def without_dispatch_modes() -> Iterator[None]:
    """Inside the block, no TorchDispatchMode of this thread sees an op."""
    modes = [_pop_mode() for _ in range(dispatch_modes())]
    try:
        yield
    finally:
        for mode in reversed(modes):
            _push_mode(mode)


def saved_tensors_hooks() -> bool:
    """Are hooks on saved tensors (torch.autograd.graph.saved_tensors_hooks) active?"""
    return bool(torch._C._autograd._top_saved_tensors_default_hooks(True))


def free_cublas_workspaces() -> None:
    """Free the workspaces that cuBLAS keeps after its first matmul. Does nothing in a build without
    CUDA."""
    with contextlib.suppress(AttributeError):
        torch._C._cuda_clearCublasWorkspaces()


def print_options() -> dict:
    """The options that torch.set_printoptions sets, by name. Updating this dict changes them."""
    return vars(torch._tensor_str.PRINT_OPTS)


def name_the_functions_module() -> None:
    """List torch._C._functions in sys.modules.

    An autograd.Function with @once_differentiable refers to this module. If it is not listed,
    cloudpickle treats it as one that was created in the notebook, and sends its classes by value.
    """
    sys.modules.setdefault("torch._C._functions", torch._C._functions)


def storage_nbytes(storage: Any) -> int | None:
    """The size in bytes of the storage to which a `torch.multiprocessing.reductions.StorageWeakRef`
    refers, or None if it no longer exists."""
    alive = torch.UntypedStorage._new_with_weak_ptr(storage.cdata)
    return None if alive is None else alive.nbytes()


def all_to_all_with_backward(
    tensor: torch.Tensor, send_counts: list[int], recv_counts: list[int], group: Any = None
) -> torch.Tensor:
    """torch's functional all-to-all of rows, whose backward pass returns the gradients to the ranks
    that sent the rows: (sum(send_counts), ...) -> (sum(recv_counts), ...). group: None means all
    ranks."""
    from torch.distributed import _functional_collectives as functional  # only if used

    ranks: Any = group or dist.group.WORLD
    received = functional.all_to_all_single_autograd(
        tensor.contiguous(), recv_counts, send_counts, ranks
    )
    return received.wait() if isinstance(received, functional.AsyncCollectiveTensor) else received
