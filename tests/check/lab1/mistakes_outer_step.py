"""Known mistakes of outer_step, each named after its cause."""

from mistakes import Mistake, edit

MISTAKES = (
    Mistake("not divided", edit("    outer /= N  # the outer gradient\n", "    pass\n")),
    Mistake("an iterator used up",
            edit("    for p, w, v in",
                 "    list(parameters)\n    for p, w, v in").then("strict=True", "")),
    Mistake("start and parameters in one tensor", edit("p.copy_(w)", "p.data = w")),
    Mistake("the world's size", edit("dist.get_world_size(group)", "dist.get_world_size()")),
    Mistake("uphill", edit("outer = w - p", "outer = p - w")),
    Mistake("plain momentum", edit("(outer + momentum * v)", "v")),
    Mistake("without the new D", edit("(outer + momentum * v)", "momentum * v")),
    Mistake("plain momentum", edit(  # D + momentum v with the old v is the new v
            "        v.mul_(momentum).add_(outer)\n        w.sub_(lr * (outer + momentum * v))\n",
            "        w.sub_(lr * (outer + momentum * v))\n        v.mul_(momentum).add_(outer)\n")),
    Mistake("lr in the velocity", edit("add_(outer)", "add_(lr * outer)")),
    Mistake("damped", edit("add_(outer)", "add_((1 - momentum) * outer)")),
    Mistake("lr forgotten", edit("lr * (outer", "(outer")),
    Mistake("velocity forgotten", edit("v.mul_(momentum).add_(outer)", "v = momentum * v + outer")),
    Mistake("parameters not written back", edit("        p.copy_(w)\n", "")),
    Mistake("start stays behind",
            edit("zip(parameters, start", "zip(parameters, [w.clone() for w in start]")),
    Mistake("start stays behind",
            edit("        w.sub_(lr * (outer + momentum * v))\n        p.copy_(w)\n",
                 "        p.copy_(w - lr * (outer + momentum * v))\n")),
)  # fmt: skip
