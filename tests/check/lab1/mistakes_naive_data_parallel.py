"""Known mistakes of naive_data_parallel."""

from mistakes import Mistake, edit

ALL, SEND = "[*module.parameters(), *module.buffers()]", "collectives.broadcast(tensor, 0, group)"
TRAINED = "*(p for p in module.parameters() if p.requires_grad)"
GATHER = (
    "alike = [torch.empty_like(tensor) for _ in range(torch.distributed.get_world_size(group))]\n"
    "        torch.distributed.all_gather(alike, tensor.detach(), group=group)\n"
    "        tensor.copy_(alike[0])"
)
ZEROS = (
    "tensor.mul_(int(torch.distributed.get_rank(group) == 0))\n"
    "        collectives.all_reduce(tensor, group)"
)
TWICE = "*(p for m in module.modules() for p in m._parameters.values() if p is not None)"
COPY, ROOT = (
    SEND.replace("tensor", "tensor.clone()"),
    "torch.distributed.broadcast(tensor, 0, group=group)",
)
AVERAGE = (
    "tensor.copy_(collectives.all_reduce(tensor, group) / torch.distributed.get_world_size(group))"
)

SUM, DIVIDE, MEAN = "all_reduce(mean, group)", "mean /= world_size", "mean = gradient(parameter)"
ASKS, FORGOTTEN = (
    "parameter.requires_grad",
    "torch.zeros_like(parameter) if parameter.grad is None else parameter.grad",
)
NARROW = (
    "narrow = mean.float()\n            all_reduce(narrow, group)\n            mean.copy_(narrow)"
)
LOOP = "    for parameter in"


def _before(line):
    return edit(SUM, f"{line}\n            {SUM}")


MISTAKES = {
    "broadcast_parameters": (
        Mistake("nothing is delivered", edit(SEND, f"tensor = {COPY}")),
        Mistake("nothing is delivered", edit(SEND, "pass")),
        Mistake("buffers forgotten", edit(ALL, "module.parameters()")),
        Mistake("buffers forgotten", edit(ALL, f"[t for t in {ALL} if t.is_floating_point()]")),
        Mistake("buffers forgotten", edit(ALL, ALL.replace("buffers()", "buffers(recurse=False)"))),
        Mistake("frozen ones forgotten", edit(ALL, f"[{TRAINED}, *module.buffers()]")),
        Mistake("frozen ones forgotten", edit(ALL, f"[{TRAINED}]")),
        Mistake("not in the state dict", edit(ALL, "module.state_dict().values()")),
        Mistake("tied ones twice", edit(ALL, f"[*module.buffers(), {TWICE}]")),
        Mistake("some are left out", edit(SEND, f"tensor.ndim == 2 and {SEND}")),
        Mistake("the sum of all", edit(SEND, AVERAGE)),
        Mistake("another rank's", edit("tensor, 0",
            "tensor, torch.distributed.get_world_size(group) - 1")),
        Mistake("not every rank takes part", edit(SEND,
            f"torch.distributed.get_rank(group) or {SEND}")),
        Mistake("not every rank takes part", edit("0, group", "0")),
        Mistake("a root of the world", edit(SEND, ROOT)),
        Mistake("a root of the world", edit("tensor, 0",
            "tensor, torch.distributed.get_process_group_ranks(group)[0]")),
        Mistake("in place on a leaf", edit("@torch.no_grad()\n", "").then(SEND,
            f"tensor.copy_({COPY})")),
        Mistake("another tensor in its place", edit(SEND, f"tensor.data = {COPY}")),
        Mistake("another tensor in its place", edit(ALL, ALL.replace("module", "module.float()",
            1))),
        Mistake("rounded on the way", edit(SEND,
            "tensor.copy_(collectives.broadcast(tensor.float(), 0, group))")),
        Mistake("whether it learns has changed", edit(SEND, SEND.replace("tensor",
            "tensor.requires_grad_(False)"))),
        Mistake("everyone sends", edit(SEND, GATHER)),
        Mistake("everyone sends", edit(SEND, ZEROS)),
    ),
    "average_gradients": (
        Mistake("not divided", edit(DIVIDE, "pass")),
        Mistake("divided twice", _before(DIVIDE)),
        Mistake("the world's size, not the group's",
                edit("get_world_size(group)", "get_world_size()")),
        Mistake("another divisor", edit(DIVIDE, f"{DIVIDE} + 6")),
        Mistake("the parameter for its gradient", edit(MEAN,
            "gradient(parameter)\n            mean = parameter")),
        Mistake("the parameter for its gradient", edit(DIVIDE,
            f"{DIVIDE}\n            parameter -= 0.1 * mean")),
        Mistake("skipped on some ranks", edit(ASKS, "parameter.grad is not None")),
        Mistake("a parameter without gradient", edit(MEAN, f"mean = {FORGOTTEN}")),
        Mistake("a parameter without gradient", edit(MEAN, "mean = parameter.grad")),
        Mistake("frozen ones too", edit(ASKS, "True")),
        Mistake("frozen ones too", edit(ASKS, "True").then(MEAN,
            f"{MEAN} if {ASKS} else torch.zeros_like(parameter)")),
        Mistake("what all_reduce returns", edit(SUM, f"parameter.grad = mean = {SUM}")),
        Mistake("nothing written back", edit(MEAN, f"{MEAN}.clone()")),
        Mistake("an iterator used up", edit(LOOP, f"    print(len(list(parameters)))\n{LOOP}")),
        Mistake("the group is not passed on", edit(SUM, "all_reduce(mean)")),
        Mistake("an op for it", edit(SUM, "all_reduce(mean, group, op=dist.ReduceOp.AVG)")),
        Mistake("not what it was given", edit(SUM, "dist.all_reduce(mean, group=group)")),
        Mistake("sent more than once", _before("all_reduce(mean.clone(), group)")),
        Mistake("rounded on the way", edit(SUM, NARROW)),
    ),
}  # fmt: skip
