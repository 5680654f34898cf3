"""Known mistakes in reduce_gradients."""

from mistakes import Mistake, edit

_W, _ALL = "unflatten(flat / N, gradients)", "((dense, world), (experts, expert_dp_group))"
_FLAT = "flat = flatten(gradients)"
MISTAKES = (
    Mistake("experts divided by dp", edit(_W,
        "unflatten(flat / dist.get_world_size(holders), gradients)")),
    Mistake("another group's size", edit("N = dist.get_world_size(world)",
        "N = dist.get_world_size()")),
    Mistake("another group's size", edit(_W,
        "unflatten(flat / dist.get_world_size(expert_dp_group), gradients)")),
    Mistake("not divided", edit(_W, "unflatten(flat, gradients)")),
    Mistake("not divided", edit(_W,
        "unflatten(flat / (1 if parameters is dense else N), gradients)")),
    Mistake("divided twice", edit(_W, "unflatten(flat / N**2, gradients)")),
    Mistake("added to what was there", edit(_W,
        "unflatten(flatten(gradients) + flat / N, gradients)")),
    Mistake("the group is not passed on",
            edit("all_reduce(flat, holders)",
                 "all_reduce(flat, None if holders is world else holders)")),
    Mistake("experts mixed", edit(_ALL, "((dense, world), (experts, world))")),
    Mistake("experts mixed", edit(_ALL, "((dense + experts, world),)")),
    Mistake("the groups swapped", edit(_ALL, "((dense, expert_dp_group), (experts, world))")),
    Mistake("the rest over the experts' group", edit(_ALL,
        "((dense, expert_dp_group), (experts, expert_dp_group))")),
    Mistake("frozen ones too",
            edit("[gradient(p) for p in parameters if p.requires_grad]",
                 "[gradient(p) for p in parameters]")),
    Mistake("frozen ones too",
            edit("[gradient(p) for p in parameters if p.requires_grad]",
                 "[gradient(p) for p in parameters if p.requires_grad or p.grad is not None]")),
    Mistake("no experts here", edit("if gradients:", "if True:")),
    Mistake("sizes that differ between ranks",
            edit("if p.requires_grad]", "if p.requires_grad and p.grad is not None]")),
    Mistake("pieces in the wrong places", edit(_W, "unflatten(flat / N, gradients[::-1])")),
    Mistake("pieces in the wrong places", edit(_W,
        "[g.copy_((flat / N)[: g.numel()].view_as(g)) for g in gradients]")),
    Mistake("the parameters' flat buffer",
            edit(_FLAT, "flat = flatten([p for p in parameters if p.requires_grad])")),
    Mistake("one kind alone", edit(_ALL, "((dense, world),)")),
    Mistake("one kind alone", edit(_ALL, "((experts, expert_dp_group),)")),
    Mistake("the rest over the experts' group",
            edit("experts = expert_parameters(model)",
                 "experts = [p for name, p in model.named_parameters() if 'experts' in name]")),
    Mistake("looked for by ==", edit("if id(p) not in ids", "if p not in experts")),
    Mistake("rounded on the way", edit(_FLAT, "flat = flatten(gradients).float()")),
    Mistake(
        "one message per parameter",
        edit(_W, "flat")
        .then(_FLAT, "flat = [all_reduce(g, holders).div_(N) for g in gradients]")
        .then("all_reduce(flat, holders)\n", "pass\n"),
    ),
    Mistake("other elements",
            edit("all_reduce(flat, holders)",
                 "all_reduce(flat.clone(), holders), all_reduce(flat, holders)")),
)  # fmt: skip
