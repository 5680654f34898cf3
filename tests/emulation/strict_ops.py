"""Each c10d op: which arguments it reads and fills, and what NCCL would refuse of it.

    all_gather_into_tensor(out, x)  reads x, fills out       at posting: `out` holds NaN
    all_reduce(x)                   fills x from its values  x's values go to a private copy,
                                                             x holds NaN
                                                             once waited for: the result
                                                             is copied into x

What an op fills it does not fill directly: it works on private tensors, and the user's get the
values once somebody has waited. What it only reads it reads when it is executed, not when it is
posted.
"""

import torch
import torch.distributed as dist

from tests.emulation.strict_touch import BrokenRule, extent, form, poison, storage_of, tensors_in

# op -> the argument that it reads, the one that it fills, the one that it reads and fills
ROLES = {
    "send": ("tensors", "", ""),
    "recv_": ("", "tensors", ""),
    "allreduce_": ("", "", "tensors"),
    "allreduce_coalesced_": ("", "", "tensors"),
    "allgather_": ("input_tensors", "output_tensors", ""),
    "_allgather_base_": ("input_tensor", "output_tensor", ""),
    "allgather_coalesced_": ("input_list", "output_lists", ""),
    "allgather_into_tensor_coalesced_": ("inputs", "outputs", ""),
    "reduce_scatter_": ("input_tensors", "output_tensors", ""),
    "_reduce_scatter_base_": ("input_tensor", "output_tensor", ""),
    "reduce_scatter_tensor_coalesced_": ("inputs", "outputs", ""),
    "broadcast_": ("", "tensors", ""),  # the root only reads
    "reduce_": ("tensors", "", ""),  # the root also fills
    "gather_": ("input_tensors", "output_tensors", ""),
    "scatter_": ("input_tensors", "output_tensors", ""),
    "alltoall_": ("input_tensors", "output_tensors", ""),
    "alltoall_base_": ("input", "output", ""),
    "barrier": ("", "", ""),
}
NAMES = {"recv_": "recv", "allreduce_": "all_reduce", "_allgather_base_": "all_gather_into_tensor"}
NAMES |= {
    "allgather_": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter_tensor",
    "alltoall_": "all_to_all",
}
NOT_NCCLS = {torch.int16, torch.uint16, torch.uint32, torch.uint64}
NO_REDUCTIONS = {"BAND", "BOR", "BXOR"}


PLAIN = torch._C.DispatchKeySet(torch._C.DispatchKey.PrivateUse3)  # null_works.cpp put gloo there


class Post:
    """One op as it was posted."""

    def __init__(self, name, op, arguments, given, group, site):
        self.name, self.op, self.site = name, op, site
        self.arguments, self.given = arguments, given  # the op's argument names; name -> value
        reads, fills, both = ROLES[name]
        if "root_rank" in given and given["root_rank"] == group.rank():
            if name == "broadcast_":
                reads, fills = fills, ""
            elif name == "reduce_":
                reads, both = "", reads
        of = lambda argument: list(tensors_in(given.get(argument)))
        self.reads, self.fills = of(reads), of(fills) + of(both)
        self._what_nccl_refuses()
        self.roles = reads, fills, both
        # gloo uses the others' tensors as it likes
        self.copies_late = reads if name == "reduce_" else ""
        self.instead = {}  # argument -> what the backend's kernel gets in its place
        self.landings = []  # (the user's tensor, where its values are until somebody has waited)

    def begin(self):
        """Private tensors for what it fills, and poison into the user's. Nothing else may
        be under way on these."""
        reads, fills, both = self.roles
        if reads and any(overlap(a, b) for a in self.reads for b in self.fills):
            # FSDP2 gathers so
            self.instead[reads] = _mapped(self.given[reads], lambda t: t.data.clone())
        if self.name != "recv_":  # the landing of a message is part of what travels
            for argument, copied in ((fills, False), (both, True)):
                if argument:
                    self.instead[argument] = _mapped(
                        self.given[argument], lambda t, c=copied: self._landing(t, c)
                    )
        for tensor in self.fills:
            poison(tensor)

    def _landing(self, tensor, copied):
        landing = tensor.data.clone() if copied else torch.empty_like(tensor.data)
        self.landings.append((tensor, landing))
        return landing

    def call(self, **instead):
        """gloo's own kernel. (What torch.library.get_kernel gives would keep the GIL, which gloo's
        threads need.)"""
        if self.copies_late:
            instead[self.copies_late] = _mapped(
                self.given[self.copies_late], lambda t: t.data.clone()
            )
        given = self.given | self.instead | instead
        out = self.op.redispatch(PLAIN, *(given[name] for name in self.arguments))
        return dist.Work.unbox(out[-1] if isinstance(out, tuple) else out)

    def forget(self):
        """It has been executed, and its results are where they belong: keep no tensor alive."""
        self.given, self.instead, self.landings, self.reads, self.fills = {}, {}, [], [], []

    def says(self):
        """The op and its line, as part of a sentence."""
        peer = self.given.get("dst", self.given.get("src"))
        whom = f" {'to' if self.name == 'send' else 'from'} rank {peer}" if peer is not None else ""
        return f"{self.title()}{whom} ({self.site})"

    def title(self):
        return NAMES.get(self.name, self.name.strip("_"))

    def _what_nccl_refuses(self):
        for tensor in self.reads + self.fills:
            if tensor.dtype in NOT_NCCLS:
                raise BrokenRule(f"no such dtype in NCCL: {self.says()} of {form(tensor)}")
            channels_last = tensor.dim() == 4 and tensor.is_contiguous(
                memory_format=torch.channels_last
            )
            if not tensor.is_contiguous() and not channels_last:
                raise BrokenRule(f"not contiguous: {self.says()} of {form(tensor)}")
        if "reduce_op" in self.given:
            index = self.given["reduce_op"].op()
            if any(getattr(dist.ReduceOp.RedOpType, name, None) == index for name in NO_REDUCTIONS):
                raise BrokenRule(f"no such reduction in NCCL: {self.says()}")


def overlap(a, b):
    if storage_of(a) != storage_of(b):
        return False
    (start, end), (first, last) = extent(a), extent(b)
    return start < last and first < end


def _mapped(value, fn):
    if isinstance(value, torch.Tensor):
        return fn(value)
    return [_mapped(part, fn) for part in value] if isinstance(value, (list, tuple)) else value
