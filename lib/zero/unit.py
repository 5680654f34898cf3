"""A unit of ZeRO-3: parameters that are gathered, used and freed together.

    sharded     shard (padded/N,)        full: no memory           parameters: empty
                    | unshard: all-gather        ^
                    v                            | reshard: free
    unsharded   shard (padded/N,)        full (padded,)            parameters: views of full

`full` stays the same tensor while its memory is freed and allocated again, because autograd's graph
may hold views of it from forward, and in backward these must see the same values. To be safe, a
sharded parameter is an empty tensor, so code that uses it by mistake usually gets an error about
shapes instead of reading freed memory.

Sources: ZeRO (Rajbhandari et al. 2020, section 5.3); PyTorch FSDP (Zhao et al. 2023, section 3.2).

Pre-backward and post-backward hooks: identity functions on the tensors between the modules of a
model, whose backward is called when backward reaches a unit and when it has left it.

    forward     x --[ post-backward ]--> module --[ pre-backward ]--> y      tensors unchanged
    backward  g_x <-[ post-backward ]--- module <-[ pre-backward ]--- g_y
                            |                            |
                     2. module is done            1. module begins

The post-backward hook reduces the gradients of the module's parameters, so all of these have to be
complete when it runs. They are complete for two reasons: of the functions that are ready, autograd
first runs the one that forward recorded last, and it adds to a parameter's `.grad` as soon as that
gradient is computed. Forward recorded the hook before all of the module's own functions, so in
backward the hook comes after them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from lib import collectives
from lib.backend import Collective
from lib.backend.torch_private import tree_flatten, tree_unflatten
from lib.collectives.uncompiled import uncompiled
from lib.zero.flat import Flat
from lib.zero.guards import refuse_second_derivative
from lib.zero.zero1 import gather_parameters, reduce_gradients


# exercise: lab4.Unit
class Unit:
    """The flats of one unit, sharded (an FSDPParamGroup in FSDP2). flats: one for each dtype,
    device and parameter group, with frozen parameters in flats of their own."""

    def __init__(
        self,
        flats: Sequence[Flat],
        all_gather: Collective = collectives.all_gather,
        reduce_scatter: Collective = collectives.reduce_scatter,
    ) -> None:
        self.flats, self.all_gather, self.reduce_scatter = flats, all_gather, reduce_scatter
        for flat in flats:  # a copy, because the memory of `full` is freed
            flat.shard = flat.shard.detach().clone().requires_grad_(flat.requires_grad)
        self.is_unsharded = True  # flats are created unsharded
        self.reshard()

    @property
    def trained_flats(self) -> list[Flat]:
        """The flats of parameters that are not frozen: only these have gradients."""
        return [flat for flat in self.flats if flat.requires_grad]

    @uncompiled
    def allocate(self) -> None:
        """Allocate the memory of the full parameters, not yet filled."""
        for flat in self.flats:
            flat.full.untyped_storage().resize_(flat.padded * flat.full.element_size())

    @uncompiled
    def attach(self) -> None:
        """After the gather: make the parameters views of the full flats."""
        for flat in self.flats:
            flat.attach()
        self.is_unsharded = True

    @uncompiled
    def unshard(self) -> None:
        """Gather the full parameters. Sends: an all-gather of (padded/N,) per flat."""
        self.allocate()
        for flat in self.flats:
            gather_parameters(flat, self.all_gather)
        self.attach()

    @uncompiled
    def reshard(self) -> None:
        """Keep the shards and free the full parameters. Sends nothing."""
        for flat in self.flats:
            for parameter in flat.parameters:
                parameter.data = flat.shard.detach()[:0]  # (0,)
            flat.full.untyped_storage().resize_(0)
        self.is_unsharded = False

    def reduce_gradients(self) -> None:
        """Add the ranks' mean gradient to the shards' `.grad`, and free the full gradients. Sends:
        a reduce-scatter per trained flat."""
        for flat in self.trained_flats:
            reduce_gradients(flat, self.reduce_scatter)


class BackwardHook(torch.autograd.Function):
    """The identity on any number of tensors; in backward, calls `then()` once, when all their
    gradients are ready."""

    @staticmethod
    def forward(ctx, then, *tensors):
        ctx.then = then
        return tensors

    @staticmethod
    def backward(ctx, *gradients):
        refuse_second_derivative("a sharded model")
        ctx.then()
        return None, *gradients


def on_backward(then: Callable[[], None], values: Any) -> Any:
    """`values`, nested in tuples, lists and dicts, such that backward through its tensors calls
    `then()`.

    `then` is never called if no tensor in `values` requires grad, as with tokens, or under
    torch.no_grad().
    """
    leaves, spec = tree_flatten(values)
    indices = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor) and x.requires_grad]
    if indices and torch.is_grad_enabled():
        for i, passed in zip(
            indices, BackwardHook.apply(then, *(leaves[i] for i in indices)), strict=True
        ):
            leaves[i] = passed
    return tree_unflatten(leaves, spec)
