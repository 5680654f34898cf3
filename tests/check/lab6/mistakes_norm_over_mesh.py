"""Known mistakes of norm_over_mesh, each named after its cause."""

from mistakes import Mistake, edit

_TIED, _ROOT = 'sets.tied if mesh.here["pp"] == 0 else []', "return total[0].sqrt()"
_PP, _TP = 'all_reduce(total, mesh.group("pp"))', 'all_reduce(total, mesh.group("tp"))'
MISTAKES = (
    Mistake("tied left out", edit(_TIED, "[]")),
    Mistake("tied counted twice", edit(_TIED, "sets.tied")),
    Mistake("replicated counted tp times", edit("*tied]",
        "*sets.replicated, *tied]").then("squares(sets.replicated)", "0")),
    Mistake("not summed over tp", edit(_TP, "pass")),
    Mistake("not summed over pp", edit(_PP, "pass")),
    Mistake("its own alone", edit(_PP, "pass").then(_TP, "pass")),
    Mistake("over all ranks", edit(_TP, "all_reduce(total)").then(_PP, "pass")),
    Mistake("also summed over dp", edit(_PP, f'{_PP}, all_reduce(total, mesh.group("dp"))')),
    Mistake("divided by dp", edit(_ROOT, f'{_ROOT} / mesh.size("dp")')),
    Mistake("no root", edit(_ROOT, "return total[0]")),
    Mistake("norms added",
            edit(_PP, f"total = total.sqrt()\n    {_PP}").then(_ROOT, "return total[0]")),
    Mistake(
        "norms added",
        edit("*tied])", "*sets.replicated, *tied]).sqrt()")
        .then("squares(sets.replicated)", "0")
        .then(_ROOT, "return total[0]"),
    ),
    Mistake(
        "the largest number",
        edit("squares([*sets.sharded, *tied])",
             "max(p.grad.max() for p in sets.sharded + sets.replicated + sets.tied).reshape(1)")
        .then(_TP, _TP.replace(")", "), op=torch.distributed.ReduceOp.MAX", 1))
        .then("squares(sets.replicated)", "0")
        .then(_PP, _PP.replace(")", "), op=torch.distributed.ReduceOp.MAX", 1))
        .then(_ROOT, "return total[0]"),
    ),
    Mistake("another form", edit(_ROOT, "return total.sqrt()")),
    Mistake("a list left out", edit("squares(sets.replicated)", "0")),
    Mistake("a list left out", edit("[*sets.sharded, *tied]", "tied")),
    Mistake("replicated of one stage", edit("squares(sets.replicated)",
        'squares(sets.replicated if mesh.here["pp"] == 0 else [])')),
    Mistake("in float32", edit("*tied])", "*tied]).float()").then(_ROOT,
        "return total[0].double().sqrt()")),
    Mistake("not on every rank", edit(_PP, f'if mesh.here["pp"] == 0:\n        {_PP}')),
    Mistake("what it was given has changed",
            edit("[*sets.sharded, *tied]", "sets.sharded").then("total = squares(",
                "sets.sharded.extend(tied); total = squares(")),
)  # fmt: skip
