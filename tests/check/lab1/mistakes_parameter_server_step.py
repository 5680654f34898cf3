"""Known mistakes of parameter_server_step, each named after its cause."""

from mistakes import Mistake, edit

DIST = "import torch.distributed as dist\n"
OWN = edit(DIST, DIST)  # of the whole file: pull, push and deliver are the answer's own
FORGET, PULL = "    for p in parameters:\n        p.grad = None\n", "    pull(parameters, group)\n"
BACKWARD, PUSH = "    backward()\n", "push(parameters, dist.get_world_size(group), group)"
UPDATE = "    if dist.get_rank(group) == 0:\n        optimizer.step()\n"
BY_HAND = (
    "        for p in parameters:\n            p.data -= optimizer.param_groups[0]['lr'] * p.grad\n"
)
GRADIENTS, NOBODY = (
    "[gradient(p) for p in parameters]",
    "    if dist.get_world_size(group) == 1:\n        return\n",
)
TALK = (
    "    last = dist.get_world_size(group) - 1\n    deliver([torch.empty(0)], min(1, last), last, "
    "group)\n"
)
MISTAKES = (
    Mistake("only rank 0 updates", OWN.then(UPDATE, "    optimizer.step()\n")),
    Mistake("a parameter without gradient", OWN.then(GRADIENTS, "[p.grad for p in parameters]")),
    Mistake("a receive without its send", OWN.then(GRADIENTS,
        "[p.grad for p in parameters if p.grad is not None]")),
    Mistake("ranks of the world, not of the group", OWN.then(PULL, "    pull(parameters)\n")),
    Mistake("one rank alone", OWN.then(BACKWARD, BACKWARD + NOBODY)),
    Mistake("a rank without rows",
            OWN.then(BACKWARD,
                f"{BACKWARD}    if all(p.grad is None for p in parameters):\n        return\n")),
    Mistake("backward once", OWN.then(BACKWARD,
        "    if dist.get_rank(group):\n        backward()\n")),
    Mistake("not pulled", OWN.then(PULL, "")),
    Mistake("no mean is left", OWN.then(UPDATE, UPDATE + "        optimizer.zero_grad()\n")),
    Mistake("gradients of the step before", OWN.then(FORGET, "")),
    Mistake("not divided", OWN.then(PUSH, "push(parameters, 1, group)")),
    Mistake("another divisor", OWN.then(PUSH,
        "push(parameters, dist.get_world_size(group) - 1 or 1, group)")),
    Mistake("a gradient is missing", OWN.then("g += p2p.recv(torch.empty_like(g),", "p2p.recv(g,")),
    Mistake("a gradient is missing", OWN.then("deliver(gradients, rank, 0, group)",
        "deliver([g / workers for g in gradients], rank, 0, group)")),
    Mistake("no update", OWN.then(UPDATE, "")),
    Mistake("another update", OWN.then(UPDATE, UPDATE.replace("        optimizer.step()\n",
        BY_HAND))),
    Mistake("sent back as well", OWN.then(UPDATE, UPDATE + PULL)),
    Mistake("frozen ones too", OWN.then("parameters = [p for p in parameters if p.requires_grad]",
        "")),
    Mistake("frozen ones too", OWN.then(PULL, PULL.replace("parameters", "everything")).then(
        "    parameters = [p for p in parameters", "    everything = parameters\n"
        "    parameters = [p for p in parameters")),
    Mistake("the others talk", OWN.then(UPDATE, UPDATE + TALK)),
)  # fmt: skip
