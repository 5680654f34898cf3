"""Known mistakes of Zero1, each named after its cause."""

from mistakes import Mistake, edit

SENT, GATHERED = (
    "reduce_scatter(buffer, flat.group))",
    "self.optimizer.step()\n        self.gather_parameters()",
)
MISTAKES = (
    Mistake("the group is not passed on", edit(SENT, "reduce_scatter(buffer))")),
    Mistake("averaged twice", edit(SENT, "reduce_scatter(buffer, flat.group) / flat.world_size)")),
    Mistake("not averaged", edit(SENT, "reduce_scatter(buffer, flat.group) * flat.world_size)")),
    Mistake(
        "rounded on the way", edit(SENT, "reduce_scatter(buffer.float(), flat.group).double())")
    ),
    Mistake(
        "gathered before the step",
        edit(GATHERED, "self.gather_parameters()\n        self.optimizer.step()"),
    ),
    Mistake("not gathered", edit(GATHERED, "self.optimizer.step()")),
    Mistake(
        "not the one it was given",
        edit("reduce_gradients(flat, self.reduce_scatter)", "reduce_gradients(flat)"),
    ),
    Mistake(
        "not the one it was given",
        edit("gather_parameters(flat, self.all_gather)", "gather_parameters(flat)"),
    ),
)
