"""Known mistakes of outer_step, each named after its cause."""

from mistakes import Mistake, edit

PLAIN = (
    "that is momentum without Nesterov's look ahead, because D + momentum v with the old v is the "
    "new v. First change the velocity, and then step by D + momentum v with the new one."
)
MISTAKES = (
    Mistake("not divided", edit("    outer /= N  # the outer gradient\n", "    pass\n"),
            "all_reduce sums: divide by the group's number of ranks."),
    Mistake("an iterator used up",
            edit("    for p, w, v in",
                 "    list(parameters)\n    for p, w, v in").then("strict=True", "")),
    Mistake("start and parameters in one tensor", edit("p.copy_(w)", "p.data = w")),
    Mistake("the world's size", edit("dist.get_world_size(group)", "dist.get_world_size()"),
            "divide by the number of ranks of the group, dist.get_world_size(group)."),
    Mistake("uphill", edit("outer = w - p", "outer = p - w"),
            "D is start minus parameters: a step goes against it, as against a gradient."),
    Mistake("plain momentum", edit("(outer + momentum * v)", "v"),
            PLAIN),
    Mistake("without the new D", edit("(outer + momentum * v)", "momentum * v"),
            "D itself is missing: D + momentum v."),
    Mistake("plain momentum", edit(
            "        v.mul_(momentum).add_(outer)\n        w.sub_(lr * (outer + momentum * v))\n",
            "        w.sub_(lr * (outer + momentum * v))\n        v.mul_(momentum).add_(outer)\n"),
            PLAIN),  # which the old velocity is, too
    Mistake("lr in the velocity", edit("add_(outer)", "add_(lr * outer)"),
            "the velocity is kept without lr."),
    Mistake("damped", edit("add_(outer)", "add_((1 - momentum) * outer)"),
            "v <- momentum v + D: no factor 1 - momentum, as Adam's averages have one."),
    Mistake("lr forgotten", edit("lr * (outer", "(outer"), "the outer learning rate is missing."),
    Mistake("velocity forgotten", edit("v.mul_(momentum).add_(outer)", "v = momentum * v + outer"),
            "`v = ...` makes a new tensor, and the caller's stays as it was: "
            "v.mul_(momentum).add_(D)."),
    Mistake("parameters not written back", edit("        p.copy_(w)\n", "")),
    Mistake("start stays behind",
            edit("zip(parameters, start", "zip(parameters, [w.clone() for w in start]")),
    Mistake("start stays behind",
            edit("        w.sub_(lr * (outer + momentum * v))\n        p.copy_(w)\n",
                 "        p.copy_(w - lr * (outer + momentum * v))\n")),
)  # fmt: skip
