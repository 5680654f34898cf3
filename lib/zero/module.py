"""FSDP as an nn.Module, with mixed precision: what an ordinary training script expects of a
wrapper.

    fp32    shard of w --round--> 16 bits ------all-gather------> w in full, 16 bits
                                                                      |
                                                                      |   forward and backward
                                                                      v
    fp32    shard of g <--widen-- reduce_dtype <--reduce-scatter-- g in full

The shards are in the dtype that the model was made in, so they serve as master weights, and the
optimizer needs no others. The all-gathers and the full parameters are in the policy's param_dtype,
16 bits in the figure, and the reduce-scatters are in reduce_dtype. torch's fully_shard takes the
same `MixedPrecisionPolicy`.

    fsdp.py          which unit is unsharded when
    prefetch.py      adds communication that overlaps with compute
    module.py        adds parameters(), state_dict(), clip_grad_norm_ and a mixed-precision policy

Source: torch.distributed.fsdp. The policy and the names of nn.Module and of torch's FSDP mean the
same here; average_gradients and unsharded are ours.
"""

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lib.backend import Group
from lib.backend.torch_private import tree_map
from lib.training import clip
from lib.training.buckets import slots
from lib.zero.flat import Flat
from lib.zero.prefetch import PrefetchingFSDP
from lib.zero.unit import Unit


class FSDPModule(nn.Module):
    """`module`, sharded over the ranks of `group`; calling it calls `module`.

        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
        fsdp = FSDPModule(model, units=model.layers, policy=policy)
        optimizer = torch.optim.AdamW(fsdp.parameters(), lr=3e-4)
        loss_fn(fsdp(x), y).backward()
        fsdp.average_gradients()   # after every backward
        fsdp.clip_grad_norm_(1.0)  # the norm of all shards; torch's function sees only this rank's
        optimizer.step()
        optimizer.zero_grad()

    units: submodules in the order of the forward pass, none inside another.
    policy: an object with the fields of torch's MixedPrecisionPolicy; None: everything in the dtype
        of the parameters.
        param_dtype: of the parameters in forward and backward (None: unchanged)
        reduce_dtype: of the gradient sums (None: param_dtype)
        output_dtype: of the outputs (None: unchanged)
        cast_forward_inputs: whether floating inputs of the model and of its units are cast to
            param_dtype first
    parameters() are this rank's shards. state_dict() and load_state_dict() are of the full model
    and communicate, so all ranks have to call them. Move the model to its device before it is
    wrapped.
    """

    def __init__(
        self, module: nn.Module, units: Sequence[nn.Module], group: Group = None, policy: Any = None
    ) -> None:
        super().__init__()
        self.module = module
        self.fsdp = _MixedFSDP(module, units, group, policy)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        inputs, kwargs = self.fsdp.cast_inputs(inputs, kwargs)
        return self.fsdp.cast_output(self.module(*inputs, **kwargs))

    def average_gradients(self) -> None:
        """Average the gradients over the ranks; the mean is then in every shard's `.grad`. Call it
        after each backward."""
        self.fsdp.average_gradients()

    def unsharded(self) -> Any:
        """A context in which `module` has full parameters in the shards' dtype; changes to them are
        kept. See FSDP.unsharded."""
        return self.fsdp.unsharded()

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Clip the gradient of the full model to this norm. Returns the norm before clipping.
        Sends: an all-reduce of one number."""
        return clip.clip_gradients(self.fsdp.shards, max_norm, [self.fsdp.group])

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Any]]:
        """(name, this rank's shard) of each flat, the trained ones first."""
        for i, flat in enumerate(self.fsdp.flats):
            yield f"{prefix}{'.' if prefix else ''}flat_{i}", flat.shard

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """A copy of the full model's state_dict, in the shards' dtype. Sends: an all-gather per
        flat."""
        with self.unsharded() as module:
            return tree_map(
                lambda x: x.clone() if torch.is_tensor(x) else x,
                dict(module.state_dict(*args, **kwargs)),
            )

    def load_state_dict(self, state: Any, strict: bool = True, assign: bool = False) -> Any:
        """Load the full model's state_dict, which has to be the same on every rank. Each rank keeps
        its shard. Sends: an all-gather per flat. Raises ValueError for assign=True."""
        if assign:
            raise ValueError(
                "assign=True would replace parameters that are views of flat buffers: use "
                "assign=False"
            )
        with self.unsharded() as module:
            return module.load_state_dict(state, strict=strict)

    def _apply(self, fn, recurse=True):
        raise RuntimeError(
            "a sharded model cannot be moved or cast: call .to(), .cuda() or .bfloat16() on the "
            "model before it is wrapped, and give a policy for mixed precision"
        )


class _MixedFlat(Flat):
    """A Flat with a full buffer in each of two dtypes, the shard's and the policy's param_dtype.
    Only one of them is in use at a time."""

    def __init__(self, parameters, group, policy):
        super().__init__(parameters, group)
        dtype = self.shard.dtype
        casts = policy and policy.param_dtype and dtype.is_floating_point
        self.param_dtype = policy.param_dtype if casts else dtype
        self.reduce_dtype = (policy.reduce_dtype if policy else None) or self.param_dtype
        self.full_in = {dtype: (self.full, self.slots)}
        if self.param_dtype != dtype:
            full = torch.empty_like(self.full, dtype=self.param_dtype)
            self.full_in[self.param_dtype] = full, slots(full[: self.n], self.slots)
            full.untyped_storage().resize_(0)

    def use(self, dtype):
        """Switch to the full parameters of this dtype. Call it while neither buffer is
        allocated."""
        self.full, self.slots = self.full_in[dtype]

    def to_gather(self):
        return self.shard.detach().to(self.full.dtype)


class _MixedUnit(Unit):
    """A Unit of _MixedFlats, whose shards are nn.Parameters."""

    def __init__(self, flats, *collectives):
        super().__init__(flats, *collectives)
        for flat in flats:
            flat.shard = nn.Parameter(flat.shard.detach(), requires_grad=flat.requires_grad)
            flat.use(flat.param_dtype)


class _MixedFSDP(PrefetchingFSDP):
    """PrefetchingFSDP with a policy."""

    unit_type = _MixedUnit

    def __init__(self, module, units, group, policy):
        self.policy, self.flat_type = policy, functools.partial(_MixedFlat, policy=policy)
        super().__init__(module, units, group)

    def cast_inputs(self, inputs, kwargs):
        """The arguments, with floating-point tensors cast to param_dtype."""
        dtype = self.policy.param_dtype if self.policy and self.policy.cast_forward_inputs else None
        return _cast((inputs, kwargs), dtype)

    def cast_output(self, output):
        """The output, with floating-point tensors cast to output_dtype."""
        return _cast(output, self.policy.output_dtype if self.policy else None)

    def pre_forward(self, index, submodule, inputs, kwargs):
        return super().pre_forward(index, submodule, *self.cast_inputs(inputs, kwargs))

    @contextlib.contextmanager
    def unsharded(self):
        """As FSDP.unsharded, in the shards' dtype."""
        for flat in self.flats:
            flat.use(flat.shard.dtype)
        try:
            with super().unsharded() as module:
                yield module
        finally:
            for flat in self.flats:
                flat.use(flat.param_dtype)


def _cast(values, dtype):
    """Nested values, with their floating-point tensors cast to `dtype`; unchanged if it is None."""
    if dtype is None:
        return values
    return tree_map(
        lambda x: x.to(dtype) if torch.is_tensor(x) and x.is_floating_point() else x, values
    )
