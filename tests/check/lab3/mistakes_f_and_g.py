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
AVERAGED = "the ranks have terms of one sum, not shards of a batch: no division."
MISTAKES = {
    "copy_to_group": (
        Mistake("not summed backward", edit(F_BACKWARD, "return dy"),
                "each rank has only what its own branch adds to dx. The full gradient is the sum "
                "over the ranks: all_reduce in backward."),
        Mistake("summed forward", edit(F_FORWARD, "reduce_from_group(x, group, all_reduce)"),
                "every rank has x already: forward sends nothing. It is the gradient that is "
                "summed."),
        Mistake("summed twice", edit(F_BACKWARD,
            "return reduce_from_group(reduce_from_group(dy, *ctx.how), *ctx.how)"),
                "the sum is there after the first all_reduce; a second one multiplies it by the "
                "number of ranks."),
        Mistake("averaged", edit(F_BACKWARD, F_BACKWARD + " / dist.get_world_size(ctx.how[0])"),
                AVERAGED),
        Mistake("the gradient overwritten", edit(F_BACKWARD,
            "ctx.how[1](dy, ctx.how[0])\n        return dy"),
                "the gradient that backward is given is used elsewhere too: x + f(x) passes the "
                "same tensor to both. Clone it before you sum into it."),
        Mistake("every use of x summed", edit(F_CALL, F_HOOK),
                "a hook on x itself sees the gradient of all that x is used for, such as the "
                "residual connection beside f. Only what comes back through y is summed: make y = "
                "x.view_as(x) and put the hook on y, or write a Function."),
        Mistake("another result", edit(F_BACKWARD, "return -reduce_from_group(dy, *ctx.how)")),
        Mistake("shared by two calls", edit(KEPT, "_Copy" + KEPT[3:])
                .then(F_BACKWARD, "return reduce_from_group(dy, *_Copy.how)")),
    ),
    "reduce_from_group": (
        Mistake("all-reduced backward too", edit(G_BACKWARD,
            "return reduce_from_group(dy, *ctx.how)"),
                "dy is the same on every rank already. y = x_0 + x_1 + ..., so dx_r = dy: backward "
                "sends nothing."),
        Mistake("nothing summed", edit("all_reduce(total, group)",
            "all_reduce(total.clone(), group)"),
                "y is still this rank's part: the sum went to a copy, or there was none. Return "
                "the tensor that all_reduce summed into."),
        Mistake("averaged", edit(G_FORWARD, "        return total / dist.get_world_size(group)\n"),
                AVERAGED),
        Mistake("divided backward", edit(G_BACKWARD, "return dy / dist.get_world_size(ctx.how[0])"),
                "the sum grows as much as any one of its terms: dx_r = dy, not a share of it."),
        Mistake("another result", edit(G_FORWARD, "        return -total\n")),
    ),
}  # fmt: skip
