"""Known mistakes of copy_to_group and reduce_from_group, each named after its cause."""

from mistakes import Mistake, edit

F_FORWARD, F_BACKWARD = "x.view_as(x)", "return reduce_from_group(dy, *ctx.how)"
G_FORWARD, G_BACKWARD = "        return total\n", "return copy_to_group(dy, *ctx.how)"
F_CALL = "return _Copy.apply(x, group, all_reduce)"
F_HOOK = """
    def summed(dx):
        total = dx.clone()
        all_reduce(total, group)
        return total
    x.register_hook(summed)
    return x"""
KEPT = "ctx.how = group, all_reduce\n        return x.view"
MISTAKES = {
    "copy_to_group": (
        Mistake("not summed backward", edit(F_BACKWARD, "return dy")),
        Mistake("summed forward", edit(F_FORWARD, "reduce_from_group(x, group, all_reduce)")),
        Mistake("summed twice", edit(F_BACKWARD,
            "return reduce_from_group(reduce_from_group(dy, *ctx.how), *ctx.how)")),
        Mistake("averaged", edit(F_BACKWARD, F_BACKWARD + " / dist.get_world_size(ctx.how[0])")),
        Mistake("the gradient overwritten",
                edit(F_BACKWARD, "ctx.how[1](dy, ctx.how[0])\n        return dy")),
        Mistake("every use of x summed", edit(F_CALL, F_HOOK)),
        Mistake("another result", edit(F_BACKWARD, "return -reduce_from_group(dy, *ctx.how)")),
        Mistake("shared by two calls", edit(KEPT, "_Copy" + KEPT[3:])
                .then(F_BACKWARD, "return reduce_from_group(dy, *_Copy.how)")),
    ),
    "reduce_from_group": (
        Mistake("all-reduced backward too",
                edit(G_BACKWARD, "return reduce_from_group(dy, *ctx.how)")),
        Mistake("nothing summed",
                edit("all_reduce(total, group)", "all_reduce(total.clone(), group)")),
        Mistake("averaged", edit(G_FORWARD, "        return total / dist.get_world_size(group)\n")),
        Mistake("divided backward",
                edit(G_BACKWARD, "return dy / dist.get_world_size(ctx.how[0])")),
        Mistake("another result", edit(G_FORWARD, "        return -total\n")),
    ),
}  # fmt: skip
