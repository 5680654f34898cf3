"""Known mistakes in Unit and FSDP: edits of lib's code."""

from mistakes import Mistake, edit

GRADIENTS = "flatten_gradients()"
SHARD = "self.reduce_scatter(flat.flatten_gradients(), flat.group)"
FREE, EMPTY = (
    "flat.full.untyped_storage().resize_(0)",
    "parameter.data = flat.shard.detach()[:0]  # (0,)",
)
UNSHARD = """self.allocate()
        for flat in self.flats:
            gather_parameters(flat, self.all_gather)
        self.attach()"""


def _gather(hint, new):
    """`new` for the gather of one flat."""
    return Mistake(hint, edit("gather_parameters(flat, self.all_gather)", new))


def _reduce(hint, new):
    """`new` for the reduce-scatter of one flat."""
    return Mistake(hint, edit("reduce_gradients(flat, self.reduce_scatter)", new))


UNIT = (
    _gather("the group is not passed on", "self.all_gather(flat.shard, out=flat.full)"),
    Mistake("elements for bytes", edit("resize_(flat.padded * flat.full.element_size())",
        "resize_(flat.padded)")),
    Mistake("no memory to gather into", edit("self.allocate()", "pass")),
    Mistake("no memory to gather into", edit(
        UNSHARD,
        "[self.all_gather(flat.shard, flat.group) for flat in self.flats]\n        "
        "self.is_unsharded = True"
    )),
    _gather("another tensor for full",
            "flat.full = self.all_gather(flat.shard.detach(), flat.group)"),
    Mistake("another tensor for full", edit(FREE,
        f"{FREE}\n            flat.full = flat.full.new_empty(0)")),
    Mistake("not attached", edit("self.attach()", "self.is_unsharded = True")),
    Mistake("not attached",
            edit("flat.attach()",
                 "flat.attach()\n            for p in flat.parameters: p.data = p.data.clone()")),
    _gather(
        "gathered once",
        "if not hasattr(flat, 'first'): flat.first = self.all_gather(flat.shard.detach(), "
        "flat.group)\n"
        "            flat.full.copy_(flat.first)",
    ),
    _gather("another part gathered",
            "flat.full.copy_(flat.shard.detach().repeat(flat.world_size))"),
    _gather("rounded on the way",
            "flat.full.copy_(self.all_gather(flat.shard.detach().float(), flat.group))"),
    Mistake("the flag", edit("        self.is_unsharded = True\n", "")),
    Mistake("the flag", edit("self.is_unsharded = False",
        "self.is_unsharded = getattr(self, 'is_unsharded', False)")),
    _reduce("overwritten", f"flat.shard.grad = {SHARD}"),
    _reduce("averaged twice", f"flat.add_gradient({SHARD} / flat.world_size)"),
    _reduce("a sum, no mean", f"flat.add_gradient({SHARD} * flat.world_size)"),
    _reduce("another rank's gradient",
            f"{SHARD.replace(GRADIENTS, 'shard.new_zeros(flat.padded)')}\n"
            "            at = flat.padded // flat.world_size\n"
            "            flat.add_gradient(flat.flatten_gradients()[:at].clone())"),
    _reduce("rounded on the way",
            f"flat.add_gradient({SHARD.replace(GRADIENTS, GRADIENTS + '.float()')})"),
    _reduce("padding left out",
            f"flat.add_gradient({SHARD.replace(GRADIENTS, GRADIENTS + '[: flat.n]')})"),
    _reduce("nothing is reduced", SHARD),
    _reduce("not on every rank",
            f"if any(p.grad is not None for p in flat.parameters): flat.add_gradient({SHARD})"),
    _reduce("a second copy", "flat.kept = flat.flatten_gradients()\n"
            "            flat.add_gradient(self.reduce_scatter(flat.kept, flat.group))"),
    _gather("a second copy",
            "flat.kept = self.all_gather(flat.shard, flat.group, out=flat.full).clone()"),
    Mistake("not freed", edit(FREE, "pass")),
    Mistake("parameters of freed memory", edit(EMPTY, "pass")),
    Mistake("the shard is lost", edit(
        FREE,
        "at = flat.padded // flat.world_size\n"
        f"            flat.shard = flat.full[:at].detach().requires_grad_(flat.requires_grad)\n"
        f"            {FREE}",
    )),
    Mistake("frozen flats too", edit("flat in self.trained_flats:", "flat in self.flats:")),
    Mistake("frozen flats too", edit("flat in self.trained_flats:", "flat in self.flats:").then(
        "reduce_gradients(flat, self.reduce_scatter)",
        f"shard = {SHARD}\n            if flat.requires_grad: flat.add_gradient(shard)",
    )),
    _reduce("frozen flats too", f"shard = {SHARD}\n            self.all_gather(shard, flat.group)\n"
            "            flat.add_gradient(shard)"),
    _gather("not what it was given",
            "collectives.all_gather(flat.shard, flat.group, out=flat.full)"),
    _gather("not what it was given", "self.all_gather(flat.shard, flat.group)\n"
            "            collectives.all_gather(flat.shard, flat.group, out=flat.full)"),
)  # fmt: skip

