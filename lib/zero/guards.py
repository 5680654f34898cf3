"""Errors for things that a script may do with an ordinary model, but that would silently go wrong
with a sharded one.

    AdamW(model.parameters())            no gradient stays in a parameter: it would train nothing
    clip_grad_norm_(model.parameters())  the norm of no gradient is 0: it would clip nothing
    model.state_dict(), load_state_dict  while parameters are empty, there is nothing to save, and
                                         nowhere to load to
    parameter.requires_grad_()           after wrapping: the parameter is in no shard, so its
                                         gradient would stay on its own rank
    create_graph=True                    a second derivative would go through parameters that are no
                                         longer there

A global torch optimizer hook checks every optimizer before each step. Clipping functions read a
parameter's `.grad`, so a guarded parameter checks which module reads it. All other readers get the
gradient as usual; so do all readers once the wrapper is gone, or when they read from a copy of the
model.
"""

import sys
import weakref

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from lib.backend import torch_private

CLIPPERS = {  # modules whose functions read `.grad`, by name prefix -> what to do instead
    "torch.nn.utils.clip_grad": "call lib.training.clip.clip_gradients(x.shards, max_norm, "
    "[group])",
    "lib.training.clip": "give clip_gradients the shards of x, and [group]",
}


class GuardedParameter(nn.Parameter):
    """A parameter whose gradients end up in shards. flat: a weak reference to the Flat that moves
    them there."""

    @property
    def grad(self):
        reader = sys._getframe(1).f_globals.get("__name__", "")
        for clipper, instead in CLIPPERS.items():
            if reader.startswith(clipper):
                self.refuse(f"nothing would be clipped: {instead}")
        return torch_private.get_gradient(self)

    @grad.setter
    def grad(self, gradient):
        torch_private.set_gradient(self, gradient)

    def refuse(self, instead):
        """Raise RuntimeError while there is a wrapper that moves the gradient to its shards."""
        if self.flat() is not None:
            shape = tuple(self.shape) if self.numel() else "sharded"
            raise RuntimeError(
                f"the gradient of a {shape} parameter goes to the shards of its wrapper, x, so "
                f"{instead}"
            )

    def __deepcopy__(self, memo):
        memo[id(self)] = nn.Parameter(
            self.detach().clone(memory_format=torch.preserve_format), self.requires_grad
        )
        return memo[id(self)]


def guard(flat):
    """Make code that would miss the gradients of this flat's parameters raise an error."""
    for parameter in flat.parameters:
        if type(parameter) in (nn.Parameter, GuardedParameter) and parameter.requires_grad:
            parameter.__class__, parameter.flat = GuardedParameter, weakref.ref(flat)


@register_optimizer_step_pre_hook
def _check_optimizer(optimizer, args, kwargs):
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if type(parameter) is GuardedParameter:
                parameter.refuse(
                    "this optimizer would train nothing: give it x.groups; Zero1 and Zero2 have a "
                    "step() of their own"
                )


def guard_model(fsdp, units):
    """Make `fsdp.module` and these submodules of it raise errors for what would go wrong while
    their parameters are sharded."""
    sharded = [*fsdp.units, fsdp.root]
    guard_state([fsdp.module, *units], lambda: all(unit.is_unsharded for unit in sharded))
    frozen = [
        p
        for unit in sharded
        for flat in unit.flats
        if not flat.requires_grad
        for p in flat.parameters
    ]
    fsdp.module.register_forward_pre_hook(lambda *_: check_still_frozen(frozen))


def guard_state(modules, is_unsharded):
    """Make state_dict and load_state_dict of these modules raise RuntimeError unless
    is_unsharded()."""

    def check(*_):
        if not is_unsharded():
            raise RuntimeError(
                "the parameters are sharded, and empty until they are gathered: inside of `with "
                "fsdp.unsharded():` model.state_dict() has them in full, and "
                "model.load_state_dict(...), called on every rank, changes the shards; "
                "save_shards and load_shards need no full copy"
            )

    for module in modules:
        module.register_state_dict_pre_hook(check)
        module.register_load_state_dict_pre_hook(check)


def check_still_frozen(parameters):
    """Raise RuntimeError for a parameter that was frozen when the wrapper was made, and is trained
    now."""
    for parameter in parameters:
        if parameter.requires_grad:
            raise RuntimeError(
                "a parameter that was frozen when the model was wrapped has been unfrozen: it is "
                "in no shard, so each rank would update it by its own gradient. Call "
                "requires_grad_() first, and wrap the model then"
            )


def refuse_second_derivative(of):
    """Raise RuntimeError in a backward pass that records a graph of its own."""
    if torch.is_grad_enabled():
        raise RuntimeError(
            f"{of} cannot be differentiated twice: in a backward pass with create_graph=True its "
            f"parameters would have been freed when the second derivative needs them. Compute it "
            "on the model without this wrapper, or under OverlappedDataParallel, which leaves the "
            "graph as it is"
        )
