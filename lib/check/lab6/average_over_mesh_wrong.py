"""Known mistakes in average_over_mesh, edits of lib's; no release has this file."""

from lib.check.mistakes import Mistake, edit

TIED, WHOLE = "all_reduce(parameter.grad, ends)", 'all_reduce(parameter.grad, mesh.group("tp"))'
DP, MEAN = 'all_reduce(parameter.grad, mesh.group("dp"))', 'parameter.grad /= mesh.size("dp")'
ALL = "[*sets.cut, *sets.whole, *sets.tied]"

MISTAKES = (
    Mistake("no group", edit(TIED, "all_reduce(parameter.grad)")),
    Mistake("over pp", edit(TIED, 'all_reduce(parameter.grad, mesh.group("pp"))')),
    Mistake(
        "stages sum different things", edit(DP, 'all_reduce(parameter.grad, mesh.group("pp"))')
    ),
    Mistake(
        "stages sum different things",
        edit(WHOLE, 'all_reduce(parameter.grad, ends or mesh.group("tp"))'),
    ),
    Mistake("cut summed over tp", edit("in sets.whole:", "in [*sets.cut, *sets.whole]:")),
    Mistake("cut summed over tp", edit("in sets.whole:", "in sets.cut:")),
    Mistake("tied summed over tp", edit(TIED, f"{TIED}\n        {WHOLE}")),
    Mistake("whole not summed over tp", edit(WHOLE, "pass")),
    Mistake("tied not summed", edit(TIED, "pass")),
    Mistake("not summed over dp", edit(DP, "pass")),
    Mistake("some left out", edit(ALL, "[*sets.cut, *sets.whole]").then(TIED, "pass")),
    Mistake("not divided", edit(MEAN, "pass")),
    Mistake("right for dp=2 only", edit(MEAN, "parameter.grad /= 2")),
    Mistake("divided by tp too", edit(MEAN, 'parameter.grad /= mesh.size("dp", "tp")')),
    Mistake("divided by tp too", edit(WHOLE, f'{WHOLE}.div_(mesh.size("tp"))')),
    Mistake("tied averaged over the ends", edit(TIED, f"{TIED}.div_(2)")),
    Mistake("divided by all ranks", edit(MEAN, "parameter.grad /= 8")),
    Mistake("not on every rank", edit(WHOLE, f'if mesh.here["tp"] == 0:\n            {WHOLE}')),
    Mistake(
        "other elements", edit(DP, f"{DP}, all_reduce(parameter.grad.clone(), mesh.group('dp'))")
    ),
    Mistake(
        "the parameter, not its gradient",
        edit(MEAN, f"{MEAN}\n        parameter.data -= parameter.grad"),
    ),
)