METHOD = "def {}(self, index: int) -> None:\n        self.units[index].{}()"
BEFORE_FORWARD, AFTER_FORWARD = (
    METHOD.format("before_forward", "unshard"),
    METHOD.format("after_forward", "reshard"),
)
BEFORE_BACKWARD = METHOD.format("before_backward", "unshard")
AFTER_BACKWARD = (
    "def after_backward(self, index: int) -> None:\n"
    "        # the weights first, so that they are gone before the gradients' flat buffer is "
    "allocated\n"
    "        self.units[index].reshard()\n"
    "        self.units[index].reduce_gradients()"
)


def _instead(hint, *changes):
    """changes: (a method, the line or lines that its body is instead), ..."""
    changes = tuple((old, "\n        ".join([old.splitlines()[0], *new])) for old, *new in changes)
    return Mistake(hint, edit(*changes[0]) if len(changes) == 1 else _all(changes))


def _all(changes):
    made = edit(*changes[0])
    for change in changes[1:]:
        made = made.then(*change)
    return made


GATHER, REDUCE, FREE_IT = (
    f"self.units[index].{name}()" for name in ("unshard", "reduce_gradients", "reshard")
)
IF_NOT = f"if not self.units[index].is_unsharded: {GATHER}"
FSDP = (
    _instead("not gathered for forward", (BEFORE_FORWARD, "pass")),
    _instead("not gathered for backward", (BEFORE_BACKWARD, "pass")),
    _instead("not gathered for backward", (BEFORE_BACKWARD, "self.units[index - 1].unshard()")),
    _instead("old weights", (BEFORE_FORWARD, IF_NOT), (AFTER_FORWARD, "pass"),
             (BEFORE_BACKWARD, "pass"),
             (AFTER_BACKWARD, REDUCE)),
    _instead("gradients are not reduced", (AFTER_BACKWARD, FREE_IT)),
    _instead("gradients are not reduced", (BEFORE_BACKWARD, GATHER, REDUCE),
             (AFTER_BACKWARD, FREE_IT)),
    _instead("another result", (AFTER_BACKWARD, "self.average_gradients()", FREE_IT)),
    _instead("weights are freed last", (AFTER_BACKWARD, REDUCE, FREE_IT)),
    _instead("gradients wait", (AFTER_BACKWARD, FREE_IT,
                                "for unit in self.units if index == 0 else (): "
                                "unit.reduce_gradients()")),
    _instead("an error in one case", (AFTER_BACKWARD, FREE_IT, "unit.reduce_gradients()")),
    _instead("reduced twice", (AFTER_FORWARD, REDUCE, FREE_IT)),
    _instead("another result", (AFTER_BACKWARD, FREE_IT, REDUCE,
                                "for flat in self.units[index].trained_flats: "
                                "flat.shard.grad *= 2")),
    _instead("two at a time", (AFTER_FORWARD, "pass")),
    _instead("two at a time", (AFTER_BACKWARD, REDUCE)),
    _instead("two at a time", (AFTER_FORWARD, "if index > 0: self.units[index - 1].reshard()")),
    _instead("two at a time", (BEFORE_FORWARD,
        "for unit in self.units if index == 0 else (): unit.unshard()")),
    _instead("two at a time", (BEFORE_FORWARD, GATHER,
        "if index > 0: self.units[index - 1].reshard()"),
             (AFTER_FORWARD, f"if index == len(self.units) - 1: {FREE_IT}")),
    _instead("a second copy", (AFTER_FORWARD,
                               "self.kept = [flat.full.clone() for flat in "
                               "self.units[index].flats]", FREE_IT)),
    _instead("unsharded in the end", (AFTER_BACKWARD, f"if index > 0: {FREE_IT}", REDUCE)),
    _instead("another number of gathers", (BEFORE_BACKWARD, GATHER, GATHER)),
    _instead("another number of gathers",
             (AFTER_FORWARD,
             f"if index < len(self.units) - 1 or not torch.is_grad_enabled(): {FREE_IT}"),
             (BEFORE_BACKWARD, IF_NOT)),
    _instead("reduced twice", (AFTER_BACKWARD, FREE_IT, REDUCE, REDUCE)),
    _instead("not what it was given", (AFTER_BACKWARD, FREE_IT, REDUCE,
                                       "collectives.all_reduce(torch.zeros(1), self.group)")),
)  # fmt: skip
INPUTS = "return on_backward(lambda: self.leave_backward(index), (inputs, kwargs))"
OUTPUT = "return on_backward(lambda: self.enter_backward(index), output)"
HOOKS = (
    Mistake("gradients wait", edit(INPUTS, "return inputs, kwargs")),
    Mistake("no hook", edit(OUTPUT, "return output")),
    Mistake("not gathered for forward", edit("        self.before_forward(index)\n", "")),
    Mistake("hooks by hand", edit("        self.leave_forward(index)\n", "")),
    Mistake("left before it is entered", edit(
        OUTPUT, "self.before_backward(index)\n        return output")),
)  # fmt: skip
MISTAKES = {"Unit": UNIT, "FSDP": FSDP + HOOKS}
