"""Data parallelism in one process: a thread per device, as torch.nn.DataParallel does it.

B rows of a batch, two devices:

            scatter        replicate, parallel apply   gather
          / rows 0 .. B/2  thread 0, device 0: module  outputs \\
    batch                                                         outputs (B, ...), device 0 -> loss
          \\ rows B/2 .. B  thread 1, device 1: a copy  outputs /

All four consist of differentiable operations, so backward follows the same arrows from right to
left. The gradient of the loss is split by rows and flows back through each replica, and
the gradients of all copies of a parameter are summed in the original. The loss is computed from the
gathered outputs, in one process that sees all rows, so shares of unequal size need no weights.

One process per device has replaced it, for four reasons (Li et al. 2020, "PyTorch Distributed:
experiences on accelerating data parallel training", section 2). All threads share one Python
interpreter, whose lock (the GIL) lets only one of them queue work at a time. The replicas are made
anew in every step, with n elements to each other device and n back, as with a parameter server. The
first device also gathers all outputs and holds the optimizer state, so its memory fills up first.
And threads cannot leave their machine, so this is limited to one node.
"""

import copy
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import nn


class ThreadedDataParallel(nn.Module):
    """`module` on several devices: forward computes what the module itself would, each device on
    its share of the rows. Only a layer that mixes rows, such as a batch norm, computes otherwise.

    devices: one per replica, the module's own first. A device may be listed twice: ["cpu", "cpu"]
    is two replicas. Train the module's parameters as usual: `loss.backward()` leaves the gradient
    of the whole batch in them. Forward may also change buffers (batch norm's averages) and other
    state. Such changes are kept only from the first replica, which is the module itself; the other
    replicas are discarded.
    """

    def __init__(self, module: nn.Module, devices: Sequence) -> None:
        """Raises ValueError if there are no devices, or if a parameter or buffer is not on the
        first of them."""
        super().__init__()
        if not devices:
            raise ValueError(
                'devices is empty: give one per replica, such as ["cpu", "cpu"] or ["cuda:0", '
                '"cuda:1"]'
            )
        # "cuda" becomes cuda:0
        self.devices = [torch.empty(0, device=device).device for device in devices]
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            if tensor.device != self.devices[0]:
                raise ValueError(
                    f"{name} is on {tensor.device}, but the first device is {self.devices[0]}: "
                    f'module.to("{self.devices[0]}") first'
                )
        self.module = module

    def forward(self, *inputs: Any) -> Any:
        """inputs: tensors (B, ...), one row per sample -> the module's outputs (B, ...) on
        the first device."""
        shares = scatter(inputs, self.devices)
        replicas = replicate(self.module, self.devices[: len(shares)])
        return gather(parallel_apply(replicas, shares), self.devices[0])


def scatter(inputs, devices):
    """Split `inputs`, each (B, ...), into a share of rows per device: [(share of input 0, share of
    input 1, ...), ...].

    Each share has ceil(B/N) rows, the last one perhaps fewer. A device for which no row is left
    gets no share. Raises ValueError for inputs that are not tensors with the same number of rows.
    """
    for i, x in enumerate(inputs):
        if not isinstance(x, torch.Tensor) or x.dim() == 0:
            raise ValueError(
                f"input {i} is {_kind(x)}, which has no rows to share out: give tensors (B, ...)"
            )
    if len({len(x) for x in inputs}) != 1:
        raise ValueError(
            f"the inputs have {[len(x) for x in inputs]} rows: "
            f"give at least one, all with as many rows"
        )
    shards = [x.chunk(len(devices)) for x in inputs]
    return [
        tuple(shard.to(device) for shard in share)  # (B/N, ...)
        for device, *share in zip(devices, *shards, strict=False)
    ]


def replicate(module, devices):
    """[the module itself, a copy of it on devices[1], ...], where autograd connects the copies'
    parameters to the module's.

    Forward copies a parameter to each device, and backward sums the copies' gradients: a broadcast
    and its transpose. A tied parameter is copied once per device. Each copy has its own buffers,
    because two threads must not write to the same one.
    """
    tensors = [*module.parameters(), *module.buffers()]
    replicas = [module]
    for device in devices[1:]:
        moved = {id(tensor): tensor.to(device, copy=True) for tensor in tensors}
        # deepcopy treats what is in `moved` as already copied
        replicas.append(copy.deepcopy(module, moved))
    return replicas


def parallel_apply(replicas, shares):
    """[replica(*share), ...], each in a thread of its own.

    An error in a thread is raised here, with a note that says in which replica it occurred. If
    several fail, the error of the first replica is raised.
    """
    grad_enabled = torch.is_grad_enabled()  # a thread begins with gradients on and autocast off
    kind = shares[0][0].device.type
    autocast = {"enabled": torch.is_autocast_enabled(kind), "dtype": torch.get_autocast_dtype(kind)}

    def run(replica, share):
        with (
            torch.set_grad_enabled(grad_enabled),
            torch.autocast(kind, **autocast),
            torch.cuda.device_of(share[0]),
        ):
            return replica(*share)

    with ThreadPoolExecutor(len(replicas)) as threads:
        works = [threads.submit(run, *each) for each in zip(replicas, shares, strict=True)]
    for i, work in enumerate(works):
        if error := work.exception():
            rows = ", ".join(str(tuple(x.shape)) for x in shares[i])
            error.add_note(
                f"in replica {i} of {len(replicas)}, on {shares[i][0].device}, given {rows}"
            )
            raise error
    return [work.result() for work in works]


def gather(outputs, device):
    """Join the replicas' outputs, (b, ...) each, on `device`: (B, ...), the rows in the order of
    the batch.

    Raises ValueError for outputs without rows, such as a loss. Compute the loss from the gathered
    outputs instead.
    """
    for output in outputs:
        if not isinstance(output, torch.Tensor) or output.dim() == 0:
            raise ValueError(
                f"a replica returned {_kind(output)}, which has no rows to join: return a tensor "
                f"(b, ...), and take the loss of what is gathered"
            )
    return torch.cat([output.to(device) for output in outputs])


def _kind(x):
    return "a tensor of shape ()" if isinstance(x, torch.Tensor) else f"a {type(x).__name__}"
