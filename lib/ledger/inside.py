"""Finds the module of the model for which torch's own code (FSDP2, DTensor or DDP) has called a
collective, because the user's line, such as `loss.backward()`, does not name it. Where we look
depends on the caller:

    called by      where the module is found
    FSDP2          the FSDPParamGroup whose method is on the stack: its module and its parameters,
                   by their names
    DTensor        the operator that needs it, and in forward the modules on the stack, from the
                   model inwards
    DDP's reducer  nothing is on the stack, because it is C++. It reduces the buckets in order, so
                   this is the next one of the DDP module whose forward ran last; from its number of
                   elements we infer its parameters

We do this only for ops that the program has not called itself, so the others do not become slower.
"""

import os
import weakref

import torch

TORCH = os.path.dirname(torch.__file__) + os.sep
FSDP, DTENSOR = (
    TORCH + os.path.join("distributed", *path)
    for path in (("fsdp", "_fully_shard", ""), ("tensor", ""))
)
# the only Python frame around autograd's C++ code; on autograd's thread for a GPU there is none
BACKWARD = TORCH + os.path.join("autograd", "graph.py")
MODULES = TORCH + os.path.join("nn", "modules", "module.py")


class Inside:
    """What this rank knows about its models: the names of their modules, and DDP's progress."""

    def __init__(self):
        # model -> {id(module): its name in it}
        self.names: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
        # the DDP module whose forward ran last, and how many of its buckets were reduced since
        self.ddp, self.buckets = (lambda: None), 0

    def forward(self, plain):
        """DDP's forward, wrapped to remember the module and count its buckets from zero."""

        def forward(ddp, *args, **kwargs):
            self.ddp, self.buckets = weakref.ref(ddp), 0
            return plain(ddp, *args, **kwargs)

        return forward

    def __call__(self, frame, op: str, numel: int) -> str:
        """The purpose, in words, of an op of `numel` elements that was called from `frame`; "" if
        it is not known."""
        modules, operator, begun = [], "", frame
        while frame is not None:
            file = frame.f_code.co_filename
            if file.startswith(FSDP):
                if group := _fsdp_group(frame.f_locals.get("self")):
                    return group
            elif file.startswith(DTENSOR):
                operator = _operator(frame.f_locals.get("op_call")) or operator or "redistribution"
            elif file == MODULES and frame.f_code.co_name == "_call_impl":
                modules.append(frame.f_locals["self"])
            frame = frame.f_back
        if operator:
            where = self._name(modules)
            return f"DTensor's {operator}" + (f" in module {where}" if where else "")
        in_backward = begun is None or begun.f_code.co_filename == BACKWARD
        return self._bucket(numel) if op == "all_reduce" and in_backward else ""

    def _name(self, modules):
        """The name of the innermost of these modules within the outermost, the model, as
        model.named_modules() gives it. If it has no name there, the name of its class."""
        if not modules:
            return ""
        inner, model = modules[0], modules[-1]
        known = self.names.get(model)
        if known is None or id(inner) not in known:
            known = self.names[model] = {id(module): name for name, module in model.named_modules()}
        return known.get(id(inner)) or type(inner).__name__

    def _bucket(self, numel):
        ddp = self.ddp()
        if ddp is None:
            return ""
        number, self.buckets = self.buckets, self.buckets + 1
        held = _parameters_of(numel, parameter_names(ddp))
        return f"DDP's gradient bucket {number} of {type(ddp.module).__name__}{held}"


def parameter_names(ddp) -> dict[str, torch.nn.Parameter]:
    """{name: parameter} of a DistributedDataParallel, in the order in which its reducer numbers
    them."""
    ignored = getattr(ddp, "parameters_to_ignore", ())
    return {
        name: p
        for name, p in ddp.module.named_parameters()
        if p.requires_grad and name not in ignored
    }


def _parameters_of(numel, named):
    """The consecutive parameters that together have `numel` elements, in words, because these must
    be those of the bucket; "" if there are none, or if there are several candidates."""
    sizes, found = [(name, p.numel()) for name, p in named.items()], []
    for first in range(len(sizes)):
        total = 0
        for last in range(first, len(sizes)):
            total += sizes[last][1]
            if total >= numel:
                break
        if total == numel:
            found.append([name for name, _ in sizes[first : last + 1]])
    return f" ({_listed(found[0])})" if len(found) == 1 else ""


def _fsdp_group(group):
    params = getattr(group, "fsdp_params", None)
    if params is None:
        return ""
    name = getattr(group, "_module_fqn", None)
    prefix = f"{name}." if name else ""
    names = [(getattr(p, "_param_fqn", None) or "").removeprefix(prefix) for p in params]
    return f"FSDP's {name or 'root module'} ({_listed(names)})"


def _listed(names):
    return (
        ", ".join(names)
        if len(names) <= 4
        else f"{', '.join(names[:2])}, ... {names[-1]}: {len(names)} parameters"
    )


def _operator(op_call):
    return str(op_call).removesuffix(".default") if op_call is not None else ""
