"""What a script does with an ordinary model, and what would go wrong in silence with shards: refused with a sentence.

    AdamW(model.parameters())           no gradient stays in a parameter: it would train nothing
    clip_grad_norm_(model.parameters()) the norm of no gradient is 0, and nothing would be clipped
    model.state_dict(), load_state_dict while parameters are empty, there is nothing to save, and nowhere to load to
    parameter.requires_grad_()          after wrapping: in no shard, so its gradient would stay on its own rank

The first two read `.grad` of a parameter, so a guarded parameter looks at who reads it. Everyone else gets the gradient
as usual.
"""

import sys

import torch
from torch import nn

READERS = {  # of `.grad`, by the beginning of their module's name: what they would do, and what to do instead
    "torch.optim": "this optimizer would train nothing: give it x.groups; Zero1 and Zero2 have a step() of their own",
    "torch.nn.utils.clip_grad": "nothing would be clipped: call lib.clip.clip_gradients(x.shards, max_norm, [group])",
    "lib.clip": "nothing would be clipped: give clip_gradients the shards of x, and [group]",
}


class GuardedParameter(nn.Parameter):
    """A parameter whose gradients end in shards. An optimizer, or what clips, is told so when it reads `.grad`."""

    @property
    def grad(self):
        caller = sys._getframe(1)
        module = caller.f_globals.get("__name__", "")
        for reader, instead in READERS.items():
            if module.startswith(reader) and caller.f_code.co_name != "zero_grad":
                shape = tuple(self.shape) if self.numel() else "sharded"
                raise RuntimeError(
                    f"the gradient of a {shape} parameter goes to the shards of its wrapper, x, so {instead}"
                )
        return torch._C.TensorBase.grad.__get__(self)

    @grad.setter
    def grad(self, gradient):
        torch._C.TensorBase.grad.__set__(self, gradient)


def guard(parameters):
    """Let what would miss these parameters' gradients be told so."""
    for parameter in parameters:
        if type(parameter) is nn.Parameter and parameter.requires_grad:
            parameter.__class__ = GuardedParameter


def guard_state(modules, is_whole):
    """Let state_dict and load_state_dict of these modules raise RuntimeError unless is_whole()."""

    def check(*_):
        if not is_whole():
            raise RuntimeError(
                "the parameters are sharded, and empty until they are gathered: inside of `with fsdp.unsharded():` "
                "model.state_dict() has them in full, and model.load_state_dict(...), called alike on every rank, "
                "changes the shards; save_shards and load_shards need no full copy"
            )

    for module in modules:
        module.register_state_dict_pre_hook(check)
        module.register_load_state_dict_pre_hook(check)


def check_still_frozen(parameters):
    """Raise RuntimeError for a parameter that was frozen when the wrapper was made, and is trained now."""
    for parameter in parameters:
        if parameter.requires_grad:
            raise RuntimeError(
                "a parameter that was frozen when the model was wrapped has been unfrozen: it is in no shard, so each "
                "rank would update it by its own gradient. Call requires_grad_() first, and wrap the model then"
            )
