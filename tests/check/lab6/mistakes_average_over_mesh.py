"""Known mistakes in average_over_mesh, edits of lib's code."""

from mistakes import Mistake, edit

TIED, REPLICATED = (
    "all_reduce(parameter.grad, ends)",
    'all_reduce(parameter.grad, mesh.group("tp"))',
)
DP, MEAN = 'all_reduce(parameter.grad, mesh.group("dp"))', 'parameter.grad /= mesh.size("dp")'
ALL = "[*sets.sharded, *sets.replicated, *sets.tied]"

MISTAKES = (
    Mistake("no group", edit(TIED, "all_reduce(parameter.grad)")),
    Mistake("over pp", edit(TIED, 'all_reduce(parameter.grad, mesh.group("pp"))')),
    Mistake(
        "stages sum different things", edit(DP, 'all_reduce(parameter.grad, mesh.group("pp"))')
    ),
    Mistake(
        "stages sum different things",
        edit(REPLICATED, 'all_reduce(parameter.grad, ends or mesh.group("tp"))'),
    ),
    Mistake(
        "sharded summed over tp",
        edit("in sets.replicated:", "in [*sets.sharded, *sets.replicated]:"),
    ),
    Mistake("sharded summed over tp", edit("in sets.replicated:", "in sets.sharded:")),
    Mistake("tied summed over tp", edit(TIED, f"{TIED}\n        {REPLICATED}")),
    Mistake("replicated not summed over tp", edit(REPLICATED, "pass")),
    Mistake("tied not summed", edit(TIED, "pass")),
    Mistake("not summed over dp", edit(DP, "pass")),
    Mistake("nothing written back", edit(DP, DP.replace("grad,", "grad.double(),"))),
    Mistake("some left out", edit(ALL, "[*sets.sharded, *sets.replicated]").then(TIED, "pass")),
    Mistake("some left out", edit(ALL, "[*sets.sharded, *sets.replicated]")),
    Mistake(
        "no ends",
        edit(
            "    for parameter in sets.tied:",
            "    if ends is None:\n        return\n    for parameter in sets.tied:",
        ),
    ),
    Mistake("not divided", edit(MEAN, "pass")),
    Mistake("right for dp=2 only", edit(MEAN, "parameter.grad /= 2")),
    Mistake("divided by tp too", edit(MEAN, 'parameter.grad /= mesh.size("dp", "tp")')),
    Mistake("divided by tp too", edit(REPLICATED, f'{REPLICATED}.div_(mesh.size("tp"))')),
    Mistake("tied averaged over the ends", edit(TIED, f"{TIED}.div_(2)")),
    Mistake("divided by all ranks", edit(MEAN, "parameter.grad /= 8")),
    Mistake(
        "not on every rank", edit(REPLICATED, f'if mesh.here["tp"] == 0:\n            {REPLICATED}')
    ),
    Mistake(
        "other elements", edit(DP, f"{DP}, all_reduce(parameter.grad.clone(), mesh.group('dp'))")
    ),
    Mistake(
        "the parameter, not its gradient",
        edit(MEAN, f"{MEAN}\n        parameter.data -= parameter.grad"),
    ),
    Mistake(
        "the parameter, not its gradient",
        edit(DP, DP.replace("grad", "data")).then(MEAN, MEAN.replace("grad", "data")),
    ),
)
